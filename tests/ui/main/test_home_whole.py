"""The whole way with the demo model, by real mouse and keys: from an empty window to an adapter and a result."""

from __future__ import annotations

import os
import shutil
import subprocess
import tkinter as tk
from pathlib import Path

import pytest

from modules.ui.arena.ArenaWindow import ArenaWindow
from modules.ui.arena.ResultPage import ResultPage
from modules.ui.arena.VotingPage import VotingPage
from modules.ui.curation.ChoosingPage import ChoosingPage
from modules.ui.curation.DPOCurationWindow import DPOCurationWindow
from modules.ui.curation.ExportPage import ExportPage
from modules.ui.home.StartView import StartView
from modules.util.program_files import ROOT
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.demo_drivers import pair_tool, settled, size
from tests.ui.main.drivers import Hands
from tests.ui.main.test_arena import arena_of, picture, waits
from tests.ui.main.test_home import board_of, text, wait_for_step

pytestmark = [pytest.mark.gui, pytest.mark.slow]  # several minutes: images, training, images to compare
LONG = 900.0
PROMPTS = """a {red|green} square on a {purple|black} background
a {white|blue} circle on a {purple|yellow} background
a {white|red} cross on a {black|green} background
"""


def mouse(hands: Hands, widget: tk.Misc) -> None:
    """Move the pointer of the X server there and click."""
    hands.rest(0.3)
    assert widget.winfo_viewable()
    x, y = widget.winfo_rootx() + widget.winfo_width() // 2, widget.winfo_rooty() + widget.winfo_height() // 2
    subprocess.run(["xdotool", "mousemove", str(x), str(y), "click", "1"], check=True, timeout=20)
    hands.rest(0.3)


def key(hands: Hands, *names: str) -> None:
    subprocess.run(["xdotool", "key", *names], check=True, timeout=20)
    hands.rest(0.05)


def typed(hands: Hands, said: str) -> None:
    subprocess.run(["xdotool", "type", "--delay", "8", said], check=True, timeout=60)
    hands.rest(0.5)


@pytest.fixture
def empty_window(open_window: OpenWindow) -> Hands:
    if shutil.which("xdotool") is None:
        pytest.skip("xdotool is not installed")
    return open_window()


def pick_larger(hands: Hands) -> DPOCurationWindow:
    """With the arrow keys, until the last page of the pair tool."""
    tool = pair_tool(hands)
    hands.wait(lambda: settled(tool), "the pair tool does not get ready", LONG)
    tool.window.focus_force()
    hands.rest(0.3)
    while (
        isinstance(tool.page, ChoosingPage)
        and tool.page.shot is not None
        and tool.page.shot.group is not None
    ):
        shot = tool.page.shot
        left, right = (size(shot.group, index) for index in shot.state.question)  # type: ignore[union-attr]
        key(hands, "Left" if left > right else "Right")
        hands.wait(lambda: settled(tool), "nothing comes of a key", LONG)
    key(hands, "Return")
    return tool


def vote_larger(hands: Hands) -> ArenaWindow:
    """With the arrow keys, until the arena ends."""
    arena = arena_of(hands)
    hands.wait(lambda: waits(arena) and arena.page.shot is not None, "no question", LONG)  # type: ignore[union-attr]
    arena.window.focus_force()
    hands.rest(0.3)
    picture(hands, "arena-demo")
    while isinstance(arena.page, VotingPage):
        ballot = arena.page.shot.ballot  # type: ignore[union-attr]
        left, right = (_size(path) for path in ballot.show)  # type: ignore[union-attr]
        key(hands, "Left" if left > right else "Right")
        hands.wait(lambda: waits(arena), "nothing comes of a key", LONG)
    return arena


def test_twelve_clicks_from_an_empty_window(empty_window: Hands, tmp_path: Path) -> None:
    hands, clicks = empty_window, 0

    def click(widget: tk.Misc) -> None:
        nonlocal clicks
        clicks += 1
        mouse(hands, widget)

    start = hands.window.current_page().view  # type: ignore[attr-defined]
    assert isinstance(start, StartView)
    hands.expect_focus(start.entries["folder"])
    typed(hands, str(tmp_path / "taste"))
    click(start.entries["base"])
    typed(hands, str(ROOT / "resources" / "demo_model"))
    click(start.prompts)
    typed(hands, PROMPTS)
    click(start.create_button)
    board = board_of(hands)
    click(board.cards["generate"].button)
    hands.wait(lambda: board.watch.job is not None, "it does not begin")
    wait_for_step(hands, board, "generate", LONG)
    picture(hands, "home-images")
    click(board.cards["pick"].button)
    tool = pick_larger(hands)
    hands.wait(lambda: isinstance(tool.page, ExportPage))
    export = tool.page
    assert isinstance(export, ExportPage) and export.train_button is not None
    train = export.train_button
    hands.wait(lambda: not export.go.instate(["disabled"]))
    click(export.go)
    hands.wait(lambda: not train.instate(["disabled"]), "it is not finalised", LONG)
    picture(hands, "pair-tool-train")
    click(train)
    hands.wait(lambda: board.watch.job is not None, "it does not train")
    wait_for_step(hands, board, "train", LONG)
    click(board.cards["compare"].button)
    hands.wait(lambda: board.watch.tool is not None, "the arena does not open", LONG)
    arena = vote_larger(hands)
    result = arena.page
    assert isinstance(result, ResultPage)
    hands.rest(0.5)
    picture(hands, "arena-demo-result")
    sentence = str(result.sentence.cget("text"))
    assert clicks <= 12, clicks
    assert result.result.told["votes"] >= 8 and "round-1" in sentence
    click(result.buttons["Close"])
    hands.wait(lambda: board.watch.tool is None)
    click(board.learn)
    hands.wait(lambda: board.watch.job is not None)
    wait_for_step(hands, board, "learn", LONG)
    hands.wait(
        lambda: "it picks the better of two images" in text(board, "pick"), "no figure of the taste"
    )
    picture(hands, "home-demo")
    print(f"{clicks} clicks; {sentence}; {os.linesep}{text(board, 'pick')}")


def _size(path: Path) -> float:
    import numpy as np
    from PIL import Image

    from scripts.demo.judge import read_image

    with Image.open(path) as image:
        return read_image(np.asarray(image.convert("RGB"))).size
