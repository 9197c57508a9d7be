"""From the pair tool, opened in the main window, to settings that train on what it made: by mouse and keys."""

from __future__ import annotations

import re
import tkinter as tk
from pathlib import Path
from tkinter import ttk

import pytest

from modules.curation.CurationMode import CurationMode
from modules.curation.group_state import SessionSettings
from modules.ui.curation.ChoosingPage import ChoosingPage
from modules.ui.curation.DPOCurationWindow import DPOCurationWindow
from modules.ui.curation.ExportPage import ExportPage
from modules.ui.curation.PairController import PickingOptions
from modules.ui.curation.PairToolMemory import PairToolMemory
from modules.ui.curation.StartPage import StartPage
from modules.ui.curation.windows import open_pair_tool
from modules.ui.state.ConfigState import ConfigState
from modules.ui.state.pairs_to_train import train_on_pairs
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.ConceptType import ConceptType
from modules.util.enum.RLHFMode import RLHFMode
from modules.util.errors import UserError
from tests.ui.curation.drivers import make_images
from tests.ui.main.demo_drivers import PATIENCE, pair_tool, press, settled
from tests.ui.main.drivers import Hands
from tests.usual import usual


def finished(folder: Path) -> Path:
    for side in ("chosen", "rejected"):
        (folder / side / "train").mkdir(parents=True)
    return folder


def test_old_pairs_are_switched_off_other_concepts_stay_and_it_is_one_step_of_undo(tmp_path: Path) -> None:
    old = [
        {"path": "/old/chosen", "type": "DPO_CHOSEN"}, {"path": "/old/rejected", "type": "DPO_REJECTED"},
        {"path": "/plain"}, {"path": "/off", "enabled": False},
    ]  # fmt: skip
    state = ConfigState(TrainConfig.from_dict({"concepts": old, "rlhf_mode": "GRPO"}))
    train_on_pairs(state, finished(tmp_path))
    assert state.config.rlhf_enabled and state.config.rlhf_mode is RLHFMode.DPO
    assert state.config.concepts is not None
    assert [concept.enabled for concept in state.config.concepts] == [False, False, True, False, True, True]
    assert [concept.type for concept in state.config.concepts[-2:]] == [
        ConceptType.DPO_CHOSEN, ConceptType.DPO_REJECTED,
    ]  # fmt: skip
    train_on_pairs(state, tmp_path)
    assert len(state.config.concepts) == 6
    state.undo()
    assert state.config.concepts is not None and len(state.config.concepts) == 4
    assert state.config.rlhf_mode is RLHFMode.GRPO


def test_a_folder_that_was_not_finalised_is_refused(tmp_path: Path) -> None:
    state = ConfigState()
    with pytest.raises(UserError, match="no finished pairs"):
        train_on_pairs(state, tmp_path)
    assert not state.can_undo()


@pytest.mark.gui
def test_from_images_to_start_in_one_sitting(hands: Hands, tmp_path: Path) -> None:
    make_images(tmp_path / "images", 2, 2)
    PairToolMemory(mode="ELO", ask_to_continue=False).save(tmp_path / "settings")
    hands.window.show_page("tools")
    hands.click(hands.button("Pair tool"))
    tool = pair_tool(hands)
    hands.wait(lambda: isinstance(tool.page, StartPage))
    start = tool.page
    assert isinstance(start, StartPage)
    for entry, path in (("source", tmp_path / "images"), ("output", tmp_path / "pairs")):
        hands.focus(start.entries[entry])
        hands.keys("<Control-a>")
        hands.type(str(path))
    hands.wait(lambda: start.go.instate(["!disabled"]))
    hands.click(start.go)
    hands.wait(lambda: tool.controller is not None and settled(tool), "it does not begin", PATIENCE)
    tool.window.focus_force()
    hands.wait(lambda: tool.window.focus_get() is not None)
    for key in ("Left", "p", "Right", "p", "e"):
        press(hands, tool, key)
    page = tool.page
    assert isinstance(page, ExportPage) and page.train_button is not None
    hands.wait(lambda: "pairs from" in str(page.summary.cget("text")), "no summary", PATIENCE)
    assert page.train_button.instate(["disabled"])
    hands.click(page.go)
    hands.wait(lambda: page.train_button.instate(["!disabled"]), "they are not finalised", PATIENCE)  # type: ignore[union-attr]
    assert re.fullmatch(r"Train on these \d+ pairs", str(page.train_button.cget("text")))
    hands.click(page.train_button)
    hands.wait(lambda: not tool.winfo_exists(), "the pair tool stays open", PATIENCE)
    hands.wait(lambda: "Ready to train" in hands.status())
    config = hands.window.state_.config
    assert config.rlhf_enabled and hands.window.page == "rlhf"
    assert {Path(c.path).parent.parent for c in config.load_concepts() if c.enabled} == {tmp_path / "pairs"}
    hands.wait(lambda: hands.window.focus_get() is not None)
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.window.control.state == "finished", "it does not start")


@pytest.mark.slow
@pytest.mark.gui
def test_a_double_click_opens_one_pair_tool(hands: Hands) -> None:
    hands.window.show_page("tools")
    button = hands.button("Pair tool")
    for _ in range(2):
        hands.click(button)
    tool = pair_tool(hands)
    hands.wait(lambda: (focus := hands.window.focus_get()) and focus.winfo_toplevel() is tool.window)


@pytest.mark.gui
def test_the_button_brings_back_a_hidden_pair_tool_but_not_that_of_a_project(hands: Hands, tmp_path: Path) -> None:
    hands.window.show_page("tools")
    theirs = open_pair_tool(hands.window, hands.window.theme, settings=tmp_path / "settings")
    hands.click(hands.button("Pair tool"))
    hands.wait(lambda: len(pair_windows(hands)) == 2, "the tool of a project is taken for one of the main window")
    (mine,) = set(pair_windows(hands)) - {theirs}
    mine.withdraw()
    hands.click(hands.button("Pair tool"))
    hands.wait(mine.winfo_viewable, "it stays hidden")
    assert len(pair_windows(hands)) == 2


def pair_windows(hands: Hands) -> list[tk.Toplevel]:
    return [
        window
        for window in hands.window.winfo_children()
        if isinstance(window, tk.Toplevel)
        and any(isinstance(child, DPOCurationWindow) for child in window.winfo_children())
    ]


@pytest.fixture
def tool(hands: Hands, tmp_path: Path) -> DPOCurationWindow:
    """The pair tool, opened from the main window, at its first question."""
    make_images(tmp_path / "images", 1, 4)
    session = SessionSettings(mode=CurationMode.ELO)
    options = PickingOptions(tmp_path / "images", tmp_path / "pairs", session)
    window = open_pair_tool(hands.window, hands.window.theme, settings=tmp_path / "settings", options=options)
    tool = pair_tool(hands)
    hands.wait(lambda: tool.controller is not None and settled(tool), "it does not begin", PATIENCE)
    window.focus_force()
    hands.wait(lambda: tool.window.focus_get() is not None)
    return tool


def seen_and_skipped(page: ttk.Frame | None) -> tuple[int, int]:
    assert isinstance(page, ChoosingPage) and page.shot is not None
    return page.shot.counts.seen, page.shot.counts.skipped


@pytest.mark.gui
def test_a_key_after_a_click_means_the_same_as_without_it(hands: Hands, tool: DPOCurationWindow) -> None:
    assert isinstance(tool.page, ChoosingPage)
    hands.click(tool.page.action_row.winfo_children()[0])
    hands.wait(lambda: settled(tool) and seen_and_skipped(tool.page) == (1, 0), "no answer", PATIENCE)
    hands.keys("<space>")
    hands.wait(lambda: settled(tool) and seen_and_skipped(tool.page)[0] == 2, "no answer", PATIENCE)
    assert seen_and_skipped(tool.page) == (2, 1), "Space skips, and does not press the button that was clicked"


CLICKS = [(part, key) for part in ("prompt_box", "hint_label", "middle") for key in ("<Left>", "<space>", "<Up>")]


@pytest.mark.gui
@pytest.mark.parametrize(
    ("part", "key"), usual(CLICKS, ("prompt_box", "<Left>"), ("hint_label", "<space>"), ("middle", "<Up>"))
)
def test_keys_still_answer_after_a_click_next_to_the_buttons(
    part: str, key: str, hands: Hands, tool: DPOCurationWindow
) -> None:
    hands.click(getattr(tool.page, part))
    hands.keys(key)
    hands.wait(lambda: settled(tool) and seen_and_skipped(tool.page)[0] == 1, "no answer", PATIENCE)
