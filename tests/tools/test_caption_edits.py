"""Captions changed by hand and many at once: undone, killed, and changed by others meanwhile."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.tools.dataset.caption_edits import (
    Caption,
    CaptionChangedError,
    carry_out_edits,
    list_captions,
    plan_edits,
    read_caption,
    save_caption,
    undo_edit,
)
from modules.tools.dataset.tags import adding, deleting
from modules.tools.Journal import FOLDER, Journal
from modules.util.errors import UserError
from scripts.caption import main
from tests.changes import full_disk, killed_at, recorded
from tests.tools.pictures import contents, picture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images with two captions, an empty one, one that is not text, and none; and a source of an edit."""
    root = tmp_path / "images"
    root.mkdir()
    for name in ("a.png", "a-source.png", "b.jpg", "c.png", "d.png", "e.png"):
        picture(1).save(root / name)
    (root / "a.txt").write_bytes(b"\xef\xbb\xbffox, snow\r\n")
    (root / "b.caption").write_text("foxes, ice")
    (root / "c.txt").write_text("")
    (root / "d.txt").write_bytes(b"fox \xff")
    return root


def names(root: Path) -> list[str]:
    return [name for _, name in list_captions(root, subfolders=False)]


def say_nothing(number: int, name: str) -> None:
    pass


def test_every_image_has_the_caption_that_training_reads(folder: Path) -> None:
    assert names(folder) == ["a.txt", "b.caption", "c.txt", "d.txt", "e.txt"]
    found = {name: read_caption(folder, name) for name in names(folder)}
    assert found["a.txt"] == Caption("fox, snow\r\n")
    assert found["e.txt"] == Caption(None)
    assert "not UTF-8" in found["d.txt"].fault
    assert [name for name, caption in found.items() if caption.blank] == ["c.txt", "e.txt"]


def test_a_saved_caption_is_whole_and_undone(folder: Path) -> None:
    before = contents(folder)
    save_caption(folder, "e.txt", Caption(None), "new é")
    save_caption(folder, "e.txt", Caption("new é"), "newer")
    assert (folder / "e.txt").read_text() == "newer"
    assert undo_edit(folder)
    assert (folder / "e.txt").read_text(encoding="utf-8") == "new é"
    assert undo_edit(folder)
    assert undo_edit(folder) is None
    assert contents(folder) == before


def test_what_another_program_wrote_is_not_overwritten(folder: Path) -> None:
    plan = plan_edits(folder, names(folder), adding("me", at_end=False))
    (folder / "c.txt").write_text("from elsewhere")
    before = contents(folder)
    with pytest.raises(CaptionChangedError) as raised:
        save_caption(folder, "c.txt", Caption(""), "mine")
    assert raised.value.now == Caption("from elsewhere")
    with pytest.raises(CaptionChangedError):
        carry_out_edits(folder, plan, say_nothing)
    assert contents(folder) == before
    assert Journal(folder).jobs() == []


def test_undo_of_captions_leaves_other_changes_alone(folder: Path) -> None:
    with Journal(folder).job("rename") as job:
        job.move("e.png", "f.png")
    with pytest.raises(UserError, match="0001-rename"):
        undo_edit(folder)
    assert (folder / "f.png").exists()


def test_the_number_after_9999_is_10000(folder: Path) -> None:
    for number in ("9999", "10000"):
        place = folder / FOLDER / f"{number}-caption-edits"
        place.mkdir(parents=True)
        (place / "journal.jsonl").write_text('{"end": true}\n')
    save_caption(folder, "e.txt", Caption(None), "new")
    assert Journal(folder).jobs()[-1] == "10001-caption-edits"
    assert undo_edit(folder) == "10001-caption-edits"
    assert not (folder / "e.txt").exists()


@pytest.mark.child
@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_many_captions_change_together_or_not_at_all(folder: Path, tmp_path: Path, step: int) -> None:
    def work(root: Path) -> None:
        carry_out_edits(root, plan_edits(root, names(root), adding("me", at_end=True)), say_nothing)

    before = contents(folder)
    whole = shutil.copytree(folder, tmp_path / "whole")
    with recorded() as changes:
        work(whole)
    after = contents(whole)
    assert after == before | {
        "a.txt": b"fox, snow, me\r\n", "b.caption": b"foxes, ice, me", "c.txt": b"me", "e.txt": b"me"
    }  # fmt: skip
    for number in range(1, changes.begun + 1, step):
        copy = shutil.copytree(folder, tmp_path / f"killed at {number}")
        assert killed_at(number, number % 2 == 0, lambda copy=copy: work(copy))
        gone = before.keys() - contents(copy).keys()
        assert len(gone) <= 1, f"killed at {number}: {gone}"
        again = [name for name in names(copy) if name]
        assert again
        assert contents(copy) in (before, after), f"killed at {number}"


def test_a_full_disk_or_a_stop_changes_nothing(folder: Path) -> None:
    before = contents(folder)
    plan = plan_edits(folder, names(folder), adding("me", at_end=True))

    for turn in (2, 6):  # of eight: while they are written, and while they are put in their places
        turns = itertools.count()

        def stop(number: int, name: str, turn: int = turn, turns: Iterator[int] = turns) -> None:
            if next(turns) == turn:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            carry_out_edits(folder, plan, stop)
        assert contents(folder) == before
    for after in range(0, 12, 3):
        with full_disk("write", "create", after=after), pytest.raises(OSError, match="No space"):
            carry_out_edits(folder, plan, say_nothing)
        Journal(folder).put_in_order()
        assert contents(folder) == before


def test_a_link_is_replaced_and_what_it_leads_to_stays(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("fox")
    (folder / "e.txt").symlink_to(tmp_path / "mine.txt")
    carry_out_edits(folder, plan_edits(folder, ["e.txt"], deleting("fox")), say_nothing)
    assert (tmp_path / "mine.txt").read_text() == "fox"


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (
            ("replace", "--find", "fox", "--by", "dog"),
            {"a.txt": b"dog, snow\r\n", "b.caption": b"doges, ice"},
        ),
        (("replace", "--find", "fox", "--by", "dog", "--tags"), {"a.txt": b"dog, snow\r\n"}),
        (("add", "--tag", "me", "--only", "ice"), {"b.caption": b"me, foxes, ice"}),
        (("delete", "--tag", "snow"), {"a.txt": b"fox\r\n"}),
    ],
)
def test_the_command_previews_does_and_undoes(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], changed: dict[str, bytes]
) -> None:
    before = contents(folder)
    assert main([*words, "--dry-run", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert contents(folder) == before
    for name in changed:
        assert f"{name}: " in shown
    assert "d.txt: left as it is: d.txt is not UTF-8" in shown
    assert "nothing was changed" in shown
    assert main([*words, str(folder)]) == 0
    assert contents(folder) == before | changed
    assert main(["undo", str(folder)]) == 0
    assert contents(folder) == before


def test_the_command_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "--json", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tags"] == {"fox": 1, "foxes": 1, "ice": 1, "snow": 1}
    assert found["without_caption"] == ["c.png", "e.png"]
    assert found["unreadable"].keys() == {"d.txt"}
    assert main(["count", str(folder)]) == 0
    assert "1\tfox\n" in capsys.readouterr().out
    assert main(["delete", "--tag", "a, b", str(folder)]) == 2
    assert "--tag" in capsys.readouterr().err


def test_journals_of_earlier_changes_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each caption that is written takes longer than the one before."""
    read: list[str] = []
    past = Journal._past
    monkeypatch.setattr(Journal, "_past", lambda self, name: (read.append(name), past(self, name))[1])
    caption = Caption(None)
    for number in range(5):
        caption = save_caption(folder, "e.txt", caption, f"fox {number}")
    assert read == [f"000{number}-caption-edits" for number in range(1, 5)]
    # what changed since is read again
    with (folder / FOLDER / "0003-caption-edits" / "journal.jsonl").open("a") as stream:
        stream.write("\n")
    save_caption(folder, "e.txt", caption, "fox 5")
    assert read[4:] == ["0005-caption-edits", "0003-caption-edits"]


def test_looking_changes_nothing_and_waits_for_nobody(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_caption(folder, "e.txt", Caption(None), "fox")
    before = contents(folder)
    with Journal(folder).job("other") as job:
        assert main(["count", str(folder)]) == 0
        assert main(["delete", "--tag", "fox", "--dry-run", str(folder)]) == 0
        assert main(["delete", "--tag", "fox", str(folder)]) == 2
        assert "another tool is at work" in capsys.readouterr().err
        assert job.is_empty
    assert contents(folder) == before
