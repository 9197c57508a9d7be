"""Presets from files, and the person's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.ui.state.ConfigState import ConfigState
from modules.ui.state.PresetStore import PresetStore
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError


@pytest.fixture
def store(tmp_path: Path) -> PresetStore:
    family = tmp_path / "Stable Diffusion 1.5"
    family.mkdir()
    (family / "#DPO LoRA.json").write_text(json.dumps({"__version": 1, "rlhf_enabled": True, "epochs": 3}))
    (tmp_path / "#.json").write_text("{}")
    (tmp_path / "mine.json").write_text(json.dumps({"__version": 1, "lora_rank": 8}))
    return PresetStore(tmp_path)


def test_own_presets_come_first_and_built_in_ones_are_marked(store: PresetStore) -> None:
    assert [(p.label, p.built_in) for p in store.presets()] == [
        ("mine", False),
        ("# Stable Diffusion 1.5 / DPO LoRA", True),
    ]


def test_a_preset_replaces_the_way_of_training_and_keeps_the_project(store: PresetStore) -> None:
    state = ConfigState(TrainConfig(workspace_dir="w", lora_rank=99, concepts=[ConceptConfig(path="p")]))
    config = store.load(store.presets()[1], state)
    assert config.rlhf_enabled
    assert config.epochs == 3
    assert config.lora_rank == TrainConfig().lora_rank
    assert config.workspace_dir == "w"
    assert config.concepts is not None and config.concepts[0].path == "p"


def test_a_preset_may_name_a_folder(store: PresetStore, tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text(json.dumps({"__version": 1, "workspace_dir": "workspace/demo"}))
    preset = next(p for p in store.presets() if p.label == "demo")
    assert store.load(preset, ConfigState(TrainConfig(workspace_dir="w"))).workspace_dir == "workspace/demo"


def test_keeping_and_removing_own_presets(store: PresetStore) -> None:
    kept = store.save("My: best/one", TrainConfig(epochs=42, workspace_dir="secret"))
    assert kept.path.name == "My- best-one.json"
    data = json.loads(kept.path.read_text())
    assert data == {"__version": 1, "epochs": 42}
    assert kept in store.presets()
    store.delete(kept)
    assert kept not in store.presets()


@pytest.mark.parametrize("name", ["", "  ", "##", "..."])
def test_a_preset_needs_a_name(store: PresetStore, name: str) -> None:
    with pytest.raises(UserError, match="needs a name"):
        store.save(name, TrainConfig())


def test_a_name_cannot_make_a_preset_look_built_in_or_leave_the_folder(store: PresetStore) -> None:
    assert store.save("#mine", TrainConfig()).path.name == "mine.json"
    assert store.save("../../x", TrainConfig()).path.parent == store.folder


def test_built_in_presets_stay(store: PresetStore) -> None:
    with pytest.raises(UserError, match="comes with the program"):
        store.delete(store.presets()[1])


def test_a_damaged_preset_says_what_is_wrong(store: PresetStore) -> None:
    path = store.presets()[0].path
    path.write_text('{"__version": 1, "epochs": "ten"}')
    with pytest.raises(UserError, match="epochs"):
        store.load(store.presets()[0], ConfigState())


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        PresetStore(tmp_path / "file").save("a", TrainConfig())
