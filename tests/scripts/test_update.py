"""Updating with git: real repositories, a remote in a folder, and a setup that only notes that it was called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import bootstrap, update

pytestmark = pytest.mark.child

BOOTSTRAP = (
    "import json, pathlib, sys\n"
    "root = pathlib.Path(__file__).resolve().parent.parent\n"
    "(root / 'called').write_text(json.dumps(sys.argv[1:]))\n"
    "sys.exit(int((root / 'status').read_text()) if (root / 'status').exists() else 0)\n"
)


def git(folder: Path, *arguments: str) -> str:
    command = [
        "git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@x.x", "-c", "init.defaultBranch=main",
        "-c", "commit.gpgSign=false", *arguments,
    ]  # fmt: skip
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, subject: str, **files: str | None) -> None:
    """Write (or remove) files, ``__`` in a name standing for a slash and ``_`` before its ending for a dot."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        if text is None:
            git(folder, "rm", "-q", "-r", path.relative_to(folder).as_posix())
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", subject)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """Where new versions come from."""
    folder = tmp_path / "origin"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "scripts").mkdir()
    (folder / "scripts" / "bootstrap.py").write_text(BOOTSTRAP)
    (folder / ".gitignore").write_text("called\nstatus\n.venv/\nmine/\n")
    for name in update.PACKAGE_FILES:
        (folder / name).write_text("one==1\n")
    commit(folder, "The first version", program="1", part__a="a")
    return folder


@pytest.fixture
def root(tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program's folder: a clone, with a blank in its name."""
    folder = tmp_path / "my program"
    git(tmp_path, "clone", "-q", str(origin), str(folder))
    monkeypatch.setattr(update, "ROOT", folder)
    return folder


def files(root: Path) -> dict[str, bytes]:
    """Everything in a folder that git does not keep for itself."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(root).parts
    }


def refused(root: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of an update that changes no file and no commit."""
    before, head = files(root), git(root, "rev-parse", "HEAD") if (root / ".git").exists() else ""
    assert update.main(arguments) == 2
    assert files(root) == before
    assert not head or git(root, "rev-parse", "HEAD") == head
    return capsys.readouterr().err


def test_a_new_version_is_taken_over_and_files_of_a_person_stay(root: Path, origin: Path) -> None:
    (root / "mine").mkdir()
    (root / "mine" / "pairs.json").write_text("mine")
    (root / "part" / "note.txt").write_text("mine too")
    commit(origin, "The second version", program="2", new__file="new", part=None)
    assert update.main([]) == 0
    found = files(root)
    assert (found["program"], found["new/file"]) == (b"2", b"new")
    assert (found["mine/pairs.json"], found["part/note.txt"]) == (b"mine", b"mine too")
    assert "part/a" not in found
    assert found["called"] == b"[]"
    assert git(root, "rev-parse", "HEAD") == git(origin, "rev-parse", "HEAD")


def test_a_dry_run_says_what_is_new_and_changes_nothing(
    root: Path, origin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(origin, "Images are sharper \x1b[31m", program="2", requirements="x")
    (origin / "requirements.txt").write_text("one==2\n")
    commit(origin, "One more package")
    before, head = files(root), git(root, "rev-parse", "HEAD")
    assert update.main(["--dry-run"]) == 0
    assert (files(root), git(root, "rev-parse", "HEAD")) == (before, head)
    text = capsys.readouterr().out
    assert "Images are sharper ?[31m" in text
    assert "new commits: 2" in text
    assert "1 added, 2 changed" in text
    assert "packages change" in text


def test_packages_are_completed_without_a_new_version(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert update.main([]) == 0
    assert "up to date" in capsys.readouterr().out
    assert (root / "called").read_text() == "[]"


def test_an_environment_for_tests_stays_one(root: Path, origin: Path) -> None:
    python = bootstrap.venv_python(root / ".venv")
    python.parent.mkdir(parents=True)
    python.touch()
    (root / ".venv" / bootstrap.STAMP).write_text(bootstrap.wanted_hash(root, ["dev"]))
    (origin / "constraints.txt").write_text("one==2\n")
    commit(origin, "Another version of a package")
    assert update.main([]) == 0
    assert (root / "called").read_text() == '["--dev"]'


def test_packages_that_fail_are_told_with_how_to_continue(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "status").write_text("2")
    assert update.main([]) == 2
    assert "Run this again" in capsys.readouterr().err


@pytest.mark.parametrize("staged", [False, True])
def test_a_changed_file_of_the_program_stops_it(
    root: Path, origin: Path, capsys: pytest.CaptureFixture[str], staged: bool
) -> None:
    commit(origin, "Elsewhere", other="2")
    (root / "program").write_text("my own")
    if staged:
        git(root, "add", "program")
    text = refused(root, capsys)
    assert "program" in text
    assert "git stash" in text


def test_commits_of_ones_own_stop_it_if_there_are_new_ones(
    root: Path, origin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(root, "My own", mine_txt="mine")
    assert update.main([]) == 0
    commit(origin, "The second version", program="2")
    assert "git pull --rebase" in refused(root, capsys)


@pytest.mark.parametrize("name", ["mine/pairs.json", "untracked", "folder"])
def test_a_file_in_the_way_is_kept(
    root: Path, origin: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """git itself would overwrite one that it is told to ignore."""
    (origin / ".gitignore").write_text("called\n")
    commit(origin, "Takes names", mine__pairs="x", untracked="x", folder__below="x")
    git(origin, "mv", "mine/pairs", "mine/pairs.json")
    commit(origin, "Another name")
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    assert name in refused(root, capsys)
    assert name in refused(root, capsys, "--dry-run")


def test_git_refuses_as_well(root: Path, origin: Path) -> None:
    """The second lock, should a file appear between the look and the step."""
    (origin / ".gitignore").write_text("called\n")
    commit(origin, "Takes a name", mine__file="x")
    checkout = update.Checkout(root)
    found = checkout.look(checkout.check())
    (root / "mine").mkdir()
    (root / "mine" / "file").write_text("mine")
    with pytest.raises(bootstrap.SetupError, match="merge"):
        checkout.forward(found)
    assert (root / "mine" / "file").read_text() == "mine"


def test_files_of_the_program_may_become_folders_and_back(root: Path, origin: Path) -> None:
    commit(origin, "Turns them round", program=None, part=None)
    commit(origin, "Under the same names", program__now__deep="d", part="p")
    assert update.main([]) == 0
    assert (root / "program" / "now" / "deep").read_text() == "d"
    assert (root / "part").read_text() == "p"


@pytest.mark.parametrize("inside", [False, True])
def test_a_folder_that_is_no_checkout_says_how_to_update(
    tmp_path: Path, origin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], inside: bool
) -> None:  # fmt: skip
    root = origin / "unpacked" if inside else tmp_path / "unpacked"
    root.mkdir()
    monkeypatch.setattr(update, "ROOT", root)
    assert "Download the new version" in refused(root, capsys)
    if inside:
        (root / ".git").mkdir()
        assert "git cannot read" in refused(origin, capsys)


def test_what_git_cannot_know_is_told(root: Path, origin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(root, "config", "remote.origin.url", str(origin / "gone"))
    assert "origin cannot be reached" in refused(root, capsys)
    git(root, "branch", "--unset-upstream")
    assert "--set-upstream-to" in refused(root, capsys)
    git(root, "checkout", "-q", "--detach")
    assert "no branch" in refused(root, capsys)
    (root / ".git" / "MERGE_HEAD").write_text(git(root, "rev-parse", "HEAD"))
    assert "MERGE_HEAD" in refused(root, capsys)


def test_without_git_it_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(update.shutil, "which", lambda name: None)
    assert update.main([]) == 2
    assert "git is not installed" in capsys.readouterr().err


def test_the_command_runs_from_anywhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, update.__file__, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--dry-run" in done.stdout
