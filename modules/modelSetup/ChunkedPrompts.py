"""Families that read a prompt in chunks, each as long as their CLIP text encoders read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.text.chunks import ClipReader, states_in_chunks
from modules.model.text.LearnedWords import AddedRows
from modules.modelSetup.BaseModelSetup import BaseModelSetup


class ChunkedPrompts(BaseModelSetup):
    """A family whose prompts are read by CLIP alone; it says by which encoders."""

    @abstractmethod
    def _readers(self, model: Model) -> list[ClipReader]:
        """The encoders with what they read, in the order of their states."""

    @staticmethod
    def _tokens(model: Model, encoder: str) -> tuple[Any, AddedRows | None]:
        """The tokenizer of a text encoder, and what the encoder's table is extended by."""
        if model.words is None:
            return model.parts[encoder.replace("text_encoder", "tokenizer")], None
        return model.words.tokenizer(encoder), model.words.rows(encoder)

    def _states(self, model: Model, prompts: Sequence[str]) -> tuple[Conditioning, torch.Tensor]:
        """``hidden_BLE`` of prompts and the last encoder's pooled states; see ``states_in_chunks``."""
        return states_in_chunks(self._readers(model), prompts, model.prompt_chunks)

    def cut_prompts(self, model: Model, prompts: Sequence[str]) -> list[str]:
        if not prompts:
            return []
        texts = self._texts(model, prompts)
        plans = [reader.chunked(texts, model.prompt_chunks) for reader in self._readers(model)]
        cut = [all(one.cut for one in own) for own in zip(*plans, strict=True)]
        return [prompt for prompt, is_cut in zip(prompts, cut, strict=True) if is_cut]

    def chunk_count(self, model: Model, prompt: str) -> int:
        if model.prompt_chunks == 1:
            return 0
        texts = self._texts(model, [prompt])
        plans = [reader.chunked(texts, model.prompt_chunks)[0] for reader in self._readers(model)]
        return 0 if all(one.plain for one in plans) else max(len(one.chunks) for one in plans)
