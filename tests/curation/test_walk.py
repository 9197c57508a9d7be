"""Walking through groups that a scan hands out, some of them twice, ahead of the person."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from modules.curation.ahead import Found, GroupsAhead
from modules.curation.intake.scan import ScanFault
from modules.curation.session import CurationSession, ImageGroup, SessionSettings
from modules.curation.store import CurationStore
from modules.curation.walk import GroupWalk
from modules.util.enum.CurationMode import CurationMode
from modules.util.errors import UserError


def group(root: Path, name: str, count: int) -> ImageGroup:
    files = tuple(f"{name}{i}.png" for i in range(count))
    for i, file in enumerate(files):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(root / file)
    return ImageGroup(name, name, "1:1", root, files)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[CurationSession]:
    with CurationStore(tmp_path / "out") as store:
        yield CurationSession(store, SessionSettings(CurationMode.ELO))


def test_a_group_that_grew_takes_the_place_of_the_smaller_one(tmp_path, session):
    a, b, more = group(tmp_path, "a", 2), group(tmp_path, "b", 3), group(tmp_path, "a", 5)
    walk = GroupWalk(session, iter([a, b, more]))
    walk.later()
    assert walk.group == b
    session.finish_group()
    walk.advance()
    assert walk.group == more
    assert len(session.state().alive) == 5


def test_a_group_that_grew_after_it_was_done_stays_done(tmp_path, session):
    a, more = group(tmp_path, "a", 2), group(tmp_path, "a", 5)
    walk = GroupWalk(session, iter([a, more]))
    session.finish_group()
    walk.advance()
    assert (walk.group, walk.finished) == (None, 1)
    assert walk.undo() == "a"
    assert walk.group == more


def test_an_undo_finds_a_group_the_scan_has_not_reached(tmp_path, session):
    groups = [group(tmp_path, name, 3) for name in "abc"]
    session.open(groups[2])
    session.skip()
    walk = GroupWalk(session, iter(groups))
    assert walk.group == groups[0]
    assert walk.undo() == "c"
    assert walk.group == groups[2]
    order = []
    while walk.group is not None:
        order.append(walk.group.key)
        session.finish_group()
        walk.advance()
    assert order == ["c", "a", "b"]


def test_undoing_in_a_group_of_another_folder_stays_here(tmp_path, session):
    elsewhere, here = group(tmp_path, "x", 3), group(tmp_path, "a", 3)
    session.open(elsewhere)
    session.skip()
    walk = GroupWalk(session, iter([here]))
    assert walk.undo() == "x"
    assert walk.group == here
    assert walk.undo() is None


class TestAhead:
    def test_faults_and_groups_are_told_apart(self, tmp_path):
        a = group(tmp_path, "a", 2)
        faults: list[ScanFault] = []
        fault = ScanFault(tmp_path / "x.png", "empty file")
        with GroupsAhead(lambda stopped: iter([fault, a, fault]), faults.append) as ahead:
            assert list(ahead) == [a]
            assert list(ahead) == []
        assert faults == [fault, fault]

    def test_it_runs_ahead_only_so_far_and_stops_when_told(self, tmp_path):
        a = group(tmp_path, "a", 2)
        made: list[int] = []
        full = threading.Event()

        def scan(stopped: Callable[[], bool]) -> Iterator[Found]:
            for i in range(1000):
                made.append(i)
                if i == 3:
                    full.set()
                yield replace(a, key=str(i))

        with GroupsAhead(scan, lambda fault: None, ready=3) as ahead:
            assert full.wait(5)
            assert next(ahead).key == "0"
        assert len(made) < 20

    def test_a_scan_that_fails_fails_where_its_groups_are_taken(self, tmp_path):
        a = group(tmp_path, "a", 2)

        def scan(stopped: Callable[[], bool]) -> Iterator[Found]:
            yield a
            raise UserError("the folder is gone")

        with GroupsAhead(scan, lambda fault: None) as ahead:
            assert next(ahead) == a
            with pytest.raises(UserError, match="gone"):
                next(ahead)
