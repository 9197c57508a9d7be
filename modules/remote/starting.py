"""Starts a run on the other computer: missing files are copied, then its trainer begins."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from modules.remote import records
from modules.remote.again import Tell
from modules.remote.Connection import Lost, Unreachable
from modules.remote.Far import Far
from modules.remote.hashing import stoppable
from modules.remote.packing import Parcel, pack
from modules.remote.program import OPTIMIZERS, REQUIREMENTS, packages_needed, program_files
from modules.remote.there.digest import digest_of
from modules.remote.there.limits import MAX_FILES, MAX_PIECE
from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.display import counted
from modules.util.errors import UserError, list_offenders, refused_as
from modules.util.owned_files import shown

SPARE_BYTES, ENVIRONMENT_BYTES = 1 << 30, 10 << 30
"""Free space that a run needs besides its files, and that the environment needs."""
TRIES = 6
ACTIVE = ("starting", "running", "paused")
"""States of a run whose trainer works."""
Files = dict[str, tuple[str, int]]
"""Name to hash and size."""


@dataclass(frozen=True)
class Wanted:
    """A run to start.

    Args:
        config: the local settings.
        run: the name of the run there.
        there: settings whose files already exist there, with their remote paths.
        alongside: whether to start even if another run uses the device.
        folder: the local folder for its events and files. The run is recorded, with this folder, before its
            trainer begins, so that no trainer is left without a record. ``None``: no record.
    """

    remote: RemoteConfig
    config: TrainConfig
    run: str
    there: Mapping[str, str] = field(default_factory=dict)
    alongside: bool = False
    folder: Path | None = None


def new_name(config: TrainConfig) -> str:
    """A unique name for a new run: that of its workspace, the time, and a few random letters."""
    place = records.without_time(Path(config.workspace_dir).name.lower())
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in place)
    name = name.strip("-")[:40] or "run"
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def requirements_of(config: TrainConfig) -> tuple[str, ...]:
    """The files that list the packages of a run."""
    return (*REQUIREMENTS, OPTIMIZERS) if config.optimizer.optimizer.in_extra_packages else REQUIREMENTS


def environment_for(remote: RemoteConfig, requirements: Sequence[str] = REQUIREMENTS) -> str:
    """The name of the environment that runs use there; empty if the settings name a Python.

    Args:
        requirements: the files that list the packages.
    """
    if remote.python:
        return ""
    paths = program_files()
    needed = {name: (digest_of(paths[name]), paths[name].stat().st_size) for name in requirements}
    return f"environments/{_digest(needed)}"


class Start:
    """One start. ``work`` may be called again after a connection ended."""

    def __init__(self, wanted: Wanted, tell: Tell) -> None:
        self.wanted, self.tell = wanted, tell
        self._hashes: dict[tuple[str, int, int], str] = {}
        self._asked = False
        self._before: dict[str, Any] | None = None
        """Status of the run before its trainer was told to begin; ``None`` for a new one."""
        self.record: records.Record | None = None
        """The record of the run, once its trainer was told to begin."""
        self._is_new = self._makes_folder = False
        self.sent = 0
        """Number of bytes of files sent."""
        self.total = 0
        """The same once all files are there; 0 while it is not known."""

    @property
    def begins(self) -> bool:
        """True if the trainer there was told to begin, so that the start can no longer be cancelled."""
        return self._asked

    async def work(self, far: Far) -> None:
        """Do the remaining steps.

        Raises:
            UserError: something is missing here or there. Lost: the connection ended.
        """
        wanted = self.wanted
        program = await stoppable(partial(self._hashed, program_files()))
        place = f"programs/{_digest(program)}"
        requirements = requirements_of(wanted.config)
        needed = {name: program[name] for name in requirements}
        environment = await asyncio.to_thread(environment_for, wanted.remote, requirements)
        here = await far.ask(dict[str, Any], "look", environment=environment)
        if await self._has_begun(far, here.get("runs")):
            return
        parcel = pack(wanted.config, str(here.get("directory")), wanted.run, wanted.there)
        inputs = await stoppable(partial(self._hashed, parcel.files))
        sources = {program[name][0]: path for name, path in program_files().items()}
        sources |= {inputs[name][0]: path for name, path in parcel.files.items()}
        both = list(program.values()) + list(inputs.values())
        room = SPARE_BYTES + (ENVIRONMENT_BYTES if environment and here.get("ready") is not True else 0)
        await self._copy(far, both, sources, here.get("free"), room)
        await self._plant(far, place, program)
        if environment:
            await self._plant(far, environment, needed)
        python = await self._environment(far, environment, place)
        await self._begin(far, parcel, inputs, place, python)

    async def _has_begun(self, far: Far, runs: object) -> bool:
        """Return whether an earlier connection ended after the trainer began, but before the answer.

        Args:
            runs: names of the runs there.

        Raises:
            UserError: the run was already running before the trainer was asked for.
        """
        run, found = self.wanted.run, None
        if isinstance(runs, list) and run in runs:
            found = await far.ask(dict[str, Any], "status", run=run)
        state = None if found is None or found.get("state") == "new" else found
        if self._asked:
            return state != self._before
        self._before = state
        if state is not None and state.get("state") in ACTIVE:
            raise UserError(
                f"the run {run} is already running on {far.remote.address()}",
                hint=f"stop it first: train_remote.py send stop {run}",
            )
        return False

    # --- files ---

    def _hashed(self, files: Mapping[str, Path], stop: threading.Event) -> Files:
        """Hash and size of local files. Each is read only once as long as it does not change."""
        if len(files) > MAX_FILES:
            raise UserError(f"a run can have up to {MAX_FILES} files, but this one has {len(files)}")
        made = {}
        for name, path in files.items():
            with refused_as(f"{path} cannot be read"):
                found = path.stat()
                key = (str(path), found.st_size, found.st_mtime_ns)
                if key not in self._hashes:
                    self._hashes[key] = digest_of(path, stop=stop)
            made[name] = (self._hashes[key], found.st_size)
        return made

    async def _copy(
        self, far: Far, files: Sequence[tuple[str, int]], sources: Mapping[str, Path], free: object, room: int
    ) -> None:
        sizes = dict(files)
        there = await far.ask(dict[str, int], "have", files=sizes)
        missing = {sha: size for sha, size in sizes.items() if there.get(sha) != size}
        needed = sum(size - max(0, there.get(sha, 0)) for sha, size in missing.items())
        if not isinstance(free, int) or needed + room > free:
            raise UserError(
                f"the disk of {far.remote.address()} is too full: {_gib(needed + room)} are needed, "
                f"{_gib(free if isinstance(free, int) else 0)} are free",
                "remote.directory",
                "remove old runs (train_remote.py clean), or choose a folder on another disk",
            )
        self.total = self.sent + needed
        self.tell(f"copying {counted(len(missing), 'file')} of {len(sizes)} ({_gib(needed)})")
        small = {sha: size for sha, size in missing.items() if size <= MAX_PIECE}
        for batch in _batches(small):
            data = b"".join([await asyncio.to_thread(_read, sources[sha], size) for sha, size in batch])
            await far.ask(type(None), "small", files=batch, data=data)
            self.sent += len(data)
        for sha, size in missing.items():
            if sha not in small:
                await self._send(far, sha, size, sources[sha])

    async def _send(self, far: Far, sha: str, size: int, source: Path) -> None:
        async def note(message: dict[str, Any], _: bytes) -> None:
            said = message.get("note")
            offset = said.get("offset") if isinstance(said, dict) else None
            if type(offset) is not int or not 0 <= offset <= size:
                raise UserError(
                    f"{far.remote.address()} asked for a part of {source.name} that it does not have"
                )
            await self._stream(far, source, offset, size)

        self.tell(f"{source.name} ({_gib(size)})")
        await far.ask(type(None), "large", sha256=sha, size=size, note=note)

    async def _stream(self, far: Far, source: Path, offset: int, size: int) -> None:
        with source.open("rb") as stream:
            stream.seek(offset)
            while offset < size:
                block = await asyncio.to_thread(stream.read, min(MAX_PIECE, size - offset))
                if not block:
                    raise UserError(f"{source} changed while it was copied", hint="start again")
                await far.send(block)
                offset += len(block)
                self.sent += len(block)

    async def _plant(self, far: Far, root: str, files: Files) -> None:
        missing = await far.ask(list[str], "plant", root=root, files=files)
        if missing:
            names = list_offenders([shown(name) for name in missing])
            raise UserError(
                f"files were removed on {far.remote.address()} while they were copied:\n{names}",
                hint="start again",
            )

    # --- environment and trainer ---

    async def _environment(self, far: Far, environment: str, program: str) -> str:
        remote = self.wanted.remote
        if not environment:
            await self._check_packages(far)
            return remote.python.removeprefix("~/")

        async def note(message: dict[str, Any], _: bytes) -> None:
            said = message.get("note")
            line = said.get("line") if isinstance(said, dict) else None
            self.tell(str(line))

        return await far.ask(str, "environment", into=environment, program=program, note=note)

    async def _check_packages(self, far: Far) -> None:
        wanted, python, lists = packages_needed(), self.wanted.remote.python.removeprefix("~/"), REQUIREMENTS[0]
        if OPTIMIZERS in requirements_of(self.wanted.config):
            wanted, lists = wanted | packages_needed(file=OPTIMIZERS), f"{lists} and {OPTIMIZERS}"
        found = await far.ask(dict[str, str | None], "packages", python=python, names=list(wanted))
        missing = [name for name in wanted if found.get(name) is None]
        if missing:
            raise UserError(
                f"{python} on {far.remote.address()} lacks {', '.join(missing)}",
                "remote.python",
                f"install {lists} there, or leave remote.python empty: an environment is then set up",
            )
        others = [
            f"{name} {found[name]} instead of {version}"
            for name, version in wanted.items()
            if str(found[name]).partition("+")[0] != version
        ]
        if others:
            self.tell(f"warning: {far.remote.address()} has other versions: {', '.join(others)}")

    async def _begin(self, far: Far, parcel: Parcel, inputs: Files, program: str, python: str) -> None:
        run = self.wanted.run
        self._asked = True
        try:
            await asyncio.to_thread(self._note)
            await far.ask(
                int, "begin", run=run, config=parcel.config.to_dict(), files=inputs, program=program, python=python,
                alongside=self.wanted.alongside,
            )  # fmt: skip
        except (Lost, Unreachable):  # it may have begun
            raise
        except (UserError, OSError):
            self._asked = False
            await asyncio.to_thread(self._forget)
            raise

    def _note(self) -> None:
        wanted = self.wanted
        if wanted.folder is not None and self.record is None:
            self._is_new, self._makes_folder = wanted.run not in records.known(), not wanted.folder.exists()
            self.record = records.begin_mirror(wanted.run, wanted.remote, wanted.config, wanted.folder)

    def _forget(self) -> None:
        record, self.record = self.record, None
        if record is not None and self._is_new:
            records.drop(record, self._makes_folder)


def _digest(files: Files) -> str:
    text = "\n".join(f"{name} {sha}" for name, (sha, _) in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _batches(files: Mapping[str, int]) -> Iterator[list[tuple[str, int]]]:
    """Groups of files that are sent at once."""
    batch: list[tuple[str, int]] = []
    for sha, size in files.items():
        if batch and sum(one for _, one in batch) + size > MAX_PIECE:
            yield batch
            batch = []
        batch.append((sha, size))
    if batch:
        yield batch


def _read(path: Path, size: int) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(size + 1)
    if len(data) != size:
        raise UserError(f"{path} changed while it was copied", hint="start again")
    return data


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
