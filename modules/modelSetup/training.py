"""From the config to a model ready for training: number types, adapters, what is trained, what is saved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from modules.adapter.agreement import check_agreement
from modules.adapter.formats import check_handle, find_adapter, fitting_layout, read_adapter, save_adapter
from modules.adapter.layers import filter_patterns
from modules.adapter.PeftAdapter import AdapterHandle, AdapterOptions, attach
from modules.model.compact import QUANTIZED, offload_blocks, quantize
from modules.model.dtypes import PartDtypes, torch_dtype
from modules.model.lazy_modules import keep_stored, stored_tensors
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup.ModelPairScorer import LossOptions
from modules.objective.supervised import SupervisedOptions
from modules.spec.FamilySpec import FamilySpec
from modules.util.errors import ConfigError, UnsupportedError
from modules.weights import one_file
from modules.weights.saving import save_folder

ParameterGroup = tuple[str, float | None, list[tuple[str, torch.nn.Parameter]]]
WHOLE_MODEL = ("DIFFUSERS", "SAFETENSORS")


def name_of(value: object) -> str:
    """The name of an enum member, or the string itself."""
    return str(getattr(value, "value", value))


def part_dtypes(config: Any, spec: FamilySpec) -> PartDtypes:
    """Weight types of the parts and the compute type."""
    compute = torch_dtype(config.train_dtype, "train_dtype")
    weights = {
        part: compute
        if name_of(getattr(config, part).weight_dtype) in QUANTIZED
        else torch_dtype(getattr(config, part).weight_dtype, f"{part}.weight_dtype")
        for part in spec.module_parts
    }
    return PartDtypes(weights=weights, compute=compute)


def make_compact(model: Model, config: Any, in_files: Callable[[Collection[str]], Model]) -> None:
    """Keep frozen weights as the config says: in fewer bits, or in main memory.

    Args:
        in_files: loads parts so that their weights stay in their files. A whole model that is saved gets those, not
            the rounded ones.
    """
    rounded = [name for name in model.modules() if name_of(getattr(config, name).weight_dtype) in QUANTIZED]
    exact = in_files(rounded) if rounded and name_of(config.training_method) == "FINE_TUNE" else None
    for name in rounded:
        if exact is not None:
            keep_stored(model.module(name), stored_tensors(exact.module(name)))
        kind, compute = getattr(config, name).weight_dtype, torch_dtype(config.train_dtype, "train_dtype")
        quantize(model.module(name), name_of(kind), compute)
    denoiser = model.spec.denoiser
    if denoiser in model.modules() and getattr(config, denoiser).offload_fraction > 0.0:
        offload_blocks(model.module(denoiser), getattr(config, denoiser).offload_fraction)


def prediction_override(config: Any) -> str | None:
    """What ``force_*_prediction`` asks for.

    Raises:
        ConfigError: both at once.
    """
    if config.force_v_prediction and config.force_epsilon_prediction:
        raise ConfigError("force_v_prediction and force_epsilon_prediction exclude each other")
    if config.force_v_prediction:
        return "v_prediction"
    return "epsilon" if config.force_epsilon_prediction else None


def noise_options(config: Any, preference: bool = False) -> NoiseOptions:
    """How noise is drawn; for preference steps stratified as the config says and with captions kept."""
    strata = 0
    if preference and name_of(config.rlhf_dpo_timestep_sampling) == "STRATIFIED":
        strata = config.rlhf_dpo_timestep_strata
    pool = config.rlhf_dpo_reference_cache_draws if preference and config.rlhf_dpo_reference_cache else 0
    return NoiseOptions(
        distribution=name_of(config.timestep_distribution),
        weight=config.noising_weight,
        bias=config.noising_bias,
        shift=config.timestep_shift,
        min_strength=config.min_noising_strength,
        max_strength=config.max_noising_strength,
        strata=strata,
        pool=pool,
        offset_weight=config.offset_noise_weight,
        perturbation_weight=0.0 if preference else config.perturbation_noise_weight,
        caption_dropout=0.0 if preference else config.text_encoder.dropout_probability,
    )


def loss_options(config: Any) -> LossOptions:
    """The supervised loss."""
    return LossOptions(
        distances=SupervisedOptions(
            mse_strength=config.mse_strength,
            mae_strength=config.mae_strength,
            log_cosh_strength=config.log_cosh_strength,
            huber_strength=config.huber_strength,
            huber_delta=config.huber_delta,
        ),
        weight_function=name_of(config.loss_weight_fn),
        weight_strength=config.loss_weight_strength,
    )


def trained_parts(config: Any, spec: FamilySpec) -> tuple[str, ...]:
    """Names of the parts the config trains, denoiser first.

    Raises:
        ConfigError: none.
    """
    parts = tuple(part for part in (spec.denoiser, *spec.text_encoders) if getattr(config, part).train)
    if not parts:
        raise ConfigError(
            "nothing is trained: every part is switched off",
            field=f"{spec.denoiser}.train",
            hint="switch on training of the denoiser or the text encoder",
        )
    return parts


def adapter_options(config: Any, spec: FamilySpec) -> AdapterOptions:
    """What adapter the config asks for."""
    patterns = filter_patterns(config.layer_filter_preset, config.layer_filter, spec.layer_presets)
    return AdapterOptions(
        kind=name_of(config.peft_type),
        rank=config.lora_rank,
        alpha=config.lora_alpha,
        rank_pattern=config.rank_patterns(),
        alpha_pattern=config.alpha_patterns(),
        decompose=config.lora_decompose,
        rank_stabilized=config.lora_rs,
        dropout=config.dropout_probability,
        dtype=torch_dtype(config.lora_weight_dtype, "lora_weight_dtype"),
        parts=trained_parts(config, spec),
        patterns=tuple(patterns),
        regex=config.layer_filter_regex,
        seed=config.seed,
    )


def check_settings(config: Any, spec: FamilySpec) -> None:
    """What can be found wrong with the settings before a model of the family is loaded.

    Raises:
        UserError: a filter or a part the family has not, an adapter that is not there, a layout it cannot be saved in.
    """
    trained = trained_parts(config, spec)
    if config.prompt_weighting and not spec.prompt_weighting:
        raise UnsupportedError(
            f"emphasis in prompts has no meaning to the text encoder of {spec.label}",
            field="prompt_weighting",
            hint="switch it off; this model reads prompts as plain language",
        )
    if name_of(config.training_method) == "LORA":
        adapter_options(config, spec)
        if config.lora_model_name:
            find_adapter(config.lora_model_name)
    elif name_of(config.output_model_format) == "SAFETENSORS":
        one_file.check_trained(spec, trained)


def prepare(model: Model, config: Any) -> AdapterHandle | None:
    """Attach adapters or unfreeze weights, set checkpointing; returns the adapters of a LORA run.

    The model may be on any device; adapters follow their layers.
    """
    spec = model.spec
    parts = trained_parts(config, spec)
    for part in parts:
        if part not in model.modules():
            raise ConfigError(
                f"{model.source} comes without {part}, which is to be trained",
                field=f"{part}.train",
                hint=f"switch off {part}.train, or use a model that has it",
            )
    handle = None
    if name_of(config.training_method) == "LORA":
        options, source = adapter_options(config, spec), None
        if config.lora_model_name:
            source = read_adapter(config.lora_model_name, model)
            check_agreement(options, source, model, _unusual(config))
        handle = attach(model, options, source)
        if name_of(config.output_model_format) != "AUTO":
            check_handle(handle, name_of(config.output_model_format))
        parts = tuple(dict.fromkeys(place.split(".", 1)[0] for place in handle.layers))
    else:
        for part in parts:
            model.fingerprint(part)
            model.module(part).requires_grad_(True)
    model.trains_text = any(part in spec.text_encoders for part in parts)
    for part in parts:
        if getattr(config, part).gradient_checkpointing:
            model.set_gradient_checkpointing(part, True)
    model.layers_changed()
    return handle


def _unusual(config: Any) -> set[str]:
    """The settings that are not what they are when nothing is said."""
    fields = type(config).model_fields
    return {name for name, known in fields.items() if getattr(config, name) != known.default}


def trainable_parameters(model: Model, config: Any) -> list[ParameterGroup]:
    """(group, learning rate or ``None`` for the general one, named parameters) of what ``prepare`` made
    trainable, denoiser first.
    """
    groups: list[ParameterGroup] = []
    for part in (model.spec.denoiser, *model.text_encoders):
        if model.adapter is not None:
            found, group = model.adapter.named_parameters(part), f"{part}_lora"
        else:
            found = [(f"{part}.{n}", p) for n, p in model.module(part).named_parameters() if p.requires_grad]
            group = part
        if found:
            groups.append((group, getattr(config, part).learning_rate, found))
    return groups


def save(
    model: Model,
    path: str | Path,
    layout: object = "AUTO",
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Path:
    """Write what was trained: the adapter, or the whole model.

    Args:
        layout: KOHYA_LORA, DIFFUSERS_LORA, COMFY_LORA, LEGACY_LORA, DIFFUSERS, SAFETENSORS; AUTO is KOHYA_LORA for
            adapters (LEGACY_LORA for kinds that cannot be fused as it has to), and for whole models SAFETENSORS if
            ``path`` ends so and files of the family hold all of it, else DIFFUSERS (a folder without that ending).
        metadata: facts about the run, for the file.

    Returns:
        What was written.

    Raises:
        ConfigError: a layout for the other kind of training.
    """
    name = name_of(layout)
    if model.adapter is not None:
        if name in WHOLE_MODEL:
            raise ConfigError(
                f"{name} is a layout of whole models, and an adapter was trained",
                field="output_model_format",
                hint="use KOHYA_LORA, DIFFUSERS_LORA, COMFY_LORA or LEGACY_LORA",
            )
        layout = fitting_layout(model.adapter) if name == "AUTO" else name
        return save_adapter(model.adapter, path, layout, dtype, metadata)
    if name == "AUTO":
        wants_file = Path(path).suffix == ".safetensors"
        name = "SAFETENSORS" if wants_file and model.spec.writes_single_file else "DIFFUSERS"
        if wants_file and name == "DIFFUSERS":
            # a folder must not be mistaken for a file
            path = Path(path).with_suffix("")
    if name == "DIFFUSERS":
        return save_folder(model, path, dtype)
    if name == "SAFETENSORS":
        facts = {f"tastemaker.{key}": str(value) for key, value in (metadata or {}).items()}
        return one_file.save_file(model, path, dtype, facts)
    raise ConfigError(
        f"{name} is a layout of adapters, and the whole model was trained",
        field="output_model_format",
        hint="use DIFFUSERS or SAFETENSORS",
    )
