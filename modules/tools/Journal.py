"""Undoable changes to a person's folder: every move of a file is recorded on disk before it is made.

The folder contains ``.tastemaker-tools`` with one folder per command that changed something:
``journal.jsonl`` and the replaced or removed files, by number. Nothing is deleted until the person says so
(``forget``). A file is replaced by two moves: the old one into ``kept``, the finished new one from ``made``
to its place.

A killed command is cleaned up when the next one begins: a transaction (renaming) is rolled back as a whole, a
series (resizing image after image) keeps what is complete. An interrupted undo is completed.
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
"""By folder: names of journals in which this program found nothing left to do. Writing ten thousand captions
makes as many journals, and all of them are checked before each change.
"""


class Move(NamedTuple):
    """A move of a file; both names are relative to the folder.

    Args:
        digest: digest of the written bytes, if they are the program's own. An undo does not replace a file
            that a person has changed since.
    """

    source: str
    target: str
    digest: str = ""


@dataclass
class _Past:
    """The state recorded in a journal.

    Args:
        moves: moves announced and not undone; only the last one may not have been made, or may already be
            undone.
        complete: number of moves that are complete and stay after a kill.
        ended: whether nothing was left half done.
        undoing: whether moves were undone after its end, so that an undo was interrupted before it could
            remove the journal.
    """

    moves: list[Move]
    complete: int = 0
    ended: bool = False
    undoing: bool = False

    def take(self, record: Mapping[str, Any]) -> None:
        """Process the next line of the journal.

        Raises:
            DataError: the line is damaged.
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
    """The changes of one command; created by ``Journal.job``."""

    def __init__(self, owned: Owned, name: str) -> None:
        self._owned, self._name = owned, name
        self._place = f"{FOLDER}/{name}"
        self._number = 0
        self._moved = False

    @property
    def is_empty(self) -> bool:
        """True if nothing was moved, so that there is nothing to undo."""
        return not self._moved

    def note(self, record: Mapping[str, Any]) -> None:
        """Write a line to the journal, on disk."""
        # a line cut short by a kill is ended before the next one begins
        line = b"\n" + json.dumps(record, ensure_ascii=False).encode() + b"\n"
        self._owned.append(f"{self._place}/{JOURNAL}", line)

    def move(self, source: str, target: str, digest: str = "") -> None:
        """Record a move, then make it.

        Raises:
            UserError: the target exists.
        """
        self._moved = True
        self.note({"move": [source, target, digest]})
        self._owned.move(source, target)

    def keep(self, name: str) -> None:
        """Remove a file from the folder, keeping it for undo."""
        self.move(name, self._next("kept"))

    def give_names(self, names: Mapping[str, str], taken: Iterable[str]) -> None:
        """Rename files at once; they may swap names.

        Args:
            names: old to new.
            taken: files to remove first, because their names are needed.
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
        """Remove files and add new ones. After a kill, the next command makes it all or nothing.

        Args:
            new: name to a function that writes the file to a path.
            progress: called with the name of each new file before it is written, and again before it is moved
                into place. An exception from it undoes everything.
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
            # one by one, so that even if many files are replaced, a kill finds all but one in place
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

    Attributes:
        lost: files that the last ``undo`` could not restore, because a person has moved or deleted them since.

    Raises:
        UserError: the folder does not exist.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise DataError(f"the folder {root} does not exist", hint="check the path")
        self.root = root
        self.lost: list[str] = []
        self._owned = Owned(root, local=True)
        self._settled = _SETTLED.setdefault(root.resolve(), {})

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            place = self._owned.folder(FOLDER) / "lock"
            with place.open("a+b") as handle:
                if not try_lock(handle):
                    raise UserError(f"another tool is at work in {self.root}", hint="wait until it has ended")
                yield
        except OSError as error:
            # the error of a full disk names no file; one that is not the system's has a text, which a name would hide
            if error.errno is not None:
                error.filename = error.filename or str(self.root)
            raise

    @contextmanager
    def job(self, what: str) -> Iterator[Job]:
        """Run a command that changes the folder. After a fault or a kill, only what it marked complete
        remains.

        Raises:
            UserError: another tool is working in the folder, or a killed one cannot be cleaned up.
        """
        with self._alone():
            self._recover()
            # the remains of a killed command without a journal keep their number
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
        """Undo the last command, or complete an interrupted undo. Returns its name; ``None`` if there is
        none.

        Args:
            what: undo only a command with one of these names; by default any.

        Raises:
            UserError: a file is in the way or was changed since, none of the files is there any more, or the last
                command has another name. Nothing was undone.
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
            moves = self._past(names[-1]).moves
            todo, lost = self._check(moves, 0)
            if lost and not todo:
                raise UserError(
                    f"nothing of {names[-1]} can be undone any more:\n{list_offenders(lost)}",
                    hint=f"put the files back in {self.root}, then undo again; nothing was changed",
                )
            self.lost = lost
            self._reverse(names[-1], todo)
            self._remove(names[-1], "made")
            return names[-1]

    def forget(self) -> int:
        """Delete the undo history with its files. Returns the number of commands.

        Raises:
            UserError: a command cannot be cleaned up, or its folder contains files that are still in use.
        """
        with self._alone():
            self._recover()
            names = self.jobs()
            for name in names:
                self._remove(name, "made", "kept")
            return len(names)

    def put_in_order(self) -> None:
        """Roll back what a killed command left half done, before a new one reads the folder.

        Raises:
            UserError: another tool is working in the folder, or a file is in the way.
        """
        if self.jobs():
            with self._alone():
                self._recover()

    def _recover(self) -> str | None:
        """Clean up interrupted commands. Returns the name of the command whose undo was completed, if any."""
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
            todo, self.lost = self._check(past.moves, down_to)
            self._reverse(name, todo)
            if down_to:
                Job(self._owned, name).note({"end": True})
            else:
                self._remove(name, "made")
            if past.undoing:
                completed = name
        return completed

    def _remove(self, name: str, *needless: str) -> None:
        """Delete the folder of a command, unless it contains files of a person.

        Args:
            needless: its subfolders whose files may be deleted.

        Raises:
            UserError: it contains other files.
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
                continue  # its writer was killed before the announced move
            if isinstance(record, dict):
                past.take(record)
        return past

    def _reverse(self, name: str, todo: Sequence[tuple[int, Move]]) -> None:
        """Undo moves of a command, as ``_check`` returned them."""
        job = Job(self._owned, name)
        for number, move in todo:
            # with this record, only this move can be in doubt after a kill
            job.note({"back": number})
            self._owned.move(move.target, move.source)

    def _check(self, moves: Sequence[Move], down_to: int) -> tuple[list[tuple[int, Move]], list[str]]:
        """The moves to undo, each with its number, and what cannot be restored. Refused if a person's file is in
        the way.
        """
        known: dict[str, bool] = {}
        todo, faults, lost = [], [], []
        led_to = {move.source: move.target for move in moves}

        def there(name: str) -> bool:
            return known[name] if name in known else os.path.lexists(self._owned.path(name))

        for number in range(len(moves), down_to, -1):
            move = moves[number - 1]
            taken_out = move.target.startswith(f"{FOLDER}/")
            # The last move may not have been made. One of its ends is where nobody else puts files, which
            # tells.
            made = number < len(moves) or (there(move.target) if taken_out else not there(move.source))
            if not made or not there(move.target):
                if made and taken_out:
                    gone = led_to.get(move.target, move.target)
                    lost.append(f"{move.source}: {gone} is no longer there")
                continue
            if taken_out and there(move.source):
                faults.append(f"{move.source} exists again")
            elif move.digest and move.target not in known and self._changed(move):
                faults.append(f"{move.target} was changed since")
            known |= {move.target: False, move.source: True}
            todo.append((number, move))
        if faults:
            raise UserError(
                f"this cannot be undone:\n{list_offenders(faults)}",
                hint=f"move these files out of {self.root}, then undo again; nothing was changed",
            )
        return todo, lost

    def _changed(self, move: Move) -> bool:
        return file_sha256(self._owned.path(move.target)) != move.digest


def _number(name: str) -> int:
    """The number at the start of a command's folder name; 0 for other names."""
    number = name.partition("-")[0]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0
