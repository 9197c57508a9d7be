"""Home: a new project filled in from images that exist."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modules.ui.home.StartView import StartView
from tests.project.test_from_images import PROMPTS, by_a1111, by_comfyui
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
    hands.wait(lambda: "ComfyUI; the workflow in the images" in start.proposed.cget("text"), "nothing is proposed")
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
