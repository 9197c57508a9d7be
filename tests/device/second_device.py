"""A second kind of device for machines without a GPU: builds and registers ``second_device.cpp``.

Registering changes the process for good, so tests do it in processes of their own.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import subprocess
import types
from pathlib import Path

import torch

NAME = "second"
_SOURCE = Path(__file__).with_name("second_device.cpp")
_FLAGS = ("-O0", "-w", "-shared", "-fPIC", "-std=c++20")


def build(folder: Path) -> Path:
    """The compiled library, from ``folder`` if it was made before from the same source and PyTorch."""
    # a checkout may have a link to the environment of another one
    way = " ".join((torch.__version__, str(Path(torch.__file__).resolve()), *_FLAGS)).encode()
    key = hashlib.sha256(_SOURCE.read_bytes() + way).hexdigest()[:16]
    made = folder / f"second_device-{key}.so"
    if made.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "being made").open("w") as door:
        # of two test processes, one compiles and the other waits
        fcntl.flock(door, fcntl.LOCK_EX)
        if not made.exists():
            _compile(made)
    return made


def _compile(made: Path) -> None:
    home = Path(torch.__file__).resolve().parent
    fresh = made.with_suffix(f".{os.getpid()}")
    include = [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    libraries = [f"-L{home / 'lib'}", "-ltorch_cpu", "-ltorch", "-lc10", f"-Wl,-rpath,{home / 'lib'}"]
    subprocess.run(["g++", *_FLAGS, *include, str(_SOURCE), *libraries, "-o", str(fresh)], check=True)
    fresh.replace(made)


class SecondDevice(types.ModuleType):
    """What PyTorch asks of ``torch.second``, and the device's memory in bytes."""

    def __init__(self, library: Path) -> None:
        super().__init__(NAME)
        torch.ops.load_library(str(library))
        self._library = ctypes.CDLL(str(library))
        self._library.second_device_live.restype = ctypes.c_int64
        self._library.second_device_peak.restype = ctypes.c_int64

    def live(self) -> int:
        return int(self._library.second_device_live())

    def peak(self) -> int:
        return int(self._library.second_device_peak())

    def reset_peak(self) -> None:
        self._library.second_device_reset_peak()

    def set_limit(self, size: int) -> None:
        self._library.second_device_set_limit(ctypes.c_int64(size))

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        """Its random numbers are the CPU's."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def _is_in_bad_fork(self) -> bool:
        return False


def register(library: Path, kind: type[SecondDevice] = SecondDevice) -> SecondDevice:
    """Make ``torch.device("second")`` mean something in this process.

    Args:
        kind: what ``torch.second`` is.
    """
    torch.utils.rename_privateuse1_backend(NAME)
    device = kind(library)
    torch._register_device_module(NAME, device)
    torch.utils.generate_methods_for_privateuse1_backend()
    return device
