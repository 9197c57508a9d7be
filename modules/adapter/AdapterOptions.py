"""The type and size of an adapter, and the layers it is attached to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from modules.util.errors import ConfigError

KINDS = ("LORA", "LOHA", "LOKR", "OFT_2")


@dataclass(frozen=True)
class AdapterOptions:
    """Options of an adapter.

    Args:
        kind: LORA, LOHA, LOKR or OFT_2.
        rank: rank of the decomposition; for OFT_2 the size of a rotation block.
        alpha: output is scaled by alpha / rank (alpha / sqrt(rank) with ``rank_stabilized``).
        rank_pattern, alpha_pattern: other values for the layers whose names (``part.path``) contain a
            pattern, or with ``regex`` match it somewhere; the first match counts. Not for OFT_2.
        decompose: DoRA, a trained magnitude next to the direction; LORA only.
        decompose_outputs: whether the magnitudes are those of a layer's outputs, or else of its inputs.
        rank_stabilized: rsLoRA scaling (Kalajdzievski 2023, arXiv 2312.03732); LORA only.
        dropout: dropout of the adapter's input in supervised training; never active in preference steps.
        dtype: type of the adapter's weights.
        parts: parts of the model to adapt.
        patterns, regex: filter on the denoiser's layers, see ``select_layers``; text encoders get all their
            linear layers.
        seed: seed of the initial weights, which depend only on it and the layer's name.
    """

    kind: str = "LORA"
    rank: int = 16
    alpha: float = 16.0
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    decompose: bool = False
    decompose_outputs: bool = True
    rank_stabilized: bool = False
    dropout: float = 0.0
    dtype: torch.dtype = torch.float32
    parts: tuple[str, ...] = ("unet",)
    patterns: tuple[str, ...] = ()
    regex: bool = False
    seed: int = 42

    def __post_init__(self) -> None:
        kind = str(getattr(self.kind, "value", self.kind))
        object.__setattr__(self, "kind", kind)
        if kind not in KINDS:
            raise ConfigError(
                f"unknown adapter type {kind!r}", field="peft_type", hint=f"known: {', '.join(KINDS)}"
            )
        if self.rank < 1:
            raise ConfigError(f"must be at least 1, not {self.rank}", field="lora_rank")
        # files may turn the change of a layer round; the settings allow only positive values
        if not abs(self.alpha) > 0.0:
            raise ConfigError(f"must not be {self.alpha}", field="lora_alpha")
        if kind != "LORA" and (self.decompose or self.rank_stabilized):
            raise ConfigError(
                f"weight decomposition and rank-stabilised scaling exist for LORA only, not for {kind}",
                field="lora_decompose" if self.decompose else "lora_rs",
            )
        if kind == "OFT_2" and (self.rank_pattern or self.alpha_pattern):
            raise ConfigError(
                "OFT_2 has one block size for all layers",
                field="lora_rank_pattern" if self.rank_pattern else "lora_alpha_pattern",
            )
        if not self.parts:
            raise ConfigError(
                "no part of the model is to be adapted", hint="switch on training of the denoiser"
            )
