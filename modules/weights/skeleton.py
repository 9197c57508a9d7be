"""Models without values: names and shapes of layers, from a folder's configs or as published for a family."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from modules.model.Model import Model
from modules.model.noising.schedule import DiscreteSchedule, FlowSchedule
from modules.spec.FamilySpec import FamilySpec, PartSpec
from modules.util.errors import UnsupportedError, UserError
from modules.util.jsonio import read_json
from modules.weights.part_files import outline, shipped
from modules.weights.single_file import SCHEDULER

_SAME_LAYERS = ("sample_size", "interpolation_scale", "use_additional_conditions")
"""Image sizes that a model was made for; its adaptable layers are the same."""


def published(spec: FamilySpec) -> dict[str, dict[str, Any]]:
    """The configs of denoiser and text encoders of a family published in one size, by part; empty for others."""
    found: dict[str, dict[str, Any]] = {}
    for part in (*spec.of_kind("denoiser"), *spec.of_kind("text_encoder")):
        configs = [read_json(place, "model config") for place in shipped(spec.key, part.name)]
        sizes = [{k: v for k, v in config.items() if k not in _SAME_LAYERS} for config in configs]
        if not configs or any(size != sizes[0] for size in sizes):
            return {}
        found[part.name] = configs[0]
    return found


def skeleton(spec: FamilySpec, folder: Path | None = None) -> Model:
    """Create denoiser and text encoders of a family on the ``meta`` device, without reading weights.

    Args:
        folder: a diffusers folder whose configs determine the shapes; by default the family's published ones.

    Raises:
        UserError: a config is missing or unsuitable. UnsupportedError: the family has more than one size.
    """
    known = published(spec) if folder is None else {}
    if folder is None and not known:
        raise UnsupportedError(
            f"{spec.label} was published in several sizes: the adapter alone does not say which",
            field="--base",
            hint="give the model that the adapter is for: a folder, of which only config files are read, or a file",
        )
    parts: dict[str, Any] = {}
    for part in (*spec.of_kind("denoiser"), *spec.of_kind("text_encoder")):
        if folder is None:
            parts[part.name] = _build(part, known[part.name])
            continue
        place = folder / part.place / "config.json"
        if place.is_file():
            config = read_json(place, "model config")
            if not isinstance(config, dict):
                raise UserError(f"{place} is not a JSON object", field="--base")
            parts[part.name] = _build(part, config, place)
    if spec.denoiser not in parts:
        raise UserError(f"{folder} has no {spec.denoiser}/config.json", field="--base")
    discrete = {**SCHEDULER, "prediction_type": spec.prediction}
    schedule = FlowSchedule() if spec.prediction == "flow" else DiscreteSchedule.from_config(discrete)
    return Model(spec, str(folder or spec.label), parts, schedule)


def _build(part: PartSpec, config: Mapping[str, Any], place: Path | None = None) -> nn.Module:
    try:
        return outline(part, config)
    except UserError as error:
        raise UserError(f"{place or part.name}: {error}", field="--base") from error
