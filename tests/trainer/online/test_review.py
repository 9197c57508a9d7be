"""Images kept of epochs: old ones go, files of a person never do."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from modules.trainer.online.review import ReviewFolder, forget_old
from modules.util.errors import UserError
from tests.guard import Guard


def epoch(folder: Path, number: int) -> Path:
    path = folder / f"epoch-{number}"
    path.mkdir(parents=True)
    for name in ("0000.png", "0001.png", "images.json", ".tastemaker-0123456789abcdef.tmp"):
        (path / name).write_text("x")
    return path


def test_only_the_newest_stay(tmp_path: Path) -> None:
    for number in (0, 1, 2, 10):
        epoch(tmp_path, number)
    forget_old(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-10", "epoch-2"]
    assert len(list((tmp_path / "epoch-2").iterdir())) == 4


def test_epochs_of_an_earlier_run_are_older_than_those_of_a_new_one(tmp_path: Path) -> None:
    for number in (7, 8, 9):
        epoch(tmp_path, number)
    kept = ReviewFolder(tmp_path, 1, 3)
    nothing: Any = None
    left = []
    for number in range(3):
        with kept.keeping(number, [], nothing, nothing) as places:
            assert places == []
        assert kept.problems() == []
        left.append(sorted(int(path.name.removeprefix("epoch-")) for path in tmp_path.iterdir()))
    assert left == [[0, 8, 9], [0, 1, 9], [0, 1, 2]]


def test_an_image_that_cannot_be_written_is_told_of_and_old_ones_still_go(tmp_path: Path) -> None:
    epoch(tmp_path, 0)
    kept = ReviewFolder(tmp_path, 1, 1)
    nothing: Any = None
    with kept.keeping(1, [], nothing, nothing):
        (tmp_path / "epoch-1").mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")
    (told,) = kept.problems()
    assert "images of epoch 1 cannot be kept" in told and "No space left" in told
    assert kept.problems() == [] and [path.name for path in tmp_path.iterdir()] == ["epoch-1"]


def test_an_epoch_whose_folder_is_a_link_is_told_of_and_nothing_is_written(tmp_path: Path) -> None:
    with Guard(tmp_path / "person") as guard:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "epoch-1").symlink_to(guard.folder)
        epoch(tmp_path / "run", 0)
        kept = ReviewFolder(tmp_path / "run", 1, 1)
        nothing: Any = None
        with kept.keeping(1, [], nothing, nothing) as places:
            assert places == []
        (told,) = kept.problems()
        assert "epoch-1 is a link" in told
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["epoch-1"]


def test_what_images_edit_goes_with_them(tmp_path: Path) -> None:
    for number in (0, 1):
        for name in ("0000-source.png", "0000-source.2.png"):
            (tmp_path / f"epoch-{number}").mkdir(exist_ok=True)
            (tmp_path / f"epoch-{number}" / name).write_text("x")
    forget_old(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-1"]


def test_files_of_a_person_stay_and_links_are_not_followed(tmp_path: Path) -> None:
    with Guard(tmp_path / "person") as guard:
        run = tmp_path / "run"
        (epoch(run, 0) / "best.png").write_text("mine")
        (epoch(run, 1) / "0002.png").symlink_to(guard.folder / "mine.png")
        (run / "epoch-2").symlink_to(guard.folder)
        epoch(run, 3)
        with pytest.raises(UserError, match="epoch-2 is a link"):
            forget_old(run, 1)
        assert sorted(path.name for path in run.iterdir()) == ["epoch-0", "epoch-2", "epoch-3"]
        assert [path.name for path in (run / "epoch-0").iterdir()] == ["best.png"]
