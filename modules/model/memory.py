"""Making do with the memory a device has."""

from __future__ import annotations

import torch


def give_back(device: torch.device) -> None:
    """Return to the device what PyTorch keeps for later, so that other sizes and other programs can have it."""
    empty = getattr(getattr(torch, device.type, None), "empty_cache", None)
    if empty is not None:
        empty()
