"""Settings of parts: each has an effect in the family, or is reported."""

from __future__ import annotations

from typing import Any

import pytest

from modules.util.config.load import find_problems, read_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.ModelType import ModelType
from modules.util.errors import UserError
from tests.usual import usual

PARTS = ("unet", "transformer", "text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4", "vae")
OTHER_VALUES: dict[str, Any] = {
    "model_name": "elsewhere.safetensors",
    "weight_dtype": "BFLOAT_16",
    "learning_rate": 1e-5,
    "offload_fraction": 0.5,
    "guidance_scale": 3.5,
    "dropout_probability": 0.1,
    "layer_skip": 1,
    "sequence_length": 64,
    "attention_mask": "MASKED",
    "stop_training_after": 3,
    "stop_training_after_unit": "EPOCH",
}


def warned(config: TrainConfig) -> list[str]:
    return [warning.field for warning in find_problems(config).warnings]


LIKE_NO_OTHER = [
    ModelType(name)
    for name in (
        "STABLE_DIFFUSION_15",
        "STABLE_DIFFUSION_20_INPAINTING",
        "STABLE_DIFFUSION_XL_10_BASE",
        "STABLE_DIFFUSION_3",
        "FLUX_DEV_1",
        "PIXART_ALPHA",
        "QWEN_EDIT",
        "HI_DREAM_FULL",
        "IDEOGRAM_4",
    )
]
"""Families that differ in their parts, their text encoders, what they predict and what they are given."""


@pytest.mark.parametrize("family", usual(ModelType, *LIKE_NO_OTHER))
def test_every_setting_of_a_part_the_family_has_not_is_reported(family: ModelType) -> None:
    usual = TrainConfig()
    assert not [field for field in warned(read_config({"model_type": family})) if "." in field]
    for name in PARTS:
        part = getattr(usual, name)
        fields = type(part).model_fields
        values = {field: OTHER_VALUES.get(field, getattr(part, field) is False) for field in fields}
        found = warned(TrainConfig.from_dict({"model_type": family, name: values}))
        for field in fields:
            idle = name not in family.parts or (field == "guidance_scale" and not family.spec.embeds_guidance)
            assert (f"{name}.{field}" in found) is idle, (name, field)


def test_a_size_of_sources_needs_a_family_that_takes_some() -> None:
    assert "source_resolution" in warned(read_config({"source_resolution": 512}))
    assert not warned(read_config({"model_type": "FLUX_2", "source_resolution": 512}))


def test_the_message_names_the_family_and_what_it_has() -> None:
    config = read_config({"text_encoder_2": {"train": True}})
    assert [str(warning) for warning in find_problems(config).warnings] == [
        "text_encoder_2.train: has no effect: Stable Diffusion 1.5 has no text_encoder_2; its parts are unet, "
        "text_encoder, vae"
    ]


@pytest.mark.parametrize("family", usual(ModelType, *LIKE_NO_OTHER))
def test_chunks_are_reported_where_prompts_are_one_text(family: ModelType) -> None:
    for most in range(1, 9):
        config = TrainConfig.from_dict({"model_type": family, "max_prompt_chunks": most})
        idle = not family.spec.chunks_prompts and most != TrainConfig().max_prompt_chunks
        assert ("max_prompt_chunks" in warned(config)) is idle
    for most in (0, 9, 2.5, True):
        with pytest.raises(UserError, match="max_prompt_chunks"):
            read_config({"model_type": family, "max_prompt_chunks": most})


@pytest.mark.parametrize("family", usual(ModelType, *LIKE_NO_OTHER))
def test_weights_of_noise_levels_need_noise_variances(family: ModelType) -> None:
    weighted = {"model_type": family, "loss_weight_fn": "MIN_SNR_GAMMA", "loss_weight_strength": 5.0}
    idle = read_config({**weighted, "rlhf_enabled": True})
    assert ("loss_weight_fn" in warned(idle)) is family.spec.flow_matching
    for changes in ({}, {"rlhf_enabled": True, "rlhf_supervised_mix": 0.5}):
        problems = find_problems(TrainConfig.from_dict({**weighted, **changes}))
        assert ("loss_weight_fn" in [error.field for error in problems.errors]) is family.spec.flow_matching


def test_a_shift_by_size_needs_a_family_that_has_one() -> None:
    data = {"model_type": "FLUX_DEV_1", "dynamic_timestep_shifting": True}
    assert "dynamic_timestep_shifting" not in warned(read_config(data))
    assert "timestep_shift" in warned(read_config({**data, "timestep_shift": 3.0}))
    with pytest.raises(UserError) as caught:
        read_config({**data, "model_type": "SANA"})
    assert caught.value.field == "dynamic_timestep_shifting"


def test_sigma_belongs_to_flows_and_the_ratio_to_the_others() -> None:
    for family, function in (("STABLE_DIFFUSION_15", "SIGMA"), ("FLUX_DEV_1", "SNR")):
        with pytest.raises(UserError) as caught:
            read_config({"model_type": family, "loss_weight_fn": function})
        assert caught.value.field == "loss_weight_fn"
    read_config({"model_type": "FLUX_DEV_1", "loss_weight_fn": "SIGMA"})
    read_config({"model_type": "STABLE_DIFFUSION_15", "loss_weight_fn": "SNR"})


def test_the_schedule_of_adafactor_needs_its_optimizer() -> None:
    data = {"learning_rate_scheduler": "ADAFACTOR", "optimizer": {"optimizer": "ADAFACTOR"}}
    with pytest.raises(UserError) as caught:
        read_config(data)
    assert caught.value.field == "learning_rate_scheduler"
    data["optimizer"]["params"] = {"relative_step": True}
    read_config(data)
    found = warned(read_config({"loss_scaler": "BATCH"}))
    assert "loss_scaler" in found
    assert "loss_scaler" not in warned(
        read_config({"loss_scaler": "BATCH", "optimizer": {"optimizer": "SGD"}})
    )


def test_an_offset_by_noise_level_needs_noise_levels() -> None:
    def errors(**data: Any) -> list[str | None]:
        given = {"offset_noise_weight": 0.1, "generalized_offset_noise": True, **data}
        return [error.field for error in find_problems(TrainConfig.from_dict(given)).errors]

    assert errors() == []
    assert errors(model_type="FLUX_DEV_1") == ["generalized_offset_noise"]
    assert errors(rescale_noise_scheduler_to_zero_terminal_snr=True) == ["generalized_offset_noise"]
    assert "generalized_offset_noise" in warned(TrainConfig.from_dict({"generalized_offset_noise": True}))


@pytest.mark.parametrize("family", ["ERNIE", "IDEOGRAM_4", "QWEN", "FLUX_2", "HI_DREAM_FULL"])
def test_a_prompt_may_have_as_many_tokens_as_its_family_reads(family: str) -> None:
    spec = ModelType(family).spec
    for tokens, faults in ((spec.most_tokens, 0), (spec.most_tokens + 1, 1)):
        try:
            made = TrainConfig.from_dict({"model_type": family, spec.length_of: {"sequence_length": tokens}})
        except UserError:
            found = 1
        else:
            found = sum("sequence_length" in (one.field or "") for one in find_problems(made).errors)
        assert found == faults, tokens
