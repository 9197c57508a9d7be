"""The shell wrappers, with a setup and an interpreter that only note how they were called."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASH = shutil.which("bash")
WRAPPERS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (ROOT, ROOT / "scripts")
    for path in folder.glob("*.sh")
    if not path.name.startswith("_")
)
NOTE = """\
import json, os, pathlib, shlex, sys
root = pathlib.Path(__file__).resolve().parent.parent
def note(what):
    with (root / "calls").open("a") as stream:
        stream.write(json.dumps([what, sys.argv[1:], os.getcwd()]) + "\\n")
"""
BOOTSTRAP = (
    NOTE
    + """\
note("bootstrap")
python = root / ".venv" / "bin" / "python"
python.parent.mkdir(parents=True, exist_ok=True)
stub = shlex.join([sys.executable, str(root / "scripts" / "interpreter.py")])
python.write_text(f'#!/bin/sh\\nexec {stub} "$@"\\n')
python.chmod(0o755)
sys.exit(int(os.environ.get("BOOTSTRAP_STATUS", "0")))
"""
)
INTERPRETER = (
    NOTE
    + """\
note("python")
failing = os.environ.get("FAILING", "")
sys.exit(int(os.environ.get("PYTHON_STATUS", "0")) if failing in ("", *sys.argv) else 0)
"""
)

pytestmark = pytest.mark.skipif(BASH is None, reason="the wrappers are bash scripts")


@pytest.fixture
def program(tmp_path) -> Path:
    """A copy of the wrappers in a folder with blanks and other letters in its name."""
    program = tmp_path / "my dir" / "prög $HOME"
    (program / "scripts").mkdir(parents=True)
    for wrapper in [*WRAPPERS, "scripts/_env.sh"]:
        shutil.copy(ROOT / wrapper, program / wrapper)
    (program / "scripts" / "bootstrap.py").write_text(BOOTSTRAP)
    (program / "scripts" / "interpreter.py").write_text(INTERPRETER)
    (program / "tests" / "__pycache__").mkdir(parents=True)
    return program


@pytest.fixture
def new(program) -> Path:
    """The same without anything compiled, as a new checkout is."""
    shutil.rmtree(program / "tests")
    return program


def call(program: Path, wrapper: str, *arguments: str, cwd: Path | None = None, **environment: str):
    """Run a wrapper; returns the process and what was called: (what, arguments, folder)."""
    clean = {"PATH": os.environ["PATH"], "TASTEMAKER_PYTHON": sys.executable, **environment}
    done = subprocess.run(
        [BASH, wrapper, *arguments],
        env=clean, cwd=cwd or program, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    calls = program / "calls"
    noted = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
    calls.unlink(missing_ok=True)
    return done, noted


def programs(calls: list) -> list[list[str]]:
    return [arguments for what, arguments, _ in calls if what == "python"]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("home", [{}, {"HOME": ""}])
def test_from_any_folder_with_or_without_a_home(program, tmp_path, wrapper, home):
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    here, calls_here = call(program, wrapper, cwd=program, **home)
    there, calls_there = call(program, str(program / wrapper), cwd=elsewhere, **home)
    for done, calls in ((here, calls_here), (there, calls_there)):
        assert (done.returncode, done.stderr) == (0, "")
        assert calls[0][0] == "bootstrap"
        assert "--quiet" in calls[0][1]
    assert sorted(programs(calls_here)) == sorted(programs(calls_there))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_is_run_is_there_and_arguments_arrive_whole(program, wrapper):
    odd = ["--x=a b", "$HOME *", "", 'quo"te']
    done, calls = call(program, wrapper, *odd)
    assert done.returncode == 0
    if wrapper == "scripts/setup.sh":
        assert calls[0][1] == ["--quiet", *odd]
        assert programs(calls) == []
        return
    last = programs(calls)[-1]
    assert last[-4:] == odd
    for run in programs(calls):
        if run[0] != "-m":
            script = Path(run[0])
            assert script.is_relative_to(program)
            assert (ROOT / script.relative_to(program)).is_file(), f"{wrapper} runs {script.name}"


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_nothing_runs_after_a_set_up_that_failed(program, wrapper):
    done, calls = call(program, wrapper, BOOTSTRAP_STATUS="2")
    assert done.returncode == 2
    assert [what for what, *_ in calls] == ["bootstrap"]
    assert "ready" not in done.stdout


@pytest.mark.parametrize("wrapper", [name for name in WRAPPERS if name != "scripts/setup.sh"])
def test_the_status_of_what_was_run_is_passed_on(program, wrapper):
    done, calls = call(program, wrapper, PYTHON_STATUS="3")
    assert done.returncode == 3
    assert len(programs(calls)) == 1


def test_the_checks_are_style_types_and_tests_in_the_programs_folder(program, tmp_path):
    done, calls = call(program, str(program / "scripts/test.sh"), "-k", "a b", cwd=tmp_path)
    assert done.returncode == 0
    assert calls[0][1] == ["--quiet", "--dev"]
    assert [run[:2] for run in programs(calls)] == [["-m", "ruff"], ["-m", "mypy"], ["-m", "pytest"]]
    assert programs(calls)[-1][-2:] == ["-k", "a b"]
    assert {Path(folder) for what, _, folder in calls if what == "python"} == {program}


def test_a_new_checkout_is_compiled_before_its_tests_run_and_types_are_checked_meanwhile(new):
    done, calls = call(new, "scripts/test.sh", "-k", "a b")
    assert done.returncode == 0
    first, *rest = programs(calls)
    assert first[:2] == ["-m", "ruff"] and ["-m", "mypy"] in rest
    compiled, tested = (run for run in rest if "pytest" in run)
    assert compiled[:3] == ["-m", "pytest", "--collect-only"] and tested[:3] == ["-m", "pytest", "-n"]
    assert compiled[-2:] == tested[-2:] == ["-k", "a b"]


@pytest.mark.parametrize("failing", ["ruff", "mypy"])
def test_no_test_runs_after_a_check_that_failed(program, failing):
    done, calls = call(program, "scripts/test.sh", FAILING=failing, PYTHON_STATUS="3")
    assert done.returncode == 3
    assert not [run for run in programs(calls) if "-n" in run]


@pytest.mark.parametrize("failing", ["ruff", "--collect-only", "mypy", "worksteal"])
def test_whatever_fails_in_a_new_checkout_fails_the_whole(new, failing):
    done, calls = call(new, "scripts/test.sh", FAILING=failing, PYTHON_STATUS="3")
    assert done.returncode == 3
    # mypy may end when the tests have begun
    assert failing in ("mypy", "worksteal") or not [run for run in programs(calls) if "-n" in run]


def test_an_odd_search_path_for_folders_does_no_harm(program, tmp_path):
    (tmp_path / "scripts").mkdir()
    done, calls = call(program, "scripts/setup.sh", CDPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"[setup] ready: {program}/.venv/bin/python\n"
    assert calls[0][0] == "bootstrap"


def bin_with(tmp_path: Path, **programs: str) -> str:
    """A search path with nothing but ``dirname`` and the given scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "dirname").symlink_to(shutil.which("dirname"))
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_without_any_python_the_message_says_what_to_install(program, tmp_path):
    done, calls = call(program, "scripts/setup.sh", PATH=bin_with(tmp_path), TASTEMAKER_PYTHON="")
    assert done.returncode == 2
    assert "install Python 3.11 or newer" in done.stderr
    assert calls == []


def test_an_old_python_gets_to_say_that_it_is_too_old(program, tmp_path):
    old = 'if [ "$1" = -c ]; then exit 1; fi; echo "[setup] Python 3.11 or newer is needed" >&2; exit 2'
    path = bin_with(tmp_path, python3=old)
    done, calls = call(program, "scripts/setup.sh", PATH=path, TASTEMAKER_PYTHON="")
    assert done.returncode == 2
    assert done.stderr == "[setup] Python 3.11 or newer is needed\n"
    assert calls == []


def test_a_python_that_is_new_enough_is_preferred_to_the_first_one(program, tmp_path):
    good = f'exec "{sys.executable}" "$@"'
    path = bin_with(tmp_path, python3="exit 1", **{"python3.12": good})
    done, calls = call(program, "scripts/setup.sh", PATH=path, TASTEMAKER_PYTHON="")
    assert done.returncode == 0, done.stderr
    assert calls[0][0] == "bootstrap"


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_can_be_started_and_are_sound(wrapper):
    path = ROOT / wrapper
    assert os.access(path, os.X_OK), f"{wrapper} is not executable"
    assert path.read_text().startswith("#!/usr/bin/env bash\n")
    assert b"\r" not in path.read_bytes()
    assert "set -euo pipefail" in path.read_text()
    subprocess.run([BASH, "-n", str(path)], check=True)


@pytest.mark.parametrize("batch", sorted(path.name for path in ROOT.glob("*.bat")))
def test_batch_files_name_what_is_there(batch):
    """They are not run here: line ends, quotes, and the files they start."""
    text = (ROOT / batch).read_bytes().decode("ascii")
    assert text.count("\n") == text.count("\r\n") > 0
    named = re.findall(r'"%ROOT%(scripts[^"]*)"', text)
    assert "scripts\\bootstrap.py" in named
    assert all((ROOT / name.replace("\\", "/")).is_file() for name in named)
    assert not re.findall(r'(?<!")%(?:ROOT|~dp0)', text.replace('"ROOT=%~dp0"', "")), "a path without quotes"


def test_the_quick_run_leaves_windows_and_several_processes_out(program):
    done, calls = call(program, "scripts/test.sh", "--quick", "-x")
    assert done.returncode == 0, done.stderr
    arguments = programs(calls)[-1]
    assert arguments[:2] == ["-m", "pytest"] and {"--quick", "-x", "tests/house", "tests/contracts"} <= {
        *arguments
    }
    folders = {argument for argument in arguments if argument.startswith("tests/")}
    assert not folders & {"tests/ui", "tests/dist", "tests/device", "tests/trainer", "tests/scripts"}
    assert all((ROOT / folder).exists() for folder in folders)
    _, calls = call(program, "scripts/test.sh", "-x")
    assert "worksteal" in programs(calls)[-1], (
        "a worker with nothing left takes over what waits for the other"
    )
    assert not [argument for argument in programs(calls)[-1] if argument.startswith("tests/")]
