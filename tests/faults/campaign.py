"""All injected faults of one size, and the table of what came of them."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults import names
from tests.faults.cases import DISKS, Runs, Tally, drawn
from tests.faults.damage import DAMAGES, DamageTally, damage, file_kinds
from tests.faults.fuzzing import Tally as FuzzTally
from tests.faults.fuzzing import fuzz, read_input
from tests.faults.names import NameTally, try_name
from tests.faults.readers import readers
from tests.faults.servers import SERVERS, Attacked, attacked
from tests.faults.subjects import SUBJECTS
from tests.faults.training import EVERY, SIGNALS, TrainingRuns, write_grpo, write_preference


@dataclass(frozen=True)
class Size:
    """How much is tried.

    Args:
        kills, disks: cases drawn over the subjects.
        training_kills: of a preference run, and of an online one.
        damages: seeds for each kind of file and way.
        inputs: for each reader.
        small_disks: real ones, over the subjects.
        signals: to a preference run, and to an online one.
        share_of_names: one in this many of the pairs of a field and a name.
    """

    kills: int = 40
    disks: int = 40
    training_kills: int = 3
    damages: int = 1
    inputs: int = 150
    share_of_names: int = 4
    small_disks: int = 14
    signals: int = 5


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
CORPUS = Path(__file__).parent / "corpus"
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


def signalled(
    runs: TrainingRuns, count: int, seed: int, tally: Tally, kinds: Sequence[str] = tuple(SIGNALS)
) -> None:
    """A run that is sent signals at changes that are drawn."""
    rng = random.Random(seed)
    for index in range(count):
        tally.add(runs.signalled(rng.randint(1, runs.changes), kinds[index % len(kinds)]))


def every_damage(base: Path, seeds: int, seed: int = 1) -> DamageTally:
    """Each kind in each way; another seed damages other places."""
    tally, first = DamageTally(), (seed - 1) * seeds
    for kind in file_kinds():
        for how in DAMAGES:
            for seed in range(first, first + seeds):
                damage(base, kind, how, seed, tally)
    return tally


def every_name(base: Path, share: int, seed: int = 1) -> NameTally:
    """A share of the pairs of a field and a name; the next seed takes the next share."""
    tally = NameTally()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for row, where in enumerate(names.FIELDS):
            for column, what in enumerate(names.NAMES):
                if (row + column + seed - 1) % share == 0:
                    try_name(base, where, what, tally)
    return tally


def every_reader(base: Path, inputs: int, seed: int = 1) -> list[FuzzTally]:
    """The same number of inputs for each; another seed has other inputs."""
    numbers = range((seed - 1) * inputs, seed * inputs)
    return [fuzz(base, name, one, numbers) for name, one in readers(base / "sound").items()]


def whole_corpus(base: Path) -> list[FuzzTally]:
    """Inputs that once were too much for a reader, and some that are for others."""
    tallies = []
    for name, one in readers(base / "corpus").items():
        tally = FuzzTally(name)
        for file in sorted((CORPUS / name.replace(" ", "-")).glob("*")):
            shutil.copyfile(file, base / "input.bin")
            read_input(one, base / "input.bin", f"{name} {file.name}", tally)
            tally.inputs += 1
        tallies.append(tally)
    return tallies


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
                stopped = Tally()
                signalled(trained, size.signals, seed, stopped)
                rows += _outcome_rows(f"signals to {what}", stopped)
                faults += stopped.faults
                report(f"{what}: {stopped.tried} signals, {len(stopped.faults)} faults")
        named = every_name(base / "names", size.share_of_names, seed)
    damaged = every_damage(base / "damage", size.damages, seed)
    with silence():
        read = every_reader(base / "fuzz", size.inputs, seed)
        kept = whole_corpus(base / "fuzz")
    report(f"damage: {damaged.tried}, names: {named.tried}, inputs: {sum(tally.inputs for tally in read)}")
    rows += _damage_rows(damaged) + _name_rows(named) + [row for tally in read for row in _reader_rows(tally)]
    rows += [
        Row("kept inputs: tried", sum(tally.inputs for tally in kept)),
        Row("kept inputs: crashes and over 2 s", sum(len(tally.faults) for tally in kept), 0),
    ]
    servers = {name: attacked(name) for name in SERVERS}
    report(f"servers: {', '.join(f'{n} {one.slowest:.2f} s ({one.during})' for n, one in servers.items())}")
    rows += [
        *_server_rows(servers),
        Row("delete, move and replace calls outside the door", len(calls_outside()), 0),
    ]
    faults += [
        *damaged.faults,
        *named.faults,
        *(fault for tally in (*read, *kept) for fault in tally.faults),
        *(wrong for one in servers.values() for wrong in one.wrong),
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


def _server_rows(found: Mapping[str, Attacked]) -> list[Row]:
    return [
        row
        for name, one in found.items()
        for row in (
            Row(f"{name}: good requests during attacks", one.asked),
            Row(f"{name}: wrong answers", len(one.wrong), 0),
            Row(f"{name}: slowest answer during an attack, s", round(one.slowest, 2), 10),
            Row(f"{name}: most memory above the start, MiB", round(one.memory), 512),
        )
    ]


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
