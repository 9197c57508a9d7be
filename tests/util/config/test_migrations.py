"""Each migration turns its ``N_before.json`` into ``N_after.json``; both were written by hand."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import pytest

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.migrations import train_0_to_1
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.setting import setting
from modules.util.config.TrainConfig import TrainConfig

GOLDEN = Path(__file__).parent / "golden"
CASES = [
    (kind, step) for kind in (TrainConfig, ConceptConfig, SampleConfig) for step in sorted(kind.MIGRATIONS)
]


@pytest.mark.parametrize(("kind", "step"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_golden_files(kind: type[BaseConfig], step: int) -> None:
    stem = f"{kind.__name__}_{step}"
    before = json.loads((GOLDEN / f"{stem}_before.json").read_text(encoding="utf-8"))
    after = json.loads((GOLDEN / f"{stem}_after.json").read_text(encoding="utf-8"))
    kept = deepcopy(before)
    assert kind.MIGRATIONS[step](before) == after
    assert before == kept, "a migration must not change what it was given"


def test_the_golden_file_is_a_working_config() -> None:
    data = json.loads((GOLDEN / "TrainConfig_0_before.json").read_text(encoding="utf-8"))
    config = TrainConfig.from_dict(data)
    assert config.unet.weight_dtype == "FLOAT_16"
    assert config.vae.weight_dtype == "BFLOAT_16"
    assert config.to_dict()["__version"] == TrainConfig.VERSION


def test_present_names_win_over_old_ones() -> None:
    made = train_0_to_1(
        {
            "lora_layers": "a",
            "layer_filter": "b",
            "weight_dtype": "FLOAT_16",
            "unet": {"weight_dtype": "FLOAT_32"},
        }
    )
    assert made["layer_filter"] == "b"
    assert "lora_layers" not in made
    assert made["unet"] == {"weight_dtype": "FLOAT_32"}
    assert made["vae"] == {"weight_dtype": "FLOAT_16"}


def test_broken_values_reach_the_check_instead_of_crashing_a_migration() -> None:
    from modules.util.errors import ConfigError

    with pytest.raises(ConfigError, match="unet: must be an object"):
        TrainConfig.from_dict({"weight_dtype": "FLOAT_16", "unet": 3})


def test_old_names_are_not_known_to_the_present_format() -> None:
    from modules.util.errors import ConfigError

    with pytest.raises(ConfigError, match="lora_layers: there is no such setting"):
        TrainConfig.from_dict({"__version": 1, "lora_layers": "a"})


def _double(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "size": data.get("size", 1) * 2}


class Versioned(BaseConfig):
    VERSION: ClassVar[int] = 3
    MIGRATIONS = {1: _double, 2: _double}
    size: int = setting(1, within=(0, 100), title="Size", tip="Its size.")


class Holder(BaseConfig):
    items: list[Versioned] = setting(factory=list, title="Items", tip="What it holds.")
    one: Versioned = setting(factory=Versioned, title="One", tip="Another.")


def test_steps_are_applied_from_the_version_of_the_data_on() -> None:
    assert [Versioned.from_dict({"__version": v, "size": 3}).size for v in (0, 1, 2, 3)] == [12, 12, 6, 3]


def test_nested_objects_migrate_by_their_own_version() -> None:
    data = {"items": [{"__version": 2, "size": 3}, {"__version": 3, "size": 3}], "one": {"size": 1}}
    made = Holder.from_dict(data)
    assert [item.size for item in made.items] == [6, 3]
    assert made.one.size == 4
    assert Holder.from_dict(made.to_dict()) == made
