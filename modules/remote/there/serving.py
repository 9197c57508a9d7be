"""The program's end of a connection on the other computer. It answers one request after the other.

It needs only Python and is sent as one file (``helper_file.py``). Requests are lines of JSON on its input,
answers lines of JSON on its output; ``bytes`` is the number of bytes that follow a line. It ends when its
input closes. The trainers it started continue without it.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modules.remote.there import limits, runs
from modules.remote.there.Starts import Starts
from modules.remote.there.Store import Store
from modules.util.errors import UserError, list_offenders
from modules.util.jsonio import parse_json
from modules.util.owned_files import Owned, shown

SILENCE = 900.0
"""Seconds of silence after which the other side is considered gone."""
COMMAND_SECONDS = 660.0
INSTALLED = ".tastemaker-install"
Request = Mapping[str, Any]


class Gone(Exception):
    """The other side is gone."""


class Wire:
    """Input and output as messages."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target, self._rest = source, target, b""

    def _more(self) -> None:
        if not select.select([self._source], [], [], SILENCE)[0]:
            raise Gone
        block = os.read(self._source, 1 << 20)
        if not block:
            raise Gone
        self._rest += block

    def exactly(self, size: int) -> bytes:
        """Read exactly the next ``size`` bytes."""
        parts, left = [], size
        while left > len(self._rest):
            parts.append(self._rest)
            left -= len(self._rest)
            self._rest = b""
            self._more()
        parts.append(self._rest[:left])
        self._rest = self._rest[left:]
        return b"".join(parts)

    def request(self) -> dict[str, Any]:
        """Read the next line."""
        while b"\n" not in self._rest:
            if len(self._rest) > limits.MAX_MESSAGE:
                raise Gone
            self._more()
        line, _, self._rest = self._rest.partition(b"\n")
        data = parse_json(line, "request")
        if not isinstance(data, dict):
            raise UserError("a request is an object")
        return data

    def send(self, message: Mapping[str, Any], data: bytes = b"") -> None:
        """Send a line, and the bytes that belong to it."""
        more = {"bytes": len(data)} if data else {}
        line = memoryview(json.dumps({**message, **more}).encode("ascii") + b"\n" + data)
        while line:
            line = line[os.write(self._target, line) :]


class FarSide:
    """Answers requests.

    Args:
        root: the program's folder here.
        wire: the other side.
    """

    def __init__(self, root: Path, wire: Wire) -> None:
        self.root, self.wire = root, wire
        self.store, self.starts = Store(root), Starts(root)

    def serve(self) -> None:
        """Answer until the other side is gone."""
        while True:
            request = self.wire.request()
            try:
                answer = ANSWERS.get(request.get("do", ""))
                if answer is None:
                    raise UserError(f"the other side cannot {request.get('do')!r}")
                self.wire.send({"ok": answer(self, request)})
            except UserError as error:
                self._refuse(request, error.message, error.hint)
            except BrokenPipeError:
                raise Gone from None
            except OSError as error:
                where = f" ({error.filename})" if error.filename else ""
                self._refuse(request, f"{error.strerror}{where}", None)

    def _refuse(self, request: Request, message: str, hint: str | None) -> None:
        self.wire.send({"error": message, "hint": hint})
        if request.get("do") in WITH_DATA:
            raise Gone  # what follows on the wire is part of a file

    # --- copying there ---

    def look(self, request: Request) -> dict[str, Any]:
        """Facts needed for a start."""
        return {
            "directory": str(self.root),
            "free": shutil.disk_usage(self.root).free,
            "runs": runs.names_of_runs(self.root),
            "ready": (self.root / str(request.get("environment")) / ".venv" / INSTALLED).is_file(),
        }

    def have(self, request: Request) -> dict[str, int]:
        self.starts.announce()
        return {sha: self.store.has(sha, size) for sha, size in request["files"].items()}

    def small(self, request: Request) -> None:
        self.starts.announce()
        self.store.take_small([(sha, size) for sha, size in request["files"]], self.wire.exactly)

    def large(self, request: Request) -> None:
        def begin(offset: int) -> None:
            self.wire.send({"note": {"offset": offset}})

        self.starts.announce()
        self.store.take_large(request["sha256"], request["size"], self.wire.exactly, begin)

    def plant(self, request: Request) -> list[str]:
        self.starts.announce()
        files = {name: (sha, size) for name, (sha, size) in request["files"].items()}
        return self.store.plant(request["root"], files)

    # --- starting ---

    def environment(self, request: Request) -> str:
        """Set up the program's environment, reporting progress. Returns its interpreter."""
        place = Owned(self.root, local=True).folder(request["into"])
        script = self.root / request["program"] / "scripts" / "bootstrap.py"
        card = ["--gpu"] if shutil.which("nvidia-smi") else []
        extra = ["--optimizers"] if (place / "requirements-optimizers.txt").is_file() else []
        line = [sys.executable, str(script), *card, *extra, "--no-window", "--into", str(place)]
        with subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            for text in process.stdout:
                self.wire.send({"note": {"line": text.decode("utf-8", "replace").rstrip()}})
        if process.returncode:
            raise UserError("the environment could not be set up", hint="the lines above say why")
        return str(place / ".venv" / "bin" / "python")

    def packages(self, request: Request) -> dict[str, str | None]:
        """Versions of the packages of an interpreter.

        Raises:
            UserError: the interpreter cannot be run.
        """
        code = (
            "import importlib.metadata as m, json, sys\n"
            "def version(name):\n"
            "    try:\n        return m.version(name)\n"
            "    except m.PackageNotFoundError:\n        return None\n"
            "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
        )
        done = _run([request["python"], "-I", "-c", code, *request["names"]])
        if done.returncode:
            raise UserError(f"{request['python']} does not work: {done.stderr.strip()[-300:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        return {str(name): version for name, version in found.items()}

    def begin(self, request: Request) -> int:
        """Put the files of a run in their place and start its trainer, unless another start was faster."""
        script = self.root / request["program"] / "scripts" / "train.py"
        line, run = [request["python"], str(script)], str(request["run"])
        files = {name: (sha, size) for name, (sha, size) in request["files"].items()}
        runs.check_startable(self.root, run)
        with self.starts.of_run(run):
            runs.check_startable(self.root, run)
            missing = self.store.plant(f"{runs.INPUTS}/{run}", files, alone=True)
            if missing:
                names = list_offenders([shown(name) for name in missing])
                raise UserError(f"files were removed there while they were copied:\n{names}", hint="start again")
            number = runs.begin(self.root, run, request["config"], line, request["alongside"])
        self.starts.end()
        return number

    # --- watching ---

    def status(self, request: Request) -> dict[str, Any]:
        return runs.describe(self.root, request["run"])

    def tail(self, request: Request) -> dict[str, Any]:
        return runs.tail(self.root, request["run"], request["offset"], request["sha256"], self.wire.send)

    def control(self, request: Request) -> dict[str, Any]:
        """Run ``scripts/runctl.py`` here. Returns its exit status and output."""
        run = runs.open_run(self.root, request["run"])
        python, script = self._started_with(run.launch_record().get("command"))
        wait = ["--wait", "--timeout", str(int(COMMAND_SECONDS - 60))] if request["wait"] else []
        done = _run([python, str(script.with_name("runctl.py")), str(run.path), request["command"], *wait])
        return {"status": done.returncode, "text": (done.stdout + done.stderr).strip()}

    def _started_with(self, command: object) -> tuple[str, Path]:
        if not isinstance(command, list) or len(command) < 2:
            raise UserError("this run was not started from another computer")
        return str(command[0]), Path(str(command[1]))

    # --- copying back, cleaning ---

    def contents(self, request: Request) -> list[tuple[str, int]]:
        return runs.contents(self.root, request["run"])

    def digests(self, request: Request) -> dict[str, str]:
        return runs.digests(self.root, request["run"], request["files"])

    def piece(self, request: Request) -> None:
        offset, size = request["offset"], request["size"]
        data = runs.piece(self.root, request["run"], request["file"], offset, size)
        self.wire.send({"note": {}}, data)

    def clean(self, request: Request) -> dict[str, Any]:
        stays = runs.clean(self.root, request["run"], request["fetched"])
        with self.starts.held_back() as unused:
            return {"stays": stays, "freed": self._remove_unused() if unused else 0, "copying": not unused}

    def _remove_unused(self) -> int:
        """Remove copies of the program and stored files that no run uses. Returns the number of bytes freed."""
        owned = Owned(self.root, local=True)
        kept, base = runs.programs_in_use(self.root), self.root / runs.PROGRAMS
        for path in sorted(base.iterdir()) if base.is_dir() else ():
            if path.name not in kept:
                owned.remove_tree(f"{runs.PROGRAMS}/{path.name}")
        return self.store.sweep()


_REQUESTS: tuple[Callable[[FarSide, Request], Any], ...] = (
    FarSide.look, FarSide.have, FarSide.small, FarSide.large, FarSide.plant, FarSide.environment, FarSide.packages,
    FarSide.begin, FarSide.status, FarSide.tail, FarSide.control, FarSide.contents, FarSide.digests, FarSide.piece,
    FarSide.clean,
)  # fmt: skip
ANSWERS = {request.__name__: request for request in _REQUESTS}
"""The supported requests."""
WITH_DATA = ("small", "large")


def _run(line: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=COMMAND_SECONDS, check=False,
        )  # fmt: skip
    except OSError as error:
        raise UserError(f"{line[0]} cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise UserError(f"{line[1]} did not end in time") from None


def main(arguments: list[str] | None = None) -> int:
    """Serve the given folder over standard input and output."""
    (root,) = sys.argv[1:] if arguments is None else arguments
    wire = Wire(0, 1)
    os.write(1, limits.MARK + b"\n")
    try:
        FarSide(Path(os.path.realpath(root)), wire).serve()
    except Gone:
        return 0
    return 1
