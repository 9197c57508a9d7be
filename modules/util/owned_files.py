"""The only module that deletes, moves or replaces files; it does so inside a folder named for that purpose alone.

A name never leads out of its folder, not even through a link: its parent is resolved and compared with the resolved
root, then opened component by component without following links, and the change is made through that handle (where
the system has such handles). What is neither a file, a folder nor a link is refused. Every change is announced to an
observer, so that tests can stop the program before and after each of them.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from modules.util.errors import UserError
from modules.util.files.OpenFolder import (
    OpenFolder,
    announced,
    close,
    hold_folder,
    kind_of,
    read_plain,
    unheld,
)

Name = str | os.PathLike[str]

TEMPORARY = ".tastemaker-*.tmp"
OWN_PREFIXES = (".tastemaker-", ".pair_")
LIST_NAME = ".tastemaker-files.json"
MAX_LIST_BYTES = 16 << 20
MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4000
_FORMER = ".tastemaker-former-"
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def shown(path: Name, limit: int = 300) -> str:
    """A path as text for messages: what cannot be printed is escaped, the middle of a long one left out."""
    text = os.fspath(path).encode("utf-8", "backslashreplace").decode()
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[-limit // 2 :]}"


def fault_of_path(path: Name) -> str | None:
    """Why no file on this computer can have this path, as the end of a sentence; ``None`` if one can."""
    text = os.fspath(path)
    if "\0" in text:
        return "contains a NUL character"
    try:
        size = len(os.fsencode(text))
        longest = max(len(os.fsencode(part)) for part in re.split(r"[/\\]" if os.name == "nt" else "/", text))
    except UnicodeEncodeError:
        return "contains a character that no file name can have"
    if size > MAX_PATH_BYTES or longest > MAX_NAME_BYTES:
        return f"is too long: a name has up to {MAX_NAME_BYTES} bytes, a path up to {MAX_PATH_BYTES}"
    return None


def fsync_path(path: Name) -> None:
    """Flush a file or (where the platform can) a folder to the disk."""
    folder = Path(path).is_dir()
    if os.name == "nt" and folder:
        return
    with announced("fsync", path):
        descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Owned:
    """A folder in which the program may change what it made.

    Names are relative to the folder. A name is refused, with a ``UserError`` before anything is changed, if it is
    empty or absolute, has a drive, NUL, ``..`` or ``:``, is reserved on some system, or if its parent lies outside
    the folder once links are resolved; so are devices, FIFOs and sockets. A link is removed and moved as a link.

    Args:
        root: the folder; resolved once, here. It need not exist until something is written.
        local: names come from this computer (its user typed them, or a listing of the folder has them): only what
            this very system cannot have is refused, so ``:`` and reserved names pass where they are ordinary.

    Raises:
        UserError: no folder can have this path.
    """

    def __init__(self, root: Name, local: bool = False) -> None:
        fault = fault_of_path(root)
        if fault:
            raise UserError(f"the path {shown(root)} {fault}", hint="choose another folder")
        self.asked = Path(root)
        self.root = Path(os.path.realpath(root))
        self._strict = not local or os.name == "nt"

    # --- names ---

    def path(self, name: Name) -> Path:
        """Where a name leads: its parent resolved, its last part as it is.

        Raises:
            UserError: it is refused.
        """
        *folders, last = self._parts(name)
        real = Path(os.path.realpath(self.root.joinpath(*folders)))
        if not real.is_relative_to(self.root):
            raise self.refusal(name, f"leads out of {shown(self.root)}", real / last)
        return real / last

    def plain_file(self, name: Name) -> Path:
        """``path``, refused also where a link, a folder or a device has the name; nothing need be there.

        For files that a library opens by itself: databases, locks.
        """
        path = self.path(name)
        with suppress(FileNotFoundError, NotADirectoryError):
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode):
                raise self.refusal(name, f"is a {kind_of(mode)}", Path(os.path.realpath(path)))
        return path

    def _parts(self, name: Name) -> list[str]:
        text = os.fspath(name)
        if self._strict:
            text = text.replace("\\", "/")
        fault = fault_of_path(text)
        if fault:
            raise self.refusal(name, fault)
        if not text or text.startswith("/") or Path(text).is_absolute():
            raise self.refusal(name, "is not relative" if text else "is empty")
        parts = text.split("/")
        for part in parts:
            if part in ("", ".", ".."):
                raise self.refusal(name, f"has a part {part!r}")
            if self._strict and (":" in part or any(ord(c) < 32 for c in part)):
                raise self.refusal(name, "contains a colon or a control character")
            if self._strict and (_RESERVED.fullmatch(part) or part[-1] in ". "):
                raise self.refusal(name, f"has a part that is reserved: {part!r}")
        return parts

    def refusal(self, name: Name, why: str, leads_to: Path | None = None) -> UserError:
        """The error about a name that is left alone: what was asked for, and where it leads."""
        asked = shown(f"{self.asked}{os.sep}{os.fspath(name)}")
        resolved = f" (it leads to {shown(leads_to)})" if leads_to is not None else ""
        return UserError(
            f"{asked}{resolved} {why}: it is left as it is",
            hint="this program changes only its own files inside the folder it was given",
        )

    @contextmanager
    def _parent(self, name: Name, make: bool = False) -> Iterator[tuple[OpenFolder, str]]:
        """The open folder a name lies in, and its last part."""
        path = self.path(name)
        if make:
            self.root.mkdir(parents=True, exist_ok=True)
        with OpenFolder(self.root) as folder:
            try:
                for part in path.parent.relative_to(self.root).parts:
                    folder.enter(part, make)
            except NotADirectoryError as error:
                raise self.refusal(name, "lies below something that is not a folder", path) from error
            yield folder, path.name

    def _mode(self, folder: OpenFolder, last: str, name: Name) -> int | None:
        """What has the name; ``None`` if nothing has. Devices, FIFOs and sockets are refused."""
        mode = folder.mode(last)
        if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            raise self.refusal(name, f"is a {kind_of(mode)}", folder.path / last)
        return mode

    # --- deleting ---

    def remove(self, name: Name) -> bool:
        """Remove a file or a link; returns whether there was one.

        Raises:
            UserError: the name is refused, or a folder has it.
        """
        with suppress(FileNotFoundError), self._parent(name) as (folder, last):
            mode = self._mode(folder, last, name)
            if mode is not None and stat.S_ISDIR(mode):
                raise self.refusal(name, "is a folder", folder.path / last)
            if mode is not None:
                folder.unlink(last)
                return True
        return False

    def remove_tree(self, name: Name) -> bool:
        """Remove a folder with all that is in it (a file or a link too); returns whether there was one.

        Links in it are removed as links. Nothing is removed if it holds a device, FIFO or socket, or another disk.

        Raises:
            UserError: it is refused.
        """
        with suppress(FileNotFoundError), self._parent(name) as (folder, last):
            mode = self._mode(folder, last, name)
            if mode is not None and stat.S_ISDIR(mode):
                self._check_tree(folder, last, name)
                folder.remove_tree(last)
            elif mode is not None:
                folder.unlink(last)
            return mode is not None
        return False

    def discard(self, name: Name) -> None:
        """``remove_tree`` for a folder of which half would be taken for a whole one: it loses its name first.

        Raises:
            UserError: it is refused. FileNotFoundError: nothing has the name.
        """
        with self._parent(name) as (folder, last):
            mode = self._mode(folder, last, name)
            if mode is not None and stat.S_ISDIR(mode):
                self._check_tree(folder, last, name)
        doomed = f".tastemaker-{secrets.token_hex(8)}.tmp"
        self.move(name, doomed)
        self.remove_tree(doomed)

    def _check_tree(self, folder: OpenFolder, last: str, name: Name) -> None:
        reason = folder.why_tree_stays(last)
        if reason:
            raise self.refusal(name, reason, folder.path / last)

    def sweep(self, pattern: str) -> int:
        """Remove files and folders of temporary names that no living process holds: what a killed one left.

        Args:
            pattern: a folder without wildcards, then a pattern of names that begin with a prefix of the program's own
                and end in ``.tmp``: ``chosen/.pair_*.tmp``.

        Returns:
            How many were removed. A folder that is missing, or is reached through a link, holds none.
        """
        place, _, names = pattern.rpartition("/")
        if not names.startswith(OWN_PREFIXES) or not names.endswith(".tmp") or set(place) & set("*?["):
            raise ValueError(f"{pattern!r} does not name temporary files of the program alone")
        folder = self.root.joinpath(*place.split("/")) if place else self.root
        if Path(os.path.realpath(folder)) != folder or not folder.is_dir():
            return 0
        removed = 0
        for name in fnmatch.filter(os.listdir(folder), names):
            with suppress(OSError, UserError), unheld(folder / name):
                removed += self.remove_tree(f"{place}/{name}" if place else name)
        return removed

    # --- moving ---

    def move(self, name: Name, target: Name, replace: bool = False) -> None:
        """Give a file, folder or link another name in the folder.

        Args:
            replace: a file or link that has the name already is replaced; otherwise it is refused.

        Raises:
            UserError: a name is refused, or the target is taken.
            FileNotFoundError: nothing has the name.
        """
        with self._parent(name) as (source, last), self._parent(target, make=True) as (folder, fresh):
            if self._mode(source, last, name) is None:
                raise FileNotFoundError(2, os.strerror(2), str(source.path / last))
            there = self._mode(folder, fresh, target)
            if there is not None and (not replace or stat.S_ISDIR(there)):
                raise self.refusal(target, "is there already", folder.path / fresh)
            source.rename(last, folder, fresh)

    def folder(self, name: Name) -> Path:
        """Make a folder, and those above it, where they are missing; returns its path."""
        with self._parent(f"{os.fspath(name)}/x", make=True) as (folder, _):
            return folder.path

    def sync(self, name: Name) -> None:
        """Flush the names in a folder to the disk."""
        with self._parent(f"{os.fspath(name)}/x") as (folder, _):
            folder.fsync()

    # --- writing ---

    @contextmanager
    def write(self, name: Name, private: bool = False) -> Iterator[Path]:
        """Yield a temporary path next to ``name``; on success it is flushed to the disk and takes its place.

        If the block raises, the temporary file is removed and what was there is left as it was.

        Args:
            private: only its owner may read it, from the first moment on.

        Raises:
            UserError: the name is refused, or a folder or a device has it.
        """
        with self._parent(name, make=True) as (folder, last):
            self._check_place_of_file(folder, last, name)
            temporary, handle = folder.create(0o600 if private else 0o666)
            try:
                with announced("write", folder.path / last):
                    yield folder.path / temporary
                folder.fsync(temporary)
                self._check_place_of_file(folder, last, name)
                if os.name == "nt":
                    handle = close(handle)
                folder.rename(temporary, folder, last)
                folder.fsync()
            finally:
                close(handle)
                folder.unlink(temporary, missing_ok=True)

    def check_writable(self, name: Name, keep: Iterable[Name] = ()) -> None:
        """Refuse unless ``write`` may put a file there: nothing, a file or a link.

        Args:
            keep: files and folders that are to stay, the base model for one.

        Raises:
            UserError: a folder or a device has the name, or the file is one of ``keep`` or lies in a folder of it.
        """
        path = self.path(name)
        if not os.path.lexists(path):
            return
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise self.refusal(name, f"is a {kind_of(mode)}, and a file is to be written there", path)
        target = Path(os.path.realpath(path))
        for other in keep:
            real = Path(os.path.realpath(other))
            if real == target or real in target.parents[1:]:
                raise self.refusal(name, f"belongs to {shown(other)}, which is in use", target)

    def _check_place_of_file(self, folder: OpenFolder, last: str, name: Name) -> None:
        mode = self._mode(folder, last, name)
        if mode is not None and stat.S_ISDIR(mode):
            raise self.refusal(name, "is a folder", folder.path / last)

    def take(self, source: Path, name: Name) -> None:
        """Give a finished file a second name in the folder: a hard link, or a copy where there cannot be one.

        What has the name already is replaced.

        Raises:
            UserError: the name is refused, or the source is not a plain file.
        """
        if not stat.S_ISREG(source.lstat().st_mode):
            raise UserError(f"{shown(source)} is not a plain file", hint="choose a plain file")
        with self._parent(name, make=True) as (folder, last):
            self._check_place_of_file(folder, last, name)
            if folder.link(source, last):
                return
        with self.write(name) as temporary, source.open("rb") as reader, temporary.open("wb") as writer:
            while block := reader.read(1 << 20):
                writer.write(block)

    def append(self, name: Name, data: bytes) -> None:
        """Add bytes to the end of a file, which is made where it is missing, and flush them to the disk.

        Raises:
            UserError: the name is refused, or something other than a file has it, a link included.
        """
        with self._parent(name, make=True) as (folder, last):
            mode = self._mode(folder, last, name)
            if mode is not None and not stat.S_ISREG(mode):
                raise self.refusal(name, f"is a {kind_of(mode)}", folder.path / last)
            folder.append(last, data)
            if mode is None:
                folder.fsync()

    # --- whole folders ---

    @contextmanager
    def fresh_folder(self) -> Iterator[Path]:
        """A new folder under a temporary name, for ``replace_folder``; removed afterwards if it is still there."""
        name = f".tastemaker-{secrets.token_hex(8)}.tmp"
        path = self.folder(name)
        handle = hold_folder(path)
        try:
            yield path
        finally:
            close(handle)
            self.remove_tree(name)

    def check_replaceable(self, name: Name, keep: Iterable[Name] = ()) -> None:
        """Refuse unless ``replace_folder`` may put a folder there: nothing, an empty folder, or one written by it.

        Args:
            keep: files and folders that are to stay, the base model for one.

        Raises:
            UserError: it may not; the message names what is in the way.
        """
        path = self.path(name)
        mode = path.lstat().st_mode if os.path.lexists(path) else None
        if mode is None:
            return
        if not stat.S_ISDIR(mode):
            raise self.refusal(name, f"is a {kind_of(mode)}, and a folder is to be written there", path)
        for other in keep:
            real = Path(os.path.realpath(other))
            if real.exists() and real.is_relative_to(path):
                raise self.refusal(name, f"is or holds {shown(other)}, which is in use", path)
        foreign = list(islice(_foreign_files(path), 6))
        if foreign:
            names = ", ".join(shown(found) for found in foreign[:5]) + (", ..." if foreign[5:] else "")
            raise self.refusal(name, f"holds files that its list {LIST_NAME} does not name ({names})", path)

    def replace_folder(self, fresh: Path, name: str, keep: Iterable[Name] = ()) -> None:
        """Put a finished folder (of ``fresh_folder``) in the place of another one, with a list of its files.

        What was there stays under a hidden name until the new one is on the disk; ``restore_folder`` finds it after
        a kill in between.

        Raises:
            UserError: ``check_replaceable`` refuses.
        """
        self.restore_folder(name)
        self.check_replaceable(name, keep)
        sizes = {found: size for found, size in _files_below(fresh) if found != LIST_NAME}
        with Owned(fresh).write(LIST_NAME) as temporary, temporary.open("w", encoding="utf-8") as stream:
            json.dump({"format": 1, "files": sizes}, stream, indent=1)
        for folder, _, files in os.walk(fresh, topdown=False):
            for path in (*(Path(folder, file) for file in sorted(files)), Path(folder)):
                fsync_path(path)
        former = f"{_FORMER}{name}"
        replaces = os.path.lexists(self.path(name))
        if replaces:
            self.move(name, former)
        try:
            self.move(fresh.name, name)
        except OSError:
            if replaces:
                self.move(former, name)
            raise
        fsync_path(self.root)
        if replaces:
            self.discard(former)

    def restore_folder(self, name: str) -> bool:
        """Bring back a folder whose replacement was cut off by a kill; one whose successor is there is removed.

        Returns:
            Whether it was brought back.
        """
        path, former = self.path(name), self.path(f"{_FORMER}{name}")
        if not former.is_dir() or former.is_symlink() or any(_foreign_files(former)):
            return False
        if not os.path.lexists(path):
            self.move(former.name, name)
            fsync_path(self.root)
            return True
        if (path / LIST_NAME).is_file() and not path.is_symlink() and not any(_foreign_files(path)):
            self.discard(former.name)
        return False


def _files_below(folder: Path) -> Iterator[tuple[str, int]]:
    """Names (with ``/``) and sizes of what is in a folder and its folders; -1 where it is not a file."""
    waiting = [""]
    while waiting:
        place = waiting.pop()
        with os.scandir(folder / place) as entries:
            for entry in sorted(entries, key=lambda found: found.name):
                name = f"{place}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{name}/")
                else:
                    plain = entry.is_file(follow_symlinks=False)
                    yield name, entry.stat(follow_symlinks=False).st_size if plain else -1


def _foreign_files(folder: Path) -> Iterator[str]:
    """What in a folder is not on the list that was written with it, or not as long as it was."""
    listed: object = None
    with suppress(OSError, ValueError, RecursionError):
        listed = json.loads(read_plain(folder / LIST_NAME, MAX_LIST_BYTES))
    files = listed.get("files") if isinstance(listed, dict) else None
    known = files if isinstance(files, dict) else {}
    for name, size in _files_below(folder):
        if size < 0 or (name != LIST_NAME and known.get(name) != size) or (name == LIST_NAME and not known):
            yield name
