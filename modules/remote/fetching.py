"""Copies files of a run from the other computer into its mirror folder.

Names and sizes are untrusted. A name that leads out of the folder is refused. A local file that differs from
what was fetched before is never replaced.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modules.remote.again import Tell
from modules.remote.Far import Far
from modules.remote.growing import STATE, append_at
from modules.remote.hashing import digest
from modules.remote.records import Record
from modules.remote.there.limits import GROWING, MAX_FILE, MAX_FILES, MAX_PIECE, SHA256
from modules.util.errors import UserError
from modules.util.jsonio import read_json, write_json
from modules.util.owned_files import Owned, shown

FETCHED, PARTIAL = f"{STATE}/fetched.json", f"{STATE}/partial"
KEPT = (STATE, "config.json", "commands", "run.lock", "process.json", "launch.json")
"""Names that belong to the local folder."""
SPARE_BYTES = 1 << 28
DIGESTS_AT_ONCE = 200
TENSORBOARD = "tensorboard/"


def _grows(name: str) -> bool:
    """Return whether a file of a run is append-only. TensorBoard's event files are: each process starts a new one.
    """
    return name in GROWING or name.startswith(TENSORBOARD)


@dataclass
class Report:
    """Result of fetching.

    Args:
        fetched: files that are new or have grown.
        same: number of files that were already here.
        differ: files that have other content here, and were left unchanged.
        refused: names that lead out of the folder.
    """

    fetched: list[str] = field(default_factory=list)
    same: int = 0
    differ: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class Fetch:
    """Fetches the files of one run. ``work`` may be called again after a connection ended.

    Args:
        tell: shows a line.
        overwrite: whether to replace files that have other content here.
        only: names at the top of the run's folder, if only these are fetched.
        quick: whether to skip files that were fetched before and have the same size, without a comparison.
    """

    def __init__(
        self,
        record: Record,
        backups: bool,
        tell: Tell,
        overwrite: bool = False,
        only: Sequence[str] = (),
        quick: bool = False,
    ) -> None:
        self.record, self.backups, self.tell, self.overwrite = record, backups, tell, overwrite
        self.only, self.quick = frozenset(only), quick
        # strict: the names come from another computer
        self.owned = Owned(record.folder)
        self.report = Report()
        self._continued: set[str] = set()
        """Append-only files that begin here as they do there."""

    async def work(self, far: Far) -> Report:
        """Fetch what is missing.

        Raises:
            UserError: there is not enough disk space, or the other computer sends invalid data. Lost: the
                connection ended.
        """
        self.report, self._continued = Report(), set[str]()
        names = await self._names(far)
        known = self._known()
        if self.quick:
            names = {name: size for name, size in names.items() if not self._is_here(name, size, known)}
        digests = await self._digests(far, {name: self._compared(name, size) for name, size in names.items()})
        todo = {name: size for name, size in names.items() if await self._wanted(name, size, digests, known)}
        self._check_room(todo)
        for name, size in todo.items():
            if name in self._continued:
                await self._pieces(far, name, name, self.owned.path(name).stat().st_size, size)
            else:
                sha256 = digests[name]
                if _grows(name):
                    # so far, only the bytes that both sides have were compared
                    sha256 = (await self._digests(far, {name: size})).get(name, sha256)
                await self._bring(far, name, size, sha256)
                known[name] = sha256
                write_json(self.owned.path(FETCHED), known)
            self.report.fetched.append(name)
        return self.report

    async def _names(self, far: Far) -> dict[str, int]:
        """Remote files that may be fetched, with their sizes.

        Raises:
            UserError: there are too many, or they are too large.
        """
        listed = await far.ask(list[tuple[str, int] | list[Any]], "contents", run=self.record.run)
        if len(listed) > MAX_FILES:
            raise UserError(f"{far.remote.address()} lists more than {MAX_FILES} files")
        made: dict[str, int] = {}
        for one in listed:
            if len(one) != 2 or not isinstance(one[0], str) or type(one[1]) is not int:
                raise UserError(f"{far.remote.address()} lists something that is not a file")
            name, size = one
            if not self.backups and name.startswith("backup") and "/" in name:
                continue
            if self.only and name.partition("/")[0] not in self.only:
                continue
            if not 0 <= size <= MAX_FILE:
                raise UserError(f"{far.remote.address()} lists {shown(name)} with {size} bytes")
            if self._allowed(name):
                made[name] = size
        return made

    def _allowed(self, name: str) -> bool:
        # some file systems ignore case
        if name.replace("\\", "/").partition("/")[0].casefold() in KEPT:
            return False
        try:
            path = self.owned.plain_file(name)
        except UserError:
            self.report.refused.append(shown(name))
            return False
        return not path.name.startswith(".tastemaker-")

    def _known(self) -> dict[str, str]:
        """Hashes of files as fetched."""
        path = self.owned.plain_file(FETCHED)
        data = read_json(path, "list of fetched files") if path.exists() else {}
        return {str(name): str(sha) for name, sha in data.items()} if isinstance(data, Mapping) else {}

    def _is_here(self, name: str, size: int, known: Mapping[str, str]) -> bool:
        path = self.owned.path(name)
        here = (name in known or _grows(name)) and path.exists() and path.stat().st_size == size
        self.report.same += here
        return here

    def _compared(self, name: str, size: int) -> int:
        """Number of bytes of a file that are compared: for append-only files, as many as both sides have."""
        here = self.owned.path(name)
        return min(size, here.stat().st_size) if _grows(name) and here.exists() else size

    async def _digests(self, far: Far, wanted: Mapping[str, int]) -> dict[str, str]:
        """Hashes of the first bytes of remote files."""
        made: dict[str, str] = {}
        for start in range(0, len(wanted), DIGESTS_AT_ONCE):
            part = dict(list(wanted.items())[start : start + DIGESTS_AT_ONCE])
            found = await far.ask(dict[str, str], "digests", run=self.record.run, files=part)
            made |= {name: sha for name, sha in found.items() if name in part and SHA256.fullmatch(sha)}
        return made

    async def _wanted(
        self, name: str, size: int, digests: Mapping[str, str], known: Mapping[str, str]
    ) -> bool:
        path, there = self.owned.path(name), digests.get(name)
        if there is None:  # deleted there in the meantime
            return False
        if not path.exists():
            return True
        # a large file must not hold up whatever else this thread does
        here = await digest(path, self._compared(name, size) if _grows(name) else None)
        if here == there:
            self._continued |= {name} if _grows(name) else set()
            self.report.same += not _grows(name) or size <= path.stat().st_size
            return _grows(name) and size > path.stat().st_size
        if self.overwrite or known.get(name) == here:
            return True
        self.report.differ.append(name)
        return False

    def _check_room(self, todo: Mapping[str, int]) -> None:
        free = shutil.disk_usage(self.owned.root).free
        needed = sum(todo.values()) + SPARE_BYTES
        if needed > free:
            raise UserError(
                f"the disk of {self.owned.root} is too full: {needed >> 20} MiB are needed, {free >> 20} MiB are free",
                hint="free some space, then fetch again",
            )

    async def _pieces(self, far: Far, name: str, target: str, offset: int, size: int) -> None:
        """Append bytes of a remote file to a local one.

        Raises:
            UserError: the bytes no longer exist there.
        """
        while offset < size:
            got: list[bytes] = []

            async def note(_: dict[str, Any], data: bytes, got: list[bytes] = got) -> None:
                got.append(data)

            wanted = min(MAX_PIECE, size - offset)
            await far.ask(
                type(None), "piece", run=self.record.run, file=name, offset=offset, size=wanted, note=note
            )
            data = b"".join(got)
            if not data or len(data) > wanted:
                raise UserError(f"{shown(name)} changed on {far.remote.address()}", hint="fetch again")
            append_at(self.owned, target, offset, data)
            offset += len(data)

    async def _bring(self, far: Far, name: str, size: int, sha256: str) -> None:
        """Fetch a file to a temporary name, then move it into place if its hash is correct."""
        self.tell(f"{shown(name)} ({size} bytes)")
        partial = f"{PARTIAL}/{sha256}"
        place = self.owned.plain_file(partial)
        there = place.stat().st_size if place.exists() else 0
        if there > size:
            self.owned.remove(partial)
            there = 0
        if size == 0:
            append_at(self.owned, partial, 0, b"")
        await self._pieces(far, name, partial, there, size)
        if await digest(place) != sha256:
            self.owned.remove(partial)
            raise UserError(f"{shown(name)} arrived with unexpected content", hint="fetch again")
        self.owned.move(partial, name, replace=True)

    async def compare(self, far: Far) -> tuple[dict[str, str], list[str]]:
        """Compare remote with local files.

        Returns:
            Names of files with the same content here, with their hashes, and names of the others.

        Raises:
            UserError: the run does not exist there.
        """
        names = await self._names(far)
        digests = await self._digests(far, names)
        same, missing = {}, list(self.report.refused)
        for name in names:
            path = self.owned.path(name)
            if name in digests and path.is_file() and await digest(path) == digests[name]:
                same[name] = digests[name]
            else:
                missing.append(name)
        return same, missing
