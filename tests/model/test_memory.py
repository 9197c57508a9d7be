"""Batches that do not fit into memory, and memory that is given back."""

from __future__ import annotations

import pytest
import torch

from modules.model.memory import give_back
from modules.model.Model import Model
from modules.modelSetup.families.StableDiffusionSetup import StableDiffusionSetup
from tests.tiny import tiny_model


class Room(StableDiffusionSetup):
    """A decoder for which at most ``most`` images fit into memory at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.asked: list[int] = []

    def decode_latents(self, model: Model, latents_BChw: torch.Tensor) -> torch.Tensor:
        self.asked.append(len(latents_BChw))
        if len(latents_BChw) > self.most:
            raise torch.OutOfMemoryError("too large")
        return latents_BChw * 2


@pytest.mark.parametrize(
    ("most", "asked"), [(5, [5]), (3, [5, 2, 3]), (2, [5, 2, 3, 1, 2]), (1, [5, 2, 1, 1, 3, 1, 2, 1, 1])]
)
def test_what_does_not_fit_is_halved(most: int, asked: list[int]) -> None:
    room, latents_BChw = Room(most), torch.arange(10.0).view(5, 2, 1, 1)
    assert torch.equal(room.decode_to_cpu(tiny_model(), latents_BChw), latents_BChw * 2)
    assert room.asked == asked


def test_one_sample_that_does_not_fit_is_an_error() -> None:
    room = Room(0)
    with pytest.raises(torch.OutOfMemoryError):
        room.decode_to_cpu(tiny_model(), torch.ones(4, 1, 1, 1))
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
    Room(2).decode_to_cpu(played_gpu(tiny_model()), torch.ones(4, 1, 1, 1))
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
