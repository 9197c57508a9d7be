"""Optimizers of OneTrainer that other packages supply there: the imported one takes the same steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.trainer.optim.optimizers import create_optimizer
from modules.util.config.foreign.Notes import Note
from modules.util.config.load import check_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import Optimizer
from tests.usual import usual
from tests.util.config.onetrainer.optimizer_numbers import NUMBERS
from tests.util.config.onetrainer.reading import import_onetrainer

NO_MOMENTUM = ("LARS", "LARS_8BIT", "SCHEDULE_FREE_SGD", "SGD_8BIT")
IN_32_BITS = ("CAME_8BIT", "LAMB", "LAMB_8BIT", "LARS")


def imported(folder: Path, name: str, **numbers: Any) -> tuple[TrainConfig, list[Note]]:
    path = folder / "config.json"
    given = {"optimizer": name, **NUMBERS.get(name, {}), **numbers}
    lists: dict[str, Any] = {"concepts": [], "samples": []}
    path.write_text(json.dumps({"__version": 11, "training_method": "LORA", "optimizer": given, **lists}))
    config, notes = import_onetrainer(path)
    return config, [note for note in notes if note.place.startswith("optimizer")]


@pytest.mark.parametrize("name", usual(NUMBERS, *list(NUMBERS)[::3]))
def test_what_the_window_fills_in_changes_only_what_is_named(tmp_path: Path, name: str) -> None:
    config, notes = imported(tmp_path, name)
    changed = [note.place for note in notes if note.changes_weights]
    expected = ["optimizer.momentum"] if name in NO_MOMENTUM else []
    assert changed == (["optimizer.optimizer"] if name == "DADAPT_ADAN" else expected)
    assert [note.place for note in notes if not note.changes_weights] == (
        ["optimizer.optimizer"] if name in IN_32_BITS else []
    )
    weight = torch.nn.Parameter(torch.ones(4, 4))
    if name != "MUON":  # its layers are named
        create_optimizer(config.optimizer, [("all", 1e-3, [("weight", weight)])])


def test_every_optimizer_of_the_window_is_here() -> None:
    with_packages = {name for name in Optimizer.__members__ if name.endswith(("_ADV", "_SCHEDULE_FREE"))}
    mixed = {"ADEMAMIX", "ADEMAMIX_8BIT"}
    assert {*map(str.upper, NUMBERS)} - {"CAME_8BIT"} == {*Optimizer.__members__} - with_packages | mixed


def steps(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> torch.Tensor:
    stream = torch.Generator().manual_seed(1)
    for _ in range(20):
        weight.grad = torch.randn(weight.shape, generator=stream) * 0.1
        optimizer.step()
    return weight.detach()


def start() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(24, 16, generator=torch.Generator().manual_seed(0)) * 0.05)


def _lamb(bnb: Any, weight: Any) -> Any:
    return bnb.LAMB([weight], lr=1e-3, weight_decay=0.1)


def _lars(bnb: Any, weight: Any) -> Any:
    return bnb.LARS([weight], lr=1e-3, weight_decay=0.1, momentum=0.9, max_unorm=0.05)


def _rmsprop(bnb: Any, weight: Any) -> Any:
    return bnb.RMSprop([weight], lr=1e-3, weight_decay=0.1, momentum=0.9)


def _adagrad(bnb: Any, weight: Any) -> Any:
    return bnb.Adagrad([weight], lr=1e-3, weight_decay=0.1)


def _ademamix(bnb: Any, weight: Any) -> Any:
    return bnb.AdEMAMix([weight], lr=1e-3, weight_decay=0.1)


@pytest.mark.parametrize(
    ("name", "theirs", "numbers"),
    [
        ("LAMB", _lamb, {}),
        ("LAMB_8BIT", _lamb, {}),
        ("LARS", _lars, {"momentum": 0.9, "max_unorm": 0.05}),
        ("RMSPROP", _rmsprop, {"momentum": 0.9}),
        ("ADAGRAD", _adagrad, {}),
        ("AdEMAMix", _ademamix, {}),
    ],
)
def test_the_imported_rule_takes_the_steps_of_theirs(
    tmp_path: Path, name: str, theirs: Callable[..., torch.optim.Optimizer], numbers: dict[str, Any]
) -> None:
    bnb = pytest.importorskip("bitsandbytes").optim
    config, notes = imported(tmp_path, name, weight_decay=0.1, **numbers)
    assert not [note for note in notes if note.changes_weights]
    there, here = start(), start()
    moved = steps(theirs(bnb, there), there)
    assert not torch.equal(moved, start())
    made = create_optimizer(config.optimizer, [("all", 1e-3, [("weight", here)])])
    torch.testing.assert_close(steps(made, here), moved, rtol=1e-5, atol=1e-7)


def test_momentum_is_named_where_their_rule_does_not_start_without_it(tmp_path: Path) -> None:
    for numbers in ({}, {"momentum": None}):
        config, notes = imported(tmp_path, "SGD_8BIT", **numbers)
        (note,) = notes
        assert note.changes_weights and "0.9 instead" in note.why and config.optimizer.momentum is None
    config, notes = imported(tmp_path, "SGD_8BIT", momentum=0.5)
    assert notes == [] and config.optimizer.momentum == 0.5


def test_weights_decay_apart_from_the_gradient_where_they_do_there(tmp_path: Path) -> None:
    for name in ("AdEMAMix", "DADAPT_LION"):
        config, _ = imported(tmp_path, name, weight_decay=0.1)
        assert config.optimizer.params["weight_decouple"] is True


def test_numbers_of_came_are_carried(tmp_path: Path) -> None:
    config, notes = imported(tmp_path, "CAME", eps=1e-20, eps2=1e-10)
    assert notes == [] and config.optimizer.params == {"eps1": 1e-20, "eps2": 1e-10}


def test_a_limit_that_is_not_supported_is_noted(tmp_path: Path) -> None:
    _, notes = imported(tmp_path, "LAMB", max_unorm=0.5)
    assert [note.place for note in notes if note.changes_weights] == ["optimizer.max_unorm"]


def test_a_rule_that_never_moves_half_of_an_adapter_is_warned_of(tmp_path: Path) -> None:
    def said(config: TrainConfig) -> list[str]:
        return [warning for warning in check_config(config) if "starts at 0 then stays at 0" in warning]

    config, _ = imported(tmp_path, "LAMB")
    assert len(said(config)) == 1
    pytest.importorskip("bitsandbytes")
    zero = torch.nn.Parameter(torch.zeros(24, 16))
    steps(create_optimizer(config.optimizer, [("all", 1e-3, [("weight", zero)])]), zero)
    assert not zero.detach().any()
    config.optimizer.params["min_8bit_size"] = 0
    assert said(config) == []
    config, _ = imported(tmp_path, "ADAMW_8BIT")
    assert said(config) == []
