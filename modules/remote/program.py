"""The program's own files that are copied to another computer."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from modules.util.program_files import ROOT

PARTS = ("modules", "scripts", "resources", "training_presets")
REQUIREMENTS = ("requirements.txt", "requirements-gpu.txt", "constraints.txt")
OPTIMIZERS = "requirements-optimizers.txt"
"""Packages of some optimizers; installed only where a run uses one of them."""
FILES = (*REQUIREMENTS, OPTIMIZERS, "LICENSE", "NOTICE")
WINDOW_ONLY = ("customtkinter", "tkinterdnd2", "desktop-notifier")
"""Packages that a computer without a screen does not need."""


def program_files(root: Path = ROOT) -> dict[str, Path]:
    """Name to file of what training needs from the program, excluding anything else in its folder."""
    names = _tracked(root)
    if names is None:
        names = list(_below(root))
    wanted = (name for name in names if name in FILES or name.partition("/")[0] in PARTS)
    return {name: root / name for name in sorted(wanted) if (root / name).is_file()}


def _tracked(root: Path) -> list[str] | None:
    """Files tracked by git; ``None`` if the folder is not a git repository."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    line = [git, "-C", str(root), "ls-files", "-z"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(line, capture_output=True, stdin=subprocess.DEVNULL, env=environment, check=False)
    return os.fsdecode(done.stdout).split("\0")[:-1] if done.returncode == 0 else None


def _below(root: Path) -> Iterator[str]:
    yield from FILES
    for part in PARTS:
        for folder, folders, names in os.walk(root / part):
            folders[:] = sorted(
                name for name in folders if not name.startswith(".") and name != "__pycache__"
            )
            yield from (Path(folder, name).relative_to(root).as_posix() for name in names if name[0] != ".")


def packages_needed(root: Path = ROOT, file: str = REQUIREMENTS[0]) -> dict[str, str]:
    """Packages that training needs, with their versions."""
    lines = (root / file).read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {name: version for name, _, version in pairs if name not in WINDOW_ONLY}
