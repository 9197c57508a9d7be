"""The setup script, without a network: pip is a stub that notes how it was called."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scripts import bootstrap
from scripts.bootstrap import SetupError, check_python, is_installed, venv_python, wanted_hash

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "bootstrap.py"


@pytest.fixture
def root(tmp_path) -> Path:
    """A program's folder with requirements, its path holding a blank."""
    root = tmp_path / "the program"
    root.mkdir()
    (root / "requirements.txt").write_text("some-package==1\n")
    (root / "requirements-dev.txt").write_text("some-checker==1\n")
    (root / "constraints.txt").write_text("some-package==1\nsome-checker==1\n")
    return root


class Runner:
    """Notes commands; ``venv`` makes an interpreter that is a stub, and pip has the statuses given."""

    def __init__(self, *pip: int, venv: int = 0, works: int = 0) -> None:
        self.pip, self.venv, self.works = list(pip), venv, works
        self.commands: list[list[str]] = []

    def __call__(self, command) -> int:
        command = list(command)
        self.commands.append(command)
        if "venv" in command:
            if self.venv == 0:
                python = venv_python(Path(command[-1]))
                shutil.rmtree(command[-1], ignore_errors=True)  # as --clear does
                python.parent.mkdir(parents=True)
                python.touch()
            return self.venv
        if "pip" in command:
            status = self.pip.pop(0) if self.pip else 0
            if isinstance(status, BaseException):
                raise status
            return status
        return self.works

    def kinds(self) -> list[str]:
        return ["venv" if "venv" in c else "pip" if "pip" in c else "probe" for c in self.commands]


# -- the interpreter -----------------------------------------------------------------------------------------


def test_only_the_standard_library_is_imported():
    tree = ast.parse(SCRIPT.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
    alone = subprocess.run(
        [sys.executable, "-S", "-I", str(SCRIPT), "--help"], capture_output=True, text=True, check=True
    )
    assert "--dev" in alone.stdout


def test_old_pythons_can_read_it_as_far_as_the_message():
    """Nothing that 3.7 does not know is parsed, or evaluated when the module is loaded."""
    tree = ast.parse(SCRIPT.read_text(), feature_version=(3, 7))
    loaded = [node for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    assert not [ast.unparse(n) for node in loaded for n in ast.walk(node) if isinstance(n, ast.Subscript)]


@pytest.mark.parametrize("version", [(3, 8, 10), (3, 10, 14)])
def test_an_old_python_is_refused_by_its_number(version):
    with pytest.raises(SetupError, match=re.escape(f"this is {version[0]}.{version[1]} ")) as caught:
        check_python(version, has_module=lambda name: True)
    assert "3.11 or newer is needed" in str(caught.value)
    assert "apt install python3.11" in str(caught.value)


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 12, 4), (3, 14, 0), (4, 0, 0)])
def test_newer_pythons_are_taken(version):
    check_python(version, has_module=lambda name: True)


@pytest.mark.parametrize(
    ("lacking", "package"),
    [("venv", "python3.12-venv"), ("ensurepip", "python3.12-venv"), ("tkinter", "python3.12-tk")],
)
def test_a_missing_part_is_named_with_its_package(lacking, package):
    with pytest.raises(SetupError, match=f"lacks {lacking}") as caught:
        check_python((3, 12, 1), has_module=lambda name: name != lacking, platform="linux")
    assert f"apt install {package}" in str(caught.value)


def test_all_missing_parts_are_named_at_once_and_each_package_once():
    with pytest.raises(SetupError) as caught:
        check_python((3, 11, 2), has_module=lambda name: False, platform="linux")
    text = str(caught.value)
    assert "venv, ensurepip, tkinter" in text
    assert text.count("python3.11-venv") == 1
    with pytest.raises(SetupError, match="reinstall Python with the Tcl/Tk"):
        check_python((3, 11, 2), has_module=lambda name: False, platform="win32")


# -- installing ----------------------------------------------------------------------------------------------


def test_first_set_up_makes_the_environment_and_installs_once(root):
    runner = Runner()
    python = bootstrap.bootstrap(root, [], runner)
    assert python == venv_python(root / ".venv")
    assert runner.kinds() == ["venv", "pip"]
    assert runner.commands[0][:3] == [sys.executable, "-m", "venv"]
    pip = runner.commands[1]
    assert pip[0] == str(python)
    assert pip[pip.index("--requirement") + 1 :] == [
        str(root / "requirements.txt"), "--constraint", str(root / "constraints.txt"),
    ]  # fmt: skip
    again = Runner()
    assert bootstrap.bootstrap(root, [], again) == python
    assert again.commands == []


def test_dev_adds_its_file_and_covers_the_program(root):
    bootstrap.bootstrap(root, [], Runner())
    runner = Runner()
    bootstrap.bootstrap(root, ["dev"], runner)
    assert runner.kinds() == ["probe", "pip"]
    assert str(root / "requirements-dev.txt") in runner.commands[1]
    for extras in (["dev"], []):
        runner = Runner()
        bootstrap.bootstrap(root, extras, runner)
        assert runner.commands == []


def test_a_card_adds_its_file(root):
    (root / "requirements-gpu.txt").write_text("bitsandbytes==1\n")
    bootstrap.bootstrap(root, [], Runner())
    for commands in (["probe", "pip"], []):
        runner = Runner()
        bootstrap.bootstrap(root, ["gpu"], runner)
        assert runner.kinds() == commands
    assert bootstrap.requirement_files(root, ["gpu"])[-1].name == "requirements-gpu.txt"


def test_some_optimizers_add_their_file(root):
    (root / "requirements-optimizers.txt").write_text("adv-optm==1\n")
    bootstrap.bootstrap(root, [], Runner())
    for commands in (["probe", "pip"], []):
        runner = Runner()
        bootstrap.bootstrap(root, ["optimizers"], runner)
        assert runner.kinds() == commands
    assert bootstrap.requirement_files(root, ["optimizers"])[-1].name == "requirements-optimizers.txt"


def test_a_computer_without_a_screen_needs_no_tk():
    check_python((3, 11, 2), has_module=lambda name: name != "tkinter", window=False)
    with pytest.raises(SetupError, match="lacks venv:"):
        check_python((3, 11, 2), has_module=lambda name: name == "ensurepip", window=False)


@pytest.mark.parametrize("name", ["requirements.txt", "constraints.txt"])
def test_changed_requirements_are_installed_into_the_same_environment(root, name):
    bootstrap.bootstrap(root, [], Runner())
    path = root / name
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    runner = Runner()
    bootstrap.bootstrap(root, [], runner)
    assert runner.commands == []  # other line ends are not a change
    path.write_text("some-package==2\n")
    bootstrap.bootstrap(root, [], runner)
    assert runner.kinds() == ["probe", "pip"]


def test_a_failing_pip_says_so_and_is_tried_again(root):
    with pytest.raises(SetupError, match="packages could not be installed"):
        bootstrap.bootstrap(root, [], Runner(1))
    assert not is_installed(root / ".venv", wanted_hash(root, []))
    runner = Runner()
    bootstrap.bootstrap(root, [], runner)
    assert runner.kinds() == ["probe", "pip"]
    assert is_installed(root / ".venv", wanted_hash(root, []))


def test_an_update_that_fails_does_not_pass_for_the_old_state(root):
    bootstrap.bootstrap(root, [], Runner())
    old = (root / "requirements.txt").read_text()
    (root / "requirements.txt").write_text("some-package==2\n")
    with pytest.raises(SetupError):
        bootstrap.bootstrap(root, [], Runner(1))
    (root / "requirements.txt").write_text(old)
    runner = Runner()
    bootstrap.bootstrap(root, [], runner)
    assert runner.kinds() == ["probe", "pip"]


def test_an_interrupted_install_is_taken_up_again(root):
    with pytest.raises(KeyboardInterrupt):
        bootstrap.bootstrap(root, [], Runner(KeyboardInterrupt()))
    runner = Runner()
    bootstrap.bootstrap(root, [], runner)
    assert runner.kinds() == ["probe", "pip"]


def test_half_an_environment_is_made_again(root):
    python = venv_python(root / ".venv")
    python.parent.mkdir(parents=True)
    python.touch()
    runner = Runner(works=1)
    bootstrap.bootstrap(root, [], runner)
    assert runner.kinds() == ["probe", "venv", "pip"]
    assert "--clear" in runner.commands[1]


@pytest.mark.parametrize("kind", ["link to a folder", "link to nothing", "folder", "file"])
def test_what_is_not_an_environment_is_left_as_it_is(root, kind):
    mine = root / "mine"
    if kind != "link to nothing":
        mine.mkdir()
        (mine / "photo.png").write_bytes(b"mine")
    if kind.startswith("link"):
        (root / ".venv").symlink_to(mine)
    elif kind == "folder":
        mine.rename(root / ".venv")
    else:
        (mine / "photo.png").rename(root / ".venv")
    before = {path.relative_to(root): path.is_file() and path.read_bytes() for path in root.rglob("*")}
    runner = Runner()
    with pytest.raises(SetupError, match="move it away"):
        bootstrap.bootstrap(root, [], runner)
    assert runner.kinds() == []
    after = {path.relative_to(root): path.is_file() and path.read_bytes() for path in root.rglob("*")}
    after.pop(Path(".venv.lock"))
    assert after == before


def test_a_link_to_a_working_environment_is_used(root, tmp_path):
    python = venv_python(tmp_path / "shared")
    python.parent.mkdir(parents=True)
    python.touch()
    (root / ".venv").symlink_to(tmp_path / "shared")
    runner = Runner()
    bootstrap.bootstrap(root, [], runner)
    assert runner.kinds() == ["probe", "pip"]


def test_an_environment_that_cannot_be_made_is_one_clear_error(root):
    runner = Runner(venv=1)
    with pytest.raises(SetupError, match="could not make"):
        bootstrap.bootstrap(root, [], runner)
    assert runner.kinds() == ["venv"]


def test_a_folder_that_is_not_complete_is_named(root):
    (root / "constraints.txt").unlink()
    with pytest.raises(SetupError, match=r"constraints\.txt is missing"):
        bootstrap.bootstrap(root, [], Runner())


def test_a_stamp_without_its_interpreter_does_not_count(root):
    python = bootstrap.bootstrap(root, [], Runner())
    python.unlink()
    runner = Runner()
    bootstrap.bootstrap(root, [], runner)
    assert runner.kinds() == ["venv", "pip"]


def test_two_set_ups_at_once_install_once(root):
    runner, entered = Runner(), threading.Event()

    def slow(command) -> int:
        if "pip" in command:
            entered.set()
            time.sleep(0.7)
        return runner(command)

    first = threading.Thread(target=bootstrap.bootstrap, args=(root, [], slow))
    first.start()
    assert entered.wait(10)
    bootstrap.bootstrap(root, [], slow)
    first.join()
    assert runner.kinds() == ["venv", "pip"]


# -- as a program --------------------------------------------------------------------------------------------


def call(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = root / "scripts" / "bootstrap.py"
    script.parent.mkdir(exist_ok=True)
    shutil.copy(SCRIPT, script)
    environment = {"PATH": os.environ["PATH"], "HOME": "", "PIP_NO_INDEX": "1", **environment}
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_a_real_environment_with_nothing_to_download(root):
    for name in ("requirements.txt", "requirements-dev.txt", "constraints.txt"):
        (root / name).write_text("# nothing\n")
    made = call(root)
    assert made.returncode == 0, made.stderr
    assert f"[setup] ready: {venv_python(root / '.venv')}" in made.stdout
    quiet = call(root, "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    (root / "requirements.txt").write_text("a-package-that-is-nowhere==1\n")
    failed = call(root)
    assert failed.returncode == 2
    assert "a-package-that-is-nowhere" in failed.stderr
    assert failed.stderr.rstrip().endswith("Run this again to continue")
    assert "Traceback" not in failed.stderr


def test_an_incomplete_folder_ends_with_status_2_and_no_traceback(root):
    (root / "requirements.txt").unlink()
    failed = call(root)
    assert failed.returncode == 2
    assert failed.stderr.startswith("[setup] ")
    assert "requirements.txt is missing" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_pip_is_told_nothing_that_overrides_the_users_settings():
    assert not re.search(r"--(index-url|proxy|cert|trusted-host|no-cache-dir|isolated)", SCRIPT.read_text())
