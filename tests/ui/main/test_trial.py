"""A trial with the real trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.ui.state.runs.Trial import Trial
from modules.util.files.user_folder import FOLDER_VARIABLE
from tests.trainer.builders import write_config


@pytest.mark.usefixtures("forked_trainer")
def test_three_steps_of_the_real_trainer_are_measured_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "settings"))
    path = write_config(tmp_path, epochs=50, rlhf_dpo_validation=False)
    told: list[str] = []
    found = Trial(json.loads(path.read_text()), told.append).run()
    assert found is not None and found.seconds > 0 and found.steps == 2
    assert told
    assert not (tmp_path / "run").exists() and not list(tmp_path.glob("*.safetensors"))
