from __future__ import annotations

from typing import Any

from modules.util.config.foreign.Notes import Notes


class MaskKinds:
    """Sources of masks. Other programs set them per image folder, this one per run."""

    def __init__(self) -> None:
        self._kinds: list[str] = []

    def add(self, alpha: bool, folder: str) -> str:
        """Add a concept. Returns the mask folder it gets."""
        self._kinds.append("ALPHA" if alpha else "FOLDER" if folder else "")
        return "" if alpha else folder

    def settings(self, notes: Notes, normalized: bool, least: float = 0.0) -> dict[str, Any]:
        """Our settings of masked training; empty if no concept has masks.

        Args:
            normalized: whether the loss is divided by the mean of the mask there.
            least: the weight of black.
        """
        named = [kind for kind in self._kinds if kind]
        if not named:
            return {}
        if len(set(named)) > 1:
            notes.add("alpha_mask", True, f"one source of masks for the run here: {named[0]}", ours=named[0])
        return {
            "masked_training": True,
            "mask_source": named[0],
            "unmasked_weight": least,
            "unmasked_probability": 0.0,
            "normalize_masked_area_loss": normalized,
        }
