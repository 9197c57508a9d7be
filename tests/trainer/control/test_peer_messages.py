"""Messages between processes: what they carry, and that they never run anything."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modules.rollout.generate import RolloutSource
from modules.trainer.control.peer_messages import packed, unpacked
from modules.trainer.distributed import choose_device
from modules.trainer.online.judge import _received, _sendable

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_VALUES)
def test_plain_values_arrive_as_they_are(value: Any) -> None:
    assert unpacked(packed(value)) == value


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32]
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3, 4)])
def test_tensors_arrive_bit_equal(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    first = torch.randint(0, 2, shape).to(dtype)
    second = torch.arange(6, dtype=torch.float64).reshape(2, 3).t()
    ids, found, others = unpacked(packed((["ä"], first, {7: second})))
    assert ids == ["ä"] and found.dtype == dtype and torch.equal(found, first)
    assert torch.equal(others[7], second)


def test_what_is_not_finite_arrives() -> None:
    low, nan = unpacked(packed([-math.inf, math.nan]))
    assert low == -math.inf and math.isnan(nan)


@pytest.mark.parametrize("value", [Path("a"), {1, 2}, object(), torch.device("cpu"), choose_device])
def test_objects_are_not_sent(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        packed([value])


class Running:
    """A pickle of this makes a file where it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    data = pickle.dumps(Running(tmp_path / "ran"))
    for message in (data, len(data).to_bytes(8, "little") + data):
        with pytest.raises(ValueError):
            unpacked(torch.frombuffer(bytearray(message), dtype=torch.uint8))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("cut", [0, 3, 8, 20, -1])
def test_a_cut_message_is_refused(cut: int) -> None:
    with pytest.raises(ValueError):
        unpacked(packed([torch.arange(5), "text"])[:cut])


def test_a_source_that_images_share_is_sent_once_and_stays_shared() -> None:
    shared, other = RolloutSource((torch.ones(3, 2, 2),), ("a.png",)), RolloutSource((torch.zeros(3, 2, 2),))
    data, indices = unpacked(packed(_sendable([shared, None, other, shared])))
    assert len(data) == 3
    first, nothing, second, again = _received(data, indices)
    assert nothing is None and first is again and first is not None and second is not None
    assert torch.equal(first.pixels[0], shared.pixels[0]) and first.names == ("a.png",)
    assert torch.equal(second.pixels[0], other.pixels[0]) and second.names == ()
