"""Every update rule on a fixed quadratic: the numbers are those of its class called directly."""

from __future__ import annotations

import copy
import importlib
import io
from typing import Any

import pytest
import torch

from modules.model.text.LearnedWords import PREFIX
from modules.trainer.assembly import check_settings
from modules.trainer.optim.muon import muon_groups
from modules.trainer.optim.optimizers import (
    CLASSES,
    create_optimizer,
    effective_rate,
    load_optimizer_state,
    optimizer_state,
    set_learning_rate,
)
from modules.util.config.load import find_problems
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import Optimizer
from modules.util.errors import ConfigError
from tests.trainer.optim.kinds import KINDS

STEPS = 30
DIRECT: dict[Optimizer, dict[str, Any]] = {
    Optimizer.SGD_8BIT: {"momentum": 0.9},
    Optimizer.LARS_8BIT: {"momentum": 0.9},
}
CURVATURE = torch.linspace(0.5, 2.0, 24).view(6, 4)


def start() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(3)))


def descend(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, steps: int = STEPS) -> None:
    """Steps on half the sum of curvature times the squared weights."""
    for _ in range(steps):
        parameter.grad = CURVATURE * parameter.detach()
        optimizer.step()


def rate_of(kind: Optimizer) -> float:
    return 1.0 if kind.adapts_its_rate else 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_thirty_steps_are_those_of_the_class(kind: Optimizer) -> None:
    ours, theirs, rate = start(), start(), rate_of(kind)
    descend(create_optimizer(OptimizerConfig(optimizer=kind), [("all", rate, [("block", ours)])]), ours)
    module, name = CLASSES[kind]
    group = {"params": [theirs], "lr": rate, **({"use_muon": True} if kind.of_matrices else {})}
    direct = getattr(importlib.import_module(module), name)([group], lr=rate, **DIRECT.get(kind, {}))
    if hasattr(direct, "train"):
        direct.train()
    descend(direct, theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    assert not torch.equal(ours, start())


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_halfway_down_the_quadratic_changes_no_bit(kind: Optimizer) -> None:
    def made(parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
        return create_optimizer(
            OptimizerConfig(optimizer=kind), [("all", rate_of(kind), [("block", parameter)])]
        )

    straight = start()
    optimizer = made(straight)
    descend(optimizer, straight, STEPS // 2)
    stream = io.BytesIO()
    torch.save(optimizer_state(optimizer, ["block"]), stream)
    resumed = torch.nn.Parameter(straight.detach().clone())
    descend(optimizer, straight, STEPS - STEPS // 2)
    stream.seek(0)
    second = made(resumed)
    load_optimizer_state(second, torch.load(stream, weights_only=True), ["block"])
    descend(second, resumed, STEPS - STEPS // 2)
    assert torch.equal(straight, resumed)


def test_an_update_of_muon_is_nearly_orthogonal() -> None:
    """As in torch's Muon, updates of tall matrices are longer by the root of their shape's ratio; kernels are
    matrices of out x rest.
    """
    shapes = ((16, 16), (8, 24), (24, 8), (4, 320), (320, 4), (24, 8, 1, 1), (8, 4, 3, 3), (64, 2, 3, 3))
    generator = torch.Generator().manual_seed(5)
    named = [(f"block.{i}", torch.nn.Parameter(torch.randn(s, generator=generator))) for i, s in enumerate(shapes)]
    before = [parameter.detach().clone() for _, parameter in named]
    optimizer = create_optimizer(OptimizerConfig(optimizer=Optimizer.MUON), [("all", 1.0, named)])
    for _, parameter in named:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()
    for (_, parameter), old in zip(named, before, strict=True):
        moved = (old - parameter.detach()).flatten(1)
        stretched = max(1.0, moved.shape[0] / moved.shape[1]) ** 0.5
        values = torch.linalg.svdvals(moved / stretched)
        assert float(values.min()) > 0.65 and float(values.max()) < 1.25, tuple(parameter.shape)


def parameters() -> list[tuple[str, torch.nn.Parameter]]:
    shapes = {
        "down_blocks.0.attn.to_q.weight": (4, 4), "down_blocks.0.conv.weight": (4, 4, 3, 3),
        "down_blocks.0.norm.weight": (4,), "conv_in.weight": (4, 4, 3, 3), "time_embedding.weight": (4, 4),
    }  # fmt: skip
    return [(name, torch.nn.Parameter(torch.ones(shape))) for name, shape in shapes.items()]


def test_muon_takes_matrices_inside_blocks_and_adam_the_rest() -> None:
    named = parameters()
    muon, adam = muon_groups([("unet", 1e-2, named)])
    assert [muon["name"], adam["name"]] == ["unet", "unet/adam"]
    assert (muon["lr"], adam["lr"]) == (1e-2, 3e-4)
    assert [p is q for p, q in zip(muon["params"], [named[0][1], named[1][1]], strict=True)] == [True, True]
    assert len(adam["params"]) == 3
    only, rest = muon_groups([("unet", 1e-2, named)], r"to_[qk]\.", True, 1e-3)
    assert (len(only["params"]), len(rest["params"]), rest["lr"]) == (1, 4, 1e-3)
    for wrong, regex in (("nothing_has_this", False), ("(", True)):
        with pytest.raises(ConfigError) as caught:
            muon_groups([("unet", 1e-2, named)], wrong, regex)
        assert caught.value.field == "optimizer.params"


def test_the_vectors_of_a_word_are_no_layer_whatever_it_is_called() -> None:
    word = f"{PREFIX}city block"
    vectors = torch.nn.Parameter(torch.ones(2, 8))
    groups = muon_groups([("unet", 1e-2, parameters()), (word, 1e-2, [(f"{word}.text_encoder", vectors)])])
    assert [group["name"] for group in groups] == ["unet", "unet/adam", f"{word}/adam"]
    assert groups[2]["params"][0] is vectors


def test_muon_has_its_arguments_and_no_others() -> None:
    config = OptimizerConfig(
        optimizer=Optimizer.MUON, params={"muon_adam_lr": 1e-3, "ns_steps": 3}, momentum=0.8
    )
    optimizer = create_optimizer(config, [("unet", 1e-2, parameters())])
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-3]
    assert (optimizer.param_groups[0]["ns_steps"], optimizer.param_groups[0]["momentum"]) == (3, 0.8)
    with pytest.raises(ConfigError, match="muon_adam_rate"):
        create_optimizer(
            OptimizerConfig(optimizer=Optimizer.MUON, params={"muon_adam_rate": 1.0}),
            [("unet", 1e-2, parameters())],
        )


def test_a_backup_of_a_run_that_did_not_scale_the_rate_of_adam_resumes_with_the_rate_it_had() -> None:
    def made(scale: float) -> torch.optim.Optimizer:
        groups = [("unet", 1e-2 * scale, parameters())]
        return create_optimizer(OptimizerConfig(optimizer=Optimizer.MUON), groups, scale)

    def rates_after(state: dict[str, Any]) -> list[float]:
        resumed = made(2.0)
        load_optimizer_state(resumed, copy.deepcopy(state), ["a"])
        set_learning_rate(resumed, 0.5)
        return [group["lr"] for group in resumed.param_groups]

    state = optimizer_state(made(2.0), ["a"])
    assert rates_after(state) == [1e-2, 3e-4]
    state["param_groups"] = [
        {name: value for name, value in group.items() if name != "unscaled_lr"} for group in state["param_groups"]
    ]
    assert rates_after(state) == [1e-2, 1.5e-4]
    second = made(2.0)
    load_optimizer_state(second, copy.deepcopy(state), ["a"])
    assert rates_after(optimizer_state(second, ["a"])) == [1e-2, 1.5e-4], "also after the next backup"


def test_the_rate_that_is_logged_is_the_one_that_was_found() -> None:
    parameter = start()
    config = OptimizerConfig(optimizer=Optimizer.PRODIGY)
    optimizer = create_optimizer(config, [("all", 0.5, [("block", parameter)])])
    descend(optimizer, parameter, 10)
    (group,) = optimizer.param_groups
    assert effective_rate(group) == pytest.approx(0.5 * float(group["d"]))
    assert effective_rate({"lr": 0.5, "params": [parameter]}) == 0.5
    parameter.requires_grad_(False)
    assert effective_rate(group) == 0.0


def test_rates_that_do_not_belong_to_a_rule_are_warned_about() -> None:
    def warned(**data: Any) -> list[str]:
        return [warning.field or "" for warning in find_problems(TrainConfig.from_dict(data)).warnings]

    adapting = {"optimizer": {"optimizer": "DADAPT_ADAM"}}
    assert "learning_rate" in warned(learning_rate=1e-4, **adapting)
    assert "learning_rate" not in warned(learning_rate=1.0, **adapting)
    differing = {"unet": {"learning_rate": 0.5}, "text_encoder": {"train": True}, "learning_rate": 1.0}
    assert "unet.learning_rate" in warned(**adapting, **differing) or "learning_rate" in warned(
        **adapting, **differing
    )
    assert "learning_rate" in warned(learning_rate=1.0, optimizer={"optimizer": "YOGI"})


@pytest.mark.parametrize(
    ("optimizer", "averages"),
    [
        ({"optimizer": "SCHEDULE_FREE_ADAMW"}, True),
        ({"optimizer": "SCHEDULE_FREE_SGD"}, True),
        ({"optimizer": "PRODIGY_PLUS_SCHEDULE_FREE"}, True),
        ({"optimizer": "PRODIGY_PLUS_SCHEDULE_FREE", "params": {"use_schedulefree": False}}, False),
        ({"optimizer": "ADAMW"}, False),
    ],
)
def test_a_second_average_and_a_schedule_are_warned_about_where_the_rule_averages(
    optimizer: dict[str, object], averages: bool
) -> None:
    for field, value in (("ema", "CPU"), ("learning_rate_scheduler", "COSINE")):
        data = {"optimizer": optimizer, "learning_rate": 1e-4, "rlhf_enabled": False, field: value}
        found = [warning.field for warning in find_problems(TrainConfig.from_dict(data)).warnings]
        assert (field in found) is averages


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"muon_hidden_layers": "block(", "muon_adam_regex": True}, "regular expression"),
        ({"muon_hidden_layers": " , "}, "is empty"),
        ({"muon_hidden_layers": "block", "muon_adam_regex": True, "nesterof": False}, "nesterov"),
    ],
)
def test_bad_names_of_muons_layers_are_refused_before_a_model_is_loaded(
    params: dict[str, object], message: str
) -> None:
    config = TrainConfig(optimizer=OptimizerConfig(optimizer=Optimizer.MUON, params=params))
    with pytest.raises(ConfigError, match=message) as caught:
        check_settings(config)
    assert caught.value.field == "optimizer.params"
    good = {"muon_hidden_layers": "^down|mid", "muon_adam_regex": True, "ns_steps": 4}
    check_settings(TrainConfig(optimizer=OptimizerConfig(optimizer=Optimizer.MUON, params=good)))
