"""Changes to a person's folder that can be undone: every move of a file is noted on the disk before it is made.

In the folder lies ``.tastemaker-tools`` with one folder for each command that changed something: ``journal.jsonl`` and
the files that were replaced or taken out, under numbers. Nothing is deleted until the person says so (``forget``).
A file is replaced by two moves: the old one into ``kept``, the finished new one from ``made`` to its place.

A command that was killed is put in order when the next one begins: one transaction (renaming) is rolled back as a
whole, a series (resizing image after image) keeps what is complete. An undo that was stopped is completed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from modules.util.errors import DataError, UserError, list_offenders
from modules.util.files.locking import try_lock
from modules.util.jsonio import parse_json, read_bytes
from modules.util.owned_files import Owned, shown
from modules.util.pairs.dpo_pair_files import file_sha256

FOLDER = ".tastemaker-tools"
JOURNAL = "journal.jsonl"
MAX_JOURNAL_BYTES = 256 << 20

_SETTLED: dict[Path, dict[str, tuple[int, int, int]]] = {}
"""By folder: the journals in which this program found nothing left to do, by name. Someone who writes ten thousand
captions has as many journals, and all of them are looked at before each change.
"""


class Move(NamedTuple):
    """A file gets another name; both are relative to the folder.

    Args:
        digest: of the bytes that were written, where they are the program's: a file that a person changed since is
            not replaced when this is undone.
    """

    source: str
    target: str
    digest: str = ""


@dataclass
class _Past:
    """What a journal says.

    Args:
        moves: those that were announced and not undone; only the last one may not have been made, or be undone.
        complete: how many of them are complete and stay after a kill.
        ended: nothing was left half done.
        undoing: moves were undone after its end, so an undo was stopped before it could remove the journal.
    """

    moves: list[Move]
    complete: int = 0
    ended: bool = False
    undoing: bool = False

    def take(self, record: Mapping[str, Any]) -> None:
        """Take the next line of the journal into account.

        Raises:
            DataError: it is damaged.
        """
        move, back = record.get("move"), record.get("back")
        if isinstance(move, list) and len(move) == 3 and all(isinstance(text, str) for text in move):
            self.moves.append(Move(*move))
        elif isinstance(back, int) and 0 < back <= len(self.moves):
            del self.moves[back:]
            self.undoing = self.ended
        elif "move" in record or "back" in record:
            raise DataError(f"a journal in {FOLDER} is damaged", hint="its files are left as they are")
        self.complete = len(self.moves) if "complete" in record else min(self.complete, len(self.moves))
        self.ended = self.ended or "end" in record


class Job:
    """What one command does; given by ``Journal.job``."""

    def __init__(self, owned: Owned, name: str) -> None:
        self._owned, self._name = owned, name
        self._place = f"{FOLDER}/{name}"
        self._number = 0
        self._moved = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing was moved, so that there is nothing to undo."""
        return not self._moved

    def note(self, record: Mapping[str, Any]) -> None:
        """Put a line into the journal, on the disk."""
        # a line that a kill cuts off ends before the next one begins
        line = b"\n" + json.dumps(record, ensure_ascii=False).encode() + b"\n"
        self._owned.append(f"{self._place}/{JOURNAL}", line)

    def move(self, source: str, target: str, digest: str = "") -> None:
        """Note a move, and make it.

        Raises:
            UserError: the target is taken.
        """
        self._moved = True
        self.note({"move": [source, target, digest]})
        self._owned.move(source, target)

    def keep(self, name: str) -> None:
        """Take a file out of the folder."""
        self.move(name, self._next("kept"))

    def give_names(self, names: Mapping[str, str], taken: Iterable[str]) -> None:
        """Give files other names at once; they may exchange names.

        Args:
            names: old to new.
            taken: files to take out first, because their names are needed.
        """
        for name in taken:
            self.keep(name)
        waiting = {source: self._next("moving") for source in names}
        for source, between in waiting.items():
            self.move(source, between)
        for source, target in names.items():
            self.move(waiting[source], target)

    def replace(
        self,
        old: Iterable[str],
        new: Mapping[str, Callable[[Path], None]],
        progress: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Take files out and put new ones in; a kill leaves both or neither once the next command begins.

        Args:
            new: name to what writes it to a path.
            progress: called with the name of each new file before it is written, and again before it is put in its
                place; what it raises undoes everything.
        """
        made, out = {}, set(old)
        for name, write in new.items():
            progress(name)
            made[name] = self._next("made")
            with self._owned.write(made[name]) as temporary:
                write(temporary)
        for name in sorted(out - made.keys()):
            self.keep(name)
        for name, finished in made.items():
            # one after the other: of many files that are replaced, a kill finds all but one in their places
            progress(name)
            if name in out:
                self.keep(name)
            self.move(finished, name, file_sha256(self._owned.path(finished)))
        self.note({"complete": True})

    def _next(self, kind: str) -> str:
        self._number += 1
        return f"{self._place}/{kind}/{self._number:06d}"


class Journal:
    """The journals of a folder.

    Args:
        root: the folder.

    Raises:
        UserError: there is no such folder.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise DataError(f"the folder {root} does not exist", hint="check the path")
        self.root = root
        self._owned = Owned(root, local=True)
        self._settled = _SETTLED.setdefault(root.resolve(), {})

    @contextmanager
    def _alone(self) -> Iterator[None]:
        place = self._owned.folder(FOLDER) / "lock"
        with place.open("a+b") as handle:
            if not try_lock(handle):
                raise UserError(f"another tool is at work in {self.root}", hint="wait until it has ended")
            yield

    @contextmanager
    def job(self, what: str) -> Iterator[Job]:
        """A command that changes the folder. After a fault or a kill nothing stays of it but what it calls complete.

        Args:
            what: its name.

        Raises:
            UserError: another tool is at work in the folder, or one that was killed cannot be put in order.
        """
        with self._alone():
            self._recover()
            # what a kill left of a folder without its journal keeps its number
            numbers = [_number(entry.name) for entry in os.scandir(self.root / FOLDER)]
            name = f"{max(numbers, default=0) + 1:04d}-{what}"
            job = Job(self._owned, name)
            job.note({"begin": what})
            try:
                yield job
                if job.is_empty:
                    self._remove(name, "made")
                else:
                    job.note({"end": True})
            except BaseException:
                self._recover()
                raise

    def jobs(self) -> list[str]:
        """Names of the commands that can be undone, oldest first."""
        place = self.root / FOLDER
        if not place.is_dir():
            return []
        found = [entry.name for entry in os.scandir(place) if (Path(entry.path) / JOURNAL).is_file()]
        return sorted(found, key=lambda name: (_number(name), name))

    def undo(self, *what: str) -> str | None:
        """Undo the last command, or complete an undo that was stopped; its name, ``None`` if there is none.

        Args:
            what: only a command of one of these names is undone; none for any.

        Raises:
            UserError: a file is in the way or was changed since, or the last command has another name; nothing was
                undone.
        """
        with self._alone():
            completed = self._recover()
            names = self.jobs()
            if completed or not names:
                return completed
            if what and not names[-1].endswith(tuple(f"-{one}" for one in what)):
                raise UserError(
                    f"the last change in {self.root} was made by another tool: {names[-1]}",
                    hint="undo that one first, with the tool that made it",
                )
            self._reverse(names[-1], self._past(names[-1]).moves, 0)
            self._remove(names[-1], "made")
            return names[-1]

    def forget(self) -> int:
        """Delete what could be undone, with the files that were kept for it; how many commands that were.

        Raises:
            UserError: a command cannot be put in order, or its folder holds files that are still in use.
        """
        with self._alone():
            self._recover()
            names = self.jobs()
            for name in names:
                self._remove(name, "made", "kept")
            return len(names)

    def put_in_order(self) -> None:
        """Roll back what a killed command left half done, before a new one looks at the folder.

        Raises:
            UserError: another tool is at work in the folder, or a file is in the way.
        """
        if self.jobs():
            with self._alone():
                self._recover()

    def _recover(self) -> str | None:
        """Put in order what was stopped; the name of the command whose undo was completed, if there was one."""
        completed = None
        for name in reversed(self.jobs()):
            found = (self.root / FOLDER / name / JOURNAL).stat()
            state = (found.st_size, found.st_mtime_ns, found.st_ino)
            if self._settled.get(name) == state:
                continue
            past = self._past(name)
            if past.ended and not past.undoing:
                self._settled[name] = state
                continue
            down_to = 0 if past.undoing else past.complete
            self._reverse(name, past.moves, down_to)
            if down_to:
                Job(self._owned, name).note({"end": True})
            else:
                self._remove(name, "made")
            if past.undoing:
                completed = name
        return completed

    def _remove(self, name: str, *needless: str) -> None:
        """Delete the folder of a command, unless files of a person lie in it.

        Args:
            needless: its folders whose files may go.

        Raises:
            UserError: there are files elsewhere in it.
        """
        place = self._owned.path(f"{FOLDER}/{name}")
        files = [Path(folder, file) for folder, _, found in os.walk(place) for file in found]
        inside = [path.relative_to(place) for path in files]
        mine = [path for path in inside if path != Path(JOURNAL) and path.parts[0] not in needless]
        if mine:
            raise UserError(
                f"{place} holds files that are in no other place:\n{list_offenders([shown(path) for path in mine])}",
                hint="move them to where they belong, then do this again; nothing in it was deleted",
            )
        self._owned.remove_tree(f"{FOLDER}/{name}")

    def _past(self, name: str) -> _Past:
        path = self._owned.plain_file(f"{FOLDER}/{name}/{JOURNAL}")
        past = _Past([])
        for line in read_bytes(path, "journal", MAX_JOURNAL_BYTES).splitlines():
            try:
                record = parse_json(line, "journal") if line else None
            except UserError:
                continue  # its writer was killed before the move it announces
            if isinstance(record, dict):
                past.take(record)
        return past

    def _reverse(self, name: str, moves: Sequence[Move], down_to: int) -> None:
        """Undo the moves of a command, last first, until this many are left."""
        todo = self._check(moves, down_to)
        job = Job(self._owned, name)
        for number, move in todo:
            # with this note only this move can be in doubt after a kill
            job.note({"back": number})
            self._owned.move(move.target, move.source)

    def _check(self, moves: Sequence[Move], down_to: int) -> list[tuple[int, Move]]:
        """The moves to undo, each with how many there are up to it; refused if a person's file is in the way."""
        known: dict[str, bool] = {}
        todo, faults = [], []

        def there(name: str) -> bool:
            return known[name] if name in known else os.path.lexists(self._owned.path(name))

        for number in range(len(moves), down_to, -1):
            move = moves[number - 1]
            taken_out = move.target.startswith(f"{FOLDER}/")
            # The last one may not have been made. One of its ends lies where nobody else puts files, and says so.
            made = number < len(moves) or (there(move.target) if taken_out else not there(move.source))
            if not made or not there(move.target):
                continue
            if taken_out and there(move.source):
                faults.append(f"{move.source} is there again")
            elif move.digest and move.target not in known and self._changed(move):
                faults.append(f"{move.target} was changed since")
            known |= {move.target: False, move.source: True}
            todo.append((number, move))
        if faults:
            raise UserError(
                f"this cannot be undone:\n{list_offenders(faults)}",
                hint=f"move these files out of {self.root}, then undo again; nothing was changed",
            )
        return todo

    def _changed(self, move: Move) -> bool:
        return file_sha256(self._owned.path(move.target)) != move.digest


def _number(name: str) -> int:
    """The number that a command's folder begins with; 0 for other names."""
    number = name.partition("-")[0]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0
