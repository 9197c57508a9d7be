"""From the open window through real training on a tiny model: curve, sample, stop, resuming, faults of the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.ui.pages.RunPage import RunPage
from modules.ui.state.RunControl import RunControl
from tests.trainer.builders import FEW_LAYERS, settings
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui
MINUTES = 180.0


def open_config(
    open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: Any
) -> Hands:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = folder / "config.json"
    path.write_text(json.dumps(settings(folder, **FEW_LAYERS, **changes)), encoding="utf-8")
    hands = open_window()
    hands.window.control._command = None  # the real trainer
    assert hands.window.files.load(path)
    hands.rest()
    return hands


def train_and_stop(open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Hands:
    """A window whose run made steps, a curve and a sample, and was stopped."""
    sample = {"prompt": "a red circle", "width": 64, "height": 64, "diffusion_steps": 2}
    hands = open_config(
        open_window, monkeypatch, folder, epochs=400, samples=[sample], sample_before_training=True
    )
    control: RunControl = hands.window.control
    problems = hands.window.bottom_bar.problems
    hands.wait(lambda: problems.cget("text") == "No problems", seconds=60)
    hands.window.show_page("run")
    hands.rest()
    page = hands.window.current_page()
    assert isinstance(page, RunPage)
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: "dpo/accuracy" in control.history.series, "no step is made", MINUTES)
    hands.wait(lambda: page.gallery._rows, "there is no sample", MINUTES)
    hands.wait(
        lambda: any(c.name == "training" and len(c.x) >= 3 for c in page.plots[1].curves), "no curve", MINUTES
    )
    hands.keys("<Shift-F5>", to=hands.window)
    hands.wait(lambda: control.state == "stopped", "it does not stop", MINUTES)
    hands.wait(lambda: control.outcome is not None)
    assert control.history.series["loss/train_step"].steps[-1] < 1200
    return hands


@pytest.mark.usefixtures("forked_trainer")
def test_train_and_stop(open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert train_and_stop(open_window, monkeypatch, tmp_path).dialogs() == []


@pytest.mark.slow  # a run that resumes is tried with the launcher, and in the window with a trainer that trains nothing
def test_train_stop_and_resume(
    open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hands = train_and_stop(open_window, monkeypatch, tmp_path)
    control: RunControl = hands.window.control
    done = control.history.series["loss/train_step"].steps[-1]
    hands.window.state_.set_value("continue_last_backup", True)
    hands.window.state_.set_text("epochs", str(int(done) // 3 + 3))
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: control.state == "finished", "it does not finish", MINUTES)
    steps = control.history.series["loss/train_step"].steps
    assert steps == sorted(steps) and steps[0] == 1 and steps[-1] > done
    assert any("resumed" in message.text for message in control.history.messages)
    assert (tmp_path / "out.safetensors").is_file()
    assert hands.dialogs() == []


@pytest.mark.slow  # what the trainer reports, and that an error of a run opens a message, is tried apart as well
def test_faults_of_the_data_reach_the_person(
    open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hands = open_config(open_window, monkeypatch, tmp_path)
    (tmp_path / "data" / "rejected" / "002.png").unlink()
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.dialogs(), "nothing is told", MINUTES)
    hands.expect_dialog("002")
    assert hands.window.control.state == "failed"
