"""Caption dropout, which other programs set per image folder and this one per run."""

from __future__ import annotations

from collections.abc import Sequence

from modules.util.config.foreign.Notes import Notes


def common_dropout(rates: Sequence[float], notes: Notes) -> float:
    """The share of captions that all concepts drop; 0 and a note if they differ."""
    if len(set(rates)) > 1:
        note_dropout(rates, notes)
        return 0.0
    return rates[0] if rates else 0.0


def note_dropout(rates: Sequence[float], notes: Notes) -> None:
    """Add a note for dropout rates that cannot be imported."""
    if any(rates):
        notes.add(
            "caption_dropout_rate",
            max(rates),
            "one rate for the run here: set text_encoder.dropout_probability",
        )
