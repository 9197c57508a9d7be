"""The presets fit the cards they are meant for, by what is predicted for models of their real size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.trainer.memory.memory_plan import GIB, Planner
from modules.util.config.TrainConfig import TrainConfig
from scripts.benchmarks._real_models import MODELS, real_dry_run

PRESETS = Path(__file__).resolve().parents[3] / "training_presets"
CARDS = {
    "Stable Diffusion 1.5/#DPO.json": ("sd15", 8),
    "Stable Diffusion XL/#DPO.json": ("sdxl", 8),
    "Stable Diffusion 3.5/#DPO.json": ("sd35-medium", 12),
    "FLUX.1/#dev DPO 16 GB.json": ("flux", 16),
    "FLUX.1/#dev DPO.json": ("flux", 24),
    "FLUX.2/#klein base 4B DPO 8 GB.json": ("klein-4b", 8),
    "FLUX.2/#klein base 4B DPO.json": ("klein-4b", 12),
    "FLUX.2/#klein base 9B DPO 12 GB.json": ("klein-9b", 12),
    "FLUX.2/#klein base 9B DPO 16 GB.json": ("klein-9b", 16),
    "FLUX.2/#klein base 9B DPO.json": ("klein-9b", 24),
    "Z-Image/#DPO.json": ("z-image", 24),
    "Krea 2/#DPO 16 GB.json": ("krea-2", 16),
    "Krea 2/#DPO.json": ("krea-2", 24),
}


QUICK = (
    "Stable Diffusion 3.5/#DPO.json",
    "FLUX.1/#dev DPO 16 GB.json",
    "FLUX.2/#klein base 9B DPO 12 GB.json",
)


@pytest.mark.parametrize(
    "preset", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CARDS]
)
def test_presets_fit_their_cards(preset: str) -> None:
    name, card = CARDS[preset]
    config = TrainConfig.from_dict(json.loads((PRESETS / preset).read_text(encoding="utf-8")))
    assert config.model_type.value == MODELS[name][0]
    wanted = config.rlhf_dpo_execution_mode.value
    plan = Planner(config, real_dry_run(name, config), cuda=True).plan(wanted)
    # a card of this size has a little less for programs
    assert plan.total < 0.97 * card * GIB, "\n".join(plan.lines())
