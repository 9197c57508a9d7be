"""Every file of tests is collected: pytest leaves out some folders by their names unless it is told otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


def left_out(root: Path, config: pytest.Config) -> set[Path]:
    """Files of tests below a folder that pytest would not open: they or a folder above them is ignored."""
    asked = {Path(name).resolve() for name in config.getoption("ignore") or ()}
    found = set()
    for file in root.rglob("test_*.py"):
        way = [file, *(parent for parent in file.parents if parent.is_relative_to(root))]
        if not asked.intersection(way) and any(
            config.hook.pytest_ignore_collect(collection_path=one, config=config) for one in way
        ):
            found.add(file)
    return found


def test_no_file_of_tests_is_left_out(request: pytest.FixtureRequest) -> None:
    assert left_out(TESTS, request.config) == set()


def test_a_file_that_is_left_out_is_found(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    for folder in ("kept", ".hidden"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_one.py").touch()
    assert left_out(tmp_path, request.config) == {tmp_path / ".hidden" / "test_one.py"}
