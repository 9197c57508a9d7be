"""The parts of the main window that pages and dialogs call, as protocols of the methods they use."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from modules.remote.records import Record
from modules.runner.outcome import Outcome
from modules.runner.RunQueue import QueueEntry, QueueRunner
from modules.ui.form.Tooltips import Tooltips
from modules.ui.home.ProjectWatch import ProjectWatch
from modules.ui.run.TensorBoard import TensorBoard
from modules.ui.state.ConfigState import Problem
from modules.ui.state.RunControl import RunControl
from modules.ui.state.runs.Forecast import Forecast
from modules.ui.state.SessionStore import SessionStore, WindowMemory
from modules.util.config.remote.RemoteConfig import RemoteConfig


class ConfigFiles(Protocol):
    """Opens and imports configs; implemented by ``FileActions``."""

    def load(self, path: Path) -> bool: ...
    def ask_import(self) -> None: ...


class Checker(Protocol):
    """Reports problems; implemented by ``StartCheck``."""

    forecast: Forecast

    def errors(self) -> list[Problem]: ...
    def errors_of_settings(self) -> list[Problem]: ...
    def now(self, then: Callable[[], None], changes: Mapping[str, Any] | None = None) -> None: ...
    def take_pace(self, config: Mapping[str, Any], seconds: float) -> None: ...


class RunCommands(Protocol):
    """Acts on the run; implemented by ``RunActions``."""

    def attach(self, folder: str) -> None: ...
    def ended(self, outcome: Outcome) -> None: ...


class Mirrors(Protocol):
    """The watched run, if it is on another computer; implemented by ``MirrorWatch``."""

    record: Record | None
    line: str
    connecting: bool

    def connect(self) -> None: ...
    def attend(self) -> None: ...
    def send(self, kind: str) -> None: ...


class OtherComputer(Protocol):
    """Actions on another computer; implemented by ``RemoteRuns``."""

    doing: str
    said: str
    computers: list[RemoteConfig]

    @property
    def share(self) -> float | None: ...
    @property
    def watch(self) -> Mirrors: ...
    def listen(self, call: Callable[[], None], widget: tk.Misc) -> None: ...
    def load(self) -> None: ...
    def choose(self, remote: RemoteConfig) -> None: ...
    def forget(self, remote: RemoteConfig) -> None: ...
    def check(self) -> None: ...
    def start(self) -> None: ...
    def resume(self) -> None: ...
    def fetch(self, backups: bool) -> None: ...
    def cancel(self) -> None: ...


class QueueWatch(Protocol):
    """The queue and its changes; implemented by ``QueueWork``."""

    runner: QueueRunner
    entries: list[QueueEntry]

    def look(self) -> None: ...
    def listen(self, call: Callable[[], None], widget: tk.Misc) -> None: ...


@dataclass
class Services:
    """Services shared by everything in the main window, as ``Ui.services``.

    Args:
        store: the settings folder.
        memory: state that the window keeps between starts.
        tooltips: texts shown next to the pointer.
        runs: the watched run.
        files: opens and imports configs.
        check: problems of the settings.
        run_actions: watches another run.
        tensorboard: all curves in the browser.
        home: the open taste project.
        remote: what is done on another computer.
        show_page: brings the page with a key to the front.
        remember: schedules saving ``memory``.
    """

    store: SessionStore
    memory: WindowMemory
    tooltips: Tooltips
    runs: RunControl
    files: ConfigFiles
    check: Checker
    run_actions: RunCommands
    queue: QueueWatch
    tensorboard: TensorBoard
    home: ProjectWatch
    remote: OtherComputer
    show_page: Callable[[str], None]
    remember: Callable[[], None]
