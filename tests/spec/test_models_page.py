"""docs/models.md says what the presets, the table of published models and the planner say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from modules.util.enum.ModelType import ModelType
from modules.util.program_files import RESOURCES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text("utf-8")
PRESETS = ROOT / "training_presets"
FREE = 0.97
"""The share of a card that a run may take."""


def rows() -> list[list[str]]:
    """The cells of the table of presets."""
    table = PAGE.partition("## Bases, sizes and memory")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def presets_of(pattern: str) -> list[str]:
    """The presets of a row: one, or those for DPO and for plain images, the larger one first."""
    methods = ("DPO", "LoRA") if "*" in pattern else ("",)
    return [f"{pattern.replace('*', method)}.json" for method in methods]


def values_of(preset: str) -> dict[str, str]:
    return dict(json.loads((PRESETS / preset).read_text("utf-8")))


def test_every_preset_has_its_row_with_its_base() -> None:
    told = {preset: row[1] for row in rows() for preset in presets_of(row[0])}
    names = [path.relative_to(PRESETS).as_posix() for path in PRESETS.glob("*/*.json")]
    # a file of one's own takes the place of a name
    assert told == {name: values_of(name)["base_model_name"] for name in names if "v-prediction" not in name}


def families() -> list[list[str]]:
    """The cells of the table of families, as they are written."""
    table = PAGE.partition("## Families")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_every_family_has_a_row_with_its_base_and_all_that_was_distilled_of_it() -> None:
    found = families()
    keys = [key for row in found for key in re.findall(r"`([A-Z0-9_]+)`", row[1])]
    assert not (missing := {family.value for family in ModelType} - {*keys}), f"families without a row: {missing}"
    known = json.loads((RESOURCES / "bases.json").read_text("utf-8"))
    for row in found:
        (base, *_) = re.findall(r"`(.+?)`", row[2]) or [""]
        wanted = [model["name"] for model in known if model.get("distilled") and model.get("base") == base]
        if not row[0].endswith(", edits") and base:
            assert re.findall(r"`(.+?)`", row[3]) == wanted, row[0]


def test_families_have_the_sizes_and_forecasts_of_their_presets() -> None:
    told: dict[tuple[str, str, bool], dict[str, str]] = {}
    for row in rows():
        if "*" in row[0]:
            family = ModelType(values_of(presets_of(row[0])[0])["model_type"])
            edits = "edit" in row[0] and not family.spec.edits_only
            cells = told.setdefault((family.value, row[1], edits), {"size": row[2], "licence": row[3]})
            cells[row[5]] = row[4].removesuffix(" GiB")
    made = {
        (row[1].strip("`"), row[2].strip("`"), row[0].endswith(", edits")): {
            "size": row[4],
            "licence": row[5],
            **{f"{card} GB": cell for card, cell in zip((8, 12, 16, 24), row[6:], strict=True) if cell != "–"},
        }
        for row in families()
        if "," not in row[1]
    }
    assert made == told


def test_distilled_models_are_listed_next_to_their_base() -> None:
    table = PAGE.partition("## Distilled models")[2].partition("\n## ")[0]
    known = json.loads((RESOURCES / "bases.json").read_text("utf-8"))
    distilled = [model for model in known if model.get("distilled")]
    assert len(distilled) > 10
    for model in distilled:
        lines = [line for line in table.splitlines() if line.startswith("|")]
        rows = [line for line in lines if f"{model['name'].partition('/')[2]}`" in line]
        # the owner is said once in a row; what is published for several bases has a row of each
        assert sum(f"{model['base'].partition('/')[2]}`" in row.split("|")[2] for row in rows) == 1, model["name"]


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in rows() if row[4] != "–"], ids=lambda row: row[0])
def test_the_memory_told_is_the_planner_s(row: list[str], tmp_path: Path) -> None:
    import torch

    from modules.trainer.memory.memory_plan import GIB
    from modules.util.config.TrainConfig import TrainConfig
    from scripts.benchmarks._real_models import MODELS
    from tests.trainer.memory.test_preset_memory import card_of, planned, real_model_of

    preset = presets_of(row[0])[0]
    config = TrainConfig.from_dict(values_of(preset))
    name = real_model_of(config)
    plan = planned(preset, tmp_path)
    assert float(row[4].removesuffix(" GiB")) == pytest.approx(plan.total / GIB, abs=0.02)
    smallest = min(card for card in (8, 12, 16, 24) if plan.total / GIB <= FREE * card)
    assert row[5] == f"{smallest} GB"
    assert smallest <= card_of(preset)
    with torch.device("meta"):
        denoiser = MODELS[name][1]()[config.model_type.denoiser]
    assert row[2] == f"{sum(p.numel() for p in denoiser.parameters()) / 1e9:.1f} B"
