"""Memory and time of a run, next to Start."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from modules.runner.known_runs import note_run
from modules.ui.shell.ForecastLine import ForecastLine
from modules.ui.state.runs.Forecast import GIB
from modules.util.files.user_folder import FOLDER_VARIABLE
from tests.runner.test_pace import run_with, started, step
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands

pytestmark = [pytest.mark.gui, pytest.mark.usefixtures("settles_at_once")]
SAVING = {"changes": {"unet.gradient_checkpointing": True, "batch_size": 1}, "needed_bytes": 7 * GIB}


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "settings"))


def predicts(tmp_path: Path, steps: int = 160, **memory: Any) -> None:
    found = {"needed_bytes": 9 * GIB, "free_bytes": 12 * GIB, "saving": None} | memory
    outcome = {"errors": [], "warnings": [], "steps": steps, "memory": found}
    (tmp_path / "outcome.json").write_text(json.dumps(outcome))


def line(hands: Hands) -> ForecastLine:
    return hands.window.bottom_bar.forecast


def test_memory_and_steps_are_there_before_start_is_pressed(open_window: OpenWindow, tmp_path: Path) -> None:
    predicts(tmp_path)
    hands = open_window()
    hands.wait(lambda: line(hands).said == "9.0 of 12.0 GiB  \u00b7  160 steps, time unknown")
    assert line(hands).measure.winfo_viewable() and not line(hands).cure.winfo_viewable()
    assert line(hands).label.winfo_viewable()


def test_time_is_that_of_the_last_run_of_this_kind(open_window: OpenWindow, tmp_path: Path) -> None:
    predicts(tmp_path)
    hands = open_window()
    events = [started(0), step(1, 1), step(11, 2)]
    note_run(run_with(tmp_path / "earlier", events, hands.window.state_.config.to_dict()).path)
    hands.window.state_.set_value("learning_rate", 0.5)
    hands.wait(lambda: line(hands).said.endswith("160 steps, about 27 min"))
    assert not line(hands).measure.winfo_viewable()
    predicts(tmp_path, steps=10)
    hands.window.state_.set_value("epochs", 1)
    hands.wait(lambda: line(hands).said.endswith("10 steps, about 2 min"))


def test_what_does_not_fit_is_made_to_fit_by_a_button_and_one_undo_takes_it_back(
    open_window: OpenWindow, tmp_path: Path
) -> None:
    predicts(tmp_path, needed_bytes=15 * GIB, saving=SAVING)
    hands = open_window()
    state = hands.window.state_
    state.set_values({"batch_size": 4, "unet.gradient_checkpointing": False}, "before")
    hands.wait(lambda: line(hands).said.startswith("Does not fit: 15.0 GiB needed, 12.0 GiB free"))
    assert str(line(hands).label.cget("style")) == "Error.TLabel"
    predicts(tmp_path, needed_bytes=7 * GIB)
    hands.click(line(hands).cure)
    assert state.config.batch_size == 1 and state.config.unet.gradient_checkpointing
    hands.wait(lambda: line(hands).said.startswith("7.0 of 12.0 GiB"))
    assert not line(hands).cure.winfo_viewable()
    state.undo()
    assert state.config.batch_size == 4 and not state.config.unet.gradient_checkpointing


def test_what_is_not_known_is_said(open_window: OpenWindow, tmp_path: Path) -> None:
    predicts(tmp_path)
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    outcome["memory"] = {"unknown": "the model is not on this machine"}
    (tmp_path / "outcome.json").write_text(json.dumps(outcome))
    hands = open_window()
    hands.wait(lambda: line(hands).said.startswith("Memory unknown: the model is not on this machine"))
    predicts(tmp_path, free_bytes=None)
    hands.window.state_.set_value("epochs", 3)
    hands.wait(lambda: line(hands).said.startswith("Needs 9.0 GiB on a CUDA GPU; this computer has none"))


# the real trainer is tried in ``test_trial.py``
@pytest.mark.slow
def test_a_trial_measures_a_step_and_leaves_no_run_behind(open_window: OpenWindow, tmp_path: Path) -> None:
    predicts(tmp_path)
    hands = open_window(trainer=("--steps", "3", "--pace", "0.3"))
    hands.wait(lambda: line(hands).measure.winfo_viewable())
    hands.click(line(hands).measure)
    assert line(hands).measure.cget("text") == "Cancel"
    hands.wait(
        lambda: re.search(r"about (4[0-9]|5[0-9]|6[0-9]|7[0-9]) s", line(hands).said), line(hands).said
    )
    assert hands.window.control.run is None
    assert not line(hands).measure.winfo_viewable()
    predicts(tmp_path, steps=161)
    hands.window.state_.set_value("learning_rate", 0.5)  # does not change what a step takes
    hands.wait(lambda: "161 steps, about" in line(hands).said)


def test_a_trial_can_be_cancelled_and_a_failing_one_says_why(open_window: OpenWindow, tmp_path: Path) -> None:
    predicts(tmp_path)
    hands = open_window(trainer=("--steps", "3000", "--pace", "0.05", "--fail", ""))
    hands.wait(lambda: line(hands).measure.winfo_viewable())
    hands.click(line(hands).measure)
    hands.wait(lambda: line(hands).said.startswith("Measuring"))
    hands.click(line(hands).measure)
    hands.wait(lambda: line(hands).measure.cget("text") == "Measure")
    assert line(hands).said.endswith("time unknown")
    hands.close()
    again = open_window(trainer=("--steps", "20", "--fail", "memory"))
    again.wait(lambda: line(again).measure.winfo_viewable())
    again.click(line(again).measure)
    again.expect_dialog("could not be measured")


def test_nothing_is_predicted_while_a_run_is_live(open_window: OpenWindow, tmp_path: Path) -> None:
    predicts(tmp_path)
    hands = open_window(trainer=("--steps", "2000", "--pace", "0.02"))
    hands.wait(lambda: line(hands).label.winfo_viewable())
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.window.bottom_bar.run_bar.winfo_viewable(), "no bar of the run")
    assert not line(hands).winfo_viewable()
