"""How many rooms an image enters on its way to the gradient: files of ``modules`` with a function that is handed it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.model.batch import ImageBatch, PairBatch, to_device
from modules.rollout.Rollouts import Rollouts
from modules.spec.registry import MODES
from modules.trainer.online.batch import OnlineBatch, OnlineGroup
from tests.source_tree import ROOT
from tests.trainer.builders import run_here
from tests.trainer.online.builders import write_online
from tests.trainer.test_outcomes import started
from tests.usual import usual

PROGRAM = f"{ROOT}/modules/"
CARRIERS = (Rollouts, OnlineBatch, OnlineGroup, PairBatch, ImageBatch, AccumulationGroup)
IMAGES = 4
"""Dimensions of a batch of images, at least."""


def carries(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() >= IMAGES
    if isinstance(value, (list, tuple)):
        return any(carries(one) for one in value[:2])
    return isinstance(value, CARRIERS)


class Trip:
    """Notes every file whose functions are handed an image, from ``first`` until ``last`` has returned."""

    def __init__(self, first: str, last: str) -> None:
        self.first, self.last = first, last
        self.rooms: dict[str, set[str]] = {}
        self.under_way = self.arrived = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PROGRAM):
            return
        if event == "return":
            if self.under_way and code.co_qualname.endswith(self.last):
                self.arrived = True
                sys.setprofile(None)
            return
        self.under_way = self.under_way or code.co_qualname.endswith(self.first)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if self.under_way and any(carries(frame.f_locals.get(name)) for name in names):
            room = str(Path(code.co_filename).relative_to(ROOT / "modules"))
            self.rooms.setdefault(room, set()).add(code.co_qualname)


def rooms_of(first: str, last: str, work: Callable[[], object]) -> dict[str, set[str]]:
    trip = Trip(first, last)
    before = sys.getprofile()
    sys.setprofile(trip)
    try:
        work()
    finally:
        sys.setprofile(before)
    assert trip.arrived, f"nothing went from {first} to {last}"
    return trip.rooms


def told(rooms: dict[str, set[str]]) -> str:
    return "\n".join(f"{room}: {', '.join(sorted(names))}" for room, names in rooms.items())


LIMITS = {"GRPO": 12, "GSPO": 12, "DGPO": 14, "AWM": 15, "ONLINE_DPO": 15, "NFT": 16}


def test_every_mode_with_rollouts_has_a_limit() -> None:
    assert LIMITS.keys() == {key for key, mode in MODES.items() if mode.online}


# of the modes that learn from the sampler's steps, and of those that learn from noised images, one each
@pytest.mark.parametrize(
    ("mode", "limit"), usual(LIMITS.items(), *((mode, LIMITS[mode]) for mode in ("GRPO", "DGPO")))
)
def test_the_trip_of_a_rollouts_image_does_not_grow(tmp_path: Path, mode: str, limit: int) -> None:
    config = write_online(tmp_path, mode, max_steps=1)
    rooms = rooms_of("EpochMaker.make", ".forward_backward", lambda: run_here(config))
    assert len(rooms) <= limit, told(rooms)


def test_a_pair_enters_at_most_seven_rooms(tmp_path: Path) -> None:
    with started(tmp_path, max_steps=1) as trainer:
        rooms = rooms_of("PreferenceStep.forward_backward", "PreferenceStep.forward_backward", trainer.train)
    assert len(rooms) <= 7, told(rooms)


def test_a_room_that_is_handed_an_image_is_found() -> None:
    rooms = rooms_of("to_device", "to_device", lambda: to_device(torch.zeros(1, 3, 2, 2), "cpu"))
    assert rooms == {"model/batch.py": {"to_device"}}
