"""Numbers of steps in programs that count batches, several of which make an optimizer step."""

from __future__ import annotations

from typing import Any

from modules.util.config.foreign.Notes import Notes

MOST = 1e9


def accumulated(together: Any) -> int:
    """Return how many batches make an optimizer step; 1 if the value of the file is not such a number."""
    return int(together) if _counts(together) else 1


def _counts(value: Any) -> bool:
    return type(value) in (int, float) and 1 <= value < MOST


def in_optimizer_steps(
    place: str, batches: Any, together: Any, notes: Notes, changes_weights: bool | None = None
) -> Any:
    """Convert a number of batches to optimizer steps: the nearest whole number, and at least 1.

    Args:
        place: the setting in the file.
        batches: its value; what is not a positive number is returned as it is.
        together: batches whose gradients make an optimizer step.
        notes: gets both numbers if ``together`` does not divide ``batches``.
        changes_weights: whether rounding trains other weights; otherwise it is derived from the setting.
    """
    divisor = accumulated(together)
    if divisor == 1 or not _counts(batches):
        return batches
    exact = int(batches) / divisor
    steps = max(1, int(exact + 0.5))
    if steps == exact:
        notes.moved(place, batches, f"{steps}", "the file counts batches, not optimizer steps")
    else:
        why = f"the file counts batches, which make {exact:.4g} optimizer steps; here it is {steps}"
        notes.add(place, batches, why, ours=steps, changes_weights=changes_weights)
    return steps
