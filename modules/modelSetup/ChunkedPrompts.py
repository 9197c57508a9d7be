"""Families that read a prompt in chunks, each as long as the limit of their CLIP text encoders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.text.chunks import ClipReader, states_in_chunks
from modules.modelSetup.BaseModelSetup import BaseModelSetup


class ChunkedPrompts(BaseModelSetup):
    """A family whose prompts are read only by CLIP. Subclasses name the encoders."""

    @abstractmethod
    def _readers(self, model: Model) -> list[ClipReader]:
        """The encoders and the layers read, in the order of their states."""

    def _states(self, model: Model, prompts: Sequence[str]) -> tuple[Conditioning, torch.Tensor]:
        """``hidden_BLE`` of prompts, and the last encoder's pooled states; see ``states_in_chunks``."""
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
