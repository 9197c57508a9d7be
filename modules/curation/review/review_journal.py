"""What reviewing did to a folder, on the disk, so that a later process can take it back too.

One JSON line a step in the trash folder, written before the step itself. Taking a step back adds a line and
brings back whatever of the step was done, so a crash at any moment leaves a folder that can be gone on with.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from modules.util.errors import UserError
from modules.util.jsonio import fsync_path, parse_json

TRASH_NAME = ".trash"
JOURNAL_NAME = "steps.jsonl"
MAX_LINE_BYTES = 1 << 26
Step = dict[str, Any]


class TrashSize(NamedTuple):
    """How much lies in the trash folder: removed pairs, and bytes on the disk."""

    pairs: int
    size: int

    @property
    def mebibytes(self) -> str:
        """The size as text."""
        return f"{self.size / 2**20:.1f} MiB"


class ReviewJournal:
    """The steps of one output folder that can be taken back, last one last."""

    def __init__(self, output_dir: Path) -> None:
        self.trash = output_dir / TRASH_NAME
        self._path = self.trash / JOURNAL_NAME
        self._steps = self._read()

    def __len__(self) -> int:
        return len(self._steps)

    def last(self) -> Step | None:
        """The step that would be taken back next."""
        return self._steps[-1] if self._steps else None

    def add(self, step: Step) -> None:
        """Make a step durable; call it before doing the step.

        Raises:
            UserError: it cannot be written; then nothing may be done.
        """
        self._append(step)
        self._steps.append(step)

    def drop(self) -> None:
        """The last step has been taken back."""
        self._append({"do": "undo"})
        self._steps.pop()

    def size(self) -> TrashSize:
        """What emptying the trash would delete."""
        if not self.trash.is_dir():
            return TrashSize(0, 0)
        files = [file for file in self.trash.rglob("*") if file.is_file()]
        folders = {file.parent for file in files} - {self.trash}
        return TrashSize(len(folders), sum(file.stat().st_size for file in files))

    def empty(self) -> TrashSize:
        """Delete the trash for good, and with it what could be taken back.

        Returns:
            What was deleted.

        Raises:
            UserError: something cannot be deleted.
        """
        size = self.size()
        self._steps.clear()
        try:
            self._path.unlink(missing_ok=True)
            if self.trash.is_dir():
                shutil.rmtree(self.trash)
        except OSError as error:
            raise UserError(f"cannot empty {self.trash}: {error.strerror or error}") from error
        return size

    def _append(self, step: Step) -> None:
        line = json.dumps(step, allow_nan=False).encode()
        try:
            new = not self._path.exists()
            self.trash.mkdir(exist_ok=True)
            with self._path.open("ab") as stream:
                # A torn last line of a crash must not swallow this one.
                stream.write((b"" if new else b"\n") + line + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
            if new:
                fsync_path(self.trash)
        except OSError as error:
            raise UserError(
                f"cannot save the step in {self._path}: {error.strerror or error}", hint="nothing was changed"
            ) from error

    def _read(self) -> list[Step]:
        steps: list[Step] = []
        if not self._path.is_file():
            return steps
        with self._path.open("rb") as stream:
            while line := stream.readline(MAX_LINE_BYTES):
                if not line.strip():
                    continue
                try:
                    step = parse_json(line, str(self._path))
                except UserError:
                    continue  # torn by a crash: its step was never begun
                if not isinstance(step, dict) or not isinstance(step.get("do"), str):
                    continue
                if step["do"] != "undo":
                    steps.append(step)
                elif steps:
                    steps.pop()
        return steps
