"""Emphasis in prompts, as image programs write it: ``(more)``, ``[less]``, ``(this much:1.4)``.

Off unless the config asks for it: to a model that was not asked, brackets are text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

STEP = 1.1
MAX_DEPTH = 50
LARGEST = 10.0
_TOKEN = re.compile(r"\\[\\()\[\]]|\(|\[|:\s*([+-]?\d*\.?\d+)\s*\)|\)|\]|[^\\()\[\]:]+|[\\:]")


@dataclass
class _Open:
    """An open bracket: which one, and where in the plain text it stands."""

    kind: str
    start: int


class WeightedPrompt(str):
    """A prompt without its emphasis brackets; ``weights`` has a factor for each of its characters."""

    weights: tuple[float, ...]

    def __new__(cls, text: str, weights: Sequence[float]) -> WeightedPrompt:
        made = super().__new__(cls, text)
        made.weights = tuple(weights)
        return made


def read_emphasis(prompt: str) -> WeightedPrompt:
    """The plain text of a prompt and how much each character counts.

    Round brackets multiply by 1.1 or by the number behind a colon, square ones divide by 1.1; they nest. A backslash
    makes a bracket text. Brackets that are never closed, and closing ones without an opening, are text too.
    """
    text: list[str] = []
    weights: list[float] = []
    open_brackets: list[_Open] = []

    def put(piece: str) -> None:
        text.append(piece)
        weights.extend([1.0] * len(piece))

    for match in _TOKEN.finditer(prompt):
        piece = match[0]
        if piece.startswith("\\") and len(piece) == 2:
            put(piece[1])
        elif piece in "([" and len(open_brackets) < MAX_DEPTH:
            open_brackets.append(_Open(piece, len(weights)))
        elif piece.endswith(")") and open_brackets and open_brackets[-1].kind == "(":
            factor = STEP if match[1] is None else min(max(float(match[1]), -LARGEST), LARGEST)
            _scale(weights, open_brackets.pop().start, factor)
        elif piece == "]" and open_brackets and open_brackets[-1].kind == "[":
            _scale(weights, open_brackets.pop().start, 1.0 / STEP)
        else:
            put(piece)
    return _with_unclosed("".join(text), weights, open_brackets)


def _scale(weights: list[float], start: int, factor: float) -> None:
    for place in range(start, len(weights)):
        weights[place] *= factor


def _with_unclosed(text: str, weights: list[float], unclosed: Sequence[_Open]) -> WeightedPrompt:
    """Brackets that were never closed put back where they stood."""
    for bracket in reversed(unclosed):
        text = text[: bracket.start] + bracket.kind + text[bracket.start :]
        weights.insert(bracket.start, 1.0)
    return WeightedPrompt(text, weights)


def emphasised(states_BLE: torch.Tensor, tokenizer: Any, prompts: Sequence[str]) -> torch.Tensor:
    """Token states multiplied by the emphasis of their words, the mean of each prompt's states kept.

    Args:
        states_BLE: of ``prompts``, padded at their end; plain strings are left as they are.
    """
    if not any(isinstance(prompt, WeightedPrompt) and set(prompt.weights) - {1.0} for prompt in prompts):
        return states_BLE
    factor_BL = torch.ones(states_BLE.shape[:2], dtype=torch.float32)
    for row, prompt in enumerate(prompts):
        if isinstance(prompt, WeightedPrompt):
            own = _token_weights(tokenizer, prompt)[: factor_BL.shape[1]]
            factor_BL[row, : len(own)] = torch.tensor(own)
    before = states_BLE.float()
    after = before * factor_BL.to(states_BLE.device)[..., None]
    means = [made.mean(dim=(1, 2), keepdim=True) for made in (before, after)]
    kept = torch.where(means[1].abs() > 1e-8, means[0] / means[1], torch.ones_like(means[0]))
    # a prompt without emphasis is left bit for bit as it was
    plain_B11 = (factor_BL == 1.0).all(1).to(states_BLE.device)[:, None, None]
    return torch.where(plain_B11, states_BLE, (after * kept).to(states_BLE.dtype))


def _token_weights(tokenizer: Any, prompt: WeightedPrompt) -> list[float]:
    """The factor of each token; special tokens count once."""
    spans = tokenizer(
        str(prompt), return_offsets_mapping=True, truncation=False, verbose=False
    ).offset_mapping
    weights: list[float] = []
    for start, end in spans:
        inside = [weight for weight in prompt.weights[start:end] if weight != 1.0]
        # a token that begins with the blank before an emphasised word belongs to the word
        weights.append(inside[-1] if inside and end > start else 1.0)
    return weights
