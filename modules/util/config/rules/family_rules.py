"""Rules for settings that apply only to some model families."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from modules.spec.registry import FAMILIES, PARTS, TEXT_ENCODERS
from modules.util.config.rules.rules import ConfigWarning, Finding, rule
from modules.util.enum.choices import LossWeight, PaddingMask, StopUnit, TrainingMethod
from modules.util.errors import ConfigError, UnsupportedError, UserError
from modules.util.files.hub_names import repository
from modules.util.files.model_index import index_file
from modules.util.files.user_path import user_path
from modules.util.published_models import find_published

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig


@rule("model_type", *PARTS)
def _parts_of_other_families(c: TrainConfig) -> Iterator[Finding]:
    for name in PARTS:
        if name in c.model_type.parts:
            continue
        part = getattr(c, name)
        usual = type(part)()
        for field in type(part).model_fields:
            if getattr(part, field) != getattr(usual, field):
                yield ConfigWarning(
                    f"has no effect: {c.model_type.label} has no {name}; its parts are "
                    f"{', '.join(c.model_type.parts)}",
                    f"{name}.{field}",
                )


@rule("epochs", "max_steps", "training_method", "embedding", "additional_embeddings", *PARTS)
def _parts_that_stop(c: TrainConfig) -> Iterator[Finding]:
    trained: dict[str, Any] = {part: getattr(c, part) for part in c.trained_parts()}
    trained |= {place: one for place, one in c.places_of_embeddings().items() if one.train}
    ends = {place: (one.stop_training_after, one.stop_training_after_unit) for place, one in trained.items()}
    for part, (after, unit) in ends.items():
        if unit is not StopUnit.NEVER and after < 1:
            yield ConfigError(
                f"{after} means that this part is never trained",
                f"{part}.stop_training_after",
                f"set it to 1 or more, stop_training_after_unit to NEVER, or {part}.train to false",
            )
    limits = {StopUnit.EPOCH: math.inf if c.max_steps else c.epochs, StopUnit.STEP: c.max_steps or math.inf}
    if ends and all(unit in limits and after < limits[unit] for after, unit in ends.values()):
        longest = max(ends, key=lambda part: ends[part][0])
        yield ConfigWarning(
            "every part stops before the planned end, so the run ends when the last part stops",
            f"{longest}.stop_training_after",
        )


@rule("model_type", "base_model_name", *PARTS)
def _parts_that_are_published_apart(c: TrainConfig) -> Iterator[Finding]:
    spec = c.model_type.spec
    name = repository(c.base_model_name)
    try:
        # a folder may have been completed
        found = None if index_file(user_path(name)) else find_published(spec.key, name)
    except UserError as fault:
        yield ConfigError(fault.message, "base_model_name", fault.hint)
        return
    if found is None or found.guessed:
        return
    for part in (part for part in spec.of_kind("text_encoder") if part.apart):
        if not getattr(c, part.name).model_name.strip():
            yield ConfigError(
                f"is empty, but {found.name} does not contain this part", f"{part.name}.model_name", part.where_apart
            )


@rule("training_adapter", "training_method", "rlhf_enabled", "rlhf_mode")
def _training_adapters_need_another_adapter(c: TrainConfig) -> Iterator[Finding]:
    if not c.training_adapter.model_name:
        return
    if c.training_method is not TrainingMethod.LORA:
        yield UnsupportedError(
            "works only when an adapter is trained",
            "training_adapter.model_name",
            "set training_method to LORA, or remove the training adapter",
        )
    elif c.trains_online and c.rlhf_mode.coupled:
        yield UnsupportedError(
            f"cannot be combined with {c.rlhf_mode}, whose rollouts must use exactly the weights that are trained",
            "training_adapter.model_name",
            "use NFT, DGPO, AWM or ONLINE_DPO, or train the undistilled base model without a training adapter",
        )


@rule("sample_model_name", "training_method", "training_adapter")
def _samples_of_another_denoiser(c: TrainConfig) -> Iterator[Finding]:
    if not c.sample_model_name.strip():
        return
    if not c.training_method.keeps_the_model:
        yield UnsupportedError(
            "works only with adapters and embeddings: fine-tuned weights cannot be applied to another model",
            "sample_model_name",
            "leave it empty, or set training_method to LORA",
        )
    elif c.training_adapter.model_name:
        yield UnsupportedError(
            "cannot be combined with a training adapter: samples are then already made with the distilled model",
            "sample_model_name",
            "leave this or training_adapter.model_name empty",
        )


@rule("model_type", "base_model_name", "unet", "transformer", "training_adapter")
def _distilled_models_lose_their_few_steps(c: TrainConfig) -> Iterator[Finding]:
    spec = c.model_type.spec
    own = getattr(c, spec.denoiser).model_name
    found = find_published(spec.key, own or c.base_model_name)
    if c.training_adapter.model_name:
        if found is not None and not found.distilled:
            yield ConfigWarning(
                f"is for distilled models, but {found.label} is not distilled", "training_adapter.model_name"
            )
    elif found is not None and found.distilled:
        yield ConfigWarning(found.advice(), f"{spec.denoiser}.model_name" if own else "base_model_name")


@rule("model_type", "base_model_name")
def _published_models_have_a_family(c: TrainConfig) -> Iterator[Finding]:
    found = find_published(c.model_type.value, c.base_model_name)
    if found is not None and not found.guessed and found.family != c.model_type.value:
        yield ConfigWarning(
            f"{found.label} is a model of {FAMILIES[found.family].label}: set model_type to {found.family}",
            "base_model_name",
        )


@rule("model_type", "transformer")
def _guidance_is_not_embedded(c: TrainConfig) -> Iterator[Finding]:
    family = c.model_type
    if (
        "transformer" in family.parts
        and not family.spec.embeds_guidance
        and c.transformer.guidance_scale != 1
    ):
        yield ConfigWarning(
            f"has no effect: {family.label} does not take a guidance scale", "transformer.guidance_scale"
        )


@rule("model_type", "text_encoder", "text_encoder_2")
def layers_are_skipped_of_clip_alone(c: TrainConfig) -> Iterator[Finding]:
    """Only CLIPs that give states of tokens have layers to skip."""
    for name in ("text_encoder", "text_encoder_2"):
        skips = name in c.model_type.text_encoders and getattr(c, name).layer_skip
        if skips and name not in c.model_type.spec.skips_layers_of:
            yield UnsupportedError(
                f"{c.model_type.label} uses no token states of this CLIP, so no layers can be skipped",
                f"{name}.layer_skip",
                "set it to 0",
            )


@rule("model_type", *TEXT_ENCODERS)
def _frozen_parts_are_not_trained(c: TrainConfig) -> Iterator[Finding]:
    spec = c.model_type.spec
    for name in TEXT_ENCODERS:
        if name in spec.text_encoders and name not in spec.trained_encoders and getattr(c, name).train:
            yield UnsupportedError(
                f"this part of {spec.label} is never trained: no program reads an adapter for it",
                f"{name}.train",
                "set it to false",
            )


@rule("model_type", "text_encoder_3")
def _encoders_that_are_left_out(c: TrainConfig) -> Iterator[Finding]:
    spec, name = c.model_type.spec, "text_encoder_3"
    if c.text_encoder_3.include or name not in spec.text_encoders:
        return
    if name not in spec.optional_encoders:
        yield UnsupportedError(
            f"{spec.label} cannot be used without this text encoder", f"{name}.include", "set it to true"
        )
    elif c.text_encoder_3.train:
        yield ConfigError(
            "a text encoder that is not used cannot be trained", f"{name}.train", "set it to false"
        )


@rule("model_type", *TEXT_ENCODERS)
def lengths_of_prompts(c: TrainConfig) -> Iterator[Finding]:
    """One text encoder of a family can read another number of tokens, within limits."""
    spec = c.model_type.spec
    for name in TEXT_ENCODERS:
        length = getattr(c, name).sequence_length
        if length is None or name not in c.model_type.text_encoders:
            continue
        if name != spec.length_of:
            yield UnsupportedError(
                f"{c.model_type.label} reads a fixed number of tokens with this text encoder",
                f"{name}.sequence_length",
                "leave it empty" + (f", or set {spec.length_of}.sequence_length" if spec.length_of else ""),
            )
        elif not spec.template_tokens < length <= spec.most_tokens:
            yield ConfigError(
                f"{c.model_type.label} reads {spec.template_tokens + 1} to {spec.most_tokens} tokens, not {length}",
                f"{name}.sequence_length",
                f"leave it empty for the usual {spec.prompt_length} tokens",
            )


@rule("model_type", "transformer")
def padding_is_never_there(c: TrainConfig) -> Iterator[Finding]:
    """Padding that a transformer is never given cannot be hidden from it."""
    family = c.model_type
    asked = c.transformer.attention_mask is not PaddingMask.FAMILY
    if asked and "transformer" in family.parts and family.spec.padding == "none":
        yield UnsupportedError(
            f"the transformer of {family.label} never sees padding",
            "transformer.attention_mask",
            "set it to FAMILY",
        )


@rule("model_type", "max_prompt_chunks")
def _prompts_are_one_text(c: TrainConfig) -> Iterator[Finding]:
    usual = type(c).model_fields["max_prompt_chunks"].default
    if not c.model_type.spec.chunks_prompts and c.max_prompt_chunks != usual:
        yield ConfigWarning(
            f"has no effect: {c.model_type.label} does not split prompts into chunks", "max_prompt_chunks"
        )


@rule("model_type", "source_resolution")
def _sources_are_taken(c: TrainConfig) -> Iterator[Finding]:
    if c.source_resolution is not None and not c.model_type.spec.sources:
        yield ConfigWarning(
            f"has no effect: {c.model_type.label} takes no source images", "source_resolution"
        )


@rule("model_type", "loss_weight_fn", "rlhf_enabled", "rlhf_supervised_mix")
def _loss_weight_needs_noise_variances(c: TrainConfig) -> Iterator[Finding]:
    flow, of_flow = c.model_type.spec.flow_matching, c.loss_weight_fn is LossWeight.SIGMA
    if flow is of_flow or c.loss_weight_fn is LossWeight.CONSTANT:
        return
    if c.rlhf_enabled and c.rlhf_supervised_mix == 0:
        yield ConfigWarning(
            "has no effect, because this run has no supervised loss; it is also not defined for "
            + ("flow matching" if flow else "models without flow matching"),
            "loss_weight_fn",
        )
    else:
        kind = "a flow-matching model" if flow else "which is not a flow-matching model"
        yield UnsupportedError(
            f"{c.loss_weight_fn} is not defined for {c.model_type.label}, {kind}",
            "loss_weight_fn",
            "set loss_weight_fn to CONSTANT",
        )


@rule("model_type", "vb_loss_strength", "rescale_noise_scheduler_to_zero_terminal_snr")
def _variance_is_predicted(c: TrainConfig) -> Iterator[Finding]:
    if c.vb_loss_strength <= 0:
        return
    if not c.model_type.spec.predicts_variance:
        yield UnsupportedError(f"{c.model_type.label} predicts no variance", "vb_loss_strength", "set it to 0")
    elif c.rescale_noise_scheduler_to_zero_terminal_snr:
        yield UnsupportedError(
            "is not defined for a noise schedule that ends in pure noise",
            "vb_loss_strength",
            "set it to 0, or switch rescale_noise_scheduler_to_zero_terminal_snr off",
        )


@rule(
    *("model_type", "generalized_offset_noise", "offset_noise_weight"),
    "rescale_noise_scheduler_to_zero_terminal_snr",
)
def _offset_by_noise_level(c: TrainConfig) -> Iterator[Finding]:
    if not c.generalized_offset_noise:
        return
    if c.model_type.spec.flow_matching:
        yield UnsupportedError(
            f"is not defined for {c.model_type.label}, a flow-matching model",
            "generalized_offset_noise",
            "switch it off",
        )
    elif c.rescale_noise_scheduler_to_zero_terminal_snr:
        yield UnsupportedError(
            "is not defined for a schedule that ends in pure noise",
            "generalized_offset_noise",
            "switch it off, or rescale_noise_scheduler_to_zero_terminal_snr",
        )
    elif not c.offset_noise_weight:
        yield ConfigWarning("has no effect: offset_noise_weight is 0", "generalized_offset_noise")


@rule("model_type", "dynamic_timestep_shifting", "timestep_shift")
def _shift_by_size(c: TrainConfig) -> Iterator[Finding]:
    if not c.dynamic_timestep_shifting:
        return
    if not c.model_type.spec.shifts_by_size:
        yield UnsupportedError(
            f"{c.model_type.label} does not shift timesteps by the size of images",
            "dynamic_timestep_shifting",
            "switch it off, or set timestep_shift",
        )
    elif c.timestep_shift != 1:
        yield ConfigWarning("has no effect: dynamic_timestep_shifting replaces it", "timestep_shift")
