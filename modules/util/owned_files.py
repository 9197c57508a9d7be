"""The only module that deletes, moves or replaces files, and only inside a folder named for that purpose.

A name never leads out of its folder, not even through a link. Its parent is resolved and compared with the
resolved root, then opened component by component without following links, and the change is made through that
handle (if the system has such handles). Anything but a file, a folder or a link is refused. An observer is
notified of every change, so that tests can interrupt the program before and after each of them.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count, islice
from pathlib import Path

from modules.util.errors import UserError
from modules.util.files.OpenFolder import (
    TELLS_WHO_WORKS,
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
    """A path as text for messages. Unprintable characters are escaped, long paths are shortened in the middle."""
    text = os.fspath(path).encode("utf-8", "backslashreplace").decode()
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[-limit // 2 :]}"


def fault_of_path(path: Name) -> str | None:
    """Return the reason why this path is impossible on this computer, as the end of a sentence; ``None`` if it
    is possible.
    """
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
    """Flush a file or (if the platform can) a folder to disk."""
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
    """A folder in which the program may change its own files.

    Names are relative to the folder. A name is refused, with a ``UserError`` before anything is changed, if
    it is empty or absolute, contains a drive, NUL, ``..`` or ``:``, is reserved on any system, or if its
    parent is outside the folder once links are resolved. Devices, FIFOs and sockets are refused too. Links
    are removed and moved as links.

    Args:
        root: the folder, resolved once on creation. It need not exist until something is written.
        local: whether names come from this computer (typed by its user or listed from the folder). Then only
            names impossible on this system are refused, so that ``:`` and reserved names are accepted if they
            are ordinary here.

    Raises:
        UserError: the path is impossible for a folder.
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
        """The path of a name, with its parent resolved and its last component unchanged.

        Raises:
            UserError: the name is refused.
        """
        *folders, last = self._parts(name)
        real = Path(os.path.realpath(self.root.joinpath(*folders)))
        if not real.is_relative_to(self.root):
            raise self.refusal(name, f"leads out of {shown(self.root)}", real / last)
        return real / last

    def plain_file(self, name: Name) -> Path:
        """As ``path``, but links, folders and devices are refused too. The file need not exist.

        For files that a library opens itself: databases, locks.
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
        """The error about a refused name: what was requested, and where it leads."""
        asked = shown(f"{self.asked}{os.sep}{os.fspath(name)}")
        resolved = f" (it leads to {shown(leads_to)})" if leads_to is not None else ""
        return UserError(
            f"{asked}{resolved} {why}: it is left as it is",
            hint="this program changes only its own files inside the folder it was given",
        )

    @contextmanager
    def _parent(self, name: Name, make: bool = False) -> Iterator[tuple[OpenFolder, str]]:
        """Open the folder that contains a name. Yields it with the last component."""
        path = self.path(name)
        if make:
            self.root.mkdir(parents=True, exist_ok=True)
        with OpenFolder(self.root) as folder:
            try:
                for part in path.parent.relative_to(self.root).parts:
                    folder.enter(part, make)
            except NotADirectoryError as error:
                raise self.refusal(name, "is below something that is not a folder", path) from error
            yield folder, path.name

    def _mode(self, folder: OpenFolder, last: str, name: Name) -> int | None:
        """The mode of a name; ``None`` if it does not exist. Devices, FIFOs and sockets are refused."""
        mode = folder.mode(last)
        if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            raise self.refusal(name, f"is a {kind_of(mode)}", folder.path / last)
        return mode

    # --- deleting ---

    def remove(self, name: Name) -> bool:
        """Remove a file or a link. Returns whether there was one.

        Raises:
            UserError: the name is refused, or is a folder.
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
        """Remove a folder with everything in it, or a file or link. Returns whether there was one.

        Links in it are removed as links. Nothing is removed if it contains a device, FIFO, socket or mount
        point.

        Raises:
            UserError: the removal is refused.
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
        """As ``remove_tree``, but the folder is renamed first, so that a partly removed one cannot be
        mistaken for a complete one.

        Raises:
            UserError: the removal is refused. FileNotFoundError: the name does not exist.
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
        """Remove temporary files and folders left by killed processes, unless a running process holds them.

        Args:
            pattern: a folder without wildcards, then a pattern of names that start with a prefix of this
                program and end in ``.tmp``: ``chosen/.pair_*.tmp``.

        Returns:
            Number of removed files and folders; 0 if the folder is missing or reached through a link.
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
        """Rename a file, folder or link within the folder.

        Args:
            replace: whether to replace an existing file or link, which is otherwise refused.

        Raises:
            UserError: a name is refused, or the target exists.
            FileNotFoundError: the name does not exist.
        """
        with self._parent(name) as (source, last), self._parent(target, make=True) as (folder, fresh):
            if self._mode(source, last, name) is None:
                raise FileNotFoundError(2, os.strerror(2), str(source.path / last))
            there = self._mode(folder, fresh, target)
            if there is not None and (not replace or stat.S_ISDIR(there)):
                raise self.refusal(target, "already exists", folder.path / fresh)
            source.rename(last, folder, fresh)

    def put_aside(self, name: str) -> str:
        """Give a file of a person in this folder a name that nothing here uses, and return it:
        ``NAME.before-<time>-<letters>.EXTENSION``.

        Raises:
            UserError: the name is refused.
        """
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        aside = f"{Path(name).stem}.before-{stamp}{Path(name).suffix}"
        self.move(name, aside)
        return aside

    def folder(self, name: Name) -> Path:
        """Create a folder and its parents if they are missing. Returns its path."""
        with self._parent(f"{os.fspath(name)}/x", make=True) as (folder, _):
            return folder.path

    def sync(self, name: Name) -> None:
        """Flush the names in a folder to disk."""
        with self._parent(f"{os.fspath(name)}/x") as (folder, _):
            folder.fsync()

    # --- writing ---

    @contextmanager
    def write(self, name: Name, private: bool = False, replace: bool = True) -> Iterator[Path]:
        """Yield a temporary path next to ``name``. On success, that file is flushed to disk and replaces
        ``name``.

        If the block raises, the temporary file is removed and an existing file is unchanged. Who may read the new file
        is decided by the one that it replaces, or else by the system.

        Args:
            private: whether only its owner may read it, from the first moment on.
            replace: whether to replace an existing file. Otherwise whatever has the name stays, and the finished file
                gets another name, which the error tells.

        Raises:
            UserError: the name is refused, is a folder or a device, or is taken.
        """
        with self._parent(name, make=True) as (folder, last):
            if replace:
                self._check_place_of_file(folder, last, name)
            before = folder.mode(last) if replace and not private else None
            kept = None if before is None or not stat.S_ISREG(before) else stat.S_IMODE(before) & 0o777 | 0o600
            temporary, handle = folder.create(0o600 if private else 0o666 if kept is None else kept)
            rights = stat.S_IMODE(os.fstat(handle).st_mode) if kept is None else kept
            try:
                with announced("write", folder.path / last):
                    yield folder.path / temporary
                # some libraries replace the file by one that only its owner may read
                folder.permit(temporary, rights)
                folder.fsync(temporary)
                if replace:
                    self._check_place_of_file(folder, last, name)
                if os.name == "nt":
                    handle = close(handle)
                if replace:
                    folder.rename(temporary, folder, last)
                    folder.fsync()
                else:
                    _name_new(folder, last, Path(last).suffix, lambda free: folder.name_file(temporary, free))
            finally:
                close(handle)
                folder.unlink(temporary, missing_ok=True)

    def check_writable(self, name: Name, keep: Iterable[Name] = ()) -> None:
        """Check that ``write`` may write there: the name is free, a file or a link.

        Args:
            keep: files and folders to keep, such as the base model.

        Raises:
            UserError: the name is a folder or a device, or the file is in ``keep`` or in one of its folders.
        """
        path = self.path(name)
        if not os.path.lexists(path):
            return
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise self.refusal(name, f"is a {kind_of(mode)}, but a file is to be written there", path)
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
        """Give a finished file a second name in the folder: a hard link, or a copy if linking is impossible.

        An existing file of that name is replaced.

        Raises:
            UserError: the name is refused, or the source is not a plain file.
        """
        if not stat.S_ISREG(source.lstat().st_mode):
            raise UserError(f"{shown(source)} is not a plain file", hint="choose a plain file")
        with self._parent(name, make=True) as (folder, last):
            self._check_place_of_file(folder, last, name)
            if folder.link(source, last):
                return
        self.copy(source, name)

    def copy(self, source: Path, name: Name) -> None:
        """Write the content of a file from elsewhere. An existing file of that name is replaced.

        Raises:
            UserError: the name is refused.
        """
        with self.write(name) as temporary, source.open("rb") as reader, temporary.open("wb") as writer:
            while block := reader.read(1 << 20):
                writer.write(block)

    def append(self, name: Name, data: bytes) -> None:
        """Append bytes to a file, created if missing, and flush them to disk.

        Raises:
            UserError: the name is refused, or is anything but a file, including a link.
        """
        with self._parent(name, make=True) as (folder, last):
            mode = self._mode(folder, last, name)
            if mode is not None and not stat.S_ISREG(mode):
                raise self.refusal(name, f"is a {kind_of(mode)}", folder.path / last)
            folder.append(last, data)
            if mode is None:
                folder.fsync()

    # --- whole folders ---

    def is_vacant(self) -> bool:
        """Return whether the folder can be filled: it is empty, or nothing is there. What killed attempts at
        ``filled_at_once`` left is removed first, but nothing from a folder that holds anything else. What they left
        next to the folder stays on Windows, where nothing tells it from what another process is just writing.
        """
        there = os.listdir(self.root) if self.root.is_dir() else []
        if len(fnmatch.filter(there, TEMPORARY)) < len(there):
            return False
        for place in (self.root, self.root.parent) if TELLS_WHO_WORKS else (self.root,):
            if place.is_dir():
                Owned(place, local=not self._strict).sweep(TEMPORARY)
        return not os.path.lexists(self.root) or (self.root.is_dir() and not os.listdir(self.root))

    @contextmanager
    def filled_at_once(self, last: str) -> Iterator[Owned]:
        """Yield an empty folder, whose content moves into this one at the end. If this one does not exist, the whole
        folder takes its name, so that even a killed process leaves all or nothing of it.

        If the block raises, or a name is taken by then, this folder is left as it was found: nothing of it remains,
        and folders created for it are removed, unless others have put something into them.

        Args:
            last: the name that moves last. Once it is there, all are.

        Raises:
            UserError: a name is taken.
        """
        missing = [path for path in self.root.parents if not path.exists()]
        try:
            if not self.root.exists():
                above = Owned(self.root.parent, local=not self._strict)
                above.root.mkdir(parents=True, exist_ok=True)
                with above.fresh_folder() as path:
                    yield Owned(path, local=not self._strict)
                    above.move(path.name, self.root.name)
                fsync_path(above.root)
                return
            with self.fresh_folder() as path:
                yield Owned(path, local=not self._strict)
                moved: list[str] = []
                try:
                    for name in sorted(os.listdir(path), key=lambda name: (name == last, name)):
                        self.move(f"{path.name}/{name}", name)
                        moved.append(name)
                except BaseException:
                    for name in moved:
                        self.move(name, f"{path.name}/{name}")
                    raise
            fsync_path(self.root)
        except BaseException:
            for path in missing:
                with suppress(OSError):
                    path.rmdir()
            raise

    @contextmanager
    def fresh_folder(self) -> Iterator[Path]:
        """Yield a new folder under a temporary name, for ``replace_folder``. It is removed afterwards if it
        still exists.
        """
        name = f".tastemaker-{secrets.token_hex(8)}.tmp"
        path = self.folder(name)
        handle = hold_folder(path)
        try:
            yield path
        finally:
            close(handle)
            self.remove_tree(name)

    def check_replaceable(self, name: Name, keep: Iterable[Name] = ()) -> None:
        """Check that ``replace_folder`` may write there: the name is free, an empty folder, or one written by
        it.

        Args:
            keep: files and folders to keep, such as the base model.

        Raises:
            UserError: it may not. The message names what is in the way.
        """
        path = self.path(name)
        mode = path.lstat().st_mode if os.path.lexists(path) else None
        if mode is None:
            return
        if not stat.S_ISDIR(mode):
            raise self.refusal(name, f"is a {kind_of(mode)}, but a folder is to be written there", path)
        for other in keep:
            real = Path(os.path.realpath(other))
            if real.exists() and real.is_relative_to(path):
                raise self.refusal(name, f"is or holds {shown(other)}, which is in use", path)
        foreign = list(islice(_foreign_files(path), 6))
        if foreign:
            names = ", ".join(shown(found) for found in foreign[:5]) + (", ..." if foreign[5:] else "")
            raise self.refusal(name, f"holds files that its list {LIST_NAME} does not name ({names})", path)

    def replace_folder(
        self, fresh: Path, name: str, keep: Iterable[Name] = (), replace: bool = True
    ) -> None:
        """Replace a folder by a finished one (from ``fresh_folder``), with a list of its files.

        The old folder keeps a hidden name until the new one is on disk. If the process is killed in between,
        ``restore_folder`` finds it.

        Args:
            keep: as for ``check_replaceable``.
            replace: whether to replace an existing folder. Otherwise whatever has the name stays, and the finished
                folder gets another name, which the error tells.

        Raises:
            UserError: ``check_replaceable`` refuses, or the name is taken.
        """
        self.restore_folder(name)
        if replace:
            self.check_replaceable(name, keep)
        sizes = {found: size for found, size in _files_below(fresh) if found != LIST_NAME}
        with Owned(fresh).write(LIST_NAME) as temporary, temporary.open("w", encoding="utf-8") as stream:
            json.dump({"format": 1, "files": sizes}, stream, indent=1)
        for folder, _, files in os.walk(fresh, topdown=False):
            for path in (*(Path(folder, file) for file in sorted(files)), Path(folder)):
                fsync_path(path)
        if not replace:
            with OpenFolder(self.root) as root:
                _name_new(root, name, "", lambda free: self._move_if_free(fresh.name, free))
            return
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

    def _move_if_free(self, name: str, free: str) -> bool:
        """Move a folder to a name. Return ``False`` if it is taken."""
        if os.path.lexists(self.path(free)):
            return False
        try:
            self.move(name, free)
        except (OSError, UserError):
            if os.path.lexists(self.path(free)):
                return False
            raise
        return True

    def restore_folder(self, name: str) -> bool:
        """Restore a folder whose replacement was interrupted. If its successor is complete, the old one is
        removed.

        Returns:
            Whether it was restored.
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


def _name_new(folder: OpenFolder, last: str, suffix: str, take: Callable[[str], bool]) -> None:
    """Give something finished its name, or the first free one of ``NAME-2``, ``NAME-3``... if it is taken.

    Args:
        suffix: the end of the name that stays behind such a number.
        take: gives it a name, and returns whether that was free.

    Raises:
        UserError: it got another name.
    """
    names = (f"{last.removesuffix(suffix)}-{number}{suffix}" for number in count(2))
    name = next(name for name in chain([last], names) if take(name))
    folder.fsync()
    if name != last:
        raise UserError(
            f"{shown(folder.path / last)} already exists: it was created while this result was being made. It is left "
            f"as it is, and the result is {shown(folder.path / name)}",
            hint="rename one of the two",
        )


def _files_below(folder: Path) -> Iterator[tuple[str, int]]:
    """Names (with ``/``) and sizes of everything below a folder; -1 for anything but a file."""
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
    """Files in a folder that are not on the list written with it, or differ in size."""
    listed: object = None
    with suppress(OSError, ValueError, RecursionError):
        listed = json.loads(read_plain(folder / LIST_NAME, MAX_LIST_BYTES))
    files = listed.get("files") if isinstance(listed, dict) else None
    known = files if isinstance(files, dict) else {}
    for name, size in _files_below(folder):
        if size < 0 or (name != LIST_NAME and known.get(name) != size) or (name == LIST_NAME and not known):
            yield name
