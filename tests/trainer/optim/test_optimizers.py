"""Update rules: every one of them trains, and resumes from its saved state as if it had never stopped."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from modules.trainer.optim import optimizers
from modules.trainer.optim.optimizers import (
    CLASSES,
    REQUIREMENTS,
    create_optimizer,
    evaluation_weights,
    load_optimizer_state,
    optimizer_arguments,
    optimizer_state,
    set_learning_rate,
)
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.enum.choices import Optimizer
from modules.util.errors import ConfigError, DataError
from tests.trainer.optim.kinds import KINDS
from tests.usual import usual

RATES = {kind: 1.0 for kind in Optimizer if kind.adapts_its_rate}
SCHEDULE_FREE = (Optimizer.SCHEDULE_FREE_ADAMW, Optimizer.SCHEDULE_FREE_SGD)
Named = list[tuple[str, torch.nn.Parameter]]


def toy(dtype: torch.dtype = torch.float32) -> Named:
    """A matrix, a vector and a convolution: the shapes that factorised rules treat differently."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"block.matrix": (6, 4), "block.vector": (5,), "block.kernel": (3, 2, 3, 3)}
    return [
        (name, torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)))
        for name, shape in shapes.items()
    ]


def made(kind: Optimizer, named: Named, **settings: Any) -> torch.optim.Optimizer:
    rate = RATES.get(kind, 1e-2)
    if kind is Optimizer.DADAPT_SGD:
        # from 1e-6, three steps are smaller than the rounding of float32
        settings.setdefault("params", {"d0": 1e-3})
    groups = [("denoiser", rate, named[:2]), ("text", rate / 2, named[2:])]
    return create_optimizer(OptimizerConfig(optimizer=kind, **settings), groups)


def step(optimizer: torch.optim.Optimizer, named: Named, number: int) -> None:
    generator = torch.Generator().manual_seed(100 + number)
    for _, parameter in named:
        parameter.grad = (parameter.detach() + torch.randn(parameter.shape, generator=generator)).to(
            parameter.dtype
        )
    set_learning_rate(optimizer, 1.0 / (1 + number))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    loaded: dict[str, Any] = torch.load(stream, weights_only=True)
    return loaded


def names(named: Named) -> list[str]:
    return [name for name, _ in named]


def test_the_list_of_packages_of_a_name_is_known_without_its_class() -> None:
    listed = {kind for kind in Optimizer if REQUIREMENTS.get(CLASSES[kind][0]) == "requirements-optimizers.txt"}
    assert {kind for kind in Optimizer if kind.in_extra_packages} == listed
    assert len(listed) == 8


def test_each_name_has_a_class() -> None:
    assert set(optimizers.CLASSES) == set(Optimizer)


@pytest.mark.parametrize("kind", KINDS)
def test_three_steps_move_every_weight_and_stay_finite(kind: Optimizer) -> None:
    named = toy()
    before = [parameter.detach().clone() for _, parameter in named]
    optimizer = made(kind, named)
    for number in range(3):
        step(optimizer, named, number)
    for (name, parameter), old in zip(named, before, strict=True):
        assert torch.isfinite(parameter).all(), name
        assert not torch.equal(parameter, old), name


# in float32 test_every_rule.py resumes each of them
@pytest.mark.parametrize(
    "dtype", usual([torch.float32, torch.bfloat16], torch.bfloat16), ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_resuming_from_a_saved_state_is_bit_for_bit_the_same(kind: Optimizer, dtype: torch.dtype) -> None:
    straight = toy(dtype)
    optimizer = made(kind, straight)
    for number in range(3):
        step(optimizer, straight, number)
    state = through_a_file(optimizer_state(optimizer, names(straight)))
    resumed = [(name, torch.nn.Parameter(p.detach().clone())) for name, p in straight]
    for number in range(3, 6):
        step(optimizer, straight, number)

    second = made(kind, resumed)
    load_optimizer_state(second, state, names(resumed))
    for number in range(3, 6):
        step(second, resumed, number)

    for (name, one), (_, other) in zip(straight, resumed, strict=True):
        assert torch.equal(one, other), name
    _same(optimizer.state_dict(), second.state_dict())


def test_state_keeps_a_wider_type_than_the_weights() -> None:
    named = toy(torch.bfloat16)
    optimizer = made(Optimizer.ADAMW, named)
    step(optimizer, named, 0)
    wide = torch.full((6, 4), 1.0 + 2.0**-20)  # nothing bfloat16 can hold
    optimizer.state[named[0][1]]["exp_avg"] = wide
    state = through_a_file(optimizer_state(optimizer, names(named)))
    second = made(Optimizer.ADAMW, named)
    load_optimizer_state(second, state, names(named))
    back = second.state[named[0][1]]["exp_avg"]
    assert back.dtype == torch.float32
    assert torch.equal(back, wide)


def _same(one: Any, other: Any, where: str = "state") -> None:
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key, value in one.items():
            _same(value, other[key], f"{where}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            _same(a, b, f"{where}[{index}]")
    else:
        assert one == other, where


def test_a_single_step_of_adamw_is_the_published_one() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    config = OptimizerConfig(beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1)
    optimizer = create_optimizer(config, [("all", 0.5, [("p", parameter)])])
    parameter.grad = torch.tensor([0.3, -0.7])
    optimizer.step()
    # at the first step both moments are corrected to the gradient itself, so the update is its sign
    expected = torch.tensor([1.0, -2.0]) * (1 - 0.5 * 0.1) - 0.5 * torch.tensor([1.0, -1.0])
    torch.testing.assert_close(parameter.detach(), expected, rtol=1e-6, atol=1e-6)


def test_groups_keep_their_name_and_their_own_rate() -> None:
    named = toy()
    optimizer = made(Optimizer.ADAMW, named)
    set_learning_rate(optimizer, 0.25)
    seen = [(group["name"], group["initial_lr"], group["lr"]) for group in optimizer.param_groups]
    assert seen == [("denoiser", 1e-2, 2.5e-3), ("text", 5e-3, 1.25e-3)]
    set_learning_rate(optimizer, 1.0)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 5e-3]


def test_settings_arrive_at_the_class() -> None:
    named = toy()
    optimizer = made(Optimizer.ADAMW, named, beta2=0.95, eps=1e-6, weight_decay=0.2, params={"amsgrad": True})
    group = optimizer.param_groups[0]
    assert group["betas"] == (0.9, 0.95)
    assert (group["eps"], group["weight_decay"], group["amsgrad"]) == (1e-6, 0.2, True)
    sgd = made(Optimizer.SGD, named, momentum=0.8, params={"nesterov": True}).param_groups[0]
    assert (sgd["momentum"], sgd["nesterov"]) == (0.8, True)
    assert made(Optimizer.RMSPROP, named, beta2=0.7).param_groups[0]["alpha"] == 0.7
    assert optimizer_arguments(OptimizerConfig(optimizer=Optimizer.TIGER, beta1=0.6))["beta"] == 0.6


def test_empty_settings_leave_the_class_its_own_numbers() -> None:
    assert optimizer_arguments(OptimizerConfig(optimizer=Optimizer.LION)) == {}
    assert optimizer_arguments(OptimizerConfig()) == {"fused": True}
    assert optimizer_arguments(OptimizerConfig(params={"fused": False})) == {"fused": False}


@pytest.mark.parametrize(
    ("kind", "params", "hint"),
    [
        (Optimizer.ADAMW, {"amsgrd": True}, "did you mean 'amsgrad'?"),
        (Optimizer.ADAMW, {"xyzzy": 1}, "known: beta1, beta2, eps, weight_decay"),
        (Optimizer.PRODIGY, {"d_coeff": 2.0}, "did you mean 'd_coef'?"),
        (Optimizer.ADAMW, {"lr": 1.0}, "known: "),
        (Optimizer.ADAMW, {"params": 1}, "known: "),
    ],
)
def test_unknown_arguments_are_refused_with_a_hint(
    kind: Optimizer, params: dict[str, Any], hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(kind, toy(), params=params)
    assert caught.value.field == "optimizer.params"
    assert repr(next(iter(params))) in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Optimizer.SGD, {"beta1": 0.9}),
        (Optimizer.SGD, {"beta2": 0.9}),
        (Optimizer.SGD, {"eps": 1e-8}),
        (Optimizer.ADAMW, {"momentum": 0.9}),
        (Optimizer.CAME, {"eps": 1e-8}),
        (Optimizer.RMSPROP, {"beta1": 0.9}),
        (Optimizer.TIGER, {"beta2": 0.9}),
    ],
)
def test_settings_the_rule_does_not_have_are_refused(kind: Optimizer, settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{kind} has no {next(iter(settings))}") as caught:
        made(kind, toy(), **settings)
    assert caught.value.field == f"optimizer.{next(iter(settings))}"


def test_values_the_class_refuses_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="refuses its settings"):
        made(Optimizer.SGD, toy(), params={"nesterov": True})  # needs a momentum
    with pytest.raises(ConfigError, match="refuses its settings"):
        made(Optimizer.ADAMW, toy(), params={"eps": "small"})


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(optimizers.CLASSES, Optimizer.LION, ("no_such_package", "Lion"))
    with pytest.raises(ConfigError, match="LION needs the package no_such_package"):
        made(Optimizer.LION, toy())


def test_state_of_other_parameters_or_another_rule_is_refused() -> None:
    named = toy()
    optimizer = made(Optimizer.ADAMW, named)
    step(optimizer, named, 0)
    state = optimizer_state(optimizer, names(named))
    with pytest.raises(DataError, match="other parameters"):
        load_optimizer_state(made(Optimizer.ADAMW, named), state, ["a", "b", "c"])
    short = {**state, "param_groups": state["param_groups"][:1]}
    with pytest.raises(DataError, match="does not fit"):
        load_optimizer_state(made(Optimizer.ADAMW, named), short, names(named))


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("kind", SCHEDULE_FREE)
def test_schedule_free_weights_come_back_bit_for_bit(kind: Optimizer, steps: int) -> None:
    def run(look: Callable[[torch.optim.Optimizer], None]) -> tuple[Named, torch.optim.Optimizer]:
        named = toy()
        optimizer = made(kind, named)
        for number in range(steps):
            step(optimizer, named, number)
        look(optimizer)
        for number in range(steps, steps + 2):
            step(optimizer, named, number)
        return named, optimizer

    differs: list[bool] = []

    def look(optimizer: torch.optim.Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters]
        with evaluation_weights(optimizer):
            differs.append(any(not torch.equal(p, b) for p, b in zip(parameters, before, strict=True)))
        assert all(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))
        with pytest.raises(ArithmeticError), evaluation_weights(optimizer):
            raise ArithmeticError
        assert all(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))

    looked, first = run(look)
    straight, second = run(lambda optimizer: None)
    assert differs == [steps > 1]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(looked, straight, strict=True))
    _same(first.state_dict(), second.state_dict())


def test_other_rules_have_one_set_of_weights() -> None:
    named = toy()
    optimizer = made(Optimizer.ADAMW, named)
    step(optimizer, named, 0)
    before = [p.detach().clone() for _, p in named]
    with evaluation_weights(optimizer):
        assert all(torch.equal(p, b) for (_, p), b in zip(named, before, strict=True))


EIGHT_BIT = (Optimizer.ADAMW_8BIT, Optimizer.ADAM_8BIT, Optimizer.LION_8BIT)


@pytest.mark.parametrize("kind", EIGHT_BIT)
def test_eight_bits_are_kept_resumed_bit_for_bit_and_nearly_the_full_rule(kind: Optimizer) -> None:
    pytest.importorskip("bitsandbytes")

    def large(seed: int = 0) -> Named:
        # only tensors of 4096 numbers or more are kept in 8 bits
        source = torch.Generator().manual_seed(seed)
        return [("large", torch.nn.Parameter(torch.randn(64, 96, generator=source)))]

    straight, full = large(), large()
    optimizer, plain = made(kind, straight), made(Optimizer(kind.value.removesuffix("_8BIT")), full)
    for number in range(3):
        step(optimizer, straight, number)
        step(plain, full, number)
    kept = [t for t in optimizer.state[straight[0][1]].values() if isinstance(t, torch.Tensor)]
    assert any(t.dtype == torch.uint8 and t.shape == (64, 96) for t in kept)
    moved = (full[0][1] - large()[0][1]).abs().mean()
    assert (straight[0][1] - full[0][1]).abs().mean() < 0.25 * moved
    state = through_a_file(optimizer_state(optimizer, names(straight)))
    resumed = [(name, torch.nn.Parameter(p.detach().clone())) for name, p in straight]
    second = made(kind, resumed)
    load_optimizer_state(second, state, names(resumed))
    for number in range(3, 6):
        step(optimizer, straight, number)
        step(second, resumed, number)
    assert torch.equal(straight[0][1], resumed[0][1])
    _same(optimizer.state_dict(), second.state_dict())


def test_the_missing_package_of_the_eight_bit_rules_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ConfigError, match="bitsandbytes") as caught:
        made(Optimizer.ADAMW_8BIT, toy())
    assert "requirements-gpu.txt" in str(caught.value.hint)
