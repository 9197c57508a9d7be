"""Home: a new project filled in from images that exist."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modules.ui.home.StartView import StartView
from tests.curation.edits import edit_folder
from tests.project.test_from_images import PROMPTS, by_a1111, by_comfyui
from tests.ui.conftest import Desktop
from tests.ui.main.conftest import OpenWindow

SHOTS = os.environ.get("TASTEMAKER_SHOTS")
pytestmark = pytest.mark.gui


def test_images_fill_in_the_form(open_window: OpenWindow, tmp_path: Path) -> None:
    by_a1111(tmp_path / "images", PROMPTS)
    by_comfyui(tmp_path / "others")
    hands = open_window()
    start = hands.window.current_page().view  # type: ignore[attr-defined]
    assert isinstance(start, StartView)
    hands.focus(start.entries["folder"])
    hands.type(str(tmp_path / "p"))
    start.take_images(tmp_path / "others")
    hands.wait(lambda: "ComfyUI with its workflow" in start.proposed.cget("text"), "nothing is proposed")
    assert "Check the model type" in start.proposed.cget("text")
    start.take_images(tmp_path / "images")
    hands.wait(lambda: "A1111" in start.proposed.cget("text"), "nothing is proposed")
    if SHOTS:
        hands.rest(0.5)
        hands.picture(Path(SHOTS) / "from_images.png")
    assert "demo_model" in start.values["base"].get() and "a grey owl" in start.prompts.get("1.0", "end")
    hands.click(start.create_button)
    hands.wait(lambda: start.watch.project is not None, "no project is made")
    project = start.watch.project
    assert project is not None
    assert project.file.image.sampler == "DPM++ 2M" and project.file.image.steps == 25
    assert project.file.generator["kind"] == "a1111"
    start.watch.leave()
    hands.rest(0.2)
    start = hands.window.current_page().view  # type: ignore[attr-defined]
    start.take_images(tmp_path / "nothing")
    hands.wait(lambda: "no folder" in start.error.cget("text"), "the mistake is not named")


def test_edits_are_refused_with_how_to_begin_with_them(
    open_window: OpenWindow, tmp_path: Path, desktop: Desktop
) -> None:
    images, _inputs = edit_folder(tmp_path, instructions=3)
    hands = open_window()
    start = hands.window.current_page().view  # type: ignore[attr-defined]
    desktop.answers(images)
    hands.focus(start.images_button)
    hands.keys("Return")
    hands.wait(lambda: "were made from other images" in start.error.cget("text"), "edits are not refused")
    said = start.error.cget("text")
    for word in ("taste.py new", "--images", "--edits", "--input-dir", "--source"):
        assert word in said
