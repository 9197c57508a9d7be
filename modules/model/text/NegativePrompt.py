"""What an image should not show, told apart from a prompt."""

from __future__ import annotations


class NegativePrompt(str):
    """A negative prompt. Some families word it in another way than a prompt; to all others it is the same text."""
