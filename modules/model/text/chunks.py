"""Prompts longer than CLIP's limit, in chunks of 75 tokens, each with its own marks. Their states are
concatenated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from modules.model.batch import Conditioning
from modules.model.text.emphasis import WeightedPrompt, multiplied, weights_of_spans
from modules.model.text.encoding import clip_outputs
from modules.model.text.LearnedWords import PLACES, AddedRows

MARKS = 2
"""Tokens of a chunk that are not from the prompt: one before it and one after."""
_BREAK = re.compile(r"\s*\bBREAK\b\s*")

Tokens = list[tuple[int, float]]
"""Token numbers with emphasis."""


@dataclass(frozen=True)
class ChunkedPrompt:
    """A prompt as one encoder reads it.

    Args:
        chunks: at least one; each without its marks and padding.
        cut: whether the end of the prompt is in none of them.
        plain: whether it is read as if there were no chunks.
    """

    chunks: tuple[Tokens, ...]
    cut: bool
    plain: bool


@dataclass(frozen=True)
class ClipReader:
    """A CLIP text encoder with its settings.

    Args:
        layer, skip: which of the hidden states, as for ``clip_states``.
        added: rows added to the encoder's table.
    """

    encoder: nn.Module
    tokenizer: Any
    layer: int | None = None
    skip: int = 0
    added: AddedRows | None = None

    @property
    def length(self) -> int:
        """Number of tokens in a chunk, including marks."""
        positions: int = self.encoder.config.max_position_embeddings  # type: ignore[union-attr, assignment]
        return min(positions, int(self.tokenizer.model_max_length))

    def chunked(self, prompts: Sequence[str], most: int) -> list[ChunkedPrompt]:
        """Split the prompts into chunks for this encoder."""
        return in_chunks(self.tokenizer, prompts, self.length - MARKS, most)

    def numbers(self, chunks: Sequence[Tokens]) -> torch.Tensor:
        """Token numbers (N, L) of N chunks with their marks and padding, on the encoder's device."""
        start, end = self.tokenizer("").input_ids
        rows = [[start, *(number for number, _ in chunk), end] for chunk in chunks]
        fill = self.tokenizer.pad_token_id
        ids_NL = torch.tensor([row + [fill] * (self.length - len(row)) for row in rows])
        return ids_NL.to(next(self.encoder.parameters()).device)

    def read(self, chunks: Sequence[Tokens]) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode N chunks to token states (N, L, E) and pooled states (N, E)."""
        states_NLE, pooled_NE = clip_outputs(
            self.encoder, self.numbers(chunks), self.layer, self.skip, self.added
        )
        if not any(weight != 1.0 for chunk in chunks for _, weight in chunk):
            return states_NLE, pooled_NE
        factor_NL = torch.ones(states_NLE.shape[:2], dtype=torch.float32)
        for row, chunk in enumerate(chunks):
            factor_NL[row, 1 : 1 + len(chunk)] = torch.tensor([weight for _, weight in chunk])
        return multiplied(states_NLE, factor_NL), pooled_NE


def in_chunks(tokenizer: Any, prompts: Sequence[str], room: int, most: int) -> list[ChunkedPrompt]:
    """Split prompts into at most ``most`` chunks of at most ``room`` tokens.

    A word that does not fit any more moves to the next chunk; only one that fits no chunk is split. If
    emphasis is on, ``BREAK`` ends a chunk. With ``most`` 1, neither applies: simply the first tokens are
    read.
    """
    pieces = [_pieces(prompt) if most > 1 else [prompt] for prompt in prompts]
    words = iter(_words(tokenizer, [piece for own in pieces for piece in own], room))
    made = []
    for own in pieces:
        parts = [next(words) for _ in own]
        if most == 1:
            tokens = [token for word in parts[0] for token in word]
            made.append(ChunkedPrompt((tokens[:room],), len(tokens) > room, True))
            continue
        chunks = _filled(parts, room)
        made.append(
            ChunkedPrompt(tuple(chunks[:most]), len(chunks) > most, len(own) == 1 and len(chunks) == 1)
        )
    return made


def states_in_chunks(
    readers: Sequence[ClipReader], prompts: Sequence[str], most: int
) -> tuple[Conditioning, torch.Tensor]:
    """Encode prompts: ``hidden_BLE`` of all chunks with the encoders side by side along E, and the last
    encoder's pooled states (B, E) of each prompt's first chunk. With words that have output vectors, also ``PLACES``:
    all encoders divide a prompt into the same tokens.

    If encoders split a prompt differently, empty chunks are added so that all have the same number.
    """
    plans = [reader.chunked(prompts, most) for reader in readers]
    counts = [max(len(one.chunks) for one in own) for own in zip(*plans, strict=True)]
    wanted: list[list[Tokens]] = [
        [
            chunk
            for one, count in zip(plan, counts, strict=True)
            for chunk in (*one.chunks, *([[]] * (count - len(one.chunks))))
        ]
        for plan in plans
    ]
    outputs = [reader.read(chunks) for reader, chunks in zip(readers, wanted, strict=True)]
    states_NLE = torch.cat([states for states, _ in outputs], dim=-1) if len(outputs) > 1 else outputs[0][0]
    pooled_NE, made = outputs[-1][1], {"hidden_BLE": states_NLE}
    added = readers[0].added
    if added is not None and added.puts_out:
        made[PLACES] = added.placed(readers[0].numbers(wanted[0]))
    if set(counts) == {1}:
        return Conditioning(made), pooled_NE
    rows = [
        {name: chunks.flatten(0, 1) for name, chunks in zip(made, own, strict=True)}
        for own in zip(*(tensor.split(counts) for tensor in made.values()), strict=True)
    ]
    pooled_BE = torch.stack([chunks_CE[0] for chunks_CE in pooled_NE.split(counts)])
    return Conditioning.stack(rows), pooled_BE


def _pieces(prompt: str) -> list[str]:
    """The parts of a prompt that start a new chunk each."""
    if not isinstance(prompt, WeightedPrompt):
        return [prompt]
    ends = [match.span() for match in _BREAK.finditer(prompt)]
    starts = [0, *(end for _, end in ends)]
    stops = [*(start for start, _ in ends), len(prompt)]
    return [
        WeightedPrompt(str(prompt)[start:stop], prompt.weights[start:stop])
        for start, stop in zip(starts, stops, strict=True)
    ]


def _words(tokenizer: Any, texts: Sequence[str], room: int) -> list[list[Tokens]]:
    """The tokens of texts, grouped by words between spaces. A text that fits entirely may be a single word."""
    if not texts:
        return []
    numbers = tokenizer([str(text) for text in texts], truncation=False, verbose=False).input_ids
    # the marks are the first and the last token; querying each token's text takes longer than tokenizing
    made = [[[(number, 1.0) for number in ids[1:-1]]] if len(ids) > MARKS else [] for ids in numbers]
    for place, text in enumerate(texts):
        if isinstance(text, WeightedPrompt) or len(numbers[place]) - MARKS > room:
            made[place] = _divided(tokenizer, text)
    return made


def _divided(tokenizer: Any, text: str) -> list[Tokens]:
    encoded = tokenizer(str(text), truncation=False, verbose=False, return_offsets_mapping=True)
    ids, spans = encoded.input_ids[1:-1], encoded.offset_mapping[1:-1]
    weights = weights_of_spans(text.weights, spans) if isinstance(text, WeightedPrompt) else [1.0] * len(ids)
    blanks = list(accumulate(letter.isspace() for letter in text))
    words: list[Tokens] = []
    last = -1
    for number, weight, (start, end) in zip(ids, weights, spans, strict=True):
        # a token can begin with the space before its word, and some have no letters
        place = blanks[end - 1] if end > start else last
        if place != last or not words:
            words.append([])
        words[-1].append((number, weight))
        last = place
    return words


def _filled(parts: Sequence[list[Tokens]], room: int) -> list[Tokens]:
    """Fill chunks with words. Each part begins a new chunk; the last chunk is empty only if it is the only one."""
    chunks: list[Tokens] = []
    for words in parts:
        chunks.append([])
        for word in words:
            if len(word) <= room:
                if len(chunks[-1]) + len(word) > room:
                    chunks.append([])
                chunks[-1].extend(word)
                continue
            done = 0
            while done < len(word):
                if len(chunks[-1]) == room:
                    chunks.append([])
                free = room - len(chunks[-1])
                chunks[-1].extend(word[done : done + free])
                done += free
    if len(chunks) > 1 and not chunks[-1]:
        chunks.pop()
    return chunks
