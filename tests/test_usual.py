"""Which tests are taken where all of them take too long."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.usual import changed_since, folders_of, share_of, usual


@given(st.integers(0, 100), st.integers(1, 30))
def test_every_test_is_in_one_share(tests: int, count: int) -> None:
    shares = [share_of(range(tests), f"{number}/{count}") for number in range(1, count + 1)]
    assert sorted(one for share in shares for one in share) == list(range(tests))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("share", ["0/3", "4/3", "1/0", "1", "a/b", "-1/3", "1/3/5", ""])
def test_what_is_not_a_share_is_refused(share: str) -> None:
    with pytest.raises(pytest.UsageError, match="--share"):
        share_of([1, 2, 3], share)


def test_cases_that_are_not_taken_are_slow() -> None:
    first, second = usual(["a", "b"], "b")
    assert (second, first.values, [mark.name for mark in first.marks]) == ("b", ("a",), ["slow"])
    with pytest.raises(ValueError, match="no case"):
        usual(["a"], "c")


def commit(folder: Path, message: str) -> None:
    person = ("-c", "user.name=a", "-c", "user.email=a@localhost")
    for words in (("add", "--all"), (*person, "commit", "--quiet", "--message", message)):
        subprocess.run(["git", "-C", str(folder), *words], check=True)


@pytest.mark.child
def test_files_that_changed_since_a_commit_are_found(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    for name in ("kept.py", "edited later.py", "committed.py", ".gitignore"):
        (tmp_path / name).write_text("ignored.py\n")
    commit(tmp_path, "first")
    (tmp_path / "committed.py").write_text("2")
    commit(tmp_path, "second")
    for name in ("edited later.py", "new \u00e9.py", "ignored.py"):
        (tmp_path / name).write_text("3")
    assert sorted(changed_since("HEAD~1", tmp_path)) == ["committed.py", "edited later.py", "new \u00e9.py"]
    for unknown in ("no-such-commit", "--output=x"):
        with pytest.raises(pytest.UsageError, match="--since"):
            changed_since(unknown, tmp_path)
    assert not (tmp_path / "x").exists()


def test_folders_of_tests_mirror_those_that_changed() -> None:
    changed = [
        "modules/ui/pages/HomePage.py",
        "modules/__init__.py",
        "tests/faults/a.py",
        "tests/usual.py",
        "README.md",
    ]
    assert folders_of(changed) == {"ui", "faults"}
    assert folders_of(["modules/spec/families/sana.py"]) == {"spec", "contracts"}
    assert folders_of(["scripts/train.py", "scripts/demo/few.py"]) == {"scripts", "demo"}
