"""Recognises the family of a denoiser file by the names of its tensors."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from modules.spec.FamilySpec import FamilySpec
from modules.spec.registry import FAMILIES
from modules.util.jsonio import read_json
from modules.weights.part_files import PartTensors, original_pieces, outline, own_pieces, shipped

Mark = tuple[str, int]
ENOUGH = 0.8
"""Share of the names that must agree."""
SHALLOW: dict[str, int] = {
    "num_layers": 2, "num_single_layers": 1, "n_layers": 1, "n_refiner_layers": 1, "pos_embed_max_size": 16,
}  # fmt: skip
"""Depth to which configs of transformers are reduced: more layers have no more kinds of names."""


def _mark(name: str, shape: tuple[int, ...]) -> Mark:
    """A name without its numbers, and the number of dimensions of the tensor."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name), len(shape)


def looks_like(tensors: PartTensors, spec: FamilySpec) -> str:
    """The label of another family whose denoiser these tensors are; empty if there is none."""
    labels = denoisers_like(tensors)
    return "" if spec.label in labels else " or ".join(labels)


def denoisers_like(tensors: PartTensors) -> list[str]:
    """The labels of the families whose denoiser these tensors are; several if they share their architecture."""
    found = frozenset(
        _mark(name, shape) for name, shape in tensors.shapes.items() if not tensors.needless(name)
    )
    scores: dict[str, float] = {}
    # by key, so that families with equal scores are named in the same order
    for key, other in sorted(FAMILIES.items()):
        scores[other.label] = max((_agreement(found, marks) for marks in _marks(key)), default=0.0)
    best = max(scores.values())
    return [label for label, score in scores.items() if score == best] if best >= ENOUGH else []


def _agreement(found: frozenset[Mark], expected: tuple[frozenset[Mark], ...]) -> float:
    """Agreement between the marks found and those expected, 0 to 1."""
    matched = [choices & found for choices in expected]
    hits = sum(bool(names) for names in matched)
    others = len(found - frozenset().union(*matched))
    return hits / max(1, len(expected) + others)


@lru_cache
def _marks(key: str) -> tuple[tuple[frozenset[Mark], ...], ...]:
    """For each bundled config and layout of a family's denoiser, the marks of its tensors, each with alternatives."""
    spec = FAMILIES[key]
    part = spec.part(spec.denoiser)
    made: list[tuple[frozenset[Mark], ...]] = []
    for place in shipped(key, part.name):
        config: dict[str, Any] = dict(read_json(place, "model config"))
        module = outline(part, config | {name: SHALLOW[name] for name in SHALLOW if name in config})
        state = module.state_dict()
        for pieces in (original_pieces(spec, part, module), own_pieces(module)):
            kinds = {
                frozenset(_mark(name, p.shape_there(state[key].shape)) for name in p.names)
                for key, p in pieces.items()
                if key in state
            }
            made.append(tuple(kinds))
    return tuple(made)
