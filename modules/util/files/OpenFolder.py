"""A folder held open, in which names are looked up and changed, with notifications of every change."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Observer = Callable[[str, str, bool], None]

MAX_DEPTH = 64
_HANDLES = {os.open, os.stat, os.unlink, os.rmdir, os.rename, os.mkdir, os.link} <= os.supports_dir_fd
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_LINKS
_PLAIN = _NO_LINKS | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_PIECE = 1 << 12
_JUNCTION = 0xA0000003
_IN_USE = (5, 32)
_PATIENCE, _PAUSE = 2.0, 0.02

_observer: Observer | None = None


def observe(observer: Observer | None) -> None:
    """Set an observer of all changes, for tests that interrupt the program at each of them.

    Args:
        observer: called with the kind of a change (``create``, ``write``, ``fsync``, ``rename``, ``delete``,
            ``folder``, ``link``, ``commit``), its path, and whether it is done. Its exceptions propagate out
            of the change.
    """
    global _observer
    _observer = observer


@contextmanager
def announced(kind: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Notify the observer before and after a change made by the block."""
    if _observer is not None:
        _observer(kind, os.fspath(path), False)
    yield
    if _observer is not None:
        _observer(kind, os.fspath(path), True)


def kind_of(mode: int) -> str:
    """The file type of a mode, in one word."""
    kinds = (
        (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"), (stat.S_ISFIFO, "FIFO"), (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device"),
    )  # fmt: skip
    return next((word for test, word in kinds if test(mode)), "file")


def mode_of(status: os.stat_result) -> int:
    """The mode of a status that was taken without following links. A junction, which Windows reports as a folder,
    counts as the link that it is: what it leads to belongs to somebody else.
    """
    junction = getattr(status, "st_reparse_tag", 0) == _JUNCTION
    return stat.S_IFLNK | stat.S_IMODE(status.st_mode) if junction else status.st_mode


def patiently(change: Callable[[], None]) -> None:
    """Rename or remove something. Windows refuses while any program has the file open, such as a virus scanner or
    another process of this program that is reading it: these let go soon, so it is tried again for up to 2 s.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            change()
            return
        except PermissionError as error:
            if getattr(error, "winerror", None) not in _IN_USE or time.monotonic() > until:
                raise
        time.sleep(_PAUSE)


def close(handle: int) -> int:
    """Close a handle and return -1, which stands for a closed one."""
    if handle >= 0:
        os.close(handle)
    return -1


def read_plain(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read up to ``limit`` bytes from the start of a plain file.

    Raises:
        OSError: it is unreadable or not a plain file (a FIFO would block forever, a device never end).
    """
    handle = os.open(path, os.O_RDONLY | (_PLAIN & ~_NO_LINKS))
    try:
        known = os.fstat(handle)
        if not stat.S_ISREG(known.st_mode):
            raise OSError(errno.EINVAL, f"it is a {kind_of(known.st_mode)}, not a file", os.fspath(path))
        pieces: list[bytes] = []
        # a caption is read in one call, because creating a stream object would take longer than reading
        # its bytes
        left = known.st_size
        while limit > 0 and (piece := os.read(handle, min(limit, max(left + 1, _PIECE)))):
            pieces.append(piece)
            limit, left = limit - len(piece), left - len(piece)
            # system files report a size of 0, whatever they hold
            if left == 0:
                break
        return b"".join(pieces)
    finally:
        os.close(handle)


class OpenFolder:
    """A folder held open. Names are single path components; links are never followed.

    Args:
        path: the folder, resolved.
        handle: handle of the folder, if it is already open; closed with this object.
    """

    def __init__(self, path: Path, handle: int = -1) -> None:
        self.path = path
        self._handle = os.open(path, _FOLDER) if _HANDLES and handle < 0 else handle

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *exc: object) -> None:
        self._handle = close(self._handle)

    def _at(self, name: str) -> tuple[str, dict[str, Any]]:
        """Return a name as functions of ``os`` take it: relative to the handle, or as a path."""
        return (name, {"dir_fd": self._handle}) if _HANDLES else (str(self.path / name), {})

    def enter(self, name: str, make: bool = False) -> None:
        """Enter a subfolder.

        Raises:
            NotADirectoryError: it is something else, such as a link.
        """
        if make and self.mode(name) is None:
            with announced("folder", self.path / name), suppress(FileExistsError):
                place, at = self._at(name)
                os.mkdir(place, **at)
        mode = self.mode(name)
        if mode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path / name))
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.path / name))
        outer, self._handle = self._handle, self._open(name)
        close(outer)
        self.path /= name

    def _open(self, name: str) -> int:
        return os.open(name, _FOLDER, dir_fd=self._handle) if _HANDLES else -1

    def stat(self, name: str) -> os.stat_result:
        """Status of the name itself, without following links."""
        place, at = self._at(name)
        return os.stat(place, **at, follow_symlinks=False)

    def mode(self, name: str) -> int | None:
        """The mode of a name, as ``mode_of``; ``None`` if it does not exist."""
        try:
            return mode_of(self.stat(name))
        except FileNotFoundError:
            return None

    # --- single changes ---

    def unlink(self, name: str, missing_ok: bool = False) -> None:
        """Remove a file or a link."""
        if missing_ok and self.mode(name) is None:
            return
        place, at = self._at(name)
        with announced("delete", self.path / name):
            patiently(lambda: os.unlink(place, **at))

    def rename(self, name: str, folder: OpenFolder, fresh: str) -> None:
        """Move a name to another folder, replacing an existing file."""
        with announced("rename", folder.path / fresh):
            if _HANDLES:
                os.replace(name, fresh, src_dir_fd=self._handle, dst_dir_fd=folder._handle)
            else:
                patiently(lambda: os.replace(self.path / name, folder.path / fresh))

    def name_file(self, name: str, fresh: str) -> bool:
        """Give a file a name that must be free. Return ``False``, and change nothing, if it is taken.

        The file keeps its first name too, unless the disk has no hard links. There, an empty file reserves the name
        first.
        """
        with announced("link", self.path / fresh):
            try:
                if _HANDLES:
                    at = {"src_dir_fd": self._handle, "dst_dir_fd": self._handle}
                    os.link(name, fresh, **at, follow_symlinks=False)
                else:
                    os.link(self.path / name, self.path / fresh)
                return True
            except FileExistsError:
                return False
            except OSError:
                pass  # many disks have no links, each with an error of its own: what else is wrong, the next lines tell
        return self._reserve(fresh) and self._take_reserved(name, fresh)

    def _reserve(self, name: str) -> bool:
        place, at = self._at(name)
        try:
            with announced("create", self.path / name):
                os.close(os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | _PLAIN, 0o666, **at))
        except FileExistsError:
            return False
        return True

    def _take_reserved(self, name: str, fresh: str) -> bool:
        """Rename a file to a reserved name. Return ``False`` if somebody has written to that name since."""
        there = self.stat(fresh)
        if not stat.S_ISREG(there.st_mode) or there.st_size:
            return False
        try:
            self.rename(name, self, fresh)
        except BaseException:
            with suppress(FileNotFoundError):
                if self.stat(fresh).st_size == 0:
                    self.unlink(fresh)
            raise
        return True

    def create(self, mode: int) -> tuple[str, int]:
        """Create a temporary file that no cleanup removes while its handle is open. Returns its name and handle."""
        while True:
            name = f".tastemaker-{secrets.token_hex(8)}.tmp"
            place, at = self._at(name)
            with announced("create", self.path / name):
                handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | _PLAIN, mode, **at)
            if _hold(handle, wait=True) and self.mode(name) is not None:
                return name, handle
            close(handle)  # a cleanup took it for a stale file between these two lines

    def permit(self, name: str, rights: int) -> None:
        """Set who may read and write a file, unless it is set already or the system has no such rights. Disks without
        rights, and some in the network, refuse it: there it stays as it was created.
        """
        if os.name != "nt" and stat.S_IMODE(self.stat(name).st_mode) != rights:
            place, at = self._at(name)
            with suppress(OSError):
                # ``chmod`` would follow a link that somebody has put there meanwhile
                handle = os.open(place, os.O_RDONLY | _PLAIN, **at)
                try:
                    os.fchmod(handle, rights)
                finally:
                    os.close(handle)

    def fsync(self, name: str | None = None) -> None:
        """Flush a file, or the names in the folder, to disk."""
        if name is None and not _HANDLES:
            return
        path = self.path if name is None else self.path / name
        with announced("fsync", path):
            if name is None:
                os.fsync(self._handle)
                return
            place, at = self._at(name)
            handle = os.open(place, os.O_RDWR | _PLAIN, **at)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def link(self, source: Path, name: str) -> bool:
        """Hard-link a file from elsewhere, replacing an existing file. Return ``False`` if the disk cannot.
        """
        place, at = self._at(name)
        with announced("link", self.path / name):
            for _ in range(2):
                try:
                    os.link(source, place, dst_dir_fd=self._handle if _HANDLES else None)
                    return True
                except FileExistsError:
                    if self.stat(name).st_ino == source.stat().st_ino:
                        return True
                    os.unlink(place, **at)
                except OSError:
                    break
        return False

    def append(self, name: str, data: bytes) -> None:
        """Append bytes to a file and flush it to disk."""
        place, at = self._at(name)
        with announced("write", self.path / name):
            handle = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _PLAIN, 0o666, **at)
        try:
            while data:
                data = data[os.write(handle, data) :]
            with announced("fsync", self.path / name):
                os.fsync(handle)
        finally:
            os.close(handle)

    # --- trees ---

    def why_tree_stays(self, name: str) -> str:
        """Return the reason why a folder must not be removed, as the end of a sentence; empty if it may be."""
        return self._why_stays(name, self.stat(name).st_dev, MAX_DEPTH)

    def _why_stays(self, name: str, disk: int, depth: int) -> str:
        info = self.stat(name)
        mode = mode_of(info)
        if stat.S_ISDIR(mode):
            if info.st_dev != disk:
                return f"reaches another disk at {self.path / name}"
            if depth == 0:
                return f"holds more than {MAX_DEPTH} nested folders"
            with self.inner(name) as folder:
                return next(
                    (why for n in folder.names() if (why := folder._why_stays(n, disk, depth - 1))), ""
                )
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            return ""
        return f"holds a {kind_of(mode)}, {self.path / name}"

    def remove_tree(self, name: str) -> None:
        """Remove a subfolder with everything in it."""
        with self.inner(name) as folder:
            for inner in folder.names():
                if stat.S_ISDIR(mode_of(folder.stat(inner))):
                    folder.remove_tree(inner)
                else:
                    folder.unlink(inner)
        place, at = self._at(name)
        with announced("delete", self.path / name):
            patiently(lambda: os.rmdir(place, **at))

    def inner(self, name: str) -> OpenFolder:
        """Open a subfolder."""
        return OpenFolder(self.path / name, self._open(name))

    def names(self) -> list[str]:
        """Sorted names in the folder."""
        return sorted(os.listdir(self._handle if _HANDLES else self.path))


# --- who holds a temporary file ---


def _hold(handle: int, wait: bool) -> bool:
    """Claim an open file against ``unheld`` until its handle is closed. Return ``False`` if another process
    holds it.
    """
    if os.name == "nt":
        return True  # on this system, an open file cannot be removed
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return wait  # a disk without locks: writers continue, cleanups leave it alone
    return True


TELLS_WHO_WORKS = os.name != "nt"
"""False on Windows, where ``unheld`` cannot see that a running process uses a folder."""


def hold_folder(path: Path) -> int:
    """Open a handle that keeps ``unheld`` away from a folder until it is closed; -1 if the folder does not exist."""
    if not TELLS_WHO_WORKS:
        return -1
    handle = os.open(path, _FOLDER)
    _hold(handle, wait=True)
    return handle


@contextmanager
def unheld(path: Path) -> Iterator[None]:
    """Run a block that may remove a temporary file or folder, because no running process uses it.

    Raises:
        BlockingIOError: it is in use. OSError: the path is a link, or does not exist.
    """
    if not TELLS_WHO_WORKS:
        yield
        return
    handle = os.open(path, os.O_RDONLY | _PLAIN)
    try:
        if not _hold(handle, wait=False):
            raise BlockingIOError(errno.EWOULDBLOCK, "another process is using it", str(path))
        yield
    finally:
        os.close(handle)
