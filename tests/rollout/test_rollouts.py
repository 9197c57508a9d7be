"""Keeping rollouts: slices, joins, files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from modules.model.Model import Model
from modules.rollout.generate import generate
from modules.rollout.Rollouts import Rollouts, RolloutSettings
from modules.util.errors import ConfigError, DataError
from modules.util.tensors.tensor_files import write_safetensors
from tests.rollout.helpers import SETUP, adapted_model, requests, rolled, settings_for


@pytest.fixture(scope="module")
def model() -> Model:
    return adapted_model()


@pytest.fixture(scope="module")
def made(model: Model) -> Rollouts:
    return rolled(model, settings_for(model, {"window": (1, 2)}, storage="BFLOAT_16"), count=5)


def same(one: Rollouts, other: Rollouts) -> None:
    assert one.metadata() == other.metadata()
    mine, theirs = one.to_tensors(), other.to_tensors()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), name


def test_only_trained_steps_are_kept(made: Rollouts) -> None:
    assert made.steps == (1, 2) and made.settings.plan.points == (1, 2, 3)
    assert made.states_NPChw.shape == (5, 3, 4, 8, 8)
    assert made.states_NPChw.dtype == torch.bfloat16 and made.final_NChw.dtype == torch.float32
    assert torch.equal(made.x_next(1), made.x(2))
    assert made.logp_NS.shape == made.mask_NS.shape == (5, 2)
    assert made.mask_NS.all() and made.group_N.tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("cfg", [1.0, 3.0])
def test_files(model: Model, tmp_path, cfg: float) -> None:
    made = rolled(model, settings_for(model, cfg=cfg), count=3)
    made = replace(made, group_N=made.group_N + 2**53 + 1)
    write_safetensors(made.to_tensors(), tmp_path / "r.safetensors", {"data": json.dumps(made.metadata())})
    back = Rollouts.from_tensors(
        load_file(tmp_path / "r.safetensors"), json.loads(json.dumps(made.metadata()))
    )
    same(made, back)
    made.settings.require_same(back.settings)
    assert back.seeds == made.seeds and max(made.seeds) > 2**32
    assert back.group_N.tolist() == [2**53 + 1, 2**53 + 2, 2**53 + 1]
    assert (back.negative() is None) == (cfg == 1.0)


def test_slices_and_joins(made: Rollouts) -> None:
    parts = made.batches(2)
    assert [len(part) for part in parts] == [2, 2, 1]
    same(Rollouts.cat(parts), made)
    picked = made.select([3, 0])
    assert picked.ids == ["0/3", "0/0"]
    assert torch.equal(picked.x(1), made.x(1)[[3, 0]])
    assert torch.equal(picked.condition()["hidden_BLE"], made.condition()["hidden_BLE"][[3, 0]])
    same(made.to("cpu"), made)


def test_joining_epochs_keeps_each_ones_texts(model: Model) -> None:
    settings = settings_for(model)
    one, other = (generate(SETUP, model, requests(3, epoch), settings, 3) for epoch in range(2))
    other = other.select([2, 1])
    both = Rollouts.cat([one, other])
    assert len(both) == 5 and len(both.texts) == 6
    wanted = torch.cat([one.condition()["hidden_BLE"], other.condition()["hidden_BLE"]])
    assert torch.equal(both.condition()["hidden_BLE"], wanted)
    negative = both.negative()
    assert negative is not None and torch.equal(negative["hidden_BLE"][0], negative["hidden_BLE"][4])
    with pytest.raises(RuntimeError, match="cfg: 3.0 and 2.0"):
        Rollouts.cat([one, replace(other, settings=replace(settings, cfg=2.0))])


def test_settings_of_earlier_backups_are_read(made: Rollouts) -> None:
    settings = made.settings
    assert RolloutSettings.from_dict({**settings.to_dict(), "keep_means": False}) == settings


def test_parts_that_do_not_fit(made: Rollouts) -> None:
    with pytest.raises(ValueError, match="differ in length"):
        replace(made, seeds=made.seeds[:2])
    with pytest.raises(ValueError, match="are needed, not"):
        replace(made, logp_NS=made.logp_NS[:, :1])
    with pytest.raises(ValueError, match="int64"):
        replace(made, group_N=made.group_N.float())
    with pytest.raises(ValueError, match="not among the trained"):
        made.x(0)


def test_damaged_files(made: Rollouts) -> None:
    tensors, data = made.to_tensors(), made.metadata()
    for name in ("logp_NS", "texts.hidden_BLE", "group_N"):
        with pytest.raises(DataError, match="damaged"):
            Rollouts.from_tensors({k: v for k, v in tensors.items() if k != name}, data)
    with pytest.raises(DataError, match="damaged"):
        Rollouts.from_tensors(tensors, {k: v for k, v in data.items() if k != "ids"})
    with pytest.raises(DataError, match="format 99"):
        Rollouts.from_tensors(tensors, {**data, "format": 99})
    for broken in ({}, {**data["settings"], "size": [1]}, {**data["settings"], "other": 1}, {"plan": None}):
        with pytest.raises(DataError, match="settings"):
            Rollouts.from_tensors(tensors, {**data, "settings": broken})


def test_settings(model: Model) -> None:
    made = settings_for(model)
    again = RolloutSettings.from_dict(json.loads(json.dumps(made.to_dict())))
    assert again == made and hash(again) == hash(made)
    assert made.differences(again) == []
    for field in ("layout", "reduction", "form", "storage"):
        with pytest.raises(ConfigError, match=f"unknown {field}"):
            replace(made, **{field: "other"})
