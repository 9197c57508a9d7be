"""Whole sessions by keyboard on 200 generated images, one for each way of choosing, up to a folder one can train on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from modules.dataLoader.preflight import preflight
from modules.ui.curation.ExportPage import ExportPage
from modules.util.config.TrainConfig import TrainConfig
from modules.util.dpo_curation_util import load_manifest
from modules.util.enum.CurationMode import CurationMode
from tests.ui.curation.drivers import Hands

pytestmark = pytest.mark.gui

GROUPS, PER_GROUP = 25, 8


def answer_pair(hands: Hands) -> None:
    left, right = (hands.quality(i) for i in hands.question)
    hands.press("Left" if left > right else "Right")


def answer_elo(hands: Hands) -> None:
    state = hands.shot.state
    if all(state.standing.shown[i] >= 2 for i in state.alive):
        hands.press("p")
    else:
        answer_pair(hands)


def answer_four(hands: Hands) -> None:
    quality = [hands.quality(i) for i in hands.question]
    if len(quality) == 2:
        answer_pair(hands)
    else:
        hands.press(str(1 + quality.index(max(quality))), str(1 + quality.index(min(quality))))


def answer_select(hands: Hands) -> None:
    quality = [hands.quality(i) for i in hands.question]
    go_to(hands, quality.index(max(quality)))
    hands.press("Return")
    go_to(hands, quality.index(min(quality)))
    hands.press("w")


def go_to(hands: Hands, place: int) -> None:
    grid = hands.page.view.grid_of_images
    while grid.cursor != place:
        before = grid.cursor
        hands.press("Right" if place > before else "Left")
        assert grid.cursor != before


def answer_triage(hands: Hands) -> None:
    (index,) = hands.question
    hands.press("Right" if hands.quality(index) >= len(hands.shot.group.files) // 2 else "Left")


ANSWERS: dict[CurationMode, Callable[[Hands], None]] = {
    CurationMode.SMART: answer_pair,
    CurationMode.ELO: answer_elo,
    CurationMode.FOUR_UP: answer_four,
    CurationMode.SELECT: answer_select,
    CurationMode.TRIAGE: answer_triage,
}


def choose_everything(hands: Hands, answer: Callable[[Hands], None]) -> None:
    for _ in range(4000):
        if hands.phase == "finished":
            return
        if hands.phase == "continue":
            hands.press("n")
        else:
            answer(hands)
    raise AssertionError("the session does not end")


def finalise_by_keyboard(hands: Hands) -> None:
    hands.press("e")
    page = hands.tool.page
    assert isinstance(page, ExportPage)
    hands.focus(page.go)
    hands.press("Return")
    hands.until(lambda: "Ready to train" in str(page.result.cget("text")) or page.error.cget("text"))
    assert page.error.cget("text") == ""


@pytest.mark.parametrize("mode", list(ANSWERS), ids=lambda mode: mode.value)
def test_a_session_by_keyboard_ends_in_a_folder_one_can_train_on(
    sit_down, tmp_path: Path, mode: CurationMode
):
    hands = sit_down(GROUPS, PER_GROUP)
    hands.begin(mode, certainty=80.0)
    choose_everything(hands, ANSWERS[mode])
    finalise_by_keyboard(hands)
    hands.close()
    pairs = load_manifest(tmp_path / "pairs")["pairs"]
    assert len(pairs) == GROUPS
    for pair in pairs:
        good, bad = (int(Path(pair["sources"][side]).stem.split("_i")[1]) for side in ("chosen", "rejected"))
        assert good > bad
    config = TrainConfig.from_dict(
        {
            "concept_file_name": str(tmp_path / "pairs" / "concepts.json"),
            "rlhf_mode": "DPO",
            "rlhf_enabled": True,
            "rlhf_dpo_validation": True,
            "resolution": "64",
            "workspace_dir": str(tmp_path / "workspace"),
            "cache_dir": str(tmp_path / "cache"),
            "output_model_destination": str(tmp_path / "model.safetensors"),
        },
        check=False,
    )
    report = preflight(config)
    assert report.dpo
    assert report.units + report.validation_units == GROUPS
    assert report.validation_units > 0
