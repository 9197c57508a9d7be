"""Runs on the other computer: starting, watching, reading and removing them there, through ``modules/runner``."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from modules.remote.there.digest import digest_of
from modules.remote.there.limits import GROWING, MAX_FILES, MAX_PIECE, RUN_ID
from modules.runner.devices import run_using, waiting_for
from modules.runner.known_runs import one_start_at_a_time
from modules.runner.launcher import launch, log_tail, settle
from modules.runner.RunDirectory import RunDirectory
from modules.runner.status import read_status
from modules.util.errors import UserError
from modules.util.owned_files import Owned, shown

RUNS, INPUTS, PROGRAMS = "runs", "inputs", "programs"
BEAT_SECONDS, POLL_SECONDS = 5.0, 0.2
OWN = ("commands", "run.lock", "process.json", "launch.json", "config.json")
"""Settings that only have a meaning on the computer that trains."""
LOG_BYTES = 4000

Send = Callable[[Mapping[str, Any], bytes], None]
"""Sends an object, and the bytes that belong to it."""


def open_run(root: Path, name: object) -> RunDirectory:
    """Open a run below the program's folder.

    Raises:
        UserError: the run does not exist.
    """
    if not isinstance(name, str) or not RUN_ID.fullmatch(name):
        raise UserError(f"{shown(str(name))} is not the name of a run")
    run = RunDirectory(Owned(root, local=True).path(f"{RUNS}/{name}"))
    if not run.path.is_dir():
        raise UserError(f"there is no run {name} in {shown(root)}", hint="see: train_remote.py status")
    return run


def check_startable(root: Path, name: str) -> None:
    """Raise ``UserError`` unless this is the name of a run without a trainer."""
    if not RUN_ID.fullmatch(name):
        raise UserError(f"{shown(name)} is not the name of a run")
    run = RunDirectory(Owned(root, local=True).path(f"{RUNS}/{name}"))
    if run.is_live():
        raise UserError(f"the run {name} is already running", hint=f"stop it first: train_remote.py send stop {name}")


def begin(root: Path, name: str, config: Mapping[str, Any], command: Sequence[str], alongside: bool) -> int:
    """Start a trainer that outlives the connection. Returns its process number.

    Args:
        name: one that ``check_startable`` accepts.
        command: the interpreter and the script; config and folder of the run are appended.
        alongside: whether to start even if another run uses the device.

    Raises:
        UserError: another run uses the device, or this one is running.
    """
    run = RunDirectory(Owned(root, local=True).folder(f"{RUNS}/{name}"))
    line = [*command, "--config-path", str(run.config_path), "--run-dir", str(run.path)]
    with one_start_at_a_time():
        device = str(config.get("train_device", "auto"))
        other = None if alongside else run_using(device, run)
        if other is not None:
            raise UserError(
                f"the run {waiting_for(other, device)}",
                hint="start it again when that run has ended, or use --alongside",
            )
        return launch(run, config, line).pid


def describe(root: Path, name: str) -> dict[str, Any]:
    """Return what ``runctl.py status`` reports about a run, and the end of its output if it failed."""
    run = open_run(root, name)
    if not run.is_live():
        settle(run)
    made = {**read_status(run).to_dict(), "run": name}
    if made["state"] in ("failed", "died"):
        made["log"] = log_tail(run, LOG_BYTES)
    return made


def names_of_runs(root: Path) -> list[str]:
    """All runs below the program's folder."""
    base = root / RUNS
    found = sorted(path.name for path in base.iterdir()) if base.is_dir() else []
    return [name for name in found if RUN_ID.fullmatch(name)]


def tail(root: Path, name: str, offset: int, sha256: str, send: Send) -> dict[str, Any]:
    """Send the events of a run from an offset on, as they are written, until the run has ended.

    Args:
        offset: number of bytes the other side has.
        sha256: hash of these bytes. If the file begins with others, it is sent from its start.

    Returns:
        The final state.
    """
    run = open_run(root, name)
    path = run.events_path
    size = path.stat().st_size if path.exists() else 0
    # a file that does not exist yet has no bytes
    if offset > size or digest_of(path if size else Path(os.devnull), offset) != sha256:
        offset = 0
    send({"from": offset}, b"")
    beat = time.monotonic()
    while True:
        ended = not run.is_live() and settle(run) is not None
        for block in _blocks(path, offset):
            offset += len(block)
            send({}, block)
            beat = time.monotonic()
        if ended or (not run.is_live() and not run.launch_record()):
            return {"state": read_status(run).state, "size": offset}
        if time.monotonic() - beat > BEAT_SECONDS:
            send({"beat": True}, b"")
            beat = time.monotonic()
        time.sleep(POLL_SECONDS)


def _blocks(path: Path, offset: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            while block := stream.read(1 << 20):
                yield block
    except FileNotFoundError:
        return


def contents(root: Path, name: str) -> list[tuple[str, int]]:
    """Files in a run's folder with their sizes, except links and devices.

    Raises:
        UserError: the run does not exist, or has too many files.
    """
    run = open_run(root, name)
    found: list[tuple[str, int]] = []
    for folder, folders, names in os.walk(run.path):
        folders.sort()
        for one in sorted(names):
            path = Path(folder, one)
            relative = path.relative_to(run.path).as_posix()
            mode = path.lstat()
            if stat.S_ISREG(mode.st_mode) and relative.partition("/")[0] not in OWN:
                found.append((relative, mode.st_size))
        if len(found) > MAX_FILES:
            raise UserError(f"the run {name} has more than {MAX_FILES} files")
    return found


def digests(root: Path, name: str, wanted: Mapping[str, int]) -> dict[str, str]:
    """SHA-256 of the first bytes of files of a run. Missing files are left out."""
    owned = Owned(open_run(root, name).path, local=True)
    made = {}
    for one, size in wanted.items():
        path = owned.plain_file(one)
        if path.exists():
            made[one] = digest_of(path, size)
    return made


def piece(root: Path, name: str, file: str, offset: int, size: int) -> bytes:
    """Read bytes of a file of a run; fewer at its end."""
    path = Owned(open_run(root, name).path, local=True).plain_file(file)
    with path.open("rb") as stream:
        stream.seek(offset)
        return stream.read(min(size, MAX_PIECE))


def clean(root: Path, name: str, fetched: Mapping[str, str]) -> list[str]:
    """Remove an ended run with its copies of data. Files that were not fetched stay.

    Args:
        fetched: files that the other side has, with their hashes.

    Returns:
        The files that stayed.

    Raises:
        UserError: the run is active.
    """
    run, top = open_run(root, name), Owned(root, local=True)
    with run.undisturbed() as alone:
        _check_ended(run, alone)
        owned = Owned(run.path, local=True)
        same = {
            one: fetched.get(one) == digest_of(owned.plain_file(one)) for one, _ in contents(root, name)
        }
        stays = [
            one
            for one, is_there in same.items()
            if not is_there and not one.rpartition("/")[2].startswith(".tastemaker-")
        ]
        with one_start_at_a_time():
            # hashing takes long, and somebody may have resumed the run meanwhile
            _check_ended(run, alone)
            for one in same:
                # events say how the run ended, so they stay as long as anything does
                if same[one] and one not in GROWING:
                    owned.remove(one)
            top.remove_tree(f"{INPUTS}/{name}")
            if not stays:
                top.remove_tree(f"{RUNS}/{name}")
    return stays


def _check_ended(run: RunDirectory, alone: bool) -> None:
    """Raise ``UserError`` if a trainer works in a run or is starting."""
    if not alone or run.is_live():
        name = run.path.name
        raise UserError(
            f"the run {name} is running", hint=f"stop it first: train_remote.py send stop {name}"
        )


def programs_in_use(root: Path) -> set[str]:
    """Copies of the program with which existing runs were started."""
    found = set()
    for name in names_of_runs(root):
        command = open_run(root, name).launch_record().get("command")
        for word in command if isinstance(command, list) else ():
            parts = Path(str(word)).parts
            if PROGRAMS in parts[:-1]:
                found.add(parts[parts.index(PROGRAMS) + 1])
    return found
