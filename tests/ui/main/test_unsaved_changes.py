"""Unsaved changes when a file or a preset replaces the settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.util.config.load import load_config
from modules.util.config.TrainConfig import TrainConfig
from tests.ui.main.drivers import Hands
from tests.usual import usual

pytestmark = pytest.mark.gui


WAYS = ("open", "drop", "import", "preset")
ANSWERS = ("Save", "Discard", "Cancel")
CASES = [(way, answer) for way in WAYS for answer in ANSWERS]


@pytest.mark.parametrize(
    ("way", "answer"),
    usual(CASES, ("open", "Cancel"), ("drop", "Save"), ("drop", "Discard"), ("import", "Cancel"), ("preset", "Cancel")),
)
def test_unsaved_changes_are_replaced_by_a_file_only_after_a_question(
    hands: Hands, tmp_path: Path, way: str, answer: str
) -> None:
    mine, other, preset = tmp_path / "mine.json", tmp_path / "other.json", hands.window.presets.folder / "other.json"
    TrainConfig(epochs=5).save(mine)
    preset.parent.mkdir(parents=True, exist_ok=True)
    other.write_text(json.dumps({"__version": 11, "lora_rank": 4, "cloud": {}, "epochs": 21}))
    if way != "import":
        TrainConfig(epochs=21).save(other)
    preset.write_text(json.dumps({"__version": 1, "epochs": 21}))
    files = hands.window.files
    assert files.load(mine)
    hands.fill("epochs", "33")
    hands.answer(answer)
    if way == "preset":
        picker = hands.window.top_bar.preset
        hands.focus(picker)
        hands.keys("<Down>")
        hands.wait(picker.menu.winfo_viewable, "the menu does not open")
        for key in ("<Down>", "<Return>"):
            picker.menu.event_generate(key)
            hands.rest()
    elif way == "drop":
        hands.window._dropped([other])
    else:
        assert files.load(other) == (answer != "Cancel")
    hands.wait(lambda: hands.asked, "nothing is asked")
    doing = {"import": "importing other.json", "preset": "using the preset other"}.get(way, "opening other.json")
    assert hands.asked == [f"Your changes are not saved in a file. Save them before {doing}?"]
    expected = 33 if answer == "Cancel" else 21
    hands.wait(lambda: hands.window.state_.config.epochs == expected, "the answer has no effect")
    assert load_config(mine).epochs == (33 if answer == "Save" else 5)
    if way == "preset":
        assert hands.window.top_bar.preset.chosen == ("" if answer == "Cancel" else "other")


def test_saving_the_changes_before_the_same_file_is_opened_again_keeps_them(hands: Hands, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    TrainConfig(epochs=5).save(path)
    assert hands.window.files.load(path)
    hands.fill("epochs", "33")
    hands.answer("Save")
    assert hands.window.files.load(path)
    assert hands.window.state_.config.epochs == load_config(path).epochs == 33


def test_presets_are_tried_one_after_another_without_a_question(hands: Hands) -> None:
    hands.window.presets.folder.mkdir(parents=True, exist_ok=True)
    for name, epochs in (("a", 3), ("b", 4)):
        (hands.window.presets.folder / f"{name}.json").write_text(json.dumps({"__version": 1, "epochs": epochs}))
    for preset, epochs in zip(hands.window.presets.presets(), (3, 4), strict=True):
        hands.window.files.apply_preset(preset)
        assert hands.window.state_.config.epochs == epochs
    assert hands.asked == []
