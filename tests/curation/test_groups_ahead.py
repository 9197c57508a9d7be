"""The scan that runs ahead of the person: how far, how gently, and what becomes of a failure."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from modules.curation import GroupsAhead as ahead_module
from modules.curation.GroupsAhead import AHEAD, Found, GroupsAhead, ScanControl, SearchStatus, search_folder
from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake import duplicates
from modules.curation.intake.groups import ScanOptions
from modules.curation.intake.scan import ScanFault
from modules.util.errors import UserError
from tests.ui.curation.drivers import make_images


def nothing(key: str, names: object) -> bool:
    return False


def wait(done: Callable[[], object]) -> None:
    end = time.monotonic() + 20.0
    while not done():
        assert time.monotonic() < end
        time.sleep(0.002)


def a_group(folder: Path, images: int = 2, key: str = "key") -> ImageGroup:
    return ImageGroup(key, "a fox", "1:1", folder, tuple(f"{i}.png" for i in range(images)))


def drained(ahead: GroupsAhead) -> list[ImageGroup]:
    found = []
    while (group := ahead.next()) is not None:
        found.append(group)
    return found


def test_groups_come_once_and_finished_ones_not_at_all(tmp_path):
    source = make_images(tmp_path / "in", 5, 3)
    (source / "broken.png").write_bytes(b"no image")
    with search_folder(source, tmp_path / "out", ScanOptions(), nothing) as ahead:
        groups = drained(ahead)
        assert len(groups) == 5
        assert {len(group.files) for group in groups} == {3}
        assert [fault.path.name for fault in ahead.faults] == ["broken.png"]
        assert ahead.status() == SearchStatus(groups=5, faults=1, counted=True, searching=False)
    finished = {group.key for group in groups[:2]}
    with search_folder(source, tmp_path / "out", ScanOptions(), lambda key, names: key in finished) as ahead:
        assert [group.key for group in drained(ahead)] == [group.key for group in groups[2:]]
        assert ahead.take(groups[0].key) == groups[0], "an undo can still lead to it"
        ahead.put_back(groups[0])
        assert ahead.coming(2) == [groups[0]]


def test_what_was_seen_counts_from_the_last_look_at_a_folder_that_is_being_filled(tmp_path, monkeypatch):
    source = make_images(tmp_path / "in", 1, 2)
    looks = iter([frozenset({"unfinished.png"}), None])

    def held_back() -> frozenset[str] | None:
        os.utime(source)  # another image arrives
        return next(looks)

    monkeypatch.setattr(ahead_module, "LOOK_AGAIN_SECONDS", 0.0)
    with search_folder(source, tmp_path / "out", ScanOptions(), nothing, held_back=held_back) as ahead:
        assert len(drained(ahead)) == 1
        assert next(looks, "none left") == "none left"
        assert ahead.began >= source.stat().st_mtime_ns


def test_only_a_few_groups_are_decoded_ahead(tmp_path):
    source = make_images(tmp_path / "in", AHEAD + 6, 2, 16)
    with search_folder(source, tmp_path / "out", ScanOptions(), nothing) as ahead:
        wait(lambda: len(ahead.coming(99)) == AHEAD)
        time.sleep(0.1)
        assert len(ahead.coming(99)) == AHEAD
        assert ahead.status().groups == AHEAD + 6, "the number of all is known nevertheless"
        assert ahead.next() is not None
        wait(lambda: len(ahead.coming(99)) == AHEAD)


def test_it_runs_ahead_only_so_far_and_stops_when_told(tmp_path):
    made: list[int] = []
    full = threading.Event()

    def scan(control: ScanControl) -> Iterator[Found]:
        control.counted(1000)
        for i in range(1000):
            made.append(i)
            if i == 2:
                full.set()
            yield a_group(tmp_path, key=str(i))

    with GroupsAhead(scan, ready=3) as ahead:
        assert full.wait(20)
        group = ahead.next()
        assert group is not None
        assert group.key == "0"
        assert len(made) < 20
        assert ahead.take("500") is not None, "someone who waits for one makes it run further"
        assert 501 <= len(made) < 520


def test_a_group_that_grows_before_it_is_taken_is_handed_out_once_and_whole(tmp_path):
    small, large = a_group(tmp_path, 2), a_group(tmp_path, 3)
    with GroupsAhead(lambda control: iter([small, large])) as ahead:
        wait(lambda: not ahead.status().searching)
        assert ahead.next() == large
        assert ahead.next() is None


def test_without_waiting_nothing_is_ready_until_it_is_found(tmp_path):
    go = threading.Event()

    def scan(control: ScanControl) -> Iterator[Found]:
        assert go.wait(20)
        yield a_group(tmp_path)

    told: list[SearchStatus] = []
    with GroupsAhead(scan, changed=told.append) as ahead:
        assert ahead.next(wait=False) is None
        assert ahead.status().searching
        go.set()
        wait(lambda: told and not told[-1].searching)
        assert ahead.next(wait=False) == a_group(tmp_path)
        assert ahead.next(wait=False) is None


def test_a_finished_group_that_is_asked_for_before_it_is_found_comes_when_it_is(tmp_path):
    go = threading.Event()

    def scan(control: ScanControl) -> Iterator[Found]:
        assert go.wait(20)
        yield a_group(tmp_path)

    with GroupsAhead(scan, finished=lambda key, names: key == "key") as ahead:
        assert ahead.take("key", wait=False) is None
        go.set()
        assert ahead.next() == a_group(tmp_path)


@pytest.mark.parametrize("gentle", [True, False])
def test_beside_a_window_the_scan_rests_half_of_the_time_once_there_is_something_to_look_at(
    tmp_path, monkeypatch, gentle
):
    rested: list[float] = []
    asked: list[bool] = []

    def scan(control: ScanControl) -> Iterator[Found]:
        asked.extend(control.stopped() for _ in range(5))
        asked.append(bool(rested))
        yield a_group(tmp_path)
        end = time.monotonic() + 20 * ahead_module.REST_SECONDS
        while time.monotonic() < end:
            asked.append(control.stopped())

    real = time.sleep
    monkeypatch.setattr(
        ahead_module.time, "sleep", lambda seconds: (rested.append(seconds), real(seconds))[1]
    )
    with GroupsAhead(scan, gentle=gentle) as ahead:
        assert len(drained(ahead)) == 1
    assert not any(asked), "it never rests before the first group, and is not told to stop"
    assert (1 if gentle else 0) <= rested.count(ahead_module.REST_SECONDS) <= (11 if gentle else 0)


def test_faults_and_groups_are_told_apart(tmp_path):
    fault = ScanFault(tmp_path / "x.png", "empty file")
    told: list[int] = []
    scan = [fault, a_group(tmp_path), replace(fault, reason="damaged header")]
    with GroupsAhead(lambda control: iter(scan), changed=lambda status: told.append(status.faults)) as ahead:
        assert drained(ahead) == [a_group(tmp_path)]
        assert ahead.faults == [scan[0], scan[2]]
    assert told[0] == 1
    assert told[-1] == 2


def test_a_scan_that_fails_says_why_after_what_it_found(tmp_path):
    with search_folder(tmp_path / "gone", tmp_path / "out", ScanOptions(), nothing) as ahead:
        for _ in range(2):
            with pytest.raises(UserError, match="cannot be read"):
                ahead.next()


def test_a_group_that_grows_after_it_was_taken_is_handed_out_again(tmp_path):
    small, large = a_group(tmp_path, 2), a_group(tmp_path, 3)
    go = threading.Event()

    def scan(control: ScanControl) -> Iterator[Found]:
        yield small
        assert go.wait(20)
        yield large

    with GroupsAhead(scan) as ahead:
        assert ahead.next() == small
        go.set()
        assert ahead.next() == large
        assert ahead.known("key") == large


def test_the_count_of_files_left_out_does_not_change_when_groups_are_finished(tmp_path, monkeypatch):
    source = make_images(tmp_path / "in", 2, 3)
    for name in ("g000_i00.png", "g001_i01.png"):
        (source / name.replace("_i", "_j")).write_bytes((source / name).read_bytes())
    with search_folder(source, tmp_path / "out", ScanOptions(), nothing) as ahead:
        keys = {group.key for group in drained(ahead)}
        before = ahead.faults
    assert len(before) == 2
    monkeypatch.setattr(duplicates, "fingerprint", lambda path: pytest.fail(f"{path} was decoded"))
    with search_folder(source, tmp_path / "out", ScanOptions(), lambda key, names: key in keys) as ahead:
        assert drained(ahead) == []
        assert sorted(map(str, ahead.faults)) == sorted(map(str, before))
