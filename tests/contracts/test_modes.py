"""What every mode of preference training must have; each mode of modules/spec/modes is asked, by name."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.objective.policy_gradient.base import ONLINE_LOSSES
from modules.objective.preference.base import PREFERENCE_LOSSES
from modules.spec.ModeSpec import ModeSpec
from modules.spec.registry import MODES
from modules.trainer.online.steps.modes import STEPS
from modules.util.config.settings import iter_settings
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.RLHFMode import RLHFMode
from tests.source_tree import ROOT
from tests.trainer.builders import run_here, write_config
from tests.trainer.online.builders import write_online


def shown_in(key: str) -> set[str]:
    """The settings that are shown for a mode and not for every other one."""
    shown = set()
    for one in iter_settings(TrainConfig):
        named = re.search(r"rlhf_mode=([A-Z_|]+)", one.visible)
        if named and key in named[1].split("|"):
            shown.add(one.path)
    return shown


def missing(mode: ModeSpec) -> list[str]:
    """What a mode lacks, one line each."""
    found = []
    losses = ONLINE_LOSSES.keys() if mode.online else PREFERENCE_LOSSES.keys()
    if (mode.key if mode.online else "SIGMOID") not in losses:
        found.append(
            f"loss: register one with @online_loss({mode.key!r}) in modules/objective/policy_gradient"
        )
    if mode.online and mode.key not in STEPS and mode.paradigm not in STEPS:
        found.append(f"step: register one with @STEPS.register({mode.key!r}) in modules/trainer/online/steps")
    if mode.key not in RLHFMode.__members__ or not shown_in(mode.key):
        found.append("rows: no setting is shown for it")
    if not re.fullmatch(r"[a-z][^\n]{10,90}\.", mode.help):
        found.append("help: one line that follows its label, with a full stop")
    page = ROOT / "docs" / ("online.md" if mode.online else "methods.md")
    if f"| {mode.key} |" not in page.read_text(encoding="utf-8"):
        found.append(f"docs: a row or column in docs/{page.name}")
    return found


@pytest.mark.parametrize("key", MODES)
def test_a_mode_has_all_it_needs(key: str) -> None:
    assert not missing(MODES[key])


def test_what_is_missing_is_named() -> None:
    bare = ModeSpec(key="BARE", label="Bare", help="")
    assert [line.partition(":")[0] for line in missing(bare)] == ["loss", "rows", "help", "docs"]
    assert [line.partition(":")[0] for line in missing(replace(MODES["DPO"], key="BARE"))] == ["rows", "docs"]


def test_modes_are_those_of_the_config() -> None:
    assert [mode.value for mode in RLHFMode] == list(MODES)
    assert len({mode.label for mode in MODES.values()}) == len(MODES)
    for mode in RLHFMode:
        assert mode.label == mode.spec.label


@pytest.mark.parametrize("key", [key for key, mode in MODES.items() if mode.online])
def test_rows_that_are_named_are_there(key: str) -> None:
    """A group of rows that no setting belongs to is a typing error."""
    rules = {one.visible for one in iter_settings(TrainConfig)}
    for rows in MODES[key].rows:
        wanted = "|".join(name for name, mode in MODES.items() if mode.shows(rows))
        assert any(f"rlhf_mode={wanted}" in rule.split(",") for rule in rules), rows


def test_a_spec_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="only online modes"):
        ModeSpec(key="X", label="x", help="x", online=False, coupled=True)
    with pytest.raises(ValueError, match="only coupled modes"):
        ModeSpec(key="X", label="x", help="x", whole_trajectories=True)


@pytest.mark.parametrize("key", MODES)
def test_a_tiny_run_learns(tmp_path: Path, key: str) -> None:
    """As it comes, with the reference and the old policy that its spec asks for."""
    mode = MODES[key]
    changes: dict[str, Any] = {"epochs": 1, "rlhf_timestep_range_high": 1.0}
    config = (
        write_online(tmp_path, key, **changes)
        if mode.online
        else write_config(tmp_path, rlhf_mode=key, epochs=1)
    )
    trainer = run_here(config)
    learned = [t for n, t in load_file(tmp_path / "out.safetensors").items() if "lora_up" in n]
    assert any(bool(t.abs().max() > 0) for t in learned)
    assert all(bool(torch.isfinite(t).all()) for t in learned)
    parts = trainer.parts
    assert (parts.reference is not None) == mode.needs_reference(parts.config)
    assert (parts.old_policy is not None) == mode.needs_old_policy(parts.config)
    assert parts.facts(1).get("mode", key) == key
    assert trainer.progress.global_step > 0
