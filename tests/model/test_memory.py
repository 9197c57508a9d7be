"""Batches that do not fit into memory, and memory that is given back."""

from __future__ import annotations

import pytest
import torch

from modules.model.memory import give_back, in_halves
from modules.model.Model import Model
from tests.tiny import tiny_model

CPU = torch.device("cpu")


class Room:
    """Work for which at most ``most`` samples fit into memory at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[int] = []

    def __call__(self, batch_BX: torch.Tensor) -> torch.Tensor:
        self.asked.append(len(batch_BX))
        if len(batch_BX) > self.most:
            raise torch.OutOfMemoryError("too large")
        return batch_BX * 2


@pytest.mark.parametrize(
    ("most", "asked"), [(5, [5]), (3, [5, 2, 3]), (2, [5, 2, 3, 1, 2]), (1, [5, 2, 1, 1, 3, 1, 2, 1, 1])]
)
def test_what_does_not_fit_is_halved(most: int, asked: list[int]) -> None:
    room, batch_BX = Room(most), torch.arange(10.0).view(5, 2)
    assert torch.equal(in_halves(room, batch_BX, CPU), batch_BX * 2)
    assert room.asked == asked


def test_one_sample_that_does_not_fit_is_an_error() -> None:
    room = Room(0)
    with pytest.raises(torch.OutOfMemoryError):
        in_halves(room, torch.ones(4, 1), CPU)
    assert room.asked == [4, 2, 1]


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: made.append("cuda"))
    return made


def test_only_the_device_asked_for_gives_back(given_back: list[str]) -> None:
    for name in ("cpu", "meta", "cuda:1"):
        give_back(torch.device(name))
    assert given_back == ["cuda"]


def test_memory_is_given_back_before_halves_are_tried(given_back: list[str]) -> None:
    in_halves(Room(2), torch.ones(4, 1), torch.device("cuda"))
    assert given_back == ["cuda"]


def played_gpu(model: Model) -> Model:
    """Its parts say they moved and stay where they are."""
    model.device = torch.device("cuda")
    for part in model.modules().values():
        part.to = lambda device: None  # type: ignore[method-assign]
    return model


def test_what_a_borrowed_part_took_is_given_back_when_it_is_gone(given_back: list[str]) -> None:
    model = played_gpu(tiny_model())
    with model.borrowed("vae"):
        assert given_back == []
    assert given_back == ["cuda"]
