"""Values of ``train_device``, without torch: the computer that only starts and watches a run reads them too."""

from __future__ import annotations


def listed(device: str) -> list[str]:
    """The devices that a value of ``train_device`` names, one for each process of the run."""
    return device.split(",")


def plain(device: str) -> str:
    """One device in the one spelling that names it: ``cuda:0`` for ``cuda:00`` and ``cuda``."""
    kind, _, number = device.partition(":")
    if number.isdecimal():
        return f"{kind}:{int(number)}"
    return "cuda:0" if device == "cuda" else device
