"""A person before the open main window."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tkinter as tk
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modules.runner import launcher
from modules.runner.RunDirectory import LAUNCHED_IN, RunDirectory
from modules.ui.MainWindow import MainWindow
from modules.ui.shell.BottomBar import BottomBar
from modules.ui.state.PresetStore import PresetStore
from modules.ui.state.RunControl import RunControl
from modules.ui.state.SessionStore import SessionStore, WindowMemory
from modules.util.config.TrainConfig import TrainConfig
from tests.children.warm import WarmProcess, start_warm
from tests.ui.conftest import Desktop, take_focus
from tests.ui.main.drivers import Hands
from tests.ui.main.dry_run import DRY_RUN
from tests.ui.main.trainer import TRAINER

OpenWindow = Callable[..., Hands]
QUICK = {
    "arena.VotingPage.QUIET_MS": 100,
    "demo.DemoWindow.POLL_MS": 50,
    "home.ProjectWatch.POLL_MS": 100,
    "pages.RunPage.LOG_MS": 100,
    "pages.online_cards.COUNT_AFTER_MS": 30,
    "remote.RemoteRuns.TICK_MS": 100,
    "run.QueuePanel.TICK_MS": 100,
    "run.RunActions.POLL_MS": 50,
    "run.RunActions.RETRY_SECONDS": 0.1,
    "shell.Autosave.DELAY_MS": 100,
    "widgets.tk_support.PUMP_MS": 20,
}
"""How often the window looks at what other processes do, and how long it waits for a person to pause."""


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person does not mind half a second. Tests would wait for it hundreds of times."""
    for name, value in QUICK.items():
        monkeypatch.setattr(f"modules.ui.{name}", value)


@pytest.fixture
def settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are checked right after a change. Only for tests that prepare the outcome before it: the window does not
    wait until they are done.
    """
    monkeypatch.setattr("modules.ui.run.StartCheck.SETTLED_MS", 100)


@pytest.fixture
def forked_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers are forks that have imported everything. The slow tests of ``test_journey.py`` start new processes."""

    def spawn(line: list[str], run: RunDirectory, _log: int) -> WarmProcess | subprocess.Popen[bytes]:
        environment = {**os.environ, LAUNCHED_IN: str(run.path)}
        return start_warm(Path(line[1]), line[2:], run.log_path, run.log_path, environment)

    monkeypatch.setattr(launcher, "_spawn", spawn)


@pytest.fixture
def open_window(display: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenWindow]:
    """Opens windows on the settings folder of the test; each is closed at the end."""
    monkeypatch.chdir(tmp_path)
    concepts = tmp_path / TrainConfig().concept_file_name  # so that there is something to train on
    concepts.parent.mkdir()
    concepts.write_text("[]")
    opened: list[Hands] = []
    say = BottomBar.say

    def heard(bar: BottomBar, text: str) -> None:
        say(bar, text)
        getattr(bar.winfo_toplevel(), "heard", []).append(bar.said)

    monkeypatch.setattr(BottomBar, "say", heard)

    def open_one(
        model: type[TrainConfig] = TrainConfig,
        memory: WindowMemory | None = None,
        trainer: tuple[str, ...] = ("--steps", "20"),
        store: SessionStore | None = None,
    ) -> Hands:
        kept = store or SessionStore(tmp_path / "settings")
        if memory is not None:
            kept.save_window(memory)
        elif not kept.folder.exists():
            with contextlib.suppress(OSError):
                kept.save_window(WindowMemory(geometry="1240x680+10+10", appearance="Dark"))
        control = RunControl(lambda run: [sys.executable, str(TRAINER), str(run.path), *trainer])
        dry_run = (sys.executable, str(DRY_RUN), str(tmp_path))
        window = MainWindow(kept, model, PresetStore(tmp_path / "presets"), control, dry_run)
        take_focus(window)
        opened.append(Hands(window))
        return opened[-1]

    yield open_one
    for hands in opened:
        if hands.window.control.is_live:
            hands.window.control.end_now()
        hands.close()
    errors = [error for hands in opened for error in hands.unexpected()]
    if errors:
        raise errors[0]


@pytest.fixture
def hands(open_window: OpenWindow) -> Hands:
    """One window."""
    return open_window()


__all__ = ["Desktop", "Hands", "OpenWindow", "tk"]
