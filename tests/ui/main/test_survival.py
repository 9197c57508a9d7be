"""Whatever dies or is damaged: a message says so, and the window goes on working."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.runner.events import EventReader
from modules.runner.launcher import attach
from modules.runner.RunDirectory import RunDirectory
from modules.ui.pages.RunPage import RunPage
from modules.ui.state.SessionStore import Session, SessionStore, WindowMemory
from modules.util.config.TrainConfig import TrainConfig
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands
from tests.ui.main.trainer import TRAINER
from tests.usual import usual

pytestmark = pytest.mark.gui
ROOT = Path(__file__).resolve().parents[3]
ENDLESS = ("--steps", "100000", "--pace", "0.01")
CAPABILITIES = 0x20080522
OVERRIDE_PERMISSIONS = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH

WINDOW = """
import sys
from pathlib import Path
from modules.ui.MainWindow import MainWindow
from modules.ui.state.RunControl import RunControl
from modules.ui.state.SessionStore import SessionStore
settings, run, *trainer = sys.argv[1:]
control = RunControl(lambda run: [sys.executable, trainer[0], str(run.path), *trainer[1:]])
window = MainWindow(SessionStore(Path(settings)), control=control)
window.state_.set_values({"workspace_dir": run, "concepts": [{"path": "images"}]}, "a project")
window.after(200, window.runs.start)
window.mainloop()
"""


def works(hands: Hands) -> None:
    """Pages open, a field can be edited, and the edit counts."""
    assert hands.dialogs() == []
    for epochs in ("7", "8"):
        hands.window.show_page("lora")
        hands.fill("epochs", epochs)
        assert hands.window.state_.config.epochs == int(epochs)


def run_page(hands: Hands) -> RunPage:
    hands.window.show_page("run")
    hands.rest()
    page = hands.window.current_page()
    assert isinstance(page, RunPage)
    return page


# -- the trainer ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "said", "advice"),
    [
        # what each signal is told as is tried without a window, in tests/runner
        pytest.param(
            signal.SIGSEGV, "crashed inside a library (SIGSEGV)", "train_device cpu", marks=pytest.mark.slow
        ),
        (signal.SIGKILL, "most likely because memory ran out (SIGKILL)", "lower dataloader_threads"),
        pytest.param(
            signal.SIGTERM, "ended from outside (SIGTERM)", "There is no backup yet", marks=pytest.mark.slow
        ),
    ],
)
def test_a_trainer_that_dies_is_explained_and_can_be_started_again(
    open_window: OpenWindow, number: int, said: str, advice: str
) -> None:
    hands = open_window(trainer=ENDLESS)
    control, page = hands.window.control, run_page(hands)
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: control.state == "running" and control.history.series, "it does not start")
    trainer = RunDirectory("workspace/run").trainer()
    assert trainer is not None
    os.kill(trainer.pid, number)
    hands.wait(lambda: hands.dialogs(), "nothing is said")
    assert advice in hands.dialogs()[0].message and "log.txt" in hands.dialogs()[0].message
    hands.expect_dialog(said)
    assert control.state == "failed"
    assert page.advice.winfo_viewable() and advice in str(page.advice.cget("text"))
    assert hands.window.bottom_bar.buttons["stop"].instate(["disabled"])
    works(hands)
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: control.state == "running", "it does not start again")
    hands.keys("<Shift-F5>", to=hands.window)
    hands.wait(lambda: control.state == "stopped", "it does not stop")


@pytest.mark.slow
def test_out_of_memory_is_told_with_advice_and_the_window_works(open_window: OpenWindow) -> None:
    hands = open_window(trainer=("--steps", "10", "--fail", "memory"))
    page = run_page(hands)
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.dialogs(), "nothing is said")
    for advice in ("lower the batch size", "gradient checkpointing", "rlhf_dpo_execution_mode"):
        assert advice in hands.dialogs()[0].message
    hands.expect_dialog("the graphics card ran out of memory")
    assert "gradient checkpointing" in str(page.advice.cget("text"))
    works(hands)
    assert hands.window.bottom_bar.buttons["start"].instate(["!disabled"])


# -- the window ----------------------------------------------------------------------------------------------


def test_training_outlives_a_killed_window_and_is_found_again(
    open_window: OpenWindow, display: None, tmp_path: Path
) -> None:
    run, settings = RunDirectory(tmp_path / "run"), tmp_path / "settings"
    line = [sys.executable, "-c", WINDOW, str(settings), str(run.path), str(TRAINER), *ENDLESS]
    window = subprocess.Popen(line, cwd=ROOT, env=dict(os.environ))
    try:
        end = time.monotonic() + 40
        while steps(run) < 5 or not (settings / "session.json").is_file() or not saved_run(settings):
            assert window.poll() is None and time.monotonic() < end, "no training under way"
            time.sleep(0.05)
    finally:
        window.send_signal(signal.SIGKILL)
        window.wait(10)
    before, trainer = steps(run), run.trainer()
    assert trainer is not None and trainer.alive(), "the training died with the window"
    try:
        hands = open_window(store=SessionStore(settings), trainer=ENDLESS)
        control, page = hands.window.control, run_page(hands)
        hands.wait(lambda: control.state == "running", "the run is not found")
        hands.wait(lambda: len(page.plots[0].curves[0].x) > before, "it stands still")
        assert list(page.plots[0].curves[0].x)[:5] == [1, 2, 3, 4, 5]
        assert control._trainer is not None and control._trainer.pid == trainer.pid
        works(hands)
        hands.keys("<Shift-F5>", to=hands.window)
        hands.wait(lambda: control.state == "stopped", "it takes no orders")
        hands.wait(lambda: not trainer.alive(), "its process does not end")
    finally:
        left = attach(run)
        if left is not None:
            left.end()


def steps(run: RunDirectory) -> int:
    if not run.events_path.is_file():
        return 0
    return sum(event["kind"] == "step" for event in EventReader(run.events_path).poll())


def saved_run(settings: Path) -> bool:
    return bool(json.loads((settings / "session.json").read_text())["run"])


# -- its files -----------------------------------------------------------------------------------------------


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Permissions count, also for root."""
    if os.name == "nt" or os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0, os.strerror(ctypes.get_errno())
    before = sets[0]
    sets[0] = before & ~OVERRIDE_PERMISSIONS
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())
    yield
    sets[0] = before
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


def read_only_settings(folder: Path, session: str | None = None) -> SessionStore:
    store = SessionStore(folder)
    store.save_session(Session(TrainConfig(epochs=42).to_dict()))
    store.save_window(WindowMemory(geometry="1240x680+10+10", appearance="Dark", page="training"))
    if session is not None:
        store.session_path.write_text(session)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    return store


@pytest.mark.skipif(os.name == "nt", reason="folders are protected in another way there")
def test_a_read_only_settings_folder(open_window: OpenWindow, tmp_path: Path, unprivileged: None) -> None:
    store = read_only_settings(tmp_path / "settings")
    before = store.session_path.read_bytes()
    hands = open_window(store=store)
    assert hands.window.state_.config.epochs == 42 and hands.window.page == "training"
    hands.fill("batch_size", "3")
    hands.wait(lambda: hands.dialogs(), "nothing is said")
    assert "Permission denied" in hands.dialogs()[0].message
    hands.expect_dialog("The settings cannot be saved in")
    works(hands)
    hands.rest(0.3)
    assert hands.dialogs() == [], "it is said again and again"
    hands.close()
    store.folder.chmod(0o755)
    assert store.session_path.read_bytes() == before


@pytest.mark.skipif(os.name == "nt", reason="folders are protected in another way there")
def test_a_damaged_session_in_a_read_only_folder(
    open_window: OpenWindow, tmp_path: Path, unprivileged: None
) -> None:
    store = read_only_settings(tmp_path / "settings", session='{"version": 1, "conf')
    hands = open_window(store=store)
    hands.wait(lambda: len(hands.dialogs()) == 2, "not both are told")
    assert "The file stays where it is" in " ".join(dialog.message for dialog in hands.dialogs())
    hands.expect_dialog("The settings cannot be saved in")
    works(hands)
    hands.close()
    store.folder.chmod(0o755)
    assert store.session_path.read_text() == '{"version": 1, "conf'


CONTENTS = [b"", b"{", b"\x00\xff\xfe", b"[]", b"[" * 100_000]


@pytest.mark.parametrize("content", usual(CONTENTS, CONTENTS[-1]), ids=range(5))
def test_damaged_settings_files(open_window: OpenWindow, tmp_path: Path, content: bytes) -> None:
    store = SessionStore(tmp_path / "settings")
    store.folder.mkdir()
    for path in (store.session_path, store.window_path):
        path.write_bytes(content)
    hands = open_window(store=store)
    hands.wait(lambda: hands.dialogs(), "nothing is said")
    hands.expect_dialog("kept as")
    works(hands)
    hands.close()
    assert content in [path.read_bytes() for path in store.folder.glob("session.unreadable-*.json")]
    again = open_window(store=SessionStore(store.folder))
    again.rest(0.4)
    assert again.window.state_.config.epochs == 8
    works(again)


@pytest.mark.parametrize("newer", usual(["session", "config"], "config"))
def test_settings_of_a_newer_program(open_window: OpenWindow, tmp_path: Path, newer: str) -> None:
    store = SessionStore(tmp_path / "settings")
    config = TrainConfig(epochs=3).to_dict()
    store.save_session(Session(config | {"__version": 99} if newer == "config" else config))
    data = json.loads(store.session_path.read_text())
    data["version"] = 99 if newer == "session" else data["version"]
    store.session_path.write_text(json.dumps(data))
    hands = open_window(store=store)
    hands.expect_dialog("format 99")
    works(hands)
    kept = list(store.folder.glob("session.unreadable-*.json"))
    assert [json.loads(path.read_text()) for path in kept] == [data]


@pytest.mark.slow
def test_a_config_file_of_a_newer_program(hands: Hands, tmp_path: Path) -> None:
    path = tmp_path / "newer.json"
    path.write_text(json.dumps(TrainConfig(epochs=3).to_dict() | {"__version": 99}))
    title = hands.window.title()
    assert not hands.window.files.load(path)
    hands.expect_dialog("has format 99")
    assert hands.window.title() == title and hands.window.state_.config.epochs == 10
    works(hands)
    assert json.loads(path.read_text())["__version"] == 99
