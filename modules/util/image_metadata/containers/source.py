"""A file with bounded reads: its first kilobytes at once, the rest by position."""

from __future__ import annotations

import errno
import os
import stat

from modules.util.image_metadata.limits import HEAD_BYTES, Reason, Unusable

_OPEN_FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"):
    # O_NONBLOCK: a named pipe in place of a file must not make the scan wait for a writer.
    _OPEN_FLAGS |= getattr(os, _name, 0)

_REASONS = {
    errno.ENOENT: Reason.GONE,
    errno.ENOTDIR: Reason.GONE,
    errno.EACCES: Reason.NO_PERMISSION,
    errno.EPERM: Reason.NO_PERMISSION,
    errno.ELOOP: Reason.LINK_LOOP,
    errno.ENXIO: Reason.NOT_A_FILE,
    errno.EISDIR: Reason.NOT_A_FILE,
}


def unusable(error: OSError) -> Unusable:
    """The error for a failed system call."""
    reason = _REASONS.get(error.errno or 0)
    return Unusable(reason) if reason else Unusable(Reason.READ_ERROR, error.strerror or str(error))


class Source:
    """An open regular file.

    Args:
        known_regular: it was just checked to be regular (saves a system call; a device is never opened to
            find out).

    Raises:
        Unusable: it cannot be opened, is not a regular file, or is empty.
    """

    __slots__ = ("_fd", "head", "mtime_ns", "size")

    def __init__(self, path: str | os.PathLike[str], known_regular: bool = False) -> None:
        try:
            if not known_regular and not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - as fast as it gets
                raise Unusable(Reason.NOT_A_FILE)
            self._fd = os.open(path, _OPEN_FLAGS)
        except OSError as error:
            raise unusable(error) from error
        except ValueError as error:
            raise Unusable(Reason.GONE, "its name holds a zero character") from error
        try:
            info = os.fstat(self._fd)
            if not stat.S_ISREG(info.st_mode):
                raise Unusable(Reason.NOT_A_FILE)
            self.size = info.st_size
            self.mtime_ns = info.st_mtime_ns
            self.head = os.read(self._fd, HEAD_BYTES)
            if not self.head:
                raise Unusable(Reason.EMPTY)
        except OSError as error:
            os.close(self._fd)
            raise unusable(error) from error
        except Unusable:
            os.close(self._fd)
            raise

    def read(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes at ``offset``, fewer at the end of the file. The caller bounds ``length``."""
        if offset + length <= len(self.head):
            return self.head[offset : offset + length]
        if offset >= self.size:
            return b""
        try:
            return _read_at(self._fd, min(length, self.size - offset), offset)
        except OSError as error:
            raise unusable(error) from error

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)


def _seek_and_read(fd: int, length: int, offset: int) -> bytes:
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, length)


_read_at = getattr(os, "pread", _seek_and_read)
