"""Values of ``train_device``, without torch: the computer that only starts and watches a run reads them too."""

from __future__ import annotations


def listed(device: str) -> list[str]:
    """The devices that a value of ``train_device`` names, one for each process of the run."""
    return device.split(",")
