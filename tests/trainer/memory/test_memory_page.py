"""The table of DPO presets in docs/memory.md says what the presets and the planner say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from modules.trainer.memory.memory_plan import GIB, Planner
from modules.util.config.TrainConfig import TrainConfig
from scripts.benchmarks._real_models import real_dry_run
from tests.trainer.memory.test_preset_memory import PRESETS, card_of, real_model_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "memory.md").read_text("utf-8")
ROW = re.compile(r'^(?P<family>.+?)(?: "(?P<name>.+?)")?(?: \(.+\))?, (?P<side>\d+)$')


def rows() -> dict[str, list[str]]:
    """Preset -> side, card, estimate, largest phase, training step, training step in SEQUENTIAL."""
    table = PAGE.partition("| preset | card | estimate |")[2].partition("\n\n")[0]
    made = {}
    for line in table.splitlines()[2:]:
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        found = ROW.fullmatch(first)
        assert found, line
        made[f"{found['family']}/#{found['name'] or 'DPO'}.json"] = [found["side"], *cells]
    return made


def config_of(preset: str) -> TrainConfig:
    return TrainConfig.from_dict(json.loads((PRESETS / preset).read_text("utf-8")))


def test_the_table_names_presets_with_their_sizes_and_cards() -> None:
    assert len(rows()) > 30
    for preset, (side, card, *_) in rows().items():
        config = config_of(preset)
        assert config.trains_pairs and config.resolution == side, preset
        assert card == f"{card_of(preset)} GB", preset


def test_all_presets_fit_their_cards_by_the_table() -> None:
    for preset, (_, _, total, *_) in rows().items():
        # a card of this size has a little less for programs
        assert float(total.removesuffix(" GiB")) < 0.97 * card_of(preset), preset


@pytest.mark.slow
@pytest.mark.parametrize("preset", rows())
def test_the_memory_told_is_the_planner_s(preset: str) -> None:
    config = config_of(preset)
    planner = Planner(config, real_dry_run(real_model_of(config), config), cuda=True)
    plans = {mode: planner.plan(mode) for mode in ("FULL_CONCURRENT", "SEQUENTIAL")}
    own = plans["SEQUENTIAL" if config.rlhf_dpo_execution_mode == "SEQUENTIAL" else "FULL_CONCURRENT"]
    steps = {
        mode: next(phase.total for phase in plan.phases if phase.name == "training step")
        for mode, plan in plans.items()
    }
    *_, total, largest, together, alone = rows()[preset]
    assert largest == own.largest.name
    for told, found in (
        (total, own.total),
        (together, steps["FULL_CONCURRENT"]),
        (alone, steps["SEQUENTIAL"]),
    ):
        assert float(told.removesuffix(" GiB")) == pytest.approx(found / GIB, abs=0.02)
