"""The pair tool as a program: a process of its own, keys from the X server, a sudden end."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modules.curation.store import CurationStore
from modules.util.dpo_curation_util import find_orphaned_pairs, load_manifest
from tests.ui.curation.drivers import make_images

pytestmark = pytest.mark.gui
ROOT = Path(__file__).resolve().parents[3]


def wait_for(done: Callable[[], object], what: str, seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def answers(output: Path) -> int:
    path = output / "curation.sqlite"
    if not path.exists():
        return 0
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as base:
        try:
            row = base.execute("SELECT COUNT(*) FROM events WHERE undone = 0").fetchone()
        except sqlite3.OperationalError:  # the tables are just being made
            return 0
        return int(row[0])


@pytest.fixture
def program(display: None, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    if shutil.which("xdotool") is None:
        pytest.skip("xdotool is not installed")
    make_images(tmp_path / "images", 2, 6)
    command = [sys.executable, str(ROOT / "scripts" / "train_ui.py"), "--pair-tool", str(tmp_path / "images")]
    process = subprocess.Popen([*command, "--settings-dir", str(tmp_path / "settings")])
    yield process
    if process.poll() is None:
        process.kill()
        process.wait(10)


def xdotool(*arguments: str) -> str:
    return subprocess.run(
        ["xdotool", *arguments], capture_output=True, text=True, check=False, timeout=20
    ).stdout.strip()


def focused() -> str:
    return xdotool("getwindowfocus", "getwindowname")


def press_until(key: str, done: Callable[[], object], what: str) -> None:
    xdotool("key", key)
    wait_for(done, what)


def test_keys_from_the_x_server_pick_and_a_killed_program_loses_nothing(program, tmp_path):
    output = tmp_path / "images-pairs"
    wait_for(lambda: "Pair tool" in focused(), "the window to get the focus")
    time.sleep(0.5)  # the first page puts the focus on its button
    press_until("Return", lambda: focused().startswith("images"), "the choosing page")
    wait_for(lambda: (output / "curation.sqlite").exists(), "the store")
    done = 0
    end = time.monotonic() + 40
    while done < 4:
        assert time.monotonic() < end, "keys have no effect"
        xdotool("key", "Left" if done % 2 else "Right")
        before, soon = done, time.monotonic() + 5
        while done == before and time.monotonic() < soon:  # a second key would be a second answer
            time.sleep(0.05)
            done = answers(output)
    xdotool("key", "ctrl+z")
    wait_for(lambda: answers(output) == done - 1, "undo")
    press_until("p", lambda: answers(output) == done, "the pick")
    program.send_signal(signal.SIGKILL)
    program.wait(10)
    with CurationStore(output) as store:  # what is committed, opening brings into the manifest
        assert store.pair_count() == 1
    manifest = load_manifest(output)
    assert len(manifest["pairs"]) == 1
    assert find_orphaned_pairs(output, manifest) == []
    assert answers(output) == done


def test_the_window_closes_by_its_manager_and_leaves_no_process(program, tmp_path):
    wait_for(lambda: "Pair tool" in focused(), "the window to get the focus")
    time.sleep(0.3)
    xdotool("key", "alt+F4")
    assert program.wait(20) == 0
    assert (tmp_path / "settings" / "pair_tool.json").exists()


def test_no_window_of_the_pair_tool_brings_torch_in(tmp_path):
    code = (
        "import sys, pkgutil, importlib, modules.ui.curation as package\n"
        "names = [m.name for m in pkgutil.iter_modules(package.__path__)]\n"
        "assert 'windows' in names\n"
        "for name in names: importlib.import_module(f'modules.ui.curation.{name}')\n"
        "print([n for n in ('torch', 'diffusers', 'transformers', 'peft') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_a_folder_that_is_not_there_is_refused_before_a_window_opens(tmp_path):
    script = str(ROOT / "scripts" / "train_ui.py")
    done = subprocess.run(
        [sys.executable, script, "--pair-tool", str(tmp_path / "no")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "does not exist" in done.stderr
