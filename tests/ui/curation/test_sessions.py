"""Whole sessions by keyboard on 96 generated images, one for each way of choosing, up to a folder one can train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.curation.CurationMode import CurationMode
from modules.dataLoader.preflight import preflight
from modules.ui.curation.ExportPage import ExportPage
from modules.util.config.TrainConfig import TrainConfig
from modules.util.dpo_curation_util import load_manifest
from tests.ui.curation.drivers import Hands, choose_everything
from tests.usual import usual

pytestmark = pytest.mark.gui

GROUPS, PER_GROUP = 12, 8


def finalise_by_keyboard(hands: Hands) -> None:
    hands.press("e")
    page = hands.tool.page
    assert isinstance(page, ExportPage)
    hands.focus(page.go)
    hands.press("Return")
    hands.until(lambda: "Ready to train" in str(page.result.cget("text")) or page.error.cget("text"))
    assert page.error.cget("text") == ""


@pytest.mark.parametrize(
    "mode", usual(CurationMode, CurationMode.SELECT), ids=lambda mode: mode.value
)
def test_a_session_by_keyboard_ends_in_a_folder_one_can_train_on(
    sit_down, tmp_path: Path, mode: CurationMode
):
    hands = sit_down(GROUPS, PER_GROUP)
    hands.begin(mode, certainty=80.0)
    choose_everything(hands)
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
    )
    report = preflight(config)
    assert report.dpo
    assert report.units + report.validation_units == GROUPS
    assert report.validation_units > 0
