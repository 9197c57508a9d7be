"""Rules that relate config values to each other: one function per rule, with all findings reported together.

A rule names the fields it reads. If one of them has an invalid value, that is reported instead and the rule
is skipped, so that one mistake gives one message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modules.spec.registry import DENOISERS, TEXT_ENCODERS
from modules.spec.timestep_ranges import fault_of_distribution
from modules.util.display import counted
from modules.util.enum.choices import (
    DataType,
    DPOConfidence,
    DPOTimestepSampling,
    LossWeight,
    ModelFormat,
    Optimizer,
    PeftType,
    TimeUnit,
    TrainingMethod,
    WeightDtype,
)
from modules.util.enum.ConceptType import ConceptType
from modules.util.enum.DPOObjective import DPOObjective
from modules.util.errors import ConfigError, UnsupportedError, UserError

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig


@dataclass(frozen=True)
class ConfigWarning:
    """A value that is allowed but probably not intended."""

    message: str
    field: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass
class Problems:
    """Findings of the rules."""

    errors: list[UserError] = field(default_factory=list)
    warnings: list[ConfigWarning] = field(default_factory=list)


Finding = UserError | ConfigWarning
Rule = Callable[["TrainConfig"], Iterator[Finding]]
FEWEST_FOR_KTO = 8
NOISE_LEVELS = (
    "timestep_distribution", "timestep_shift", "dynamic_timestep_shifting", "min_noising_strength",
    "max_noising_strength", "noising_range_before_shift",
)  # fmt: skip
"""Settings of the noise levels that training on images draws."""
STEP_ALONE = (
    Optimizer.ADAMW,
    Optimizer.ADAM,
    Optimizer.ADAFACTOR,
    Optimizer.ADAGRAD,
    Optimizer.RMSPROP,
    Optimizer.SGD,
)
"""Optimizers that handle every parameter separately."""
LEAST_BETA = 1e-6
"""Below this beta, differences of scores drown in the rounding of 32-bit numbers."""
_RULES: list[tuple[frozenset[str], Rule]] = []


def rule(*fields: str) -> Callable[[Rule], Rule]:
    """Decorator that registers a rule with the top-level fields it reads."""

    def register(function: Rule) -> Rule:
        _RULES.append((frozenset(fields), function))
        return function

    return register


def run_rules(config: TrainConfig, ignoring: Collection[str] = ()) -> Problems:
    """Run the registered rules that read none of the fields in ``ignoring``. ``load.find_problems`` registers
    all rules.
    """
    problems = Problems()
    for fields, function in _RULES:
        if fields.isdisjoint(ignoring):
            for finding in function(config):
                if isinstance(finding, ConfigWarning):
                    problems.warnings.append(finding)
                else:
                    problems.errors.append(finding)
    return problems


@rule(
    *("optimizer", "gradient_accumulation_steps", "clip_grad_norm", "clip_each_weight"),
    *("train_dtype", "rlhf_enabled"),
)
def _step_in_the_backward_pass(c: TrainConfig) -> Iterator[Finding]:
    if not c.optimizer.fused_back_pass:
        return
    obstacles = {
        "gradient_accumulation_steps": (c.gradient_accumulation_steps > 1, "set it to 1"),
        "clip_grad_norm": (
            bool(c.clip_grad_norm) and not c.clip_each_weight,
            "set it to 0, or clip_each_weight to true",
        ),
        "train_dtype": (c.train_dtype is DataType.FLOAT_16, "use BFLOAT_16 or FLOAT_32"),
        "rlhf_enabled": (c.rlhf_enabled, "switch it off: only supervised training has a single backward pass"),
        "optimizer.optimizer": (c.optimizer.optimizer not in STEP_ALONE, f"use {', '.join(STEP_ALONE)}"),
    }
    for name, (there, hint) in obstacles.items():
        if there:
            reason = "cannot be combined with optimizer.fused_back_pass, which uses gradients one by one"
            yield UnsupportedError(reason, name, hint)


# -- preference training -----------------------------------------------------------------------------------


@rule("rlhf_enabled", "training_method")
def _preferences_need_an_adapter(c: TrainConfig) -> Iterator[Finding]:
    if c.rlhf_enabled and c.training_method is not TrainingMethod.LORA:
        yield UnsupportedError(
            f"{c.training_method} is not supported in preference training, which needs an adapter: the unchanged model "
            "is the reference",
            "training_method",
            "set training_method to LORA",
        )


@rule("rlhf_enabled", "rlhf_mode", "rlhf_dpo_objective", "batch_size", "gradient_accumulation_steps")
def _few_images_to_compare_with(c: TrainConfig) -> Iterator[Finding]:
    images = c.batch_size * c.gradient_accumulation_steps
    if c.trains_pairs and c.rlhf_dpo_objective is DPOObjective.KTO and images < FEWEST_FOR_KTO:
        yield ConfigWarning(
            f"KTO compares each image with the mean of its optimizer step, which has only {counted(images, 'image')}: "
            f"the pull of liked images then never weakens; use {FEWEST_FOR_KTO} images per step or more "
            "(gradient_accumulation_steps)",
            "rlhf_dpo_objective",
        )


@rule("rlhf_enabled", "rlhf_mode", "rlhf_dpo_beta", "rlhf_dpo_objective")
def _beta_of_zero(c: TrainConfig) -> Iterator[Finding]:
    if not c.trains_pairs or c.rlhf_dpo_objective is DPOObjective.IPO:
        return
    if c.rlhf_dpo_beta == 0:
        if c.rlhf_mode.spec.needs_reference(c):
            yield ConfigWarning(
                "is 0: the loss is constant and nothing is learned from the pairs", "rlhf_dpo_beta"
            )
    elif c.rlhf_dpo_beta < LEAST_BETA:
        yield ConfigError(
            f"must be 0 or at least {LEAST_BETA:g}, not {c.rlhf_dpo_beta:g}: nothing would be learned",
            "rlhf_dpo_beta",
            "200 to 5000 is usual; lower values allow larger changes",
        )


@rule(
    "rlhf_enabled", "rlhf_mode", "rlhf_dpo_label_smoothing", "rlhf_dpo_objective", "rlhf_dpo_adaptive_beta",
    "rlhf_dpo_confidence",
)  # fmt: skip
def _sigmoid_only(c: TrainConfig) -> Iterator[Finding]:
    if not c.trains_pairs or c.rlhf_dpo_objective is DPOObjective.SIGMOID:
        return
    hint = "set it to {}, or rlhf_dpo_objective to SIGMOID"
    if c.rlhf_dpo_label_smoothing > 0:
        reason = f"label smoothing is not defined for {c.rlhf_dpo_objective}"
        yield ConfigError(reason, "rlhf_dpo_label_smoothing", hint.format("0"))
    if c.rlhf_dpo_confidence is not DPOConfidence.OFF:
        reason = f"the confidence of pairs is not defined for {c.rlhf_dpo_objective}"
        yield ConfigError(reason, "rlhf_dpo_confidence", hint.format("OFF"))
    if c.rlhf_dpo_adaptive_beta:
        reason = f"adaptive beta is not defined for {c.rlhf_dpo_objective}"
        yield ConfigError(reason, "rlhf_dpo_adaptive_beta", hint.format("false"))


@rule("rlhf_enabled", "rlhf_mode", "rlhf_dpo_validation", "rlhf_dpo_patience_enabled", "validate_after_unit")
def _patience_needs_validation(c: TrainConfig) -> Iterator[Finding]:
    if not c.trains_pairs or not c.rlhf_dpo_patience_enabled:
        return
    if not c.rlhf_dpo_validation:
        yield ConfigError(
            "stopping early needs validation", "rlhf_dpo_patience_enabled", "set rlhf_dpo_validation to true"
        )
    elif c.validate_after_unit is TimeUnit.NEVER:
        yield ConfigError(
            "can never stop the run: validate_after_unit is NEVER, so nothing is measured before the end",
            "rlhf_dpo_patience_enabled",
            "set validate_after_unit to EPOCH, or this to false",
        )


@rule("rlhf_dpo_patience_metrics")
def _metrics_are_different(c: TrainConfig) -> Iterator[Finding]:
    names = [metric.value for metric in c.rlhf_dpo_patience_metrics]
    if len(set(names)) < len(names):
        yield ConfigError(f"lists a metric twice: {', '.join(names)}", "rlhf_dpo_patience_metrics")


@rule("rlhf_enabled", "dropout_probability", "text_encoder")
def _dropout_is_off_for_pairs(c: TrainConfig) -> Iterator[Finding]:
    if c.rlhf_enabled and c.dropout_probability > 0:
        yield ConfigWarning("is not applied in preference training", "dropout_probability")
    if c.rlhf_enabled and c.text_encoder.dropout_probability > 0:
        yield ConfigWarning("is not applied in preference training", "text_encoder.dropout_probability")


@rule(
    "rlhf_enabled", "rlhf_mode", "perturbation_noise_weight", "offset_noise_weight", *NOISE_LEVELS,
)  # fmt: skip
def _noise_of_supervised_training(c: TrainConfig) -> Iterator[Finding]:
    if c.rlhf_enabled and c.perturbation_noise_weight > 0:
        yield ConfigWarning("is not applied in preference training", "perturbation_noise_weight")
    if not c.trains_online:
        return
    if c.offset_noise_weight > 0:
        yield ConfigWarning(f"is not applied: {c.rlhf_mode} draws its own noise", "offset_noise_weight")
    levels = "rlhf_sde_window" if c.rlhf_mode.coupled else "rlhf_timestep_range_low and rlhf_timestep_range_high"
    for name in NOISE_LEVELS:
        if getattr(c, name) != type(c).model_fields[name].default:
            yield ConfigWarning(f"is not applied: the noise levels of {c.rlhf_mode} are set by {levels}", name)


@rule("rlhf_enabled", "rlhf_mode", "concepts")
def _inline_concepts_fit(c: TrainConfig) -> Iterator[Finding]:
    if c.trains_pairs and c.concepts is not None:
        kinds = {concept.type for concept in c.concepts if concept.enabled}
        for kind in (ConceptType.DPO_CHOSEN, ConceptType.DPO_REJECTED):
            if kind not in kinds:
                yield ConfigWarning(f"has no enabled concept of type {kind}", "concepts")


# -- adapter and output ------------------------------------------------------------------------------------


@rule("training_method", "output_model_format")
def _format_fits_method(c: TrainConfig) -> Iterator[Finding]:
    lora = c.training_method is TrainingMethod.LORA
    word = c.training_method is TrainingMethod.EMBEDDING
    fits = c.output_model_format.for_adapters == lora
    if word:
        fits = c.output_model_format is ModelFormat.SAFETENSORS
    if c.output_model_format is not ModelFormat.AUTO and not fits:
        what = "an adapter" if lora else "an embedding" if word else "a whole model"
        yield ConfigError(
            f"{c.output_model_format} is not a format for {what} ({c.training_method})",
            "output_model_format",
            "set it to AUTO",
        )


@rule("layer_filter_preset", "layer_filter", "layer_filter_regex")
def _layer_filter(c: TrainConfig) -> Iterator[Finding]:
    if c.layer_filter_preset == "custom" and not c.layer_patterns():
        hint = "name parts of layers such as attn1, or choose the preset full"
        yield ConfigError("is empty while layer_filter_preset is custom", "layer_filter", hint)
    for pattern in c.bad_layer_patterns():
        yield ConfigError(f"{pattern!r} is not a regular expression", "layer_filter")
    if c.layer_filter_preset != "custom" and c.layer_filter.strip():
        yield ConfigWarning(
            f"has no effect: the preset {c.layer_filter_preset} chooses the layers; set layer_filter_preset to "
            "custom to choose them yourself",
            "layer_filter",
        )


@rule("training_method", "model_type", *DENOISERS, *TEXT_ENCODERS)
def _something_is_trained(c: TrainConfig) -> Iterator[Finding]:
    denoiser = c.model_type.denoiser
    if c.training_method is not TrainingMethod.EMBEDDING and not c.trained_parts():
        places = [f"{part}.train" for part in (denoiser, *c.model_type.text_encoders)]
        yield ConfigError("nothing is trained", places[0], f"switch on {' or '.join(places)}")


@rule("training_method", "model_type", *DENOISERS, *TEXT_ENCODERS)
def _few_bits_are_not_fine_tuned(c: TrainConfig) -> Iterator[Finding]:
    if c.training_method.keeps_the_model:
        return
    for name in (c.model_type.denoiser, *c.model_type.text_encoders):
        part = getattr(c, name)
        if part.train and part.weight_dtype.quantized:
            yield UnsupportedError(
                f"weights in {part.weight_dtype} cannot be fine-tuned",
                f"{name}.weight_dtype",
                "choose 16 or 32 bits, or train an adapter (LORA)",
            )


@rule(
    "training_method",
    "model_type",
    "base_model_name",
    "unet",
    "transformer",
    "training_adapter",
    "lora_decompose",
    "peft_type",
)
def _frozen_blocks_of_a_file(c: TrainConfig) -> Iterator[Finding]:
    name = c.model_type.denoiser
    part = getattr(c, name)
    place = f"{name}.model_name" if part.model_name.strip() else "base_model_name"
    if not (part.model_name.strip() or c.base_model_name).lower().endswith(".gguf"):
        return
    if c.training_method is not TrainingMethod.LORA:
        yield UnsupportedError(
            "only an adapter can be trained on the weights of a GGUF file",
            place,
            "use the model in 16 bits, or set training_method to LORA",
        )
        return
    if part.weight_dtype.quantized:
        yield UnsupportedError(
            f"the weights of a GGUF file keep their own number format and are not rounded to {part.weight_dtype}",
            f"{name}.weight_dtype",
            "choose BFLOAT_16, which applies only to the few weights of the file that are not quantised",
        )
    if c.training_adapter.model_name:
        yield UnsupportedError(
            "cannot be added to the weights of a GGUF file, which cannot be changed",
            "training_adapter.model_name",
            "use the model in 8 or 16 bits, or leave this empty",
        )
    if part.train and (c.peft_type in (PeftType.LOHA, PeftType.LOKR) or c.lora_decompose):
        decomposed = c.peft_type is PeftType.LORA
        yield UnsupportedError(
            f"{'DoRA' if decomposed else c.peft_type} cannot be trained on the weights of a GGUF file",
            "lora_decompose" if decomposed else "peft_type",
            "train a plain LORA",
        )


@rule(
    "training_method",
    "model_type",
    *DENOISERS,
    *TEXT_ENCODERS,
    "lora_decompose",
    "peft_type",
)
def _adapters_that_read_weights(c: TrainConfig) -> Iterator[Finding]:
    if c.training_method is not TrainingMethod.LORA:
        return
    decomposed = c.peft_type is PeftType.LORA and c.lora_decompose
    for name in (c.model_type.denoiser, *c.model_type.text_encoders):
        part = getattr(c, name)
        offloaded = getattr(part, "offload_fraction", 0.0) > 0
        if part.train and decomposed and (offloaded or part.weight_dtype.quantized):
            yield UnsupportedError(
                f"DoRA has to read the weights of {name}, which are quantised or offloaded",
                "lora_decompose",
                f"switch it off, or change {name}.weight_dtype"
                + (f" and {name}.offload_fraction" if offloaded else ""),
            )
        shaped = c.peft_type in (PeftType.LOHA, PeftType.LOKR)
        if part.train and shaped and part.weight_dtype is WeightDtype.NFLOAT_4:
            yield UnsupportedError(
                f"{c.peft_type} cannot be trained on weights in NFLOAT_4",
                "peft_type",
                f"choose LORA, or change {name}.weight_dtype",
            )


# -- noise and loss ----------------------------------------------------------------------------------------


@rule("force_v_prediction", "force_epsilon_prediction", "rescale_noise_scheduler_to_zero_terminal_snr")
def _one_prediction(c: TrainConfig) -> Iterator[Finding]:
    if c.force_v_prediction and c.force_epsilon_prediction:
        yield ConfigError(
            "contradicts force_epsilon_prediction", "force_v_prediction", "switch one of the two off"
        )
    if c.force_epsilon_prediction and c.rescale_noise_scheduler_to_zero_terminal_snr:
        yield ConfigError(
            "needs v-prediction: pure noise has no epsilon to learn from",
            "rescale_noise_scheduler_to_zero_terminal_snr",
            "switch off force_epsilon_prediction",
        )


@rule("min_noising_strength", "max_noising_strength")
def _noise_range(c: TrainConfig) -> Iterator[Finding]:
    if c.min_noising_strength >= c.max_noising_strength:
        yield ConfigError(
            f"{c.min_noising_strength:g} is not below max_noising_strength ({c.max_noising_strength:g})",
            "min_noising_strength",
        )


@rule("timestep_distribution", "noising_weight", "noising_bias")
def _distribution_numbers(c: TrainConfig) -> Iterator[Finding]:
    fault = fault_of_distribution(c.timestep_distribution.value, c.noising_weight, c.noising_bias)
    if fault is not None:
        yield ConfigError(fault[1], fault[0])


@rule(
    "mse_strength",
    "mae_strength",
    "log_cosh_strength",
    "huber_strength",
    "rlhf_enabled",
    "rlhf_supervised_mix",
)
def _some_loss(c: TrainConfig) -> Iterator[Finding]:
    strengths = (c.mse_strength, c.mae_strength, c.log_cosh_strength, c.huber_strength)
    if not any(strengths) and (not c.rlhf_enabled or c.rlhf_supervised_mix > 0):
        yield ConfigError("all loss strengths are 0: there is no loss to train on", "mse_strength")


@rule("loss_weight_fn", "loss_weight_strength")
def _loss_weight(c: TrainConfig) -> Iterator[Finding]:
    if c.loss_weight_fn is LossWeight.MIN_SNR_GAMMA and c.loss_weight_strength == 0:
        yield ConfigError("must be greater than 0 with MIN_SNR_GAMMA", "loss_weight_strength")


@rule(
    "rlhf_enabled",
    "rlhf_mode",
    "rlhf_dpo_timestep_sampling",
    "rlhf_dpo_timestep_strata",
    "rlhf_dpo_reference_cache",
    "rlhf_dpo_reference_cache_draws",
)
def _cached_draws_cover_the_strata(c: TrainConfig) -> Iterator[Finding]:
    stratified = c.rlhf_dpo_timestep_sampling is DPOTimestepSampling.STRATIFIED
    if c.trains_pairs and c.rlhf_dpo_reference_cache and stratified:
        draws, strata = c.rlhf_dpo_reference_cache_draws, c.rlhf_dpo_timestep_strata
        if draws < strata:
            message = f"{draws} cached draws cannot reach all {strata} strata of the timesteps"
            yield ConfigWarning(message, "rlhf_dpo_reference_cache_draws")


# -- intervals ---------------------------------------------------------------------------------------------


@rule(
    "sample_after",
    "sample_after_unit",
    "backup_after",
    "backup_after_unit",
    "save_every",
    "save_every_unit",
    "validate_after",
    "validate_after_unit",
)
def _intervals(c: TrainConfig) -> Iterator[Finding]:
    for name in ("sample_after", "backup_after", "save_every", "validate_after"):
        unit = getattr(c, f"{name}_unit")
        if unit not in (TimeUnit.NEVER, TimeUnit.ALWAYS) and getattr(c, name) == 0:
            yield ConfigError(
                f"must be at least 1 when its unit is {unit}", name, f"or set {name}_unit to NEVER"
            )


@rule("ema", "ema_decay", "ema_update_step_interval", "max_steps")
def _ema_moves(c: TrainConfig) -> Iterator[Finding]:
    if c.ema.value == "OFF":
        return
    if c.ema_decay == 1:
        yield ConfigWarning("is 1: the average never moves", "ema_decay")
    if 0 < c.max_steps < c.ema_update_step_interval:
        yield ConfigWarning(
            f"is {c.ema_update_step_interval}: the average is not updated within the {c.max_steps} steps of this run "
            "(max_steps), so the trained weights are saved without averaging",
            "ema_update_step_interval",
        )
