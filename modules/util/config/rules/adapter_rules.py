"""Rules that relate the settings of an adapter to each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from modules.util.config.rules.rules import Finding, rule
from modules.util.config.section.LoraSection import is_regular_expression
from modules.util.enum.choices import ModelFormat, PeftType, TrainingMethod
from modules.util.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig


def _begins_an_adapter(c: TrainConfig) -> bool:
    """Return whether a new adapter is trained. One that is trained further determines its own type and size."""
    return c.training_method is TrainingMethod.LORA and not c.lora_model_name.strip()


@rule("training_method", "peft_type", "lora_rank", "lora_model_name")
def _rotations_have_blocks(c: TrainConfig) -> Iterator[Finding]:
    if _begins_an_adapter(c) and c.peft_type is PeftType.OFT_2 and c.lora_rank < 2:
        yield ConfigError(
            "a block of 1 has nothing to rotate, so nothing would be trained",
            "lora_rank",
            "set it to 2 or more with OFT_2; 32 is usual",
        )


@rule("training_method", "peft_type", "lora_decompose", "lora_rs")
def _lora_only(c: TrainConfig) -> Iterator[Finding]:
    if c.training_method is not TrainingMethod.LORA or c.peft_type is PeftType.LORA:
        return
    for name, label in (("lora_decompose", "DoRA"), ("lora_rs", "rank-stabilised scaling")):
        if getattr(c, name):
            yield UnsupportedError(
                f"{label} is supported for peft_type LORA only, not {c.peft_type}",
                name,
                f"set {name} to false",
            )


@rule(
    "training_method",
    "peft_type",
    "lora_decompose",
    "lora_decompose_output_axis",
    "lora_model_name",
    "output_model_format",
)
def _format_fits_adapter(c: TrainConfig) -> Iterator[Finding]:
    if not _begins_an_adapter(c) or c.output_model_format is not ModelFormat.DIFFUSERS_LORA:
        return
    if c.peft_type is PeftType.LORA and c.lora_decompose and not c.lora_decompose_output_axis:
        yield UnsupportedError(
            "the diffusers layout can store DoRA magnitudes of outputs only, not of inputs",
            "output_model_format",
            "set it to AUTO or KOHYA_LORA, or set lora_decompose_output_axis to true",
        )
    if c.peft_type is not PeftType.LORA:
        yield UnsupportedError(
            f"the diffusers layout can store LORA only, not {c.peft_type}",
            "output_model_format",
            "set it to AUTO or KOHYA_LORA",
        )


@rule("training_method", "peft_type", "lora_rank_pattern", "lora_alpha_pattern", "layer_filter_regex")
def _patterns_of_ranks(c: TrainConfig) -> Iterator[Finding]:
    if c.training_method is not TrainingMethod.LORA:
        return
    for name, read in (("lora_rank_pattern", c.rank_patterns), ("lora_alpha_pattern", c.alpha_patterns)):
        try:
            patterns = read()
        except ConfigError as fault:
            yield fault
            continue
        if patterns and c.peft_type is PeftType.OFT_2:
            yield UnsupportedError("OFT_2 has one block size for all layers", name, "leave it empty")
        for pattern in patterns if c.layer_filter_regex else ():
            if not is_regular_expression(pattern):
                yield ConfigError(f"{pattern!r} is not a regular expression", name)
