"""Seeds of torch's own streams."""

from __future__ import annotations

import pytest
import torch

from modules.util.rng import seed_torch


def test_torch_is_seeded_as_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    wanted = torch.rand(4)
    seed_torch(7)
    assert torch.equal(torch.rand(4), wanted)
    seeds: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    seed_torch(8)
    assert seeds == [8], "the accelerator's streams too"
