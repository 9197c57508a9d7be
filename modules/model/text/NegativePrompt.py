"""A negative prompt, distinguishable from a prompt."""

from __future__ import annotations


class NegativePrompt(str):
    """A negative prompt. Some families format it differently from a prompt; for all others it is the same text."""
