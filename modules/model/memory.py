"""Frees device memory."""

from __future__ import annotations

import torch


def give_back(device: torch.device) -> None:
    """Return PyTorch's cached memory to the device, for other sizes and other programs."""
    empty = getattr(getattr(torch, device.type, None), "empty_cache", None)
    if empty is not None:
        empty()
