"""Warns about prompts that are longer than a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.model.Model import Model
    from modules.modelSetup.BaseModelSetup import BaseModelSetup


def told_of_cut_prompts(setup: BaseModelSetup, model: Model, prompts: Sequence[str]) -> str:
    """A warning with the number of truncated prompts and the longest of them; empty if there are none."""
    return told_of(setup.cut_prompts(model, prompts), len(prompts))


def told_of(cut: Sequence[str], count: int, what: str = "prompts") -> str:
    """As ``told_of_cut_prompts``, for prompts known to be truncated, out of ``count``."""
    if not cut:
        return ""
    return (
        f"{len(cut)} of {count} {what} are longer than the text encoders read, and their ends have no effect; "
        f"the longest begins: {max(cut, key=len)[:80]}"
    )
