"""Settings that were replaced are read from files and command lines, mean what they meant, and are not written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from modules.trainer.online import settings
from modules.trainer.resume.resume_rules import check_resumable
from modules.util.config.load import load_config, load_layered
from modules.util.config.section.OlderNames import OlderNames
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, UserErrors
from scripts.train import main
from tests.trainer.builders import write_config

GRPO = {"rlhf_enabled": True, "rlhf_mode": "GRPO"}
PER_STEP, DIVISOR, STRICT = OlderNames.model_fields


@pytest.mark.parametrize("version", [{}, {"__version": 1}])
@pytest.mark.parametrize(
    ("older", "present"),
    [
        ({PER_STEP: True}, {"rlhf_loss_aggregation": "TOKEN_MEAN"}),
        ({PER_STEP: True, "rlhf_loss_aggregation": "STEP_MEAN"}, {"rlhf_loss_aggregation": "TOKEN_MEAN"}),
        (
            {DIVISOR: 8},
            {"rlhf_loss_aggregation": "CONSTANT", "rlhf_loss_aggregation_divisor": 8.0},
        ),
        (
            {DIVISOR: 8, "rlhf_loss_aggregation": "CONSTANT", "rlhf_loss_aggregation_divisor": 8},
            {"rlhf_loss_aggregation": "CONSTANT", "rlhf_loss_aggregation_divisor": 8.0},
        ),
        ({PER_STEP: False, DIVISOR: None, STRICT: True}, {}),
        ({STRICT: False, "rlhf_loss_aggregation": "TOKEN_MEAN"}, {"rlhf_loss_aggregation": "TOKEN_MEAN"}),
    ],
)
def test_older_names_mean_present_settings(
    version: dict[str, Any], older: dict[str, Any], present: dict[str, Any]
) -> None:
    found = TrainConfig.from_dict({**version, **GRPO, **older})
    wanted = TrainConfig.from_dict({**GRPO, **present})
    assert found == wanted
    assert settings.step_options(found) == settings.step_options(wanted)
    assert not found.to_dict().keys() & OlderNames.model_fields.keys()
    check_resumable(wanted, {**GRPO, **older})


def test_they_are_read_by_set_and_lie_over_lower_layers(tmp_path: Path) -> None:
    preset, config = tmp_path / "preset.json", tmp_path / "config.json"
    preset.write_text(json.dumps({"__version": 1, **GRPO, DIVISOR: 8}))
    config.write_text(json.dumps({DIVISOR: None}))
    assert load_config(preset).rlhf_loss_aggregation_divisor == 8
    assert load_config(preset, [f"{DIVISOR}=9"]).rlhf_loss_aggregation_divisor == 9
    assert load_config(preset, [f"{DIVISOR}="]).rlhf_loss_aggregation == "SAMPLE_MEAN"
    assert load_layered(preset, config).rlhf_loss_aggregation == "SAMPLE_MEAN"
    per_step = load_layered(preset, config, [f"{PER_STEP}=true"])
    assert per_step.rlhf_loss_aggregation == "TOKEN_MEAN"


@pytest.mark.parametrize(
    ("older", "field"),
    [
        ({PER_STEP: True, "rlhf_loss_aggregation": "CONSTANT", "rlhf_loss_aggregation_divisor": 4}, PER_STEP),
        ({PER_STEP: True, "rlhf_loss_aggregation": "PROMPT_MEAN"}, PER_STEP),
        ({PER_STEP: True, DIVISOR: 4}, PER_STEP),
        ({DIVISOR: 5, "rlhf_loss_aggregation": "CONSTANT", "rlhf_loss_aggregation_divisor": 4}, DIVISOR),
        ({DIVISOR: 4, "rlhf_loss_aggregation": "TOKEN_MEAN"}, DIVISOR),
        ({DIVISOR: 4, "rlhf_loss_aggregation": "PROMPT_MEAN"}, DIVISOR),
        ({DIVISOR: 0}, DIVISOR),
        ({DIVISOR: math.nan}, DIVISOR),
        ({DIVISOR: "eight"}, DIVISOR),
        ({PER_STEP: 1}, PER_STEP),
        ({STRICT: "no"}, STRICT),
    ],
)
def test_contradictions_and_bad_values_name_the_older_setting(older: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig.from_dict({**GRPO, **older})
    assert caught.value.field == field


def test_all_faults_are_reported_together() -> None:
    with pytest.raises(UserErrors) as caught:
        TrainConfig.from_dict({**GRPO, PER_STEP: 1, DIVISOR: -1, "rlhf_group_size": 1})
    assert {error.field for error in caught.value.errors} == {PER_STEP, DIVISOR, "rlhf_group_size"}


@pytest.mark.parametrize("place", ["config", "preset", "--set"])
def test_a_name_without_effect_is_told(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.train.memory", lambda config: [])
    monkeypatch.setattr("modules.trainer.memory.memory_advice.forecast", lambda config: {})
    config = write_config(tmp_path, **{STRICT: False} if place == "config" else {})
    preset = tmp_path / "preset.json"
    preset.write_text(json.dumps({"__version": 1, **({STRICT: False} if place == "preset" else {})}))
    overrides = [f"{STRICT}=false"] if place == "--set" else []
    notes: list[str] = []
    load_layered(preset, config, overrides, notes=notes)
    assert len(notes) == 1 and notes[0].startswith(f"{STRICT}: has no effect any more")
    arguments = ["--preset-path", str(preset), "--config-path", str(config), "--dry-run"]
    arguments += [part for text in overrides for part in ("--set", text)]
    assert main(arguments) == 0
    assert f"warning: {notes[0]}\n" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    assert notes[0] in json.loads(capsys.readouterr().out)["warnings"]


def test_a_name_that_asks_for_what_is_done_anyway_is_not_worth_a_word(tmp_path: Path) -> None:
    config, notes = write_config(tmp_path, **{STRICT: True, PER_STEP: False}), list[str]()
    load_layered(None, config, notes=notes)
    assert notes == []
