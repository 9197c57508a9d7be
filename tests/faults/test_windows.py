"""Every key in every view of the real windows, sent by the X server: nothing fails, and nothing is said to have failed.

Each case draws its keys by a seed. What a person of this test presses is theirs to lose: all folders are of the test.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.curation.CurationMode import CurationMode
from modules.curation.store import CurationStore
from modules.ui.texts import window as words
from tests.faults.pair_folders import make_pairs
from tests.source_tree import ROOT
from tests.ui.conftest import display
from tests.ui.curation.drivers import make_images

__all__ = ["display"]
pytestmark = [pytest.mark.gui, pytest.mark.slow]

SEED = int(os.environ.get("FAULTS_SEED", "1"))
PLAIN = [*"abcdefghijklmnopqrstuvwxyz0123456789", "Left", "Right", "Up", "Down", "Home", "End", "Prior", "Next",
         "Return", "space", "Tab", "Escape", "BackSpace", "Delete", "Insert", "Menu", "plus", "minus", "slash",
         "period", "F1", "F2", "F3", "F4", "F6", "F7", "F8", "F9", "F10", "F11", "F12"]  # fmt: skip
HELD = [*(f"ctrl+{key}" for key in "abcdefghijklmnoprstuvwxyz0123456789"), "ctrl+Return", "ctrl+plus", "ctrl+minus",
        "shift+Left", "shift+Right", "shift+Tab", "shift+F5", "ctrl+shift+s", "ctrl+shift+z", "ctrl+Tab"]  # fmt: skip
"""All but those that end the program (Ctrl+Q) or start a training (F5)."""
PAGES = [f"ctrl+{number % 10}" for number in range(1, 11)]


class Program:
    """A window in a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.said = folder / "said.txt"
        # a window that chooses files is answered by nobody: without a desktop's own it is Tk's, closed by Escape
        environment = {**os.environ, "HOME": str(folder), "HF_HUB_OFFLINE": "1", "PYTHONFAULTHANDLER": "1"}
        with self.said.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "scripts" / "train_ui.py"), *arguments],
                stdout=out, stderr=out, env=environment, cwd=folder,
            )  # fmt: skip

    def press(self, *keys: str) -> None:
        """Keys, one after the other, to whatever window has the focus."""
        xdotool("key", "--delay", "40", *keys)

    def wait_for_title(self, text: str) -> None:
        end = time.monotonic() + 90
        while text not in xdotool("getwindowfocus", "getwindowname"):
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < end, f"no window {text!r}: {titles()}"
            time.sleep(0.1)
        time.sleep(1.0)

    def check(self, after: str) -> None:
        """It lives, and no message of an error of the program is on the screen or in its output."""
        said = self.said.read_text(errors="replace")
        assert "Traceback" not in said and "Fatal" not in said, f"{after}: {said[-3000:]}"
        assert self.process.poll() in (None, 0), f"{after}: ended with {self.process.poll()} {said[-3000:]}"
        assert words.PROGRAM_ERROR_TITLE not in titles(), after


def xdotool(*arguments: str) -> str:
    done = subprocess.run(["xdotool", *arguments], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip()


def titles() -> list[str]:
    """Of all windows on the screen."""
    return xdotool("search", "--onlyvisible", "--name", ".", "getwindowname", "%@").splitlines()


@pytest.fixture
def programs(display: None) -> Iterator[list[Program]]:
    if shutil.which("xdotool") is None:
        pytest.skip("xdotool is not installed")
    started: list[Program] = []
    yield started
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(10)


@pytest.mark.parametrize("mode", [mode.value for mode in CurationMode])
def test_every_key_of_the_pair_tool(mode: str, programs: list[Program], tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", 12, 4)
    settings = tmp_path / "settings"
    settings.mkdir()
    (settings / "pair_tool.json").write_text(f'{{"mode": "{mode}", "source": "{images}"}}')
    program = Program(tmp_path, "--pair-tool", str(images), "--settings-dir", str(settings))
    programs.append(program)
    program.wait_for_title("Pair tool")
    program.press("Return")
    draw = random.Random(f"{SEED} {mode}")
    keys = [*PLAIN, *HELD]
    for round_ in range(2):
        draw.shuffle(keys)
        for start in range(0, len(keys), 8):
            some = keys[start : start + 8]
            program.press(*some)
            program.check(f"{mode}, round {round_}, {some}")
            if program.process.poll() is not None:
                break
    program.check("at last")
    if program.process.poll() is None:
        program.process.kill()
        program.process.wait(10)
    output = tmp_path / "images-pairs"
    if output.exists():
        with CurationStore(output) as store:
            assert len(store.pairs()) == store.pair_count()


def test_every_key_of_every_page_of_the_main_window(programs: list[Program], tmp_path: Path) -> None:
    make_pairs(tmp_path / "made", 2, finalised=True)
    program = Program(tmp_path, "--settings-dir", str(tmp_path / "settings"))
    programs.append(program)
    program.wait_for_title("Tastemaker")
    draw = random.Random(SEED)
    keys = [*PLAIN, *HELD]
    for page in PAGES:
        draw.shuffle(keys)
        for start in range(0, len(keys), 8):
            # dialogs are answered now by Return, now by Escape
            some = ["Escape", page, *keys[start : start + 8]]
            program.press(*some)
            program.check(f"{page}, {some}")
            assert program.process.poll() is None, f"{some} ended the program"
