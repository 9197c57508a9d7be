"""The moving average: its numbers, and that looking at it leaves the trained weights as they were."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from modules.trainer.assembly import Run
from modules.trainer.callbacks import Callback
from modules.trainer.optim.ema import MovingAverage, decay_at, kept
from modules.util.errors import DataError
from tests.trainer.builders import run_here, same_weights, write_config, write_pairs
from tests.usual import usual

Named = list[tuple[str, torch.nn.Parameter]]


class Heard(Callback):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, message: str) -> None:
        self.warnings.append(message)


def weights() -> Named:
    generator = torch.Generator().manual_seed(5)
    return [
        ("a", torch.nn.Parameter(torch.randn(4, 3, generator=generator))),
        ("b", torch.nn.Parameter(torch.randn(6, generator=generator).bfloat16())),
        ("frozen", torch.nn.Parameter(torch.randn(2, generator=generator), requires_grad=False)),
    ]


def copies(named: Named) -> list[torch.Tensor]:
    return [parameter.detach().clone() for _, parameter in named]


def bits(tensors: list[torch.Tensor]) -> list[list[int]]:
    return [tensor.contiguous().view(torch.uint8).flatten().tolist() for tensor in tensors]


def drift(named: Named, by: float) -> None:
    with torch.no_grad():
        for _, parameter in named:
            parameter.add_(by)


@pytest.mark.parametrize(
    ("step", "highest", "decay"),
    [(0, 0.999, 0.1), (8, 0.999, 0.5), (80, 0.999, 0.9), (10**6, 0.999, 0.999), (8, 0.2, 0.2), (0, 0.0, 0.0)],
)
def test_the_decay_rises_to_its_highest(step: int, highest: float, decay: float) -> None:
    assert decay_at(step, highest) == pytest.approx(decay)


def test_averages_are_the_ones_worked_out_by_hand() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0]))
    average = MovingAverage([("p", parameter)], 0.25, 1, "cpu")
    expected = 1.0
    for step, value in enumerate((2.0, 3.0, -1.0)):
        with torch.no_grad():
            parameter.fill_(value)
        average.update(step)
        decay = (0.1, 2 / 11, 0.25)[step]
        expected = decay * expected + (1 - decay) * value
        assert float(average.state_dict()["p"]) == pytest.approx(expected)


def test_between_the_intervals_nothing_moves() -> None:
    named = weights()
    average = MovingAverage(named, 0.9, 3, "cpu")
    moved = []
    for step in range(7):
        drift(named, 0.5)
        before = {name: tensor.clone() for name, tensor in average.state_dict().items()}
        average.update(step)
        after = average.state_dict()
        moved.append(any(not torch.equal(before[name], after[name]) for name in after))
    assert moved == [False, False, True, False, False, True, False]


def test_averages_of_16_bit_weights_are_kept_in_32() -> None:
    parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    average = MovingAverage([("p", parameter)], 0.9999, 1, "cpu")
    with torch.no_grad():
        parameter.fill_(1.0078125)  # the next number bfloat16 has
    for step in range(100_000, 100_010):
        average.update(step)
    value = average.state_dict()["p"]
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(1 + 0.0078125 * (1 - 0.9999**10), rel=1e-6)


def test_inside_the_block_the_averages_afterwards_the_weights_bit_for_bit() -> None:
    named = weights()
    average = MovingAverage(named, 0.9, 1, "cpu")
    drift(named, 0.3)
    average.update(0)
    before = copies(named)
    with average.swapped_in():
        for name, parameter in named:
            assert torch.equal(parameter, average.state_dict()[name].to(parameter.dtype)), name
        assert not torch.equal(named[0][1], before[0])
    assert bits(copies(named)) == bits(before)


def _raise(named: Named) -> None:
    raise ArithmeticError


def _scribble(named: Named) -> None:
    drift(named, 7.0)


def _scribble_and_raise(named: Named) -> None:
    drift(named, float("nan"))
    raise ArithmeticError


@pytest.mark.parametrize("act", [_raise, _scribble, _scribble_and_raise])
def test_the_weights_come_back_whatever_the_block_does(act: Callable[[Named], None]) -> None:
    named = weights()
    with torch.no_grad():
        # values that arithmetic would not bring back
        named[0][1][0] = torch.tensor([float("nan"), float("inf"), -0.0])
    average = MovingAverage(named, 0.9, 1, "cpu")
    drift(named, 0.1)
    before, averages = copies(named), {n: t.clone() for n, t in average.state_dict().items()}
    try:
        with average.swapped_in():
            act(named)
    except ArithmeticError:
        assert act is not _scribble
    else:
        assert act is _scribble
    assert bits(copies(named)) == bits(before)
    after = average.state_dict()
    assert bits(list(after.values())) == bits(list(averages.values()))


def test_kept_restores_without_touching_gradients() -> None:
    named = weights()
    named[0][1].grad = torch.ones(4, 3)
    with kept([p for _, p in named]):
        drift(named, 1.0)
    assert torch.equal(named[0][1].grad, torch.ones(4, 3))
    assert torch.equal(named[0][1], weights()[0][1])


def test_copying_for_good() -> None:
    named = weights()
    average = MovingAverage(named, 0.9, 1, "cpu")
    first = copies(named)
    drift(named, 2.0)
    average.copy_to_parameters()
    assert bits(copies(named)) == bits(first)


def test_resuming_from_a_state_is_the_same() -> None:
    straight, resumed = weights(), weights()
    one = MovingAverage(straight, 0.99, 2, "cpu")
    for step in range(5):
        drift(straight, 0.1)
        one.update(step)
    state = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    two = MovingAverage(resumed, 0.99, 2, "cpu")
    two.load_state_dict(state, True)
    with torch.no_grad():
        for (_, a), (_, b) in zip(resumed, straight, strict=True):
            a.copy_(b)
    for step in range(5, 9):
        for named, average in ((straight, one), (resumed, two)):
            drift(named, 0.1)
            average.update(step)
    assert bits(list(one.state_dict().values())) == bits(list(two.state_dict().values()))


@pytest.mark.parametrize(
    "state", [{}, {"a": torch.zeros(4, 3)}, {"a": torch.zeros(3, 4), "b": torch.zeros(6)}]
)
def test_averages_of_other_weights_are_refused(state: dict[str, torch.Tensor]) -> None:
    average = MovingAverage(weights()[:2], 0.9, 1, "cpu")
    with pytest.raises(DataError, match="moving average"):
        average.load_state_dict(state, True)


@pytest.mark.parametrize(("steps", "saved"), usual([(2, "trained"), (3, "average")], (2, "trained")))
def test_until_the_first_update_the_trained_weights_are_saved(tmp_path: Path, steps: int, saved: str) -> None:
    # an average that was never updated is the adapter that the run began with, which changes nothing
    heard = Heard()
    data = write_pairs(tmp_path / "data")
    for name, ema in (("plain", "OFF"), ("mean", "CPU")):
        config = write_config(
            tmp_path / name, concepts=data, max_steps=steps, ema=ema, ema_update_step_interval=3
        )
        run_here(config, callback=heard)
    assert same_weights(tmp_path / "plain" / "out.safetensors", tmp_path / "mean" / "out.safetensors") == (
        saved == "trained"
    )
    told = [text for text in heard.warnings if "ema_update_step_interval" in text]
    assert len(told) == (saved == "trained")


@pytest.mark.slow
def test_a_resumed_run_knows_whether_the_average_was_updated(tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "data")
    common = {
        "concepts": data, "ema": "CPU", "ema_update_step_interval": 2, "backup_before_save": True
    }  # fmt: skip
    for steps in (3, 1):
        run_here(write_config(tmp_path / str(steps), max_steps=steps, **common))
        again = write_config(tmp_path / str(steps), max_steps=steps, continue_last_backup=True, **common)
        saved = tmp_path / str(steps) / "out.safetensors"
        shutil.copy(saved, tmp_path / "before.safetensors")
        trainer = run_here(again)
        assert trainer.parts.ema.begun == (steps == 3)
        assert same_weights(saved, tmp_path / "before.safetensors")


def test_a_skipped_update_of_the_average_stays_one_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm = Run.norm

    def undefined_at_two(self: Run, gradients: list[torch.Tensor]) -> torch.Tensor:
        calls.append(1)
        return torch.tensor(math.nan) if len(calls) == 2 else norm(self, gradients)

    calls: list[int] = []
    monkeypatch.setattr(Run, "norm", undefined_at_two)
    config = write_config(
        tmp_path, max_steps=3, ema="CPU", ema_update_step_interval=2, nan_patience=1, backup_before_save=True
    )
    assert not run_here(config).parts.ema.begun
    saved = tmp_path / "out.safetensors"
    shutil.copy(saved, tmp_path / "before.safetensors")
    assert not run_here(config, "continue_last_backup=true").parts.ema.begun
    assert same_weights(saved, tmp_path / "before.safetensors")
