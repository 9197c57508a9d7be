"""ADAFACTOR moves weights as the rule that OneTrainer and kohya use, with the numbers of their configs."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.optimization import Adafactor as Published

from modules.trainer.optim.optimizers import create_optimizer, load_optimizer_state, optimizer_state
from modules.util.config.load import check_config, find_problems
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import Optimizer
from modules.util.errors import ConfigError
from modules.util.jsonio import write_json
from tests.util.config.onetrainer.reading import import_onetrainer

USUAL = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
NUMBERS = {"eps": 1e-30, "eps2": 1e-3, "clip_threshold": 1.0, "decay_rate": -0.8, "weight_decay": 0.0}
SHAPES = {"matrix": (6, 4), "vector": (5,), "kernel": (3, 2, 3, 3), "scalar": (), "zeros": (4, 6)}


def weights(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(shape, generator=generator) for shape in SHAPES.values()]
    made[-1].zero_()  # as the second half of a new adapter
    return [torch.nn.Parameter(one.to(dtype)) for one in made]


def train(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], steps: range) -> None:
    for number in steps:
        generator = torch.Generator().manual_seed(number)
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=generator) * 10.0 ** (number % 3)
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()


def imported(folder: Path, **given: Any) -> TrainConfig:
    """A config of OneTrainer with ADAFACTOR, read by this program."""
    data = {
        "__version": 11,
        "concepts": [],
        "samples": [],
        "learning_rate": 3e-3,
        "optimizer": {"optimizer": "ADAFACTOR", "beta1": None, **NUMBERS, **USUAL, **given},
    }
    write_json(folder / "onetrainer.json", data)
    config, notes = import_onetrainer(folder / "onetrainer.json")
    assert not [note for note in notes if note.startswith("optimizer")]
    return config


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"scale_parameter": True},
        {"scale_parameter": True, "eps2": 0.5},
        {"relative_step": True},
        {"relative_step": True, "scale_parameter": True, "warmup_init": True},
        {"beta1": 0.9, "weight_decay": 0.1},
        {"scale_parameter": True, "weight_decay": 0.1, "clip_threshold": 0.3},
        {"decay_rate": -0.3, "eps": 1e-6},
    ],
    ids=str,
)
def test_an_imported_config_moves_the_weights_as_transformers_does(
    tmp_path: Path, given: dict[str, Any], dtype: torch.dtype
) -> None:
    config = imported(tmp_path, **given)
    ours, theirs = weights(dtype), weights(dtype)
    named = [(str(number), parameter) for number, parameter in enumerate(ours)]
    optimizer = create_optimizer(config.optimizer, [("all", config.learning_rate, named)])
    rule = {**NUMBERS, **USUAL, "beta1": None, **given}
    numbers = (rule.pop("eps"), rule.pop("eps2"))
    rate = None if rule["relative_step"] else 3e-3
    published = Published(theirs, lr=rate, eps=numbers, **rule)
    train(optimizer, ours, range(20))
    train(published, theirs, range(20))
    # a step below the rounding of 16 bits moves nothing there
    moved = [not torch.equal(one, before) for one, before in zip(ours, weights(dtype), strict=True)]
    assert any(moved) if dtype == torch.bfloat16 else all(moved)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_a_backup_of_the_earlier_rule_is_resumed_with_that_rule() -> None:
    straight, resumed = weights(), weights()
    before = torch.optim.Adafactor(straight, lr=1e-3, d=2.0, beta2_decay=-0.5)
    train(before, straight, range(3))
    for one, other in zip(resumed, straight, strict=True):
        one.data.copy_(other.data)
    names = list(SHAPES)
    optimizer = create_optimizer(
        OptimizerConfig(optimizer=Optimizer.ADAFACTOR, params={"scale_parameter": False}),
        [("all", 1e-3, list(zip(names, resumed, strict=True)))],
    )
    load_optimizer_state(optimizer, deepcopy(optimizer_state(before, names)), names)
    train(before, straight, range(3, 6))
    train(optimizer, resumed, range(3, 6))
    for one, other in zip(resumed, straight, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"decay_rate": 0.8}, "decay_rate must be below 0"),
        ({"clip_threshold": 0.0}, "clip_threshold must be greater"),
        ({"eps2": -1.0}, "eps2 must be 0 or more"),
        ({"warmup_init": True}, "needs relative_step"),
        ({"scale_parameter": "yes"}, "must be true or false"),
    ],
    ids=str,
)
def test_impossible_numbers_are_refused(params: dict[str, Any], message: str) -> None:
    config = OptimizerConfig(optimizer=Optimizer.ADAFACTOR, params=params)
    with pytest.raises(ConfigError, match=message):
        create_optimizer(config, [("all", 1e-3, [("weight", weights()[0])])])


def test_what_the_rule_makes_of_the_rate_is_said() -> None:
    def warnings(**settings: Any) -> str:
        return "\n".join(check_config(TrainConfig.from_dict({"concepts": [], "samples": [], **settings})))

    unsaid = warnings(training_method="LORA", optimizer={"optimizer": "ADAFACTOR"})
    assert "scale_parameter to false" in unsaid
    params = {"scale_parameter": False}
    assert "ADAFACTOR" not in warnings(optimizer={"optimizer": "ADAFACTOR", "params": params})
    relative = {"optimizer": "ADAFACTOR", "params": {**params, "relative_step": True}}
    assert "learning_rate: 0.0003 has no effect" in warnings(optimizer=relative, learning_rate=3e-4)
    assert "has no effect" not in warnings(optimizer=relative, learning_rate_scheduler="ADAFACTOR")
    shaped = warnings(optimizer=relative, learning_rate_scheduler="COSINE", learning_rate_warmup_steps=20.0)
    assert "learning_rate_scheduler: COSINE has no effect" in shaped
    assert "learning_rate_warmup_steps: 20 has no effect" in shaped


def test_a_rate_of_a_part_or_word_that_would_be_ignored_is_refused() -> None:
    def refused(**settings: Any) -> list[str | None]:
        return [error.field for error in find_problems(TrainConfig.from_dict(settings)).errors]

    relative = {"optimizer": "ADAFACTOR", "params": {"relative_step": True, "scale_parameter": False}}
    words: dict[str, Any] = {"additional_embeddings": [{"placeholder": "<fox>"}], "embedding_learning_rate": 1e-3}
    parts: dict[str, Any] = {"unet": {"learning_rate": 1e-3}, "text_encoder": {"learning_rate": 1e-5}}
    assert refused(optimizer=relative, **parts) == ["unet.learning_rate"]
    parts["text_encoder"]["train"] = True
    assert refused(optimizer=relative, **parts) == ["unet.learning_rate", "text_encoder.learning_rate"]
    assert refused(optimizer=relative, **words) == ["embedding_learning_rate"]
    fixed = {"optimizer": "ADAFACTOR", "params": {"scale_parameter": False}}
    assert refused(optimizer=fixed, **parts, **words) == []


@pytest.mark.parametrize("kind", ["ADAMW", "LION", "SCHEDULE_FREE_ADAMW", "ADOPT"])
def test_a_rate_of_one_is_warned_of_where_weights_move_by_it(kind: str) -> None:
    def warnings(**settings: Any) -> list[str]:
        data = {"concepts": [], "samples": [], "optimizer": {"optimizer": kind}, **settings}
        return [one for one in check_config(TrainConfig.from_dict(data)) if "moves every weight" in one]

    assert [one.partition(":")[0] for one in warnings(learning_rate=1.0)] == ["learning_rate"]
    assert "PRODIGY" in warnings(learning_rate=1.0)[0]
    assert [one.partition(":")[0] for one in warnings(unet={"learning_rate": 0.1})] == ["unet.learning_rate"]
    assert not warnings(learning_rate=1e-2)
    assert not warnings(learning_rate=1.0, optimizer={"optimizer": "PRODIGY"})
