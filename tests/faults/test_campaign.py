"""The campaign of injected faults, in the size that runs with all tests; a failing case is named, to be repeated."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modules.util.files.OpenFolder import announced
from tests.faults import campaign
from tests.faults.cases import Outcome, Runs, Subject, Tally
from tests.faults.servers import SERVERS, attacked
from tests.faults.subjects import SUBJECTS
from tests.faults.training import SIGNALS, TrainingRuns, write_grpo, write_preference

SEED = int(os.environ.get("FAULTS_SEED", "1"))
SIZE = campaign.Size()
QUICK = [name for name in SUBJECTS if not name.startswith("save")]
MEMORY, ROOM = Path("/dev/shm"), 1 << 30


def _in_memory() -> Path | None:
    """Where cases are tried if there is room. The tests make every fault themselves, so waiting for a disk thousands of
    times shows nothing more.
    """
    usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    return MEMORY if usable else None


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="faults-", dir=_in_memory()) as name, campaign.silence():
        yield Path(name)


@pytest.fixture(scope="module")
def runs() -> Iterator[list[Runs]]:
    with tempfile.TemporaryDirectory(prefix="faults-", dir=_in_memory()) as folder, campaign.silence():
        yield [Runs(name, SUBJECTS[name](), Path(folder)) for name in QUICK]


def test_killed_at_any_change_nothing_is_lost_half_or_left(runs: list[Runs]) -> None:
    tally = Tally()
    with campaign.silence():
        campaign.kills(runs, SIZE.kills, SEED, tally)
    assert not tally.faults, "\n".join(tally.faults)
    assert tally.tried >= SIZE.kills * 3 // 4 and tally.acknowledged > 20


def test_a_disk_that_fails_at_any_change_costs_no_more_than_a_message(runs: list[Runs]) -> None:
    tally = Tally()
    with campaign.silence():
        campaign.disks(runs, SIZE.disks, SEED, tally)
    assert not tally.faults, "\n".join(tally.faults)
    assert tally.tried >= SIZE.disks


@pytest.mark.slow
def test_a_small_disk_costs_no_more_than_a_message(runs: list[Runs]) -> None:
    tally = Tally()
    with campaign.silence():
        campaign.small_disks(runs, 4 * len(runs), SEED, tally)
    assert not tally.faults, "\n".join(tally.faults)
    assert tally.tried > len(runs)


def test_every_damage_of_every_kind_of_file_is_found_or_harmless(base: Path) -> None:
    import logging

    logging.disable(logging.NOTSET)
    tally = campaign.every_damage(base, SIZE.damages)
    assert not tally.faults, "\n".join(tally.faults)
    assert tally.found > tally.tried // 2


def test_hostile_names_in_every_field_touch_nothing(base: Path) -> None:
    tally = campaign.every_name(base, SIZE.share_of_names)
    assert not tally.faults, "\n".join(tally.faults)
    assert tally.refused > tally.tried // 5


def test_every_reader_survives_damaged_and_hostile_input(base: Path) -> None:
    tallies = campaign.every_reader(base, SIZE.inputs)
    faults = [fault for tally in tallies for fault in tally.faults]
    assert not faults, "\n".join(faults)
    assert len(tallies) >= 16 and all(tally.accepted for tally in tallies)


def test_every_kept_input_is_read_or_refused(base: Path) -> None:
    tallies = campaign.whole_corpus(base)
    faults = [fault for tally in tallies for fault in tally.faults]
    assert not faults, "\n".join(faults)
    assert sum(tally.inputs for tally in tallies) == sum(f.is_file() for f in campaign.CORPUS.rglob("*")) > 80


@pytest.mark.slow
def test_the_whole_campaign_at_length(base: Path) -> None:
    size = campaign.Size(2000, 1000, 60, 20, 20_000, 1, 500, 100)
    rows, faults = campaign.campaign(base, size, SEED)
    assert not faults, "\n".join(faults)
    assert all(row.within for row in rows), campaign.table(rows)


@pytest.mark.slow
@pytest.mark.parametrize("how", SIGNALS)
@pytest.mark.parametrize("write", [write_preference, write_grpo])
def test_a_signal_at_any_change_of_a_run_costs_no_more_than_a_stop(
    how: str, write: Callable[[Path], Path], base: Path
) -> None:
    runs, tally = TrainingRuns(base / "run", write, write.__name__), Tally()
    campaign.signalled(runs, 6, SEED, tally, [how])
    assert not tally.faults, "\n".join(tally.faults)
    assert tally.tried >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_a_server_answers_good_clients_during_attacks(name: str) -> None:
    found = attacked(name)
    assert not found.wrong and found.asked > 50
    assert found.slowest < 10 and found.memory < 512, found


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_change_of_the_small_works(name: str, tmp_path: Path) -> None:
    with campaign.silence():
        one, tally = Runs(name, SUBJECTS[name](), tmp_path), Tally()
        for number in range(1, one.changes + 1):
            for done in (False, True):
                tally.add(one.killed(number, done))
    assert not tally.faults, "\n".join(tally.faults)


# -- the campaign itself: what it looks for is found -----------------------------------------------------------


def _numbers(write_whole: bool, acknowledge_first: bool = False, leave: bool = False) -> Subject:
    """A program that counts in a file, soundly or not."""

    def work(folder: Path, start: int, acknowledge: object) -> None:
        for number in range(start + 1, 4):
            file, fresh = folder / "number", folder / (".tastemaker-x.tmp" if leave else "fresh")
            if acknowledge_first:
                acknowledge()  # type: ignore[operator]
            with announced("write", file):
                (fresh if write_whole else file).write_text("")
            with announced("write", file):
                (fresh if write_whole else file).write_text(f"{number} whole")
            if write_whole:
                with announced("rename", file):
                    fresh.replace(file)
            if not acknowledge_first:
                acknowledge()  # type: ignore[operator]

    def state(folder: Path) -> str:
        return (folder / "number").read_text() if (folder / "number").exists() else "none"

    return Subject(lambda folder: None, work, lambda folder: None, state, 3)


@pytest.mark.parametrize(
    ("subject", "finds"),
    [
        pytest.param(_numbers(True), "", marks=pytest.mark.slow),
        (_numbers(False), "half"),
        pytest.param(_numbers(True, acknowledge_first=True), "other_end", marks=pytest.mark.slow),
        pytest.param(_numbers(True, leave=True), "rests", marks=pytest.mark.slow),
    ],
    ids=["sound", "half", "acknowledged too early", "rests"],
)
def test_an_unsound_program_is_seen_through(subject: Subject, finds: str, tmp_path: Path) -> None:
    one = Runs("numbers", subject, tmp_path)
    outcomes: list[Outcome] = [
        one.killed(n, done) for n in range(1, one.changes + 1) for done in (True, False)
    ]
    assert {name for name in campaign.OUTCOMES for o in outcomes if getattr(o, name)} == (
        {finds} if finds else set()
    )
