"""Writes whole models to disk: a diffusers folder, or one file in the latent-diffusion layout."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modules.model.lazy_modules import lazy_base_tensors
from modules.model.Model import Model
from modules.model.weight_files import open_weights
from modules.spec.FamilySpec import FamilySpec, PartSpec
from modules.util.errors import UnsupportedError
from modules.util.files.model_index import index_file, read_index
from modules.util.jsonio import atomic_path, read_json, write_text
from modules.util.owned_files import Owned
from modules.util.tensors.lazy_tensors import LazyTensor, lazily, write_lazily
from modules.weights.loading import FIELD, PROCESSOR_CONFIG, WHOLE_PROCESSOR_CONFIG
from modules.weights.part_files import folder_tensors
from modules.weights.shards import weights_files
from modules.weights.single_file import V_MARK, ZERO_SNR_MARK, file_entries

_log = logging.getLogger(__name__)
PROCESSOR_RULES = (PROCESSOR_CONFIG, WHOLE_PROCESSOR_CONFIG, "video_preprocessor_config.json")
LIBRARY = dict.fromkeys(("denoiser", "guide", "vae"), "diffusers") | {"text_encoder": "transformers"}


def save_folder(
    model: Model, path: str | Path, dtype: torch.dtype | None = None, replace: bool = True
) -> Path:
    """Write a folder for diffusers' pipelines. An earlier one is replaced only when everything is written.

    Args:
        dtype: type of the weights; ``None`` keeps them.
        replace: as for ``Owned.replace_folder``.

    Raises:
        UserError: the existing folder must not be replaced: it contains files of others, or the model itself.
    """
    target = Path(path)
    owned, sources = Owned(target.parent, local=True), (model.source, model.denoiser_source)
    keep = [source for source in sources if source]
    if replace:
        owned.check_replaceable(target.name, keep)
    with owned.fresh_folder() as fresh:
        for name, module in model.modules().items():
            part = model.spec.part(name)
            place = fresh / part.place
            place.mkdir()
            _write_config(module, place)
            weights = place / ("model" if part.of_transformers else "diffusion_pytorch_model")
            write_lazily(
                part_tensors(model, name, dtype), weights.with_suffix(".safetensors"), {"format": "pt"}
            )
        for spec in model.spec.of_kind("guide"):
            if spec.name not in model.parts:
                _carry_over(model, spec.place, fresh, dtype)
        for spec in model.spec.of_kind("tokenizer"):
            if spec.name in model.parts:
                model.parts[spec.name].save_pretrained(str(fresh / spec.place))
                _copy_rules(Path(model.source) / spec.place, fresh / spec.place)
        for spec in model.spec.of_kind("processor"):
            if spec.name in model.parts:
                _write_processor(model, fresh / spec.name)
        _write_json(fresh / "scheduler" / "scheduler_config.json", scheduler_config(model))
        _write_json(fresh / "model_index.json", model_index(model))
        owned.replace_folder(fresh, target.name, keep, replace)
    return target


def no_single_file(spec: FamilySpec) -> UnsupportedError:
    """The error for a family without a single-file layout."""
    return UnsupportedError(
        f"{spec.label} has no single-file layout here", field="output_model_format", hint="use DIFFUSERS"
    )


def write_file(
    model: Model,
    tensors: Mapping[str, LazyTensor],
    path: str | Path,
    metadata: Mapping[str, str] | None = None,
    replace: bool = True,
) -> Path:
    """Write tensors of a model to a safetensors file, as ``atomic_path`` does, with marks and metadata that identify
    it.
    """
    target = Path(path)
    marks: dict[str, LazyTensor] = {}
    if model.schedule.prediction == "v_prediction":
        marks[V_MARK] = lazily(torch.zeros(0))
        if _ends_in_noise(model):
            marks[ZERO_SNR_MARK] = lazily(torch.zeros(0))
    kind = model.schedule.prediction
    facts = {
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": model.spec.model_architecture,
        "modelspec.title": target.stem,
        "modelspec.date": date.today().isoformat(),
        "modelspec.prediction_type": {"v_prediction": "v"}.get(kind, kind),
        **(metadata or {}),
    }
    with atomic_path(target, replace) as temporary:
        write_lazily({**tensors, **marks}, temporary, facts)
    return target


def single_file_tensors(model: Model, dtype: torch.dtype | None = None) -> dict[str, LazyTensor]:
    """The base weights of all parts under their names in the latent-diffusion layout."""
    tensors: dict[str, LazyTensor] = {}
    for name, module in model.modules().items():
        tensors |= file_entries(model.spec.part(name), module, lazy_base_tensors(module))
    return {name: tensor.to(dtype, name) for name, tensor in tensors.items()}


def part_tensors(model: Model, part: str, dtype: torch.dtype | None = None) -> dict[str, LazyTensor]:
    """The base weights of a part under its library's names for files."""
    spec, module = model.spec.part(part), model.module(part)
    root = f"{spec.file_root}." if spec.file_root and not hasattr(module, spec.file_root) else ""
    return {f"{root}{name}": tensor.to(dtype, name) for name, tensor in lazy_base_tensors(module).items()}


def _write_config(module: nn.Module, place: Path) -> None:
    if hasattr(module, "save_config"):
        module.save_config(str(place))  # type: ignore[operator]
        return
    config: Any = module.config
    if not getattr(config, "architectures", None):
        config.architectures = [type(module).__name__]
    config.save_pretrained(str(place))


def _carry_over(model: Model, place: str, fresh: Path, dtype: torch.dtype | None) -> None:
    """Copy a part that a run does not load from the folder of the model."""
    source = Path(model.source) / place
    if not _has_part(model, place):
        _log.warning(
            "%s is not in %s, so the saved model is without it: its samples have no guidance; copy that folder from "
            "the base model",
            place,
            model.source,
        )
        return
    tensors = folder_tensors([open_weights(file, FIELD) for file in weights_files(source)]).places
    (fresh / place).mkdir()
    _write_json(fresh / place / "config.json", read_json(source / "config.json", "model config"))
    weights = fresh / place / "diffusion_pytorch_model.safetensors"
    write_lazily({name: tensor.to(dtype, name) for name, tensor in tensors.items()}, weights, {"format": "pt"})


def _has_part(model: Model, place: str) -> bool:
    """Return whether the folder of a model has a part, by its index, with config and weights."""
    source = Path(model.source)
    named = _index_of(source).get(place)
    there = (source / place / "config.json").is_file() and bool(weights_files(source / place))
    return isinstance(named, list) and all(named) and there


def _write_processor(model: Model, place: Path) -> None:
    """Write the processor that shows images to a text encoder; its folder also contains the tokenizer."""
    _write_json(place / PROCESSOR_CONFIG, model.parts[place.name])
    for spec in model.spec.of_kind("tokenizer"):
        model.parts[spec.name].save_pretrained(str(place))


def _copy_rules(source: Path, place: Path) -> None:
    """Copy the settings for showing images to a text encoder, if they are in the folder of its tokenizer."""
    for name in PROCESSOR_RULES:
        if (source / name).is_file():
            _write_json(place / name, read_json(source / name, "processor config"))


def scheduler_config(model: Model) -> dict[str, Any]:
    """The scheduler config that samples were made with, updated with what training changed."""
    config = model.sample_config
    if model.schedule.prediction != "flow":
        config["prediction_type"] = model.schedule.prediction
        if _ends_in_noise(model):
            # without these two, a sampler would never start from the noise the model was trained on
            config |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    return config


def _ends_in_noise(model: Model) -> bool:
    """Return whether the last step of a discrete schedule has no signal left."""
    return float(model.schedule.coefficients(torch.tensor([model.schedule.steps - 1]))[0]) == 0.0


def model_index(model: Model) -> dict[str, Any]:
    """``model_index.json`` for the loaded parts, with the other entries of the model's own index."""
    source = _index_of(Path(model.source))
    index: dict[str, Any] = {
        **_settings_of(source),
        "_class_name": model.spec.pipeline_class,
        "_diffusers_version": "0.36.0",
        "feature_extractor": [None, None],
        "image_encoder": [None, None],
        "requires_safety_checker": False,
        "safety_checker": [None, None],
    }
    for part in model.spec.parts:
        if part.optional and part.name not in model.parts:
            carried = part.kind == "guide" and _has_part(model, part.place)
            index[part.place] = source[part.place] if carried else [None, None]
        elif part.kind == "scheduler":
            index[part.place] = ["diffusers", model.parts["scheduler"].get("_class_name", "DDIMScheduler")]
        elif part.kind in ("tokenizer", "processor"):
            index[part.place] = ["transformers", _kind_of(part, source)]
        elif part.name in model.modules():
            library = part.library or LIBRARY[part.kind]
            index[part.place] = [library, type(model.module(part.name)).__name__]
    return index


def _index_of(source: Path) -> Mapping[str, Any]:
    """The index of the diffusers folder of a model; empty for other sources."""
    path = index_file(source)
    return read_index(path) if path is not None else {}


def _kind_of(part: PartSpec, source: Mapping[str, Any]) -> str:
    """The class of a tokenizer or processor. A tokenizer that came as part of a processor becomes one again."""
    entry = source.get(part.place)
    named = str(entry[1]) if isinstance(entry, list) and len(entry) == 2 else ""
    return named if named in part.classes and named.endswith("Processor") else part.classes[0]


def _settings_of(source: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the whole pipeline in an index: whether it is distilled, and similar."""
    return {
        key: value
        for key, value in source.items()
        if not key.startswith("_") and (isinstance(value, (bool, int, float, str)) or _is_numbers(value))
    }


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, (int, float)) for one in value)


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(data, indent=2, sort_keys=True, default=str) + "\n")
