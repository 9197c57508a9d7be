"""Makes the program's own Python environment. Standard library only, for Linux, macOS and Windows.

    python scripts/bootstrap.py            make or refresh .venv for running the program
    python scripts/bootstrap.py --dev      ... and for its tests
    python scripts/bootstrap.py --no-window --into FOLDER
                                           in FOLDER/.venv, of the requirement files in FOLDER, without a screen

Packages are installed only when the requirement files changed since the last complete install; an interrupted
install is continued. pip's own settings (index, proxy, certificates) are honoured.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
MINIMUM = (3, 11)
STAMP = ".tastemaker-install"
LOCK_SECONDS = 1800
EXTRAS = ("dev", "gpu", "optimizers")
PARTS = {"bin", "etc", "include", "lib", "lib64", "man", "share", "Include", "Lib", "Scripts", ".gitignore", STAMP}
"""Names in an environment, of which a stopped setup may have made only some."""

if TYPE_CHECKING:  # old Pythons, which should get the message that they are too old, cannot evaluate this
    Run = Callable[[Sequence[str]], int]


class SetupError(Exception):
    """Something that the user has to do first."""


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def check_python(
    version: tuple[int, ...] = sys.version_info[:3],
    has_module: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
    platform: str = sys.platform,
    window: bool = True,
) -> None:
    """Refuse an interpreter that cannot run the program, naming the package that would fix it."""
    short = ".".join(str(part) for part in version[:2])
    if version < MINIMUM:
        raise SetupError(
            f"Python {'.'.join(map(str, MINIMUM))} or newer is needed, this is {short} ({sys.executable}).\n"
            "  Debian/Ubuntu: sudo apt install python3.11 python3.11-venv python3.11-tk\n"
            "  others: https://www.python.org/downloads/"
        )
    packages = {
        "venv": (f"python{short}-venv", "python3-virtualenv", "python"),
        "ensurepip": (f"python{short}-venv", "python3-pip", "python"),
        "tkinter": (f"python{short}-tk (or python3-tk)", "python3-tkinter", "tk"),
    }
    missing = [name for name in packages if (window or name != "tkinter") and not has_module(name)]
    if missing:
        debian, fedora, arch = (sorted({packages[name][i] for name in missing}) for i in range(3))
        advice = (
            "reinstall Python with the Tcl/Tk and pip options ticked"
            if platform == "win32"
            else f"Debian/Ubuntu: sudo apt install {' '.join(debian)}\n"
            f"  Fedora: sudo dnf install {' '.join(fedora)}\n  Arch: sudo pacman -S {' '.join(arch)}\n"
            "  macOS (Homebrew): brew install python-tk"
        )
        raise SetupError(f"this Python lacks {', '.join(missing)}:\n  {advice}")


def requirement_files(root: Path, extras: Sequence[str]) -> list[Path]:
    """The files that decide what is installed: the common one, and one for each of ``EXTRAS`` that is wanted."""
    return [root / "requirements.txt", *(root / f"requirements-{name}.txt" for name in extras)]


def wanted_hash(root: Path, extras: Sequence[str]) -> str:
    """Digest of everything an installation depends on."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {sys.platform}".encode())
    for path in [*requirement_files(root, extras), root / "constraints.txt"]:
        if not path.is_file():
            raise SetupError(f"{path} is missing: the program's folder is not complete")
        digest.update(f"\n{path.name}\n".encode() + path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def venv_python(venv: Path) -> Path:
    """The interpreter inside an environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def is_installed(venv: Path, wanted: str) -> bool:
    """Return whether a complete installation of ``wanted`` (or of a larger set that contains it) is present.
    """
    stamp = venv / STAMP
    return venv_python(venv).is_file() and stamp.is_file() and wanted in stamp.read_text().split()


def run(command: Sequence[str]) -> int:
    """Run a command with its output passed through."""
    return subprocess.run(list(command), check=False).returncode


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Take a lock; a second setup waits until it is free."""
    path = root / ".venv.lock"
    handle = path.open("a+")
    try:
        _wait_for_lock(handle, path)
        yield
    finally:
        handle.close()


def _wait_for_lock(handle: object, path: Path) -> None:
    started, told = time.monotonic(), False
    while not _try_lock(handle):
        if not told:
            say("another setup is running; waiting for it")
            told = True
        if time.monotonic() - started > LOCK_SECONDS:
            raise SetupError(f"another setup has held {path} for too long; stop it and try again")
        time.sleep(0.5)


def _try_lock(handle: object) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[arg-type]
    except OSError:
        return False
    return True


def check_place(venv: Path) -> None:
    """Refuse a place whose files are not those of an environment: making one there deletes everything in it."""
    if venv.is_symlink() or (venv.exists() and not venv.is_dir()):
        found = "is a link or a file"
    elif venv.is_dir() and not (venv / "pyvenv.cfg").is_file() and {one.name for one in venv.iterdir()} - PARTS:
        found = "holds files that do not belong to an environment"
    else:
        return
    raise SetupError(f"{venv} {found}, and would be deleted. Rename it or move it away, then run this again")


def make_venv(venv: Path, runner: Run) -> None:
    """Create the environment; replace one that is incomplete or belongs to another Python."""
    python = venv_python(venv)
    works = f"import pip, sys; sys.exit(sys.version_info < {MINIMUM})"
    if python.is_file() and runner([str(python), "-c", works]) == 0:
        return
    check_place(venv)
    say(f"making the environment {venv}")
    if runner([sys.executable, "-m", "venv", "--clear", str(venv)]) != 0:
        raise SetupError(f"could not make {venv}; the lines above say why")


def install(root: Path, venv: Path, extras: Sequence[str], runner: Run) -> None:
    """Install the requirements under the constraints, and write a stamp when the installation is complete."""
    stamp = venv / STAMP
    if stamp.is_file():
        stamp.write_text("")
    say("installing packages (the first time this downloads up to several GB)")
    command = [str(venv_python(venv)), "-m", "pip", "install", "--disable-pip-version-check"]
    for path in requirement_files(root, extras):
        command += ["--requirement", str(path)]
    if runner([*command, "--constraint", str(root / "constraints.txt")]) != 0:
        raise SetupError(
            "packages could not be installed; the lines above say why. Run this again to continue"
        )
    hashes = {wanted_hash(root, extras[:count]) for count in range(len(extras) + 1)}
    # a truncated hash matches nothing, so half a stamp only means one more installation
    stamp.write_text("\n".join(sorted(hashes)) + "\n")


def bootstrap(root: Path, extras: Sequence[str], runner: Run = run, window: bool = True) -> Path:
    """Bring the environment up to date; returns its interpreter."""
    venv = root / ".venv"
    wanted = wanted_hash(root, extras)
    if is_installed(venv, wanted):
        return venv_python(venv)
    check_python(window=window)
    with locked(root):
        if not is_installed(venv, wanted):
            make_venv(venv, runner)
            install(root, venv, extras, runner)
    return venv_python(venv)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dev", action="store_true", help="also install what the tests need")
    parser.add_argument("--quiet", action="store_true", help="print nothing when there is nothing to do")
    parser.add_argument("--gpu", action="store_true", help="also install what needs an NVIDIA card")
    parser.add_argument(
        "--optimizers", action="store_true", help="also install what PRODIGY_PLUS_SCHEDULE_FREE and *_ADV need"
    )
    parser.add_argument(
        "--no-window", action="store_true", help="for a computer without a screen: no Tk is needed"
    )
    parser.add_argument(
        "--into", type=Path, default=ROOT, metavar="FOLDER", help="make the environment in this folder"
    )
    options = parser.parse_args(arguments)
    try:
        extras = [name for name in EXTRAS if getattr(options, name)]
        python = bootstrap(options.into, extras, window=not options.no_window)
    except SetupError as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\n[setup] stopped; run it again to continue", file=sys.stderr)
        return 130
    if not options.quiet:
        say(f"ready: {python}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
