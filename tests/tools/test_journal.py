"""Changes that can be undone, also after a kill at any moment."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.tools.Journal import FOLDER, Journal
from modules.util.errors import UserError
from modules.util.owned_files import Owned
from modules.util.pairs.dpo_pair_files import file_sha256
from scripts.dataset import main
from tests.changes import full_disk, killed_at, recorded
from tests.tools.pictures import contents, picture
from tests.trainer.builders import small_files_only


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images that exchange names when they are numbered from 1, one with a caption."""
    root = tmp_path / "images"
    root.mkdir()
    picture(1).save(root / "1.png")
    picture(2).save(root / "0.png")
    (root / "1.txt").write_text("one")
    return root


def number_them(root: Path) -> None:
    assert main(["rename", str(root), "--pattern", "{number}"]) == 0


def shrink(root: Path) -> None:
    assert main(["rewrite", str(root), "--edge", "32"]) == 0


def test_images_may_exchange_names_and_undo_gives_them_back(folder: Path) -> None:
    before = contents(folder)
    number_them(folder)
    assert contents(folder) == {
        "1.png": before["0.png"], "2.png": before["1.png"], "2.txt": before["1.txt"]
    }  # fmt: skip
    assert Journal(folder).undo() == "0001-rename"
    assert contents(folder) == before
    assert Journal(folder).undo() is None


@pytest.mark.child
@pytest.mark.parametrize("work", [number_them, shrink])
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_loses_nothing(
    folder: Path, tmp_path: Path, work: Callable[[Path], None], step: int
) -> None:
    before = contents(folder)
    whole = shutil.copytree(folder, tmp_path / "whole")
    with recorded() as changes:
        work(whole)
    after = contents(whole)
    assert after != before
    for number in range(1, changes.begun + 1, step):
        copy = shutil.copytree(folder, tmp_path / f"killed at {number}")
        assert killed_at(number, number % 2 == 0, lambda copy=copy: work(copy))
        found = contents(copy)
        again = shutil.copytree(copy, tmp_path / f"again {number}")
        while Journal(copy).undo():
            pass
        assert contents(copy) == before, f"killed at {number}: {sorted(found)}"
        # the same command again resumes a series; a transaction begins from the start, or finds it done
        if work is shrink or set(found) != set(after):
            work(again)
        assert contents(again) == after, f"killed at {number}"


def test_undo_killed_at_any_moment_is_undone_by_the_next(folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    number_them(folder)
    with recorded() as changes:
        Journal(shutil.copytree(folder, tmp_path / "counted")).undo()
    for number in range(1, changes.begun + 1, 2):
        copy = shutil.copytree(folder, tmp_path / f"killed at {number}")
        killed_at(number, number % 2 == 0, lambda copy=copy: Journal(copy).undo())
        while Journal(copy).undo():
            pass
        assert contents(copy) == before


@pytest.mark.parametrize("done", range(6))
def test_an_undo_that_was_stopped_is_completed_before_anything_is_forgotten(
    folder: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """Of six moves: one of three files to a name between, and one to the new name."""
    before = contents(folder)
    number_them(folder)
    move, moved = Owned.move, iter(range(6))

    def stopped(owned: Owned, name: str, target: str) -> None:
        if next(moved) == done:
            raise KeyboardInterrupt
        move(owned, name, target)

    with monkeypatch.context() as patch:
        patch.setattr(Owned, "move", stopped)
        with pytest.raises(KeyboardInterrupt):
            Journal(folder).undo()
    assert contents(folder) != before
    Journal(folder).forget()
    assert contents(folder) == before


def test_an_undo_that_was_stopped_is_completed_by_the_next_and_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number_them(folder)
    between = contents(folder)
    shrink(folder)
    move, moved = Owned.move, iter(range(9))

    def stopped(owned: Owned, name: str, target: str) -> None:
        if next(moved) == 1:
            raise KeyboardInterrupt
        move(owned, name, target)

    with monkeypatch.context() as patch:
        patch.setattr(Owned, "move", stopped)
        with pytest.raises(KeyboardInterrupt):
            Journal(folder).undo()
    assert Journal(folder).undo() == "0002-rewrite"
    assert contents(folder) == between
    assert Journal(folder).undo() == "0001-rename"


@pytest.mark.parametrize("verb", ["forget", "undo"])
def test_files_that_lie_nowhere_else_are_never_deleted(folder: Path, verb: str) -> None:
    number_them(folder)
    lost = folder / FOLDER / "0001-rename" / "moving" / "000009"
    lost.write_bytes(b"an image")
    with pytest.raises(UserError, match="moving"):
        getattr(Journal(folder), verb)()
    assert lost.read_bytes() == b"an image"


def test_a_full_disk_changes_nothing(folder: Path) -> None:
    before = contents(folder)
    for after in range(4):
        with full_disk("write", after=after):
            assert main(["rewrite", str(folder), "--edge", "32"]) == 2
        while Journal(folder).undo():
            pass
        assert contents(folder) == before


def test_a_full_disk_is_named_by_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    with small_files_only(100):
        assert main(["rewrite", str(folder), "--edge", "32"]) == 2
    assert f"error: {folder}" in capsys.readouterr().err
    assert contents(folder) == before


def test_an_image_that_cannot_be_written_is_told_in_the_words_of_its_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def save(*_: object, **__: object) -> None:
        raise OSError("broken data stream when writing image file")

    monkeypatch.setattr("PIL.Image.Image.save", save)
    before = contents(folder)
    assert main(["rewrite", str(folder), "--edge", "32"]) == 2
    assert "error: broken data stream when writing image file" in capsys.readouterr().err
    assert contents(folder) == before


def test_undo_reads_each_written_file_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(folder)
    shrink(folder)
    read: list[str] = []

    def digest(path: Path) -> str:
        read.append(path.name)
        return file_sha256(path)

    monkeypatch.setattr("modules.tools.Journal.file_sha256", digest)
    assert Journal(folder).undo() == "0001-rewrite"
    assert sorted(read) == ["0.png", "1.png"]
    assert contents(folder) == before


def test_what_a_person_changed_since_is_not_replaced(folder: Path) -> None:
    shrink(folder)
    (folder / "1.png").write_bytes(b"my own")
    now = contents(folder)
    with pytest.raises(UserError, match=r"1\.png was changed since"):
        Journal(folder).undo()
    assert contents(folder) == now
    (folder / "1.png").unlink()
    assert Journal(folder).undo()
    assert contents(folder).keys() == {"0.png", "1.png", "1.txt"}


def test_an_undo_names_what_it_cannot_restore(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    assert main(["rename", str(folder), "--pattern", "pet {number}"]) == 0
    renamed = [name for name in contents(folder) if name not in before]
    (folder / renamed[0]).rename(folder.parent / "elsewhere.png")
    capsys.readouterr()
    assert main(["undo", str(folder)]) == 0
    said = capsys.readouterr().out
    assert said.count("not restored: ") == 1 and f": {renamed[0]} is no longer there" in said
    assert len(before.keys() - contents(folder).keys()) == 1


def test_an_undo_that_can_restore_nothing_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    assert main(["rename", str(folder), "--pattern", "pet {number}"]) == 0
    renamed = [name for name in contents(folder) if name not in before]
    for name in renamed:
        (folder / name).rename(folder / f"mine {name}")
    assert main(["undo", str(folder)]) == 2
    assert "nothing of 0001-rename can be undone any more" in capsys.readouterr().err
    for name in renamed:
        (folder / f"mine {name}").rename(folder / name)
    assert main(["undo", str(folder)]) == 0
    assert contents(folder) == before


def test_a_new_file_of_the_old_name_stops_undo(folder: Path) -> None:
    number_them(folder)
    (folder / "0.png").write_bytes(b"my own")
    now = contents(folder)
    with pytest.raises(UserError, match=r"0\.png exists again"):
        Journal(folder).undo()
    assert contents(folder) == now


def test_one_tool_at_a_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    with Journal(folder).job("first"):
        assert main(["rename", str(folder), "--pattern", "{number}"]) == 2
        assert "another tool" in capsys.readouterr().err
    assert contents(folder) == before


def test_forgetting_deletes_what_was_kept(folder: Path) -> None:
    shrink(folder)
    kept = [path for path in (folder / FOLDER).rglob("*") if path.is_file() and path.parent.name == "kept"]
    assert len(kept) == 2
    assert not [path for path in kept if path.suffix], "nobody takes it for an image"
    assert Journal(folder).forget() == 1
    assert {path.name for path in (folder / FOLDER).iterdir()} == {"lock"}
    assert Journal(folder).undo() is None


def test_a_journal_leads_nowhere_else(folder: Path, tmp_path: Path) -> None:
    """A folder from elsewhere may bring one."""
    (tmp_path / "mine").write_text("mine")
    place = folder / FOLDER / "0001-evil"
    (place / "kept").mkdir(parents=True)
    (place / "kept" / "000001").write_text("evil")
    for target in ("../mine", str(tmp_path / "mine"), "../new"):
        line = f'{{"begin": "x"}}\n{{"move": ["{target}", "{FOLDER}/0001-evil/kept/000001", ""]}}\n'
        (place / "journal.jsonl").write_text(line)
        with pytest.raises(UserError):
            Journal(folder).undo()
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "new").exists()
