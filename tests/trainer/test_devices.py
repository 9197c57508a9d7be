"""What is done where a graphics card has too little memory."""

from __future__ import annotations

import pytest
import torch

from modules.trainer import distributed
from modules.util.errors import UserError

CARD = torch.device("cuda:0")


def crowded(device: torch.device) -> str:
    """Something that fits into main memory alone."""
    if device.type == "cuda":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nmore")
    return device.type


def test_auto_does_it_again_on_the_cpu_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "choose_device", lambda name: CARD)
    told: list[str] = []
    assert distributed.where_there_is_room("auto", crowded, told.append) == "cpu"
    assert len(told) == 1 and "repeated on the CPU" in told[0]


@pytest.mark.parametrize(("name", "chosen"), [("cuda", CARD), ("auto", torch.device("cpu"))])
def test_a_device_that_was_named_is_an_error(
    name: str, chosen: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "choose_device", lambda name: chosen)

    def always(device: torch.device) -> str:
        return crowded(CARD)

    told: list[str] = []
    with pytest.raises(UserError, match="too little memory: CUDA out of memory") as caught:
        distributed.where_there_is_room(name, always, told.append)
    assert "--device cpu" in str(caught.value.hint) and "more" not in caught.value.message and not told
