"""While a run trains, only what it trains is on the device; the rest is there while it encodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from modules.model.Model import Model
from tests.trainer.making import run_here, write_config


def test_encoders_and_vae_are_gone_when_training_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices of another kind are played: a record of where every part was moved last."""
    where: dict[str, str] = {}
    moves: list[tuple[str, str]] = []
    place, borrowed = Model.place, Model.borrowed

    def recorded_place(
        self: Model, device: torch.device | str, parts: tuple[str, ...] | None = None
    ) -> Model:
        for name in self.modules() if parts is None else parts:
            where[name] = "device"
        return place(self, device, parts)

    def recorded_borrowed(self: Model, part: str):  # type: ignore[no-untyped-def]
        moves.append(("borrowed", part))
        return borrowed(self, part)

    monkeypatch.setattr(Model, "place", recorded_place)
    monkeypatch.setattr(Model, "borrowed", recorded_borrowed)
    trainer = run_here(write_config(tmp_path, max_steps=1))
    assert set(where) == {"unet"}, "placed for good"
    assert {part for _, part in moves} == {"text_encoder", "vae"}, "there only while it was needed"
    assert trainer.progress.global_step == 1


def test_a_borrowed_part_comes_back_even_after_an_error() -> None:
    from tests.tiny import tiny_model

    model = tiny_model()
    model.device = torch.device("meta")
    moved: list[str] = []
    vae = model.vae
    vae.to = lambda device: (moved.append(str(device)), vae)[1]  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no room"), model.borrowed("vae"):
        raise RuntimeError("no room")
    assert moved == ["meta", "cpu"]
