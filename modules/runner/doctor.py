"""Checks what this computer has and lacks for training, and suggests what to do."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from modules.util.config.SecretsConfig import SecretsConfig, secrets_path
from modules.util.errors import UserError
from modules.util.files.user_folder import settings_folder
from modules.util.owned_files import fault_of_path, shown
from modules.util.program_files import ROOT

GOOD, WARNING, FAULT = "good", "warning", "fault"
OLDEST_PYTHON = (3, 11)
LEAST_FREE_GB, USUAL_FREE_GB = 5, 40
NVIDIA_SECONDS = 20
_QUESTION = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
_MOST_CARDS, _MOST_CHARACTERS = 64, 200
"""Cards that are looked at, and characters of each."""
_OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver that any CUDA of a major version works with (NVIDIA's CUDA release notes, minor version
compatibility)."""
_CUDA_OF_TORCH = re.compile(r"""^cuda[^=\n]*=\s*['"](\d+)\.(\d+)['"]""", re.MULTILINE)
_BUILD_OF_TORCH = re.compile(r"""^__version__ = ['"]([^'"]+)['"]""", re.MULTILINE)
_DRIVER = re.compile(r"driver (\d{1,5})(?:\.\d+)*\Z")
_PIN = re.compile(r"([A-Za-z0-9_.-]+)==([^\s#;]+)")


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        what: name of the check.
        state: ``good``, ``warning`` (something is missing or slow) or ``fault`` (training cannot work).
        cure: what to do; empty if nothing.
    """

    what: str
    state: str
    found: str
    cure: str = ""


def examine(folders: Mapping[str, Path]) -> Iterator[Finding]:
    """Run all checks one after the other.

    Args:
        folders: additional folders that must be writable, by purpose.
    """
    looks: tuple[Callable[[], Finding], ...] = (_python, _window, _packages, _card, _disk, _token)
    for look in looks:
        yield look()
    for name, folder in {"settings folder": settings_folder(), "program folder": ROOT, **folders}.items():
        yield _writable(name, folder)


def _python() -> Finding:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        return Finding(
            "Python", FAULT, found, f"install Python {wanted} or newer and run scripts/setup.sh again"
        )
    return Finding("Python", GOOD, found)


def _window() -> Finding:
    if importlib.util.find_spec("_tkinter") is None:
        cure = (
            "install Tk for this Python (Debian and Ubuntu: apt install python3-tk); commands work without it"
        )
        return Finding("window (Tk)", WARNING, "Python has no Tk", cure)
    silent = sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    if silent:
        cure = "open it on a desktop or with ssh -X; commands work without a screen"
        return Finding("window (Tk)", WARNING, "Tk is installed, but there is no screen", cure)
    return Finding("window (Tk)", GOOD, "Tk and a screen are available")


def _packages() -> Finding:
    """Check the versions of the pinned packages."""
    wrong = []
    pins = ROOT / "requirements.txt"
    for name, version in _PIN.findall(pins.read_text(encoding="utf-8")):
        try:
            there = metadata.version(name)
        except metadata.PackageNotFoundError:
            there = "missing"
        if there.partition("+")[0] != version:
            wrong.append(f"{name} {there} instead of {version}")
    if wrong:
        state = FAULT if any("missing" in one for one in wrong) else WARNING
        return Finding(
            "packages", state, "; ".join(wrong), "run scripts/setup.sh (Windows: scripts\\bootstrap.py)"
        )
    return Finding("packages", GOOD, "all of requirements.txt in the pinned versions")


def _card() -> Finding:
    """Check the graphics card, its driver, and whether torch is built for it."""
    torch = _version("torch")
    cards = _nvidia()
    if cards is None:
        if sys.platform == "darwin":
            return Finding("graphics card", GOOD, f"Apple's, with torch {torch}")
        cure = "training on the CPU is very slow; with an NVIDIA card, install its driver"
        return Finding("graphics card", WARNING, f"no NVIDIA driver responds; torch {torch}", cure)
    if not cards:
        return Finding(
            "graphics card",
            WARNING,
            "the NVIDIA driver reports no card",
            "restart, or install the driver again",
        )
    found = f"{'; '.join(cards)}; torch {torch}"
    if "+cpu" in torch:
        cure = "torch is built without CUDA: docs/installing.md says how to replace it"
        return Finding("graphics card", FAULT, found, cure)
    return _driver(cards, found)


def _driver(cards: list[str], found: str) -> Finding:
    """Return whether the driver is new enough for the CUDA that torch is built with."""
    built = _cuda_of_torch()
    drivers = [match for card in cards if (match := _DRIVER.search(card))]
    if built is None or not drivers:
        unknown = (
            "torch does not report a CUDA version"
            if built is None
            else "the version of the driver is unknown"
        )
        cure = "run scripts/setup.sh again" if built is None else "restart, or install the driver again"
        return Finding("graphics card", WARNING, f"{found}; {unknown}", cure)
    version = f"{built[0]}.{built[1]}"
    needed = _OLDEST_DRIVERS.get(built[0])
    if needed is None:
        cure = f"the oldest driver for CUDA {version} is not known here; see NVIDIA's release notes"
        return Finding("graphics card", WARNING, found, cure)
    if min(int(match[1]) for match in drivers) < needed:
        cure = (
            f"torch is built for CUDA {version}, which needs driver {needed} or newer: update the NVIDIA driver, or "
            "install torch for an older CUDA as https://pytorch.org says"
        )
        return Finding("graphics card", FAULT, found, cure)
    return Finding("graphics card", GOOD, f"{found}; CUDA {version}")


def _cuda_of_torch() -> tuple[int, int] | None:
    """The CUDA version that torch is built with, without importing it; ``None`` if it says none."""
    match = _CUDA_OF_TORCH.search(_version_file_of_torch())
    return (int(match[1]), int(match[2])) if match else None


def _version_file_of_torch() -> str:
    spec = importlib.util.find_spec("torch")
    place = None if spec is None or spec.origin is None else Path(spec.origin).with_name("version.py")
    return "" if place is None or not place.is_file() else place.read_text(encoding="utf-8", errors="replace")


def _nvidia() -> list[str] | None:
    """``name, memory, driver`` of each card; ``None`` without a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *_QUESTION], capture_output=True, text=True, timeout=NVIDIA_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    cards = []
    for line in done.stdout.splitlines()[:_MOST_CARDS]:
        name, memory, driver = ([part.strip() for part in line[:_MOST_CHARACTERS].split(",")] + ["?", "?"])[
            :3
        ]
        if name:
            cards.append(f"{name}, {memory} MiB, driver {driver}")
    return cards


def _version(package: str) -> str:
    """The installed version. That of torch names its build, which the metadata of some wheels leave out."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"
    build = _BUILD_OF_TORCH.search(_version_file_of_torch()) if package == "torch" else None
    return build[1] if build and build[1].startswith(f"{version}+") else version


def _disk() -> Finding:
    free = shutil.disk_usage(ROOT).free / 1e9
    found = f"{free:.1f} GB free where the program is"
    if free < LEAST_FREE_GB:
        return Finding(
            "disk", FAULT, found, f"free at least {LEAST_FREE_GB} GB, or set workspace_dir on another disk"
        )
    if free < USUAL_FREE_GB:
        return Finding(
            "disk", WARNING, found, f"models, cache and backups of large families take {USUAL_FREE_GB} GB"
        )
    return Finding("disk", GOOD, found)


def _token() -> Finding:
    if os.environ.get("HF_TOKEN"):
        return Finding("Hugging Face token", GOOD, "in the environment (HF_TOKEN)")
    try:
        if SecretsConfig.load_if_there().huggingface_token:
            return Finding("Hugging Face token", GOOD, f"in {secrets_path()}")
    except UserError as error:
        return Finding("Hugging Face token", FAULT, error.message, error.hint or f"correct {secrets_path()}")
    cure = "only gated models such as FLUX.1 dev need one: enter it in the settings"
    return Finding("Hugging Face token", WARNING, "none", cure)


def _writable(name: str, folder: Path) -> Finding:
    """Check whether a file can be created in a folder, or in its nearest existing parent."""
    impossible = fault_of_path(folder)
    if impossible:
        return Finding(name, FAULT, f"{shown(folder)} {impossible}", "name another folder")
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        cure = "change its permissions, or name another folder"
        return Finding(name, FAULT, f"{folder} cannot be written: {error.strerror}", cure)
    return Finding(name, GOOD, f"{folder} can be written")
