"""An error about trained embeddings that no prompt contains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from modules.util.errors import DataError

if TYPE_CHECKING:
    from modules.model.Model import Model


def check_words_are_used(model: Model, prompts: Iterable[str]) -> None:
    """Raise ``DataError`` if an embedding is trained but no prompt contains its placeholder."""
    missing = {
        word.placeholder for word in ([] if model.words is None else model.words.words) if word.trained
    }
    if not missing or model.words is None:
        return
    for prompt in prompts:
        for name in model.words.names_in(prompt):
            missing.discard(name)
        if not missing:
            return
    raise DataError(
        f"no caption contains {', '.join(sorted(missing))}, so the embedding would learn nothing",
        field="concepts",
        hint="write the placeholder into the captions, or make it the trigger word of a concept",
    )
