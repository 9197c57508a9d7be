"""From the config to a model ready for training: number types, adapters, trained parts, saving."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.agreement import check_agreement
from modules.adapter.embedding_files import save_embedding
from modules.adapter.formats import check_handle, find_adapter, fitting_layout, read_adapter, save_adapter
from modules.adapter.layers import filter_patterns, select_layers
from modules.adapter.PeftAdapter import AdapterHandle, attach
from modules.adapter.TrainingAdapter import FIELD as ADAPTER_FIELD
from modules.adapter.TrainingAdapter import TrainingAdapter
from modules.model.compact import offload_blocks, quantize, roundable_names
from modules.model.dtypes import QUANTIZED, PartDtypes, torch_dtype
from modules.model.gguf_layers import GgufLinear, holds_blocks
from modules.model.lazy_modules import lazy_base_tensors, make_lazy
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.model.offloaded import offload_trained
from modules.model.patches import wrap_edges, wrap_model
from modules.model.text.LearnedWords import PREFIX
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.learned_words import add_words, noting_known_words, save_words
from modules.modelSetup.ModelFamily import LoadOptions
from modules.objective.supervised import LossOptions, MaskOptions, SupervisedOptions
from modules.spec.FamilySpec import FamilySpec
from modules.util.config.section.ModelPartConfig import BLOCKS, CUSTOM
from modules.util.config.TrainConfig import TrainConfig
from modules.util.display import counted
from modules.util.enum.choices import (
    DPOTimestepSampling,
    ModelFormat,
    PaddingMask,
    PairMaskNorm,
    TrainingMethod,
)
from modules.util.errors import ConfigError, DataError, UnsupportedError
from modules.util.files.output_place import output_place
from modules.weights import one_file
from modules.weights.hub_file import check_name, find_file
from modules.weights.part_sources import find_sources
from modules.weights.saving import save_folder
from modules.weights.shards import remedy

ParameterGroup = tuple[str, float | None, list[tuple[str, torch.nn.Parameter]]]
_ROUNDED = "quantization.layer_filter"
_LOOKED_AT = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
PlaceOfWords = Literal["bundled", "apart", "alone"]
WHOLE_MODEL = ("DIFFUSERS", "SAFETENSORS")


def load_model(
    setup: BaseModelSetup,
    config: TrainConfig,
    parts: Collection[str] | None = None,
    before: Mapping[str, str] | None = None,
) -> Model:
    """The base model a config names, on the CPU, frozen.

    Args:
        parts: parts to load; by default all that a run needs, without those used only for samples.
        before: the files that a resumed run read when it began, see ``part_dtypes``.

    Raises:
        UserError: the model does not exist, is not of this family, has NaN or infinite weights, or has a
            noise schedule that the config does not fit.
    """
    spec = setup.spec
    names = {part: getattr(config, part).model_name for part in spec.module_parts}

    def load(dtypes: PartDtypes, wanted: Collection[str] | None) -> Model:
        return setup.load(config.base_model_name, dtypes, wanted, load_options(config), names)

    model = load(part_dtypes(config, spec, before), parts_of_a_run(config, spec) if parts is None else parts)
    noise = noise_options(config)
    if noise.offset_weight and noise.offset_by_level:
        # refused before anything is encoded, rather than by the first step
        model.schedule.offset_share(torch.zeros(1, dtype=torch.int64))
    # before rounding, because in 8 or 4 bits NaN looks like any other number
    check_weights(model, config.weight_variant)
    if config.training_adapter.model_name and spec.denoiser in model.modules():
        path = find_file(config.training_adapter.model_name, ADAPTER_FIELD)
        model.training_adapter = TrainingAdapter.read(path, model, config.training_adapter.strength)
        model.training_adapter.add_to(model)
    lazily = PartDtypes(lazy=True, variant=config.weight_variant, before=before or {})
    make_compact(model, config, partial(load, lazily))
    if config.force_circular_padding:
        wrap_model(model)
    model.prompt_weighting = config.prompt_weighting
    model.prompt_chunks = config.max_prompt_chunks if spec.chunks_prompts else 1
    read_as_told(model, config)
    if spec.embeds_guidance:
        model.guidance = float(getattr(config, spec.denoiser).guidance_scale)
    return model


def parts_of_a_run(config: TrainConfig, spec: FamilySpec) -> tuple[str, ...]:
    """Names of the parts that a run loads: none that is there for samples only, no text encoder that is left out."""
    left_out = [name for name in spec.optional_encoders if not getattr(config, name).include]
    return without_encoders(spec.parts_of_a_run, left_out)


def without_encoders(names: Iterable[str], left_out: Iterable[str]) -> tuple[str, ...]:
    """Names of parts without some text encoders and their tokenizers."""
    gone = {one for name in left_out for one in (name, name.replace("text_encoder", "tokenizer"))}
    return tuple(name for name in names if name not in gone)


def read_as_told(model: Model, config: TrainConfig) -> None:
    """Set how prompts are read.

    Raises:
        ConfigError: an encoder has fewer layers than are skipped, or its tokenizer reads fewer tokens.
    """
    skips = {name: getattr(config, name).layer_skip for name in model.spec.skips_layers_of}
    model.layer_skips = checked_skips(model, skips, "{}.layer_skip")
    name = model.spec.length_of
    length = getattr(config, name).sequence_length if name else None
    model.prompt_length = checked_length(model, length, f"{name}.sequence_length")
    model.masks_padding = hides_padding(model, config.transformer.attention_mask)


def checked_length(model: Model, length: int | None, field: str) -> int:
    """A number of tokens, 0 for the usual number.

    Args:
        length: ``None`` for the usual number.
        field: the field that set it.

    Raises:
        ConfigError: the tokenizer reads fewer.
    """
    if length is None or length == model.spec.prompt_length:
        return 0
    name = model.spec.length_of
    tokenizer = model.parts.get(name.replace("text_encoder", "tokenizer"))
    if tokenizer is not None and length > tokenizer.model_max_length:
        raise ConfigError(
            f"the tokenizer of {name} reads up to {tokenizer.model_max_length} tokens",
            field,
            "set it to this number or less, or leave it empty",
        )
    return int(length)


def hides_padding(model: Model, asked: PaddingMask) -> bool | None:
    """Return whether padding is hidden from the denoiser; ``None`` if that is the default, or if there is none.
    """
    usual = model.spec.padding
    if usual == "none" or asked.value.lower() in ("family", usual):
        return None
    return asked is PaddingMask.MASKED


def checked_skips(model: Model, told: Mapping[str, int], field: str) -> dict[str, int]:
    """The skips of text encoders that the model has, without zeros.

    Args:
        field: the field that set them, with a placeholder for the encoder's name.

    Raises:
        ConfigError: an encoder does not have that many layers.
    """
    made = {name: skip for name, skip in told.items() if skip and name in model.parts}
    for name, skip in made.items():
        count = int(model.module(name).config.num_hidden_layers)  # type: ignore[union-attr,arg-type]
        if skip >= count:
            raise ConfigError(f"{name} has {counted(count, 'layer')}", field.format(name), "1 is usual")
    return made


def fetch(spec: FamilySpec, config: TrainConfig) -> None:
    """Download the files of the base model that are not on this machine.

    Raises:
        UserError: a file cannot be downloaded.
    """
    names = {part: getattr(config, part).model_name for part in spec.module_parts}
    find_sources(config.base_model_name, names, spec, parts_of_a_run(config, spec), config.weight_variant)
    if config.training_adapter.model_name:
        find_file(config.training_adapter.model_name, ADAPTER_FIELD)


def load_options(config: TrainConfig) -> LoadOptions:
    """Overrides of the model's scheduler config."""
    return LoadOptions(prediction_override(config), config.rescale_noise_scheduler_to_zero_terminal_snr)


def part_dtypes(config: TrainConfig, spec: FamilySpec, before: Mapping[str, str] | None = None) -> PartDtypes:
    """Weight types of the parts, which of their files are read, and the compute type.

    Args:
        before: part name -> name of the first file of weights that a resumed run read when it began; parts that it
            lacks are read from the full files, as by versions that kept no record. ``None`` for a new run.
    """
    compute = torch_dtype(config.train_dtype, "train_dtype")
    weights = {
        part: compute
        if getattr(config, part).weight_dtype in QUANTIZED
        else torch_dtype(getattr(config, part).weight_dtype, f"{part}.weight_dtype")
        for part in spec.module_parts
    }
    # what is trained or kept in another type needs the digits of the full weights
    trained = config.trained_parts()
    half = frozenset(
        part
        for part in spec.module_parts
        if getattr(config, part).weight_dtype == "FLOAT_16" and part not in trained
    )
    return PartDtypes(
        weights=weights,
        compute=compute,
        half=half if before is None else frozenset(),
        variant=config.weight_variant,
        before=before or {},
    )


def make_compact(model: Model, config: TrainConfig, in_files: Callable[[Collection[str]], Model]) -> None:
    """Store frozen weights as the config says: in fewer bits, or in main memory.

    Args:
        in_files: loads parts so that their weights stay in their files. A saved whole model gets these, not
            the rounded ones.
    """
    for name, module in model.modules().items():
        check_rounding(module, name, getattr(config, name).weight_dtype.value)
    rounded = [name for name in model.modules() if getattr(config, name).weight_dtype in QUANTIZED]
    exact = in_files(rounded) if rounded and config.training_method is TrainingMethod.FINE_TUNE else None
    for name in rounded:
        if exact is not None:
            make_lazy(model.module(name), lazy_base_tensors(exact.module(name)))
        compute = torch_dtype(config.train_dtype, "train_dtype")
        module, kind = model.module(name), getattr(config, name).weight_dtype.value
        quantize(module, kind, compute, rounded_names(module, name, config))
    for name in model.modules():
        keep_in_main_memory(model, config, name)


def keep_in_main_memory(model: Model, config: TrainConfig, part: str) -> None:
    """Keep the configured share of a part's layers in main memory. Those of the denoiser may be trained."""
    fraction = getattr(getattr(config, part), "offload_fraction", 0.0)
    if fraction == 0.0:
        return
    if part == model.spec.denoiser and config.trains_in_main_memory():
        offload_trained(model.module(part), fraction)
    else:
        offload_blocks(model.module(part), fraction)


def check_rounding(module: nn.Module, part: str, kind: str) -> None:
    """Refuse to round weights again that came from a GGUF file in fewer bits.

    Raises:
        UnsupportedError: names the setting.
    """
    if kind in QUANTIZED and holds_blocks(module):
        raise UnsupportedError(
            f"weights of a GGUF file stay in their blocks and are not rounded to {kind}",
            f"{part}.weight_dtype",
            "choose BFLOAT_16, which applies to the few weights outside the blocks",
        )


def rounded_names(module: nn.Module, part: str, config: TrainConfig) -> Collection[str] | None:
    """The paths of the layers of a part that are kept in 8 or 4 bits; ``None`` for all of those in its blocks.

    The filter is about the denoiser; text encoders have all their blocks in 8 or 4 bits.

    Raises:
        ConfigError: a preset that the family has not, or an entry of the filter that matches no linear layer.
    """
    own, spec = config.quantization, config.model_type.spec
    if part != spec.denoiser or own.layer_filter_preset == BLOCKS:
        return None
    patterns = filter_patterns(own.layer_filter_preset, own.layer_filter, spec.layer_presets, _ROUNDED)
    regex = own.layer_filter_regex and own.layer_filter_preset == CUSTOM
    return frozenset(select_layers(roundable_names(module), patterns, regex, _ROUNDED))


def prediction_override(config: TrainConfig) -> str | None:
    """The prediction set by ``force_*_prediction``.

    Raises:
        ConfigError: both are set.
    """
    if config.force_v_prediction and config.force_epsilon_prediction:
        raise ConfigError("force_v_prediction and force_epsilon_prediction exclude each other")
    if config.force_v_prediction:
        return "v_prediction"
    return "epsilon" if config.force_epsilon_prediction else None


def noise_options(config: TrainConfig, preference: bool = False) -> NoiseOptions:
    """Return how noise is drawn. For preference steps it is stratified as configured, and captions are not
    dropped.
    """
    strata = 0
    if preference and config.rlhf_dpo_timestep_sampling is DPOTimestepSampling.STRATIFIED:
        strata = config.rlhf_dpo_timestep_strata
    pool = config.rlhf_dpo_reference_cache_draws if preference and config.rlhf_dpo_reference_cache else 0
    return NoiseOptions(
        distribution=config.timestep_distribution.value,
        weight=config.noising_weight,
        bias=config.noising_bias,
        shift=config.timestep_shift,
        shifts_by_size=config.dynamic_timestep_shifting,
        min_strength=config.min_noising_strength,
        max_strength=config.max_noising_strength,
        range_first=config.noising_range_before_shift,
        strata=strata,
        pool=pool,
        offset_weight=config.offset_noise_weight,
        offset_by_level=config.generalized_offset_noise,
        perturbation_weight=0.0 if preference else config.perturbation_noise_weight,
        perturb_target=config.perturbation_on_target,
        caption_dropout=0.0 if preference else config.text_encoder.dropout_probability,
    )


def loss_options(config: TrainConfig) -> LossOptions:
    """Options of the supervised loss."""
    return LossOptions(
        distances=SupervisedOptions(
            mse_strength=config.mse_strength,
            mae_strength=config.mae_strength,
            log_cosh_strength=config.log_cosh_strength,
            huber_strength=config.huber_strength,
            huber_delta=config.huber_delta,
        ),
        weight_function=config.loss_weight_fn.value,
        weight_strength=config.loss_weight_strength,
        masks=MaskOptions(config.unmasked_weight, config.normalize_masked_area_loss),
        variational_strength=config.vb_loss_strength,
    )


def measuring_options(config: TrainConfig, draws: int) -> tuple[NoiseOptions, LossOptions]:
    """Options of a supervised loss that compares images: at ``draws`` stratified noise levels, without random changes
    of an image or its caption, and without weights of noise levels.
    """
    noise = replace(noise_options(config), strata=draws, pool=0, caption_dropout=0.0, perturbation_weight=0.0)
    return noise, replace(loss_options(config), weight_function="CONSTANT")


def averages_over_masks(config: TrainConfig) -> bool:
    """Return whether the error of a pair is averaged over its mask instead of the image."""
    return config.rlhf_dpo_mask_norm is PairMaskNorm.MASKED_MEAN


def trained_parts(config: TrainConfig, spec: FamilySpec) -> tuple[str, ...]:
    """Names of the trained parts, denoiser first.

    Raises:
        ConfigError: no part is trained.
    """
    parts = tuple(config.trained_parts())
    if not parts and config.training_method is not TrainingMethod.EMBEDDING:
        raise ConfigError(
            "nothing is trained: every part is switched off",
            field=f"{spec.denoiser}.train",
            hint="switch on training of the denoiser or the text encoder",
        )
    return parts


def adapter_options(config: TrainConfig, spec: FamilySpec) -> AdapterOptions:
    """The adapter requested by the config."""
    patterns = filter_patterns(config.layer_filter_preset, config.layer_filter, spec.layer_presets)
    return AdapterOptions(
        kind=config.peft_type.value,
        rank=config.lora_rank,
        alpha=config.lora_alpha,
        rank_pattern=config.rank_patterns(),
        alpha_pattern=config.alpha_patterns(),
        decompose=config.lora_decompose,
        decompose_outputs=config.lora_decompose_output_axis,
        rank_stabilized=config.lora_rs,
        dropout=config.dropout_probability,
        dtype=torch_dtype(config.lora_weight_dtype, "lora_weight_dtype"),
        parts=trained_parts(config, spec),
        patterns=tuple(patterns),
        regex=config.layer_filter_regex,
        seed=config.seed,
    )


def check_settings(config: TrainConfig, spec: FamilySpec) -> None:
    """Check the settings as far as possible before a model of the family is loaded.

    Raises:
        UserError: the family lacks a part or the layers of a filter, an adapter is missing, or the layout
            does not suit it.
    """
    trained = trained_parts(config, spec)
    if config.prompt_weighting and not spec.prompt_weighting:
        raise UnsupportedError(
            f"the text encoder of {spec.label} does not understand emphasis in prompts",
            field="prompt_weighting",
            hint="switch it off; this model reads prompts as plain language",
        )
    if config.training_method is TrainingMethod.LORA:
        adapter_options(config, spec)
        if config.lora_model_name:
            find_adapter(config.lora_model_name)
        if config.training_adapter.model_name:
            check_name(config.training_adapter.model_name, ADAPTER_FIELD)
    elif trained and config.output_model_format is ModelFormat.SAFETENSORS:
        one_file.check_trained(spec, trained)


def prepare(setup: BaseModelSetup, model: Model, config: TrainConfig) -> AdapterHandle | None:
    """Prepare a loaded model for training. Returns the adapters of a LORA run, see ``attach_or_unfreeze``."""
    handle = attach_or_unfreeze(model, config)
    seen = setup.spec.sees_sources
    if noise_options(config).caption_dropout and not model.trains_text and not seen:
        # encoded while the text encoder is loaded; it may be released later
        setup.empty_prompt(model)
    return handle


def attach_or_unfreeze(model: Model, config: TrainConfig) -> AdapterHandle | None:
    """Attach adapters or unfreeze weights, and set checkpointing. Returns the adapters of a LORA run.

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
    handle = source = None
    if config.training_method is TrainingMethod.LORA:
        options = adapter_options(config, spec)
        if config.lora_model_name:
            source = noting_known_words(read_adapter(config.lora_model_name, model), model)
            check_agreement(options, source, model, _unusual(config))
        handle = attach(model, options, source)
        if config.force_circular_padding:
            _check_edges(handle)
            wrap_edges(model.denoiser)
        if config.output_model_format is not ModelFormat.AUTO:
            check_handle(handle, config.output_model_format.value)
        parts = tuple(dict.fromkeys(place.split(".", 1)[0] for place in handle.layers))
    else:
        for part in parts:
            model.fingerprint(part)
            model.module(part).requires_grad_(True)
    add_words(model, config, source)
    trains_words = model.words is not None and model.words.trained
    model.trains_text = bool(model.encoders_of_trained_words()) or any(
        part in spec.text_encoders for part in parts
    )
    # gradients of a word pass through the denoiser and its text encoder, whether these are trained or not
    passed = [spec.denoiser, *model.encoders_of_trained_words()] if trains_words else []
    for part in dict.fromkeys((*parts, *passed)):
        own = getattr(config, part)
        if own.gradient_checkpointing:
            model.set_gradient_checkpointing(part, True, own.activation_offloading)
    model.layers_changed()
    return handle


def _check_edges(handle: AdapterHandle) -> None:
    """Raise ``UnsupportedError`` if an adapter computes a convolution itself, where peft pads with zeros."""
    options = handle.options
    if options.kind in ("LOHA", "LOKR"):
        what, way_out = f"{options.kind} adapters", "train a LORA adapter"
    elif options.decompose and options.decompose_outputs and options.dropout:
        what, way_out = "DoRA with dropout", "set dropout_probability to 0"
    else:
        return
    for path, layer in handle.layers.items():
        base = layer.get_base_layer()
        if isinstance(base, torch.nn.Conv2d) and base.padding != "valid" and any(base.padding):
            raise UnsupportedError(
                f"{what} pad the convolution {path} with zeros",
                field="force_circular_padding",
                hint=f"switch it off, {way_out}, or choose layers without convolutions",
            )


def _unusual(config: TrainConfig) -> set[str]:
    """The settings that differ from their defaults."""
    fields = type(config).model_fields
    return {name for name, known in fields.items() if getattr(config, name) != known.default}


def trainable_parameters(model: Model, config: TrainConfig) -> list[ParameterGroup]:
    """(group, learning rate or ``None`` for the general one, named parameters) of everything
    ``attach_or_unfreeze`` made trainable, denoiser first.
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
    for word in [] if model.words is None else model.words.words:
        found = [pair for pair in word.named() if pair[1].requires_grad]
        if found:
            groups.append((f"{PREFIX}{word.placeholder}", config.embedding_learning_rate, found))
    return groups


def save(
    model: Model,
    path: str | Path,
    layout: object = "AUTO",
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, object] | None = None,
    embeddings: PlaceOfWords = "bundled",
) -> Path:
    """Write what was trained: the adapter, the whole model, or an embedding.

    Args:
        layout: KOHYA_LORA, DIFFUSERS_LORA, COMFY_LORA, LEGACY_LORA, DIFFUSERS, SAFETENSORS; AUTO is
            KOHYA_LORA for adapters (LEGACY_LORA for kinds that cannot be fused as it has to); for whole
            models see ``output_place``.
        metadata: facts about the run, for the file.
        embeddings: where embeddings are written: ``bundled`` in the file of the adapter, ``apart`` in files
            next to it, or ``alone``, the first of them instead of a model. Those of whole models are always
            apart.

    Returns:
        The path of the output.

    Raises:
        ConfigError: the layout is for the other kind of training.
        UserError: the existing file or folder must not be replaced.
    """
    name = str(layout)
    facts = {f"tastemaker.{key}": str(value) for key, value in (metadata or {}).items()}
    words = [] if model.words is None else model.words.words
    if embeddings == "alone":
        return save_embedding(words[0], model, path, dtype, facts)
    if model.adapter is not None:
        if name in WHOLE_MODEL:
            raise ConfigError(
                f"{name} is a layout of whole models, but an adapter was trained",
                field="output_model_format",
                hint="use KOHYA_LORA, DIFFUSERS_LORA, COMFY_LORA or LEGACY_LORA",
            )
        layout = fitting_layout(model.adapter) if name == "AUTO" else name
        bundle = words if embeddings == "bundled" else []
        made = save_adapter(model.adapter, path, layout, dtype, metadata, bundle=bundle)
        save_words(model, [] if bundle else words, made, dtype, facts)
        return made
    place = output_place(path, name, False, model.spec.writes_single_file)
    if place.folder or place.layout == "SAFETENSORS":
        made = (
            save_folder(model, place.path, dtype)
            if place.folder
            else one_file.save_file(model, place.path, dtype, facts)
        )
        save_words(model, words, made, dtype, facts)
        return made
    raise ConfigError(
        f"{name} is a layout of adapters, but the whole model was trained",
        field="output_model_format",
        hint="use DIFFUSERS or SAFETENSORS",
    )


def place_of_words(config: TrainConfig) -> PlaceOfWords:
    """Return the place to which ``save`` writes embeddings."""
    if config.training_method is TrainingMethod.EMBEDDING:
        return "alone"
    return "bundled" if config.bundle_additional_embeddings else "apart"


def check_weights(model: Model, variant: str = "") -> None:
    """Check every weight of a loaded model.

    Args:
        variant: the variant of its files of weights that the config names.

    Raises:
        DataError: there are NaN or infinite weights. The message names the first such tensor.
    """
    for part, module in model.modules().items():
        for name, layer in module.named_modules():
            bad = layer.undefined_blocks() if isinstance(layer, GgufLinear) else 0
            if bad:
                raise DataError(
                    f"{bad} blocks of {name}.weight in the {part} of {model.source_name} are NaN or infinite",
                    field="base_model_name",
                    hint="the file is damaged: copy or download it again, or use another one",
                )
        # statistics of latents are buffers
        for name, weight in module.state_dict().items():
            if weight.device.type == "meta" or weight.dtype not in _LOOKED_AT:
                continue
            # a sum is not finite if any number in it is not, and needs no memory
            if bool(weight.detach().sum(dtype=torch.float64).isfinite()):
                continue
            bad = int((~weight.detach().isfinite()).sum())
            if bad:
                read = model.weight_files.get(part)
                raise DataError(
                    f"{bad} of the {weight.numel()} numbers of {name} in the {part} of {model.source_name} are NaN or "
                    "infinite" + (f", read from {read}" if read else ""),
                    field="base_model_name",
                    hint=(remedy(read, variant) if read else "")
                    or "the model is damaged, or was saved after a failed training: copy or download it again, or "
                    "use another one",
                )
