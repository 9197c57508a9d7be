"""An adapter file that was read and matched to the layers of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.fusion import LayerAdapter
from modules.adapter.names import Place


@dataclass(frozen=True)
class AdapterFile:
    """A read adapter file, matched to a model's layers.

    Args:
        kind: LORA, LOHA, LOKR or OFT_2.
        layers: (part, path) -> its tensors by canonical name, alpha (the rank if the file has none) and rank.
        notes: what was ignored in the file, one sentence each.
        embeddings: placeholder -> vectors (tokens, E) by the text encoders' names in files.
        decompose_outputs: whether its magnitudes (DoRA) are those of outputs, or else of inputs.
        settings: peft's settings next to it, if its alpha was read from them.
    """

    source: str
    kind: str
    layers: Mapping[Place, LayerAdapter]
    metadata: dict[str, str]
    notes: tuple[str, ...] = ()
    embeddings: Mapping[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    decompose_outputs: bool = True
    settings: Path | None = None

    def left_out(self) -> tuple[str, ...]:
        """A sentence about its embeddings, for users of its layers alone."""
        if not self.embeddings:
            return ()
        return (f"{self.source}: its embeddings are left out: {', '.join(list(self.embeddings)[:5])}",)

    def parts(self) -> tuple[str, ...]:
        """The parts it adapts."""
        return tuple(dict.fromkeys(part for part, _ in self.layers))

    def paths(self, part: str) -> list[str]:
        """The layers of a part that it adapts."""
        return [path for other, path in self.layers if other == part]

    @property
    def decomposed(self) -> bool:
        """True if it has magnitudes (DoRA)."""
        return any("dora_scale" in layer.tensors for layer in self.layers.values())

    def adopt(self, options: AdapterOptions) -> tuple[AdapterOptions, list[str]]:
        """Options that match the file, and what had to be changed in them, one sentence each."""
        first = next(iter(self.layers.values()))
        adopted = replace(
            options,
            kind=self.kind,
            rank=first.rank,
            alpha=first.alpha,
            decompose=self.decomposed,
            decompose_outputs=self.decompose_outputs if self.decomposed else options.decompose_outputs,
            rank_stabilized=False,
            parts=self.parts(),
        )
        changes = [
            (what, getattr(options, attribute), getattr(adopted, attribute))
            for what, attribute in (
                ("type", "kind"),
                ("rank", "rank"),
                ("alpha", "alpha"),
                ("weight decomposition", "decompose"),
                ("rank-stabilised scaling", "rank_stabilized"),
                ("parts", "parts"),
            )
        ]
        old, new = (f"those of {'out' if o.decompose_outputs else 'in'}puts" for o in (options, adopted))
        changes.append(("magnitudes", old, new))
        return adopted, [*self.notes] + [
            f"the adapter {self.source} decides the {what}: {new} instead of {old}"
            for what, old, new in changes
            if old != new
        ]

    def state_for(self, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors under the names and in the shapes of an attached adapter with the tensors ``own``."""
        state: dict[str, torch.Tensor] = {}
        for (part, path), layer in self.layers.items():
            for name, tensor in layer.tensors.items():
                place = f"{part}.{path}"
                key = next((k for k in _own_names(place, name) if k in own), f"{place}.{name}")
                fits = key in own and own[key].numel() == tensor.numel()
                state[key] = tensor.reshape(own[key].shape) if fits else tensor
        # files do not contain the index tables that some types keep in addition to their weights
        for name, tensor in own.items():
            if not isinstance(tensor, torch.nn.Parameter):
                state.setdefault(name, tensor)
        return state


def _own_names(path: str, name: str) -> tuple[str, ...]:
    attribute = "lora_magnitude_vector" if name == "dora_scale" else name
    return f"{path}.{attribute}.weight", f"{path}.{attribute}"
