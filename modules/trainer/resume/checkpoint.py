"""Backups: everything a run needs to resume as if it had never stopped, written completely or not at all.

A backup is a folder ``<time>-backup-<global>-<epoch>-<step>`` of files and a ``manifest.json`` with their
digests. It is made under a temporary name, flushed to disk and renamed. A folder whose manifest does not
match is skipped in favour of the previous one.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from modules.trainer.evaluate.best import read_tensors
from modules.trainer.resume.backup_contents import problem_of_facts, problem_of_weights
from modules.util.errors import DataError, UserError, refused_as
from modules.util.jsonio import read_json, write_json
from modules.util.owned_files import TEMPORARY, Owned, fault_of_path, fsync_path
from modules.util.tensors.tensor_files import write_safetensors, write_torch
from modules.util.TrainProgress import TrainProgress

_log = logging.getLogger(__name__)

FORMAT = 1
MANIFEST, META, CONFIG = "manifest.json", "meta.json", "config.json"
OPTIMIZER, WEIGHTS = "optimizer/optimizer.pt", "weights/weights.safetensors"
_NAME = re.compile(r"(?P<time>\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)-backup-(?P<step>\d+)-(\d+)-(\d+)")
_FORMER_TEMPORARY = ".tmp-"
_OWN_FILE = re.compile(r"(manifest|meta|config)\.json|optimizer/optimizer\.pt|(\w+)/\2\.safetensors")


@dataclass
class Snapshot:
    """The contents of a backup.

    Args:
        tensors: sets of tensors by name (``weights``, ``ema``, ``reference``), one file each.
        files: finished files to include, by name, as hard links if possible.
        optimizer: state of the optimizer: tensors and plain values.
        state: small JSON values (patience, adaptive beta, loss scale, ...).
    """

    progress: TrainProgress
    tensors: dict[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


# -- writing -------------------------------------------------------------------------------------------------


def write_backup(folder: Path, snapshot: Snapshot, keep: int | None = None) -> Path:
    """Write a backup below ``folder``. Only the newest ``keep`` backups there stay (all if ``None``).

    Raises:
        UserError: the disk is full or not writable. Earlier backups are untouched.
    """
    name = f"{_stamp(folder)}-backup-{snapshot.progress.label()}"
    target, owned = folder / name, Owned(folder, local=True)
    with refused_as(
        f"the backup {target} cannot be written",
        hint="make room on the disk; the backups before it are intact",
    ):
        remove_unfinished(folder)
        if target.exists():
            if backup_problem(target) is None:
                # the same position within the same second, so the content is the same
                return target
            remove_backup(target)
        with owned.fresh_folder() as temporary:
            _write_files(temporary, snapshot)
            owned.move(temporary.name, name)
            fsync_path(folder)
    # a damaged one of a later step may count as newer where the clock went back
    others = [path for path in list_backups(folder) if path != target]
    for old in others[keep - 1 :] if keep else []:
        try:
            remove_backup(old)
        except UserError as error:
            _log.warning("%s (%s)", error.message, error.hint)
        except OSError as error:
            raise UserError(
                f"the backup {target} is written, but the old one {old} cannot be removed: {error.strerror}",
                hint="check the permissions of this folder",
            ) from error
    return target


def _stamp(folder: Path) -> str:
    """A timestamp that is never before that of an earlier backup, because the newest is found by name."""
    now = time.strftime("%Y-%m-%d_%H-%M-%S")
    return max([now, *(p.name[: len(now)] for p in list_backups(folder)[:1])])


def _write_files(folder: Path, snapshot: Snapshot) -> None:
    owned = Owned(folder, local=True)
    for name, tensors in snapshot.tensors.items():
        with owned.write(f"{name}/{name}.safetensors") as path:
            write_safetensors(tensors, path)
    for name, source in snapshot.files.items():
        taken = f"{name}/{name}{source.suffix}"
        owned.take(source, taken)
        fsync_path(folder / taken)
    with owned.write(OPTIMIZER) as path:
        write_torch(snapshot.optimizer, path)
    write_json(folder / META, {"train_progress": snapshot.progress.to_dict(), "state": snapshot.state})
    write_json(folder / CONFIG, snapshot.config)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {path.relative_to(folder).as_posix(): _digest(path) for path in files}
    write_json(folder / MANIFEST, {"format": FORMAT, "files": digests})
    for path in [*(p for p in folder.iterdir() if p.is_dir()), folder]:
        fsync_path(path)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


def remove_backup(path: Path) -> None:
    """Delete a backup. If this is interrupted, the rest is not a valid backup.

    Raises:
        UserError: it contains files that this program did not write.
    """
    for found in sorted(path.rglob("*")):
        name = found.relative_to(path).as_posix()
        if found.is_symlink() or not (found.is_dir() or _OWN_FILE.fullmatch(name)):
            raise UserError(
                f"the old backup {path} is kept: it holds {name}, which this program did not put there",
                hint="move that file elsewhere, and the backup is removed after the next one",
            )
    Owned(path.parent, local=True).discard(path.name)


def remove_unfinished(folder: Path) -> None:
    """Delete what killed processes left behind, including under names used by earlier versions."""
    owned = Owned(folder, local=True)
    owned.sweep(TEMPORARY)
    for path in folder.glob(f"{_FORMER_TEMPORARY}*"):
        if _NAME.fullmatch(path.name.removeprefix(_FORMER_TEMPORARY)):
            owned.remove_tree(path.name)


# -- reading -------------------------------------------------------------------------------------------------


def list_backups(folder: Path) -> list[Path]:
    """Backups, newest first, including damaged ones."""
    if not folder.is_dir():
        return []

    def age(path: Path) -> tuple[str, int]:
        found = _NAME.fullmatch(path.name)
        return (found["time"], int(found["step"])) if found else ("", 0)

    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), key=age, reverse=True)


def backup_problem(path: Path) -> str | None:
    """The fault of a backup, or ``None``."""
    try:
        manifest = read_json(path / MANIFEST, "manifest")
    except UserError as error:
        return error.message
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        return "its manifest is not valid"
    if manifest.get("format") != FORMAT:
        return f"it has format {manifest.get('format')!r}, this program knows {FORMAT}"
    for name in (META, CONFIG, OPTIMIZER):
        if name not in manifest["files"]:
            return f"its manifest does not name {name}"
    for name, digest in manifest["files"].items():
        file = path / name
        if fault_of_path(name) or not file.resolve().is_relative_to(path.resolve()):
            return f"its manifest names {name!r:.300}"
        if not file.is_file() or _digest(file) != digest:
            return f"{name} is missing or damaged"
    return _problem_inside(path, manifest["files"])


def _problem_inside(path: Path, files: Mapping[str, str]) -> str | None:
    try:
        facts, config = read_json(path / META, "backup"), read_json(path / CONFIG, "config")
    except UserError as error:
        return error.message
    if not isinstance(config, dict):
        return f"{CONFIG} holds no settings"
    if WEIGHTS not in files:
        return f"its manifest does not name {WEIGHTS}"
    label = path.name.partition("-backup-")[2]
    problem = problem_of_facts(facts, label, "best/best.safetensors" in files)
    for name in sorted(files) if problem is None else ():
        if name.endswith(".safetensors") and not name.startswith("rollout/"):
            problem = problem or problem_of_weights(path / name)
    return problem


def find_backup(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest valid backup, and why newer ones are skipped."""
    problems: list[str] = []
    for path in list_backups(folder):
        problem = backup_problem(path)
        if problem is None:
            return path, problems
        problems.append(f"the backup {path.name} is skipped: {problem}")
    return None, problems


def newest_state(folder: Path) -> Mapping[str, Any] | None:
    """The state in the newest backup whose facts are valid; ``None`` without one. Digests are not compared: this looks
    ahead to a resumed run, which compares them itself.
    """
    for path in list_backups(folder):
        try:
            files, facts = read_json(path / MANIFEST, "manifest")["files"], read_json(path / META, "backup")
        except (UserError, LookupError, TypeError):
            # the run says why it skips this one
            continue
        if isinstance(files, dict) and _problem_inside(path, files) is None:
            state: Mapping[str, Any] = facts["state"]
            return state
    return None


def read_backup(path: Path) -> Snapshot:
    """Read a backup. The optimizer's file may hold only tensors and plain values.

    Raises:
        DataError: the backup is damaged.
    """
    problem = backup_problem(path)
    if problem:
        raise DataError(f"the backup {path} cannot be used: {problem}", hint="resume from another backup")
    meta, config = read_json(path / META, "backup"), read_json(path / CONFIG, "config")
    tensors: dict[str, Mapping[str, torch.Tensor]] = {}
    files: dict[str, Path] = {}
    for name in sorted(read_json(path / MANIFEST, "manifest")["files"]):
        file = path / name
        if file.suffix != ".safetensors":
            continue
        if file.stem == "best":
            files[file.stem] = file
        else:
            tensors[file.stem] = read_tensors(file, "the backup")
    try:
        optimizer = torch.load(path / OPTIMIZER, map_location="cpu", weights_only=True)
        progress = TrainProgress.from_dict(meta["train_progress"])
        return Snapshot(progress, tensors, files, optimizer, meta["state"], config)
    except (LookupError, TypeError, AttributeError, EOFError, pickle.UnpicklingError, RuntimeError) as error:
        raise DataError(f"the backup {path} cannot be read: {error}") from error
