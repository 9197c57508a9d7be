from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.util.config.faults import raise_all
from modules.util.config.overrides import merge, override
from modules.util.config.settings import iter_settings
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, UserError, UserErrors
from tests.util.config.strategies import values


def changed(*texts: str, **data: object) -> TrainConfig:
    made, faults = override(TrainConfig, {"__version": 1, **data}, texts)
    raise_all(faults)
    return TrainConfig.from_dict(made)


def test_values_are_read_by_the_type_of_the_field() -> None:
    config = changed(
        "learning_rate=3e-5",
        "batch_size=4",
        "rlhf_enabled=true",
        "rlhf_dpo_execution_mode=SEQUENTIAL",
        "resolution=512",
        "base_model_name=true",
        'workspace_dir="a b"',
        "lora_model_name=",
        "clip_grad_norm=null",
        "unet.learning_rate=",
        "output_model_destination=a=b.safetensors",
        "rlhf_dpo_patience_metrics=val_loss, val_chosen_reward",
        "optimizer.params.growth_rate=inf",
        "optimizer.params.k=3",
        'concepts=[{"path": "x"}]',
        "concepts[0].enabled=false",
        "concepts.0.image.enable_random_flip=true",
    )
    assert config.learning_rate == 3e-5
    assert config.batch_size == 4
    assert config.rlhf_enabled is True
    assert config.rlhf_dpo_execution_mode == "SEQUENTIAL"
    assert config.resolution == "512"
    assert config.base_model_name == "true"
    assert config.workspace_dir == "a b"
    assert config.lora_model_name == ""
    assert config.clip_grad_norm is None
    assert config.unet.learning_rate is None
    assert config.output_model_destination == "a=b.safetensors"
    assert config.rlhf_dpo_patience_metrics == ["val_loss", "val_chosen_reward"]
    assert config.optimizer.params == {"growth_rate": math.inf, "k": 3}
    assert config.concepts is not None
    assert config.concepts[0].path == "x"
    assert config.concepts[0].enabled is False
    assert config.concepts[0].image.enable_random_flip is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat=1", "did you mean 'learning_rate'?"),
        (
            "unet.learning_rat=1",
            "unet.learning_rat: there is no such setting\n  -> did you mean 'learning_rate'?",
        ),
        ("learning_rate", "'learning_rate' is not a setting"),
        ("=3", "'=3' is not a setting"),
        ("unet..train=true", "is not a setting"),
        ("batch_size.x=3", "batch_size is a single value and has no parts"),
        ("concepts.0.path=x", "concepts: the config does not hold this list itself"),
        ("samples[3].prompt=x", "samples has 1 item, counted from 0"),
        ("samples.first.prompt=x", "samples has 1 item, counted from 0"),
        ("samples[0].promt=x", "did you mean 'prompt'?"),
        ("batch_size=four", 'batch_size: must be a whole number, not "four"'),
        ("rlhf_mode=DPP", "did you mean 'DPO'?"),
        ("rlhf_enabled=yes", "rlhf_enabled: must be true or false"),
        ("learning_rate=NaN", "learning_rate: must be a number, not NaN"),
    ],
)
def test_a_bad_override_is_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        changed(text, samples=[{}], batch_size=2)
    assert message in str(caught.value)


def test_all_bad_overrides_are_reported() -> None:
    with pytest.raises(UserErrors) as caught:
        changed("a=1", "batch_size=2", "b=2")
    assert [error.field for error in caught.value.errors] == ["a", "b"]


def test_the_data_given_stay_as_they_were() -> None:
    data = {"unet": {"train": True}}
    made, _ = override(TrainConfig, data, ["unet.train=false"])
    assert made == {"unet": {"train": False}}
    assert data == {"unet": {"train": True}}


def test_what_can_be_set_is_set_next_to_what_cannot() -> None:
    made, faults = override(TrainConfig, {}, ["a=1", "batch_size=2"])
    assert made == {"batch_size": 2} and [fault.field for fault in faults] == ["a"]


def test_later_ones_win() -> None:
    assert changed("epochs=2", "epochs=3").epochs == 3


def test_merge_goes_into_objects_and_replaces_lists() -> None:
    assert merge({"a": {"b": 1, "c": 2}, "l": [1, 2]}, {"a": {"c": 3}, "l": [4]}) == {
        "a": {"b": 1, "c": 3},
        "l": [4],
    }


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_setting_can_be_overridden(data: st.DataObject) -> None:
    known = [s for s in iter_settings(TrainConfig) if s.kind not in ("list", "table")]
    chosen = data.draw(st.sampled_from(known))
    value = data.draw(values(chosen))
    text = f"{chosen.path}={json.dumps(value)}"
    made, faults = override(TrainConfig, {}, [text])
    assert not faults
    config = TrainConfig.from_dict({"__version": 1, **made}).to_dict()
    for part in chosen.path.split("."):
        config = config[part]
    if chosen.path != "rlhf_dpo_ref_mode":
        assert config == value


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40), st.text(max_size=20))
def test_no_text_brings_it_down(name: str, value: str) -> None:
    try:
        changed(f"{name}={value}")
    except UserError:
        return
