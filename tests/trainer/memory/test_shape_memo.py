"""Remembered results of operations on meta tensors are those that the operations give."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modules.trainer.memory.live_bytes import LiveBytes
from modules.trainer.memory.memory_step import StepBytes
from modules.trainer.memory.ShapeMemo import ShapeMemo
from tests.tiny import SIZE
from tests.trainer.memory.test_memory_plan import config_of, planner


class Called(TorchDispatchMode):
    """Notes the operations that take place."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def facts(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device.type, tensor.untyped_storage().nbytes()


MADE = {
    "sum of types": lambda: meta(3, 4, dtype=torch.bfloat16) + meta(4),
    "whole number": lambda: meta(3, dtype=torch.int64) * 2,
    "part of a number": lambda: meta(3, dtype=torch.int64) * 2.0,
    "order of axes": lambda: meta(2, 3, 4).permute(2, 0, 1) * 2,
    "several": lambda: torch.native_layer_norm(meta(2, 4), (4,), meta(4), meta(4), 1e-5)[1],
    "list": lambda: torch.cat([meta(2, 3), meta(1, 3)]),
    "type": lambda: meta(3).to(torch.float16),
}


@pytest.mark.parametrize("name", MADE)
def test_a_known_operation_gives_new_tensors_of_the_same_kind(name: str) -> None:
    memo = ShapeMemo(lambda: None)
    expected = MADE[name]()
    # those of another case may not be mistaken for it
    with LiveBytes((), memo):
        for other in MADE.values():
            other()
    with LiveBytes((), memo):
        one, other = MADE[name](), MADE[name]()
    assert facts(one) == facts(other) == facts(expected)
    assert one.untyped_storage()._cdata != other.untyped_storage()._cdata


def test_what_is_known_is_not_worked_out_again() -> None:
    memo, noted = ShapeMemo(lambda: None), []
    for _ in range(2):
        value = meta(3, 4)
        with Called() as called, LiveBytes((), memo):
            value @ value.t()
        noted.append([name for name in called.names if name == "aten::mm"])
    assert noted == [["aten::mm"], []]


def test_another_way_gives_results_of_its_own() -> None:
    dtype = [torch.float32]
    memo = ShapeMemo(lambda: dtype[0])
    key, _ = memo.recall(torch.ops.aten.silu.default, (meta(2),), {})
    memo.learn(key, meta(2), set())
    assert memo.recall(torch.ops.aten.silu.default, (meta(2),), {})[1] is not None
    dtype[0] = torch.bfloat16
    assert memo.recall(torch.ops.aten.silu.default, (meta(2),), {})[1] is None


def test_numbers_views_and_changes_are_worked_out_each_time() -> None:
    memo = ShapeMemo(lambda: None)
    here, there = torch.ones(2, 2), meta(2, 2)
    for _ in range(2):
        with LiveBytes((), memo) as live:
            assert torch.equal(here + here, here * 2)
            before = live.current
            view = there.view(4)
            there.add_(1)
            # its schema does not say that it gives back what it was given
            same = torch.ops.aten._unsafe_view.default(there, [4])
            assert live.current == before
        for one in (view, same):
            assert one.untyped_storage()._cdata == there.untyped_storage()._cdata


@pytest.mark.slow
@pytest.mark.parametrize("key", ["FLUX_DEV_1", "STABLE_DIFFUSION_15"])
def test_a_step_takes_the_same_without_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken() -> StepBytes:
        config = config_of(key, checkpointing=True, train_dtype="BFLOAT_16")
        return planner(config).dry_run.step(2, SIZE, "SEQUENTIAL")

    known = taken()
    monkeypatch.setattr(ShapeMemo, "recall", lambda *_: (None, None))
    assert taken() == known
