"""A set is believed complete only as long as every file that held it is there, unchanged."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

from modules.pipeline.cache.CompleteSets import CompleteSets, code_digest, loaded_code
from modules.pipeline.cache.ContentCache import ContentCache
from tests.pipeline.test_ContentCache import filled, shards


def remembered(folder: Path) -> None:
    filled(folder, 8)
    CompleteSets(ContentCache(folder)).add("a")


def known(folder: Path, digest: str = "a") -> bool:
    return digest in CompleteSets(ContentCache(folder))


def test_a_set_is_remembered_by_later_starts(tmp_path: Path) -> None:
    remembered(tmp_path)
    assert known(tmp_path) and not known(tmp_path, "b")


def test_a_removed_file_ends_it(tmp_path: Path) -> None:
    remembered(tmp_path)
    shards(tmp_path)[0].unlink()
    assert not known(tmp_path)


def test_a_file_with_another_time_ends_it(tmp_path: Path) -> None:
    remembered(tmp_path)
    os.utime(shards(tmp_path)[0], ns=(5, 5))
    assert not known(tmp_path)


def test_a_damaged_file_ends_it(tmp_path: Path) -> None:
    remembered(tmp_path)
    path = shards(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert not known(tmp_path)


def test_more_files_do_not(tmp_path: Path) -> None:
    remembered(tmp_path)
    filled(tmp_path, 20)
    assert known(tmp_path)


def test_nothing_is_remembered_of_files_that_went_away_meanwhile(tmp_path: Path) -> None:
    filled(tmp_path, 8)
    cache = ContentCache(tmp_path)
    sets = CompleteSets(cache)
    shards(tmp_path)[0].unlink()
    cache.rescan()
    sets.add("a")
    assert not known(tmp_path)


def test_a_set_without_files_is_not_complete(tmp_path: Path) -> None:
    tmp_path.joinpath("complete.json").write_text('{"format": 1, "sets": {"a": {}}}', encoding="utf-8")
    assert not known(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 2, "sets": {"a": {}}}', '{"format": 1, "sets": [1]}',
             '{"format": 1, "sets": {"a": ["x"]}}', '{"format": 1, "sets": {"a": {"x": [1, 2]}}}'],
)  # fmt: skip
def test_a_damaged_list_costs_a_look_and_is_replaced(tmp_path: Path, text: str) -> None:
    filled(tmp_path, 4)
    (tmp_path / "complete.json").write_text(text, encoding="utf-8")
    assert not known(tmp_path)
    CompleteSets(ContentCache(tmp_path)).add("a")
    assert known(tmp_path)


def test_a_list_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, 4)
    (tmp_path / "complete.json").mkdir()
    CompleteSets(ContentCache(tmp_path)).add("a")
    assert "complete.json cannot be written" in caplog.text and not known(tmp_path)


def test_the_oldest_sets_go(tmp_path: Path) -> None:
    filled(tmp_path, 4)
    sets = CompleteSets(ContentCache(tmp_path))
    for number in range(17):
        sets.add(str(number))
    assert not known(tmp_path, "0") and known(tmp_path, "1") and known(tmp_path, "16")


def test_other_code_has_another_digest(tmp_path: Path) -> None:
    module = ModuleType("some")
    module.__file__ = str(tmp_path / "some.py")
    Path(module.__file__).write_text("a = 1\n", encoding="utf-8")
    before = code_digest([module])
    assert code_digest([module]) == before
    Path(module.__file__).write_text("a = 2\n", encoding="utf-8")
    assert code_digest([module]) != before


def test_without_sources_there_is_no_digest(tmp_path: Path) -> None:
    module = ModuleType("some")
    module.__file__ = str(tmp_path / "some.py")
    assert loaded_code([module]) is None
    Path(module.__file__).write_text("a = 1\n", encoding="utf-8")
    assert loaded_code([module]) == code_digest([module])
