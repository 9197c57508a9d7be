"""Settings that an adapter to start from decides differently: refused where they were given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.model.Model import Model
from modules.modelSetup import training
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, UserErrors
from tests.tiny import tiny_folder, tiny_setup

SETUP = tiny_setup()
CUSTOM = {"layer_filter_preset": "custom", "layer_filter": "attn1"}


def prepared(**values: Any) -> Model:
    base = {"base_model_name": str(tiny_folder()), "train_dtype": "FLOAT_32", "lora_rank": 4}
    config = TrainConfig.from_dict(base | values)
    model = training.load_model(SETUP, config)
    training.prepare(SETUP, model, config)
    return model


def trained(folder: Path, **values: Any) -> str:
    return str(training.save(prepared(**values), folder / "first.safetensors"))


@pytest.fixture(scope="module")
def first_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], str]:
    """The file of an adapter with some settings, which is made once."""
    made: dict[str, str] = {}

    def file(settings: dict[str, Any]) -> str:
        if (key := repr(settings)) not in made:
            made[key] = trained(tmp_path_factory.mktemp("first"), **settings)
        return made[key]

    return file


@pytest.mark.parametrize(
    ("first", "field", "changes"),
    [
        ({}, "layer_filter_preset", {"layer_filter_preset": "full"}),
        pytest.param({}, "layer_filter_preset", CUSTOM, marks=pytest.mark.slow),
        (CUSTOM, "layer_filter_preset", {"layer_filter_preset": "custom", "layer_filter": "attn2"}),
        ({}, "lora_rank_pattern", {"lora_rank_pattern": "attn1=8"}),
        pytest.param(
            {"lora_rank_pattern": "attn1=8"},
            "lora_rank_pattern",
            {"lora_rank_pattern": "attn1=2"},
            marks=pytest.mark.slow,
        ),
        ({}, "lora_alpha_pattern", {"lora_alpha_pattern": "attn1=8"}),
        ({}, "peft_type", {"peft_type": "LOHA"}),
        ({}, "lora_decompose", {"lora_decompose": True}),
        pytest.param(
            {"lora_decompose": True},
            "lora_decompose_output_axis",
            {"lora_decompose": True, "lora_decompose_output_axis": False},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"lora_decompose": True, "lora_decompose_output_axis": False},
            "lora_decompose_output_axis",
            {"lora_decompose": True},
            marks=pytest.mark.slow,
        ),
        ({"lora_decompose": True}, "lora_decompose_output_axis", {"lora_decompose_output_axis": False}),
        ({}, "text_encoder.train", {"text_encoder": {"train": True}}),
        ({"text_encoder": {"train": True}, "unet": {"train": False}}, "unet.train", {}),
    ],
)
def test_what_the_file_decides_otherwise_is_refused(
    first_file: Callable[[dict[str, Any]], str], first: dict[str, Any], field: str, changes: dict[str, Any]
) -> None:
    path = first_file(first)
    with pytest.raises(ConfigError) as caught:
        prepared(lora_model_name=path, **changes)
    assert caught.value.field == field and caught.value.hint
    assert "first.safetensors" in str(caught.value) or "adapter file" in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(CUSTOM, marks=pytest.mark.slow),
        {"layer_filter_preset": "full", "peft_type": "OFT_2"},
        pytest.param(
            {"lora_rank_pattern": "attn1=8, ff=2", "lora_alpha_pattern": "attn2=3"}, marks=pytest.mark.slow
        ),
        {"lora_alpha_pattern": "attn2=3", "lora_rank_pattern": "attn2=9", "lora_rs": True},
        {"lora_rank_pattern": "ff=8", "peft_type": "LOKR"},
        pytest.param({"lora_decompose": True, "text_encoder": {"train": True}}, marks=pytest.mark.slow),
        {"lora_decompose": True, "lora_decompose_output_axis": False, "text_encoder": {"train": True}},
    ],
)
def test_the_settings_it_was_made_with_are_kept(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = prepared(**settings)
    path = str(training.save(model, tmp_path / "first.safetensors"))
    again = prepared(lora_model_name=path, **settings)
    assert model.adapter is not None and again.adapter is not None
    assert again.adapter.layers.keys() == model.adapter.layers.keys()
    # two whole factors have no rank: their scale is in their values
    for place in model.adapter.layers if settings.get("peft_type") != "LOKR" else ():
        assert again.adapter.scaling(place) == pytest.approx(model.adapter.scaling(place)), place


def test_what_was_not_given_is_the_files(tmp_path: Path) -> None:
    path = trained(tmp_path, **CUSTOM, lora_rank_pattern="attn1=8", lora_decompose=True)
    again = prepared(lora_model_name=path)
    assert again.adapter is not None and again.adapter.options.decompose
    assert all("attn1" in place and again.adapter.rank(place) == 8 for place in again.adapter.layers)


def test_all_that_disagrees_is_told_at_once(first_file: Callable[[dict[str, Any]], str]) -> None:
    path = first_file({})
    with pytest.raises(UserErrors) as caught:
        prepared(lora_model_name=path, peft_type="LOKR", text_encoder={"train": True}, **CUSTOM)
    found = str(caught.value)
    assert all(name in found for name in ("peft_type", "text_encoder.train", "layer_filter_preset"))
    assert found.count("not chosen") <= 5
