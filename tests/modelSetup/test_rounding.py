"""Which layers of a denoiser are kept in few bits: those of its blocks, or those that a filter names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modules.model.compact import FrozenLinear, quantize, roundable_layers, roundable_names
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup import training
from modules.spec.registry import FAMILIES
from modules.trainer.memory.shape_only import shape_only_model
from modules.util.config.load import find_problems
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch
from tests.usual import usual

KEY, PART = "FLUX_DEV_1", "transformer"


def config_of(key: str = KEY, dtype: str = "FLOAT_8", **quantization: Any) -> TrainConfig:
    denoiser = FAMILIES[key].denoiser
    return TrainConfig.from_dict({
        "model_type": key, "base_model_name": str(tiny_folder(key)), "quantization": quantization,
        denoiser: {"weight_dtype": dtype}, "training_method": "LORA", "train_dtype": "FLOAT_32",
    })  # fmt: skip


def rounded(model: Model) -> set[str]:
    return {name for name, layer in model.denoiser.named_modules() if isinstance(layer, FrozenLinear)}


def loaded(config: TrainConfig) -> Model:
    return training.load_model(tiny_setup(config.model_type.value), config)


def score(key: str, model: Model) -> torch.Tensor:
    setup = tiny_setup(key)
    batch = image_batch(setup, model, ["a", "b"])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    with torch.no_grad():
        return setup.score(model, batch.latents_BChw, batch.cond, draw, batch.size)


def in_bytes(module: torch.nn.Module) -> int:
    return sum(one.numel() * one.element_size() for one in (*module.parameters(), *module.buffers()))


def test_by_default_all_layers_of_the_blocks_are_as_they_were_without_a_filter() -> None:
    plain = loaded(config_of(dtype="FLOAT_32"))
    quantize(plain.denoiser, "FLOAT_8", torch.float32)
    model = loaded(config_of())
    assert rounded(model) == rounded(plain)
    assert model.fingerprint(PART) == plain.fingerprint(PART)
    assert torch.equal(score(KEY, model), score(KEY, plain))


def test_a_preset_chooses_the_layers_and_the_rest_stays_exact() -> None:
    exact = tiny_model(KEY)
    blocks, attention = loaded(config_of()), loaded(config_of(layer_filter_preset="attn-only"))
    inside = {name for name in roundable_names(exact.denoiser) if "attn" in name}
    assert rounded(attention) == inside
    assert {name for name in rounded(blocks) if "attn" in name} <= inside
    before, after = exact.denoiser.state_dict(), attention.denoiser.state_dict()
    same = [name for name in before if name.removesuffix(".weight") not in inside]
    assert all(torch.equal(before[name], after[name]) for name in same)
    scores = [score(KEY, one) for one in (exact, attention, blocks)]
    assert not torch.equal(scores[1], scores[2])
    # three of four bytes of the layers that are left out
    left = sum(blocks.denoiser.get_submodule(name).weight.numel() for name in rounded(blocks) - inside)
    more = sum(exact.denoiser.get_submodule(name).weight.numel() for name in inside - rounded(blocks))
    assert in_bytes(attention.denoiser) > in_bytes(blocks.denoiser) + 2.5 * left - 3 * more
    assert attention.fingerprint(PART) != blocks.fingerprint(PART)


def test_filters_with_equally_many_layers_are_told_apart() -> None:
    made = [
        loaded(config_of(layer_filter_preset="custom", layer_filter=text))
        for text in ("attn.to_q", "attn.to_k")
    ]
    assert len(rounded(made[0])) == len(rounded(made[1])) > 0
    assert rounded(made[0]).isdisjoint(rounded(made[1]))
    assert len({one.denoiser.stored_as for one in made}) == 2


def test_a_filter_may_be_a_regular_expression() -> None:
    config = config_of(layer_filter_preset="custom", layer_filter=r"^transformer_blocks\.\d+\.attn\.to_[qk]$",
                       layer_filter_regex=True)  # fmt: skip
    names = rounded(loaded(config))
    assert names
    assert {name.rpartition(".")[2] for name in names} == {"to_q", "to_k"}


@pytest.mark.parametrize(
    "key",
    # each family has layers of its own; those here bring activations to the type of some weight
    [
        pytest.param(key, marks=[] if key in ("Z_IMAGE", "CHROMA_1") else pytest.mark.slow)
        for key, spec in FAMILIES.items()
        if not spec.onetrainer_type
    ],
)
def test_all_layers_of_every_family_can_be_in_few_bits(key: str) -> None:
    model, config = tiny_model(key), config_of(key, layer_filter_preset="full")
    names = training.rounded_names(model.denoiser, FAMILIES[key].denoiser, config)
    assert names is not None
    assert len(names) >= len(list(roundable_layers(model.denoiser)))
    exact = score(key, model)
    quantize(model.denoiser, "FLOAT_8", torch.float32, names)
    rough = score(key, model)
    assert not torch.equal(rough, exact)
    assert torch.allclose(rough, exact, atol=2e-2)


def test_text_encoders_have_all_their_blocks_in_few_bits() -> None:
    encoder = tiny_model(KEY).module("text_encoder_2")
    assert (
        training.rounded_names(encoder, "text_encoder_2", config_of(layer_filter_preset="attn-only")) is None
    )


@pytest.mark.parametrize("preset", usual(["blocks", "attn-only", "full"], "attn-only"))
def test_the_forecast_counts_the_bytes_of_the_layers_that_are_chosen(preset: str) -> None:
    config = config_of(layer_filter_preset=preset)
    model, shapes = loaded(config), shape_only_model(tiny_setup(KEY), config)
    lora = [p for n, p in shapes.denoiser.named_parameters() if "lora_" in n]
    assert in_bytes(shapes.denoiser) - 4 * sum(p.numel() for p in lora) == in_bytes(model.denoiser)


def test_an_entry_that_matches_nothing_is_refused_with_the_setting() -> None:
    with pytest.raises(ConfigError) as error:
        loaded(config_of(layer_filter_preset="custom", layer_filter="atn"))
    assert error.value.field == "quantization.layer_filter"


@pytest.mark.parametrize(
    ("quantization", "dtype", "field"),
    [
        ({"layer_filter_preset": "custom"}, "FLOAT_8", "quantization.layer_filter"),
        ({"layer_filter_preset": "atn"}, "FLOAT_8", "quantization.layer_filter_preset"),
        ({"layer_filter_preset": "custom", "layer_filter": "(", "layer_filter_regex": True}, "FLOAT_8",
         "quantization.layer_filter"),
    ],
)  # fmt: skip
def test_what_chooses_nothing_is_refused(quantization: dict[str, Any], dtype: str, field: str) -> None:
    assert [error.field for error in find_problems(config_of(dtype=dtype, **quantization)).errors] == [field]


def test_a_filter_without_effect_is_told() -> None:
    for quantization, dtype in (
        ({"layer_filter": "attn"}, "FLOAT_8"),
        ({"layer_filter_preset": "full"}, "BFLOAT_16"),
    ):
        warnings = find_problems(config_of(dtype=dtype, **quantization)).warnings
        assert [one.field.partition(".")[0] for one in warnings if "no effect" in one.message] == [
            "quantization"
        ]
    assert not find_problems(config_of()).warnings


def test_names_are_those_of_linear_layers_that_are_not_kept_exact() -> None:
    encoder = tiny_model(KEY).module("text_encoder_2")
    assert "wo" in encoder._keep_in_fp32_modules
    assert not any(name.endswith(".wo") for name in roundable_names(encoder))
