from __future__ import annotations

from typing import Any

from modules.util.config.foreign.Notes import Notes


class MaskKinds:
    """Where the masks of each folder of images come from in other programs; ours has one source for the run.

    Args:
        field: what a note about them is called by.
    """

    def __init__(self, field: str) -> None:
        self._field = field
        self._kinds: list[str] = []

    def add(self, alpha: bool, folder: str) -> str:
        """One more concept. Returns the mask folder that it gets."""
        self._kinds.append("ALPHA" if alpha else "FOLDER" if folder else "")
        return "" if alpha else folder

    def settings(self, notes: Notes, normalized: bool, least: float = 0.0) -> dict[str, Any]:
        """Our settings of masked training; none where no concept has masks.

        Args:
            normalized: whether the loss is divided by the mean of the mask there.
            least: the weight of black.
        """
        named = [kind for kind in self._kinds if kind]
        if not named:
            return {}
        if len(set(named)) > 1:
            notes.add(self._field, True, f"one source of masks for the run here: {named[0]}", ours=named[0])
        return {
            "masked_training": True,
            "mask_source": named[0],
            "unmasked_weight": least,
            "unmasked_probability": 0.0,
            "normalize_masked_area_loss": normalized,
        }
