"""Concepts and samples as a list, in the config or in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.ui.state.ConfigState import ConfigState
from modules.ui.state.ItemList import ItemList
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.config_list import save_list
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError


def listed(items: ItemList[ConceptConfig]) -> list[str]:
    return [item.path for item in items.items()]


@pytest.fixture
def items(tmp_path: Path) -> ItemList[ConceptConfig]:
    path = tmp_path / "concepts.json"
    save_list([ConceptConfig(path=name) for name in "abc"], path)
    state = ConfigState(TrainConfig(concept_file_name=str(path)))
    return ItemList(state, ConceptConfig, "concepts", "concept_file_name")


def test_the_file_is_shown_until_the_first_edit(items: ItemList[ConceptConfig], tmp_path: Path) -> None:
    assert items.from_file
    assert listed(items) == ["a", "b", "c"]
    before = (tmp_path / "concepts.json").read_bytes()
    items.remove([1])
    assert listed(items) == ["a", "c"]
    assert not items.from_file
    assert (tmp_path / "concepts.json").read_bytes() == before
    items.state.undo()
    assert items.from_file
    assert listed(items) == ["a", "b", "c"]


def test_edits(items: ItemList[ConceptConfig]) -> None:
    assert items.add([ConceptConfig(path="d")]) == 3
    assert items.move([0, 1], 1) == [1, 2]
    assert listed(items) == ["c", "a", "b", "d"]
    assert items.move([2, 3], 1) == [2, 3]
    assert items.move([0], -1) == [0]
    assert items.duplicate([0]) == 4
    assert listed(items) == ["c", "a", "b", "d", "c"]
    items.set_all("enabled", False, [0])
    assert [item.enabled for item in items.items()] == [False, True, True, True, True]
    items.replace(1, ConceptConfig(path="z"))
    assert listed(items)[1] == "z"
    for _ in range(5):
        items.state.undo()
    assert listed(items) == ["a", "b", "c"]


def test_a_changed_file_is_read_again(items: ItemList[ConceptConfig], tmp_path: Path) -> None:
    assert len(items.items()) == 3
    path = tmp_path / "concepts.json"
    save_list([ConceptConfig(path="new")], path)
    import os

    os.utime(path, ns=(1, 1))
    assert listed(items) == ["new"]


def test_a_missing_file_is_an_empty_list_and_a_damaged_one_a_fault(
    items: ItemList[ConceptConfig], tmp_path: Path
) -> None:
    items.state.set_value("concept_file_name", str(tmp_path / "none.json"))
    assert listed(items) == []
    assert items.fault is None
    (tmp_path / "bad.json").write_text('[{"path": 5}]')
    items.state.set_value("concept_file_name", str(tmp_path / "bad.json"))
    assert listed(items) == []
    assert items.fault is not None and "path" in str(items.fault)


def test_reading_a_bad_list_changes_nothing(items: ItemList[ConceptConfig], tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(UserError):
        items.read(tmp_path / "bad.json")
    assert listed(items) == ["a", "b", "c"]
