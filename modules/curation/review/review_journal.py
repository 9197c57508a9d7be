"""A durable journal of review steps, so that a later process can undo them too.

Each step is one JSON line in the trash folder, written before the step is done. Undoing adds a line and
reverts whatever part of the step was done, so that the folder stays usable after a crash at any moment.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

from modules.util.display import counted
from modules.util.dpo_curation_util import check_manifest_pair
from modules.util.errors import UserError, refused_as
from modules.util.jsonio import parse_json
from modules.util.owned_files import fault_of_path, shown
from modules.util.pairs.confidence import is_certainty
from modules.util.pairs.dpo_pair_files import SIDES, SOURCE_FOLDER, TRASH_NAME, owned_pairs

log = logging.getLogger(__name__)

JOURNAL_NAME = "steps.jsonl"
MAX_LINE_BYTES = 1 << 26
Step = dict[str, Any]


def check_step(step: Step) -> None:
    """Refuse a step that this program cannot have recorded, or with a name that leads out of the folder.

    Raises:
        UserError: the step is invalid. The message says why.
    """
    what, pair_id = step.get("do"), step.get("pair_id")
    if what not in ("remove", "swap", "caption"):
        raise UserError(f"there is no step {shown(str(what))!r}")
    if not isinstance(pair_id, str) or not pair_id or fault_of_path(pair_id) or set("/\\") & set(pair_id):
        raise UserError(f"the pair {shown(str(pair_id))!r} is not the name of a pair")
    if what == "swap" and not isinstance(step.get("chosen"), str):
        raise UserError("the step does not say which image was chosen")
    if step.get("certainty") is not None and not is_certainty(step["certainty"]):
        raise UserError("the certainty of the step is not a number from 0.5 to 1")
    if what == "caption":
        captions = step.get("captions")
        texts = [captions.get(side) for side in SIDES] if isinstance(captions, dict) else [0]
        if not all(text is None or isinstance(text, str) for text in (*texts, step.get("prompt"))):
            raise UserError("the captions of the step are not texts")
    if what == "remove":
        _check_removal(step)


def _check_removal(step: Step) -> None:
    entry, files = step.get("entry"), step.get("files")
    if entry is not None:
        check_manifest_pair(entry, "the entry")
        if entry["pair_id"] != step["pair_id"]:
            raise UserError(f"the entry of {entry['pair_id']!r} is that of another pair")
    if not isinstance(files, list):
        raise UserError("the step names no files")
    for moved in files:
        names = moved if isinstance(moved, list) and len(moved) == 2 else [None]
        for name, heads in zip(names, ((*SIDES, SOURCE_FOLDER), ()), strict=False):
            parts = name.split("/") if isinstance(name, str) and not fault_of_path(name) else [".."]
            if {"", ".", ".."} & set(parts) or len(parts) < 2 or (heads and parts[0] not in heads):
                raise UserError(f"the file {shown(str(moved))} does not stay in the folder")


def _places_in(step: Step) -> set[str]:
    """The trash folders that a step names."""
    files = step.get("files")
    moves = files if isinstance(files, list) else []
    return {
        move[1].split("/")[0]
        for move in moves
        if isinstance(move, list) and len(move) == 2 and isinstance(move[1], str)
    }


class TrashSize(NamedTuple):
    """Size of the trash folder: removed pairs, and bytes on disk."""

    pairs: int
    size: int

    @property
    def mebibytes(self) -> str:
        """The size as text."""
        return f"{self.size / 2**20:.1f} MiB"


class ReviewJournal:
    """The steps of one output folder that can be undone, oldest first."""

    def __init__(self, output_dir: Path) -> None:
        self._owned = owned_pairs(output_dir)
        self.trash = output_dir / TRASH_NAME
        self._path = self.trash / JOURNAL_NAME
        self._steps = self._read()

    def __len__(self) -> int:
        return len(self._steps)

    def last(self) -> Step | None:
        """The step that undo would revert next."""
        return self._steps[-1] if self._steps else None

    def add(self, step: Step) -> None:
        """Make a step durable; call it before doing the step.

        Raises:
            UserError: it cannot be written; then the step must not be done.
        """
        self._append(step)
        self._steps.append(step)

    def drop(self) -> None:
        """Drop the last step after undoing it."""
        self._append({"do": "undo"})
        self._steps.pop()

    def size(self) -> TrashSize:
        """Size of what emptying the trash would delete."""
        if not self.trash.is_dir():
            return TrashSize(0, 0)
        files = [file for file in self.trash.rglob("*") if file.is_file()]
        folders = {file.parent for file in files} - {self.trash}
        return TrashSize(len(folders), sum(file.stat().st_size for file in files))

    def empty(self) -> TrashSize:
        """Delete the trash for good, and with it the steps that could be undone.

        Returns:
            What was deleted.

        Raises:
            UserError: something cannot be deleted.
        """
        size = self.size()
        self._steps.clear()
        with refused_as(f"cannot empty {self.trash}"):
            self._owned.remove(f"{TRASH_NAME}/{JOURNAL_NAME}")
            self._owned.remove_tree(TRASH_NAME)
        return size

    def _append(self, step: Step) -> None:
        line = json.dumps(step, allow_nan=False).encode()
        with refused_as(f"cannot save the step in {self._path}", hint="nothing was changed"):
            # A last line torn by a crash must not swallow this one.
            start = b"\n" if self._path.exists() else b""
            self._owned.append(f"{TRASH_NAME}/{JOURNAL_NAME}", start + line + b"\n")

    def _read(self) -> list[Step]:
        steps: list[Step] = []
        named: set[str] = set()
        broken = 0
        if self._path.is_file():
            with self._path.open("rb") as stream:
                while line := stream.readline(MAX_LINE_BYTES):
                    step = self._step(line) if line.strip() else {"do": ""}
                    if step is None:
                        broken += 1
                    elif step["do"] == "undo":
                        del steps[-1:]
                    elif step["do"]:
                        steps.append(step)
                        named |= _places_in(step)
        if broken:
            lines = counted(broken, "line")
            log.warning("%s in %s cannot be read and cannot be undone", lines, self._path)
        if self.trash.is_dir() and any(
            path.is_dir() and path.name not in named and any(path.iterdir()) for path in self.trash.iterdir()
        ):
            log.warning("%s does not list everything next to it: the rest cannot be restored", self._path)
        return [step for step in steps if self._usable(step)]

    def _usable(self, step: Step) -> bool:
        """Return whether a step can belong to this folder. Others are dropped with a message."""
        try:
            check_step(step)
        except UserError as error:
            log.warning("a step in %s is left out: %s", self._path, error.message)
            return False
        return True

    @staticmethod
    def _step(line: bytes) -> Step | None:
        """The step of a line; ``None`` if the line is damaged or torn by a crash, in which case the step
        never began.
        """
        try:
            step = parse_json(line, JOURNAL_NAME)
        except UserError:
            return None
        return step if isinstance(step, dict) and isinstance(step.get("do"), str) else None
