"""All injected faults of one size, and the table of what came of them."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults import names
from tests.faults.cases import DISKS, Runs, Tally, drawn
from tests.faults.damage import DAMAGES, KINDS, DamageTally, damage
from tests.faults.fuzzing import Tally as FuzzTally
from tests.faults.fuzzing import fuzz
from tests.faults.names import NameTally, try_name
from tests.faults.readers import readers
from tests.faults.subjects import SUBJECTS
from tests.faults.training import EVERY, TrainingRuns, write_grpo, write_preference


@dataclass(frozen=True)
class Size:
    """How much is tried.

    Args:
        kills, disks: cases drawn over the subjects.
        training_kills: of a preference run, and of an online one.
        damages: seeds for each kind of file and way.
        inputs: for each reader.
        small_disks: real ones, over the subjects.
        share_of_names: one in this many of the pairs of a field and a name.
    """

    kills: int = 40
    disks: int = 40
    training_kills: int = 3
    damages: int = 1
    inputs: int = 300
    share_of_names: int = 4
    small_disks: int = 14


@dataclass(frozen=True)
class Row:
    """A figure; ``allowed`` is the largest value that is good, ``None`` where any is."""

    figure: str
    value: float
    allowed: float | None = None

    @property
    def within(self) -> bool:
        return self.allowed is None or self.value <= self.allowed


Report = Callable[[str], None]
OUTCOMES = ("lost", "half", "rests", "hangs", "tracebacks", "other_end", "guards")


def kills(runs: Sequence[Runs], count: int, seed: int, tally: Tally) -> None:
    """Processes killed at changes that are drawn."""
    for one, number, done in drawn(list(runs), count, seed):
        tally.add(one.killed(number, done))


def disks(runs: Sequence[Runs], count: int, seed: int, tally: Tally) -> None:
    """Disks that fail from a change on that is drawn; those that the work never meets are drawn again."""
    rng, ways = random.Random(seed), list(DISKS)
    for index in range(20 * count):
        if tally.tried >= count:
            return
        one = runs[index % len(runs)]
        tally.add(one.failing(rng.randint(1, one.changes), ways[index // len(runs) % len(ways)]))


def small_disks(runs: Sequence[Runs], count: int, seed: int, tally: Tally) -> None:
    """Real disks with less room than the work needs, or little more."""
    rng = random.Random(seed)
    for index in range(count):
        tally.add(runs[index % len(runs)].on_small_disk(rng.randint(0, 200)))


def training(runs: TrainingRuns, count: int, seed: int, tally: Tally) -> None:
    """A run killed, with a cold and a warm cache in turn."""
    rng = random.Random(seed)
    for index in range(count):
        tally.add(runs.killed(rng.randint(1, runs.changes), rng.random() < 0.5, warm=bool(index % 2)))


def every_damage(base: Path, seeds: int) -> DamageTally:
    tally = DamageTally()
    for kind in KINDS:
        for how in DAMAGES:
            for seed in range(seeds):
                damage(base, kind, how, seed, tally)
    return tally


def every_name(base: Path, share: int) -> NameTally:
    tally = NameTally()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for row, where in enumerate(names.FIELDS):
            for column, what in enumerate(names.NAMES):
                if (row + column) % share == 0:
                    try_name(base, where, what, tally)
    return tally


def every_reader(base: Path, inputs: int) -> list[FuzzTally]:
    return [fuzz(base, name, one, range(inputs)) for name, one in readers(base / "sound").items()]


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Warnings are expected in thousands here."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


def campaign(
    base: Path, size: Size, seed: int, report: Report = lambda text: None
) -> tuple[list[Row], list[str]]:
    """Everything; the figures, and what went wrong in words."""
    rows: list[Row] = []
    faults: list[str] = []
    with silence():
        runs = [Runs(name, make(), base / "subjects") for name, make in SUBJECTS.items()]
        report(f"{len(runs)} subjects, {sum(one.changes for one in runs)} changes of files")
        for what, work, count in (
            ("kills", kills, size.kills),
            ("failing disks", disks, size.disks),
            ("small disks", small_disks, size.small_disks),
        ):
            tally = Tally()
            work(runs, count, seed, tally)
            rows += _outcome_rows(what, tally)
            faults += tally.faults
            report(f"{what}: {tally.tried} tried, {len(tally.faults)} faults")
        if size.training_kills:
            for what, write in (("training", write_preference), ("GRPO", write_grpo)):
                trained, tally = TrainingRuns(base / what, write, what), Tally()
                training(trained, size.training_kills, seed, tally)
                rows += _outcome_rows(f"kills of {what}", tally) + _lost_rows(trained)
                faults += tally.faults
                report(f"{what}: {tally.tried} kills, {len(tally.faults)} faults")
        named = every_name(base / "names", size.share_of_names)
    damaged = every_damage(base / "damage", size.damages)
    with silence():
        read = every_reader(base / "fuzz", size.inputs)
    report(f"damage: {damaged.tried}, names: {named.tried}, inputs: {sum(tally.inputs for tally in read)}")
    rows += _damage_rows(damaged) + _name_rows(named) + [row for tally in read for row in _reader_rows(tally)]
    rows += [*_server_rows(), Row("delete, move and replace calls outside the door", len(calls_outside()), 0)]
    faults += [
        *damaged.faults,
        *named.faults,
        *(fault for tally in read for fault in tally.faults),
        *calls_outside(),
    ]
    return rows, faults


def _outcome_rows(what: str, tally: Tally) -> list[Row]:
    counted = [Row(f"{what}: {name.replace('_', ' ')}", tally.count(name), 0) for name in OUTCOMES]
    return [
        Row(f"{what}: tried", tally.tried),
        Row(f"{what}: steps acknowledged", tally.acknowledged),
        *counted,
    ]


def _lost_rows(runs: TrainingRuns) -> list[Row]:
    limits = {"steps_largest": EVERY}
    return [
        Row(f"{runs.name} lost by a kill: {name.replace('_', ' ')}", value, limits.get(name))
        for name, value in runs.summary().items()
    ]


def _damage_rows(tally: DamageTally) -> list[Row]:
    return [
        Row("damaged files: tried", tally.tried),
        Row("damaged files: found", tally.found),
        Row("damaged files: harmless with proof", tally.harmless),
        Row("damaged files: accepted in silence", len(tally.silent), 0),
        Row("damaged files: tracebacks", len(tally.crashes), 0),
        Row("damaged files: guard files changed", len(tally.guards), 0),
    ]


def _name_rows(tally: NameTally) -> list[Row]:
    return [
        Row("hostile names: tried", tally.tried),
        Row("hostile names: refused", tally.refused),
        Row("hostile names: tracebacks", len(tally.crashes), 0),
        Row("hostile names: guard files changed", len(tally.guards), 0),
    ]


def _reader_rows(tally: FuzzTally) -> list[Row]:
    name = f"reader {tally.name}"
    return [
        Row(f"{name}: inputs", tally.inputs),
        Row(f"{name}: crashes", len(tally.crashes), 0),
        Row(f"{name}: over 2 s", len(tally.slow), 0),
        Row(f"{name}: MiB above the start", round(tally.peak_mib), 256),
        Row(f"{name}: guard files changed", len(tally.outside), 0),
        Row(f"{name}: inputs a second", round(tally.inputs / max(tally.seconds, 1e-3))),
    ]


def _server_rows() -> list[Row]:
    slowest, most, before = attacked_server()
    return [
        Row("server: slowest answer during an attack, s", round(slowest, 2), 10),
        Row("server: most memory above the start, MiB", round(most - before), 512),
    ]


def _resident(pid: int, what: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def attacked_server() -> tuple[float, float, float]:
    """The slowest answer (s) to a good client while 200 others idle; the largest memory and that before (MiB)."""
    from tests.reward import test_server as server

    process: Any = server.start("--reward", "brightness", "--max-pixels", "90000")
    try:
        address = json.loads(process.stdout.readline())["url"]
        before, slowest = _resident(process.pid, "VmRSS"), 0.0
        for first_bytes in (b"", b"POST /reward HTTP/1.1\r\nHo", server.BODY_BEGUN):
            with server.idle_clients(address, 200, first_bytes):
                for bad in (
                    b"{" * 100_000,
                    server.request(images=["x" * 1_000_000]),
                    server.request(prompts=7),
                ):
                    server.ask(address, body=bad)
                    start = time.monotonic()
                    assert server.ask(address, body=server.request())[0] == 200
                    slowest = max(slowest, time.monotonic() - start)
        return slowest, _resident(process.pid, "VmHWM"), before
    finally:
        process.terminate()
        process.wait(10)


def calls_outside() -> list[str]:
    """Changes of files that do not go through the door."""
    from tests.house.test_owned_files import DOOR, changing
    from tests.source_tree import sources

    return [c for s in sources("modules", "scripts") if s.relative not in DOOR for c in changing(s)]


def table(rows: Sequence[Row]) -> str:
    """One line a figure, with what is allowed."""
    width = max(len(row.figure) for row in rows)
    return "\n".join(
        f"{row.figure:<{width}}  {row.value:>10g}  "
        f"{'' if row.allowed is None else f'<= {row.allowed:g}':<10}  {'' if row.within else 'OVER'}".rstrip()
        for row in rows
    )
