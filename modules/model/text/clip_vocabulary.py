"""CLIP's tokenizer, bundled with the program because model files never contain it."""

from __future__ import annotations

import gzip
from typing import Any

from modules.spec.parts import CLIP_END, CLIP_TOKENS
from modules.util.program_files import RESOURCES

MERGES = RESOURCES / "clip_tokenizer" / "merges.txt.gz"
START = "<|startoftext|>"


def make_clip_tokenizer(pad_token: str) -> Any:
    """Make the tokenizer as published with models.

    Args:
        pad_token: padding of short prompts.
    """
    from transformers.models.clip.tokenization_clip import CLIPTokenizer

    merges = read_merges()
    # it stores pairs, although its annotation asks for a list of texts
    pairs: Any = merges
    return CLIPTokenizer(
        vocab=vocabulary(merges), merges=pairs, pad_token=pad_token, model_max_length=CLIP_TOKENS
    )


def read_merges() -> list[tuple[str, str]]:
    """Pairs of pieces to merge, most common first."""
    lines = gzip.decompress(MERGES.read_bytes()).decode("utf-8").splitlines()
    return [(first, second) for first, _, second in (line.partition(" ") for line in lines[1:])]


def vocabulary(merges: list[tuple[str, str]]) -> dict[str, int]:
    """Every piece and its number: bytes, bytes that end a word, merges, the two marks."""
    letters = [chr(code) for code in _byte_letters()]
    pieces = [
        *letters,
        *(f"{letter}</w>" for letter in letters),
        *(a + b for a, b in merges),
        START,
        CLIP_END,
    ]
    return {piece: number for number, piece in enumerate(pieces)}


def _byte_letters() -> list[int]:
    """Code points that represent bytes: printable ones represent themselves, the others are moved above 255."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [*shown, *(256 + place for place in range(256 - len(shown)))]
