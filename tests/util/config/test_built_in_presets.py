"""Every preset that comes with the program can be loaded, is free of faults and fits its family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.ModelType import ModelType

FOLDER = Path(__file__).resolve().parents[3] / "training_presets"
PRESETS = sorted(FOLDER.glob("**/#?*.json"))


def test_there_are_presets_for_most_families() -> None:
    families = {TrainConfig.load(path).model_type for path in PRESETS}
    assert len(families) >= 6
    assert all(isinstance(family, ModelType) for family in families)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_preset_is_right(path: Path) -> None:
    config = TrainConfig.load(path)
    assert not config.problems().errors
    data = json.loads(path.read_text(encoding="utf-8"))
    parts = {part for family in ModelType for part in family.parts}
    foreign = (parts & data.keys()) - set(config.model_type.parts)
    assert not foreign, "settings of parts the family has not"
