"""Making do with the memory a device has."""

from __future__ import annotations

from collections.abc import Callable

import torch


def give_back(device: torch.device) -> None:
    """Return to the device what PyTorch keeps for later, so that other sizes and other programs can have it."""
    empty = getattr(getattr(torch, device.type, None), "empty_cache", None)
    if empty is not None:
        empty()


def in_halves(
    work: Callable[[torch.Tensor], torch.Tensor], batch_BX: torch.Tensor, device: torch.device
) -> torch.Tensor:
    """``work`` of a batch, of its halves where all at once does not fit into memory, and so on down to one sample.

    Args:
        work: (B, ...) -> (B, ...), the same for a sample whatever it is together with.
        device: the one whose memory counts.

    Raises:
        torch.OutOfMemoryError: one sample alone does not fit.
    """
    try:
        return work(batch_BX)
    except torch.OutOfMemoryError:
        if len(batch_BX) == 1:
            raise
    # only now is what the error held let go of
    give_back(device)
    half = len(batch_BX) // 2
    return torch.cat([in_halves(work, part, device) for part in (batch_BX[:half], batch_BX[half:])])
