"""Every preset fits the card of its name, by what is predicted for a model of its real size."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from modules.trainer.memory.memory_plan import GIB, MemoryPlan, Planner
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.TrainConfig import TrainConfig
from scripts.benchmarks._real_models import MODELS, real_dry_run

PRESETS = Path(__file__).resolve().parents[3] / "training_presets"
LARGEST = 24
"""GB of the card that presets without one in their name fit."""
SMALLER = {
    "Stable Diffusion 1.5/#DPO.json": 8,
    "Stable Diffusion XL/#DPO.json": 8,
    "Stable Diffusion 3.5/#DPO.json": 12,
    "FLUX.2/#klein base 4B DPO.json": 12,
    "Anima/#DPO.json": 8,
    "Anima/#LoRA.json": 8,
    "Lumina 2/#DPO.json": 12,
    "Lumina 2/#LoRA.json": 12,
}
"""Presets that fit a smaller card than their name says, which docs/memory.md promises."""
QUICK = ("FLUX.2/#klein base 4B fine-tune 12 GB.json",)
"""The usual run also sees that the table of ``docs/memory.md`` has no preset that is too large for its card
(``test_memory_page.py``).
"""


def presets() -> list[str]:
    """Those of models that people train; the demo's is smaller than any card."""
    return sorted(path.relative_to(PRESETS).as_posix() for path in PRESETS.glob("*/*.json"))


def card_of(preset: str) -> int:
    found = re.search(r"(\d+) GB", preset)
    return int(found[1]) if found else SMALLER.get(preset, LARGEST)


def real_model_of(config: TrainConfig) -> str:
    """The model of real size that a preset's is; sizes of one family are told apart by the hub name."""
    names = [name for name, (key, *_) in MODELS.items() if key == config.model_type.value]
    sizes: Mapping[str, str] = {name.rpartition("-")[2].lower(): name for name in names}
    return next(
        (name for size, name in sizes.items() if config.base_model_name.lower().endswith(size)), names[0]
    )


def planned(preset: str, folder: Path) -> MemoryPlan:
    """What is predicted for a preset; those for edits are given one image for each result."""
    config = TrainConfig.from_dict(json.loads((PRESETS / preset).read_text(encoding="utf-8")))
    if " edit " in preset or "#edit " in preset:
        (folder / "before.png").touch()
        config.concepts = [ConceptConfig.from_dict({"path": str(folder), "source_path": str(folder)})]
    dry_run = real_dry_run(real_model_of(config), config)
    return Planner(config, dry_run, cuda=True).plan(config.rlhf_dpo_execution_mode.value)


def test_names_and_models_are_those_of_the_presets() -> None:
    assert {*SMALLER, *QUICK} <= set(presets())
    found = {
        preset: real_model_of(TrainConfig.from_dict(json.loads((PRESETS / preset).read_text("utf-8"))))
        for preset in presets()
    }
    assert found["FLUX.2/#klein base 9B DPO.json"] == "klein-9b"
    assert found["FLUX.2/#klein base 4B LoRA 8 GB.json"] == "klein-4b"
    assert found["Qwen-Image/#2511 edit DPO.json"] == "qwen-edit-2511"
    assert found["Stable Diffusion XL/#v-prediction DPO.json"] == "sdxl"
    assert set(found.values()) == set(MODELS)


@pytest.mark.parametrize(
    "preset", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in presets()]
)
def test_presets_fit_their_cards(preset: str, tmp_path: Path) -> None:
    plan = planned(preset, tmp_path)
    # a card of this size has a little less for programs
    assert plan.total < 0.97 * card_of(preset) * GIB, "\n".join(plan.lines())
