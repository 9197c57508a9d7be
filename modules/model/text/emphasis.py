"""Emphasis in prompts, in the syntax of image programs: ``(more)``, ``[less]``, ``(this much:1.4)``.

It is off unless the config enables it; brackets are then plain text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

STEP = 1.1
LARGEST = 10.0
_BOUND = 1e30
"""Limit of intermediate products, so that nested brackets stay finite."""
# nothing here can match in two ways, because untrusted text must not take quadratic time
_TOKEN = re.compile(
    r"\\[\\()\[\]]|\(|\[|:\s*+([+-]?(?:\d++(?:\.\d*+)?|\.\d++))\s*+\)|\)|\]|[^\\()\[\]:]++|[\\:]"
)


class WeightedPrompt(str):
    """A prompt without its emphasis brackets; ``weights`` has a factor per character."""

    weights: tuple[float, ...]

    def __new__(cls, text: str, weights: Sequence[float]) -> WeightedPrompt:
        made = super().__new__(cls, text)
        made.weights = tuple(weights)
        return made


def read_emphasis(prompt: str) -> WeightedPrompt:
    """Parse a prompt into its plain text and the weight of each character.

    Round brackets multiply by 1.1 or by the number after a colon, square ones divide by 1.1. They may be
    nested; the weight is at most ten. A backslash makes a bracket plain text, and so are unmatched brackets.
    """
    pieces, factors, closing = _matched(prompt)
    text: list[str] = []
    weights: list[float] = []
    inside = [1.0]
    for place, piece in enumerate(pieces):
        if place in closing:
            inside.pop()
        elif place in factors:
            inside.append(_within(inside[-1] * factors[place], _BOUND))
        else:
            text.append(piece)
            weights.extend([_within(inside[-1], LARGEST)] * len(piece))
    return WeightedPrompt("".join(text), weights)


def _matched(prompt: str) -> tuple[list[str], dict[int, float], set[int]]:
    """Split a prompt into pieces, with the factor of each matched opening bracket, and its partner."""
    pieces: list[str] = []
    factors: dict[int, float] = {}
    closing: set[int] = set()
    unclosed: list[int] = []
    for place, match in enumerate(_TOKEN.finditer(prompt)):
        piece = match[0]
        if len(piece) == 2 and piece[0] == "\\":
            pieces.append(piece[1])
            continue
        pieces.append(piece)
        if piece in ("(", "["):
            unclosed.append(place)
        elif piece[-1] in ")]" and unclosed and pieces[unclosed[-1]] == {")": "(", "]": "["}[piece[-1]]:
            round_factor = STEP if match[1] is None else _within(float(match[1]), LARGEST)
            factors[unclosed.pop()] = 1.0 / STEP if piece == "]" else round_factor
            closing.add(place)
    return pieces, factors, closing


def _within(value: float, bound: float) -> float:
    return min(max(value, -bound), bound)


def emphasised(states_BLE: torch.Tensor, tokenizer: Any, prompts: Sequence[str]) -> torch.Tensor:
    """Multiply token states by the emphasis of their words, preserving the mean of each prompt's states.

    Args:
        states_BLE: states of ``prompts``, padded at the end; those of plain strings are unchanged.
    """
    if not any(isinstance(prompt, WeightedPrompt) and set(prompt.weights) - {1.0} for prompt in prompts):
        return states_BLE
    factor_BL = torch.ones(states_BLE.shape[:2], dtype=torch.float32)
    for row, prompt in enumerate(prompts):
        if isinstance(prompt, WeightedPrompt):
            own = _token_weights(tokenizer, prompt, factor_BL.shape[1])
            factor_BL[row, : len(own)] = torch.tensor(own)
    return multiplied(states_BLE, factor_BL)


def multiplied(states_BLE: torch.Tensor, factor_BL: torch.Tensor) -> torch.Tensor:
    """Multiply token states by a factor each, preserving the mean of each row. Rows of ones are unchanged,
    bit for bit.
    """
    before = states_BLE.float()
    after = before * factor_BL.to(states_BLE.device)[..., None]
    means = [made.mean(dim=(1, 2), keepdim=True) for made in (before, after)]
    kept = torch.where(means[1].abs() > 1e-8, means[0] / means[1], torch.ones_like(means[0]))
    plain_B11 = (factor_BL == 1.0).all(1).to(states_BLE.device)[:, None, None]
    return torch.where(plain_B11, states_BLE, (after * kept).to(states_BLE.dtype))


def _token_weights(tokenizer: Any, prompt: WeightedPrompt, length: int) -> list[float]:
    """The factor of each token, truncated to ``length`` as in the encoder. Special tokens have factor 1."""
    spans = tokenizer(
        str(prompt), return_offsets_mapping=True, truncation=True, max_length=length
    ).offset_mapping
    return weights_of_spans(prompt.weights, spans)


def weights_of_spans(letters: Sequence[float], spans: Sequence[tuple[int, int]]) -> list[float]:
    """The factor of each token, from the letters it represents; 1 if it represents none."""
    weights: list[float] = []
    for start, end in spans:
        inside = [weight for weight in letters[start:end] if weight != 1.0]
        # a token that begins with the space before an emphasised word belongs to the word
        weights.append(inside[-1] if inside and end > start else 1.0)
    return weights
