"""Dropped captions, which other programs set for each folder of images and ours for the run."""

from __future__ import annotations

from collections.abc import Sequence

from modules.util.config.foreign.Notes import Notes


def common_dropout(rates: Sequence[float], notes: Notes) -> float:
    """The share of captions that all concepts drop; 0 and a note where they differ."""
    if len(set(rates)) > 1:
        note_dropout(rates, notes)
        return 0.0
    return rates[0] if rates else 0.0


def note_dropout(rates: Sequence[float], notes: Notes) -> None:
    """A line for shares that cannot be carried over."""
    if any(rates):
        notes.add(
            "caption_dropout_rate",
            max(rates),
            "one rate for the run here: set text_encoder.dropout_probability",
        )
