"""Undo across processes, and the trash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from modules.curation.intake.image_size import image_size
from modules.curation.review.review import PairReview
from modules.curation.review.review_fixes import fix_faults
from modules.curation.review.review_journal import JOURNAL_NAME, TRASH_NAME
from modules.curation.store import CurationStore
from modules.util import dpo_curation_util as util
from modules.util.errors import UserError
from scripts import curate
from tests.changes import full_disk


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for side in util.SIDES
        for p in (folder / side).rglob("*")
        if p.is_file()
    }


def entries(folder: Path) -> dict[str, dict]:
    return {pair["pair_id"]: pair for pair in util.load_manifest(folder)["pairs"]}


@pytest.fixture
def folder(tmp_path):
    out = tmp_path / "out"
    with CurationStore(out) as store:
        for i in range(4):
            paths = [tmp_path / f"c{i}.png", tmp_path / f"r{i}.webp"]
            for path, blue in zip(paths, (90, 0), strict=True):
                Image.new("RGB", (32, 32), (i, 5, blue)).save(path)
            store.export(f"g{i}", [(paths[0], paths[1])], f"prompt {i}", "1:1", {"used": []})
        manifest = store.manifest()
        util.finalize_export(out, manifest, 25.0)
        store.sync_from_manifest(manifest)
    return out


def call(folder: Path, *arguments: str) -> dict:
    result = folder.parent / "result.json"
    assert curate.main(["review", str(folder), *arguments, "--json", str(result)]) == 0
    return json.loads(result.read_text())


def test_each_call_takes_back_what_an_earlier_call_did(folder):
    stages = [(snapshot(folder), entries(folder))]
    for step in (("--swap", "pair_0001"), ("--caption", "pair_0001", "other"), ("--remove", "pair_0001")):
        assert call(folder, *step)["undone"] == []
        stages.append((snapshot(folder), entries(folder)))
    assert "pair_0001" not in stages[-1][1]
    for files, manifest in reversed(stages[:-1]):
        assert call(folder, "--undo")["undone"] == ["pair_0001"]
        assert snapshot(folder) == files
        assert entries(folder) == manifest
    with CurationStore(folder) as store:
        assert {p["pair_id"]: p for p in store.pairs()} == stages[0][1]


def test_several_steps_at_once_and_nothing_more(folder, capsys):
    before = snapshot(folder)
    call(folder, "--remove", "pair_0000", "pair_0001", "pair_0002", "pair_0003")
    assert snapshot(folder) == {}
    result = call(folder, "--undo", "9")
    assert result["undone"] == ["pair_0003", "pair_0002", "pair_0001", "pair_0000"]
    assert snapshot(folder) == before
    assert curate.main(["review", str(folder), "--undo"]) == 2
    assert "nothing to undo" in capsys.readouterr().err


def test_a_pair_that_came_back_belongs_to_its_group_again(folder):
    with CurationStore(folder) as store:
        group = [e.group_key for e in store.events() if "pair_0002" in e.payload.get("pair_ids", [])]
    call(folder, "--remove", "pair_0002")
    with CurationStore(folder) as store:
        assert store.pair_count() == 3
    call(folder, "--undo")
    with CurationStore(folder) as store:
        assert store.pair_count() == 4
        assert not any(e.kind == "remove" for e in store.events())
        event = store.undo_last()
        while event is not None and event.group_key not in group:
            event = store.undo_last()
        assert store.pair("pair_0002") is None


def test_mending_a_pair_with_no_file_left_can_be_undone(folder):
    for file in list(folder.glob("*/*/pair_0001.*")):
        file.unlink()
    review = PairReview(folder)
    fix_faults(review, review.faults(32, image_size))
    assert "pair_0001" not in entries(folder)
    assert PairReview(folder).undo()
    assert "pair_0001" in entries(folder)


def test_a_pair_comes_back_to_the_split_its_prompt_is_in_now(folder):
    manifest = util.load_manifest(folder)
    for pair in manifest["pairs"]:
        pair["prompt"] = "one" if pair["pair_id"] in ("pair_0000", "pair_0001") else "two"
    util.save_manifest(folder, manifest)
    util.finalize_export(folder, manifest, 50.0)
    gone = next(p.pair_id for p in util.scan_finalized_pairs(folder) if p.split == "val")
    PairReview(folder).remove(gone)
    util.finalize_export(folder, util.load_manifest(folder), 0.0)
    PairReview(folder).undo()
    assert {p.split for p in util.scan_finalized_pairs(folder)} == {"train"}
    assert gone in entries(folder)
    for pair in entries(folder).values():
        assert (folder / pair["chosen_file"]).is_file()


def test_a_step_that_a_crash_cut_short_is_taken_back_whole(folder):
    before, manifest = snapshot(folder), entries(folder)
    PairReview(folder).remove("pair_0001")
    (trashed,) = [p for p in (folder / TRASH_NAME).rglob("chosen.pair_0001.*") if p.suffix != ".txt"]
    trashed.replace(folder / manifest["pair_0001"]["chosen_file"])  # as if it had not been moved yet
    with (folder / TRASH_NAME / JOURNAL_NAME).open("ab") as stream:
        stream.write(b'{"do": "rem')
    assert PairReview(folder).undo()
    assert (snapshot(folder), entries(folder)) == (before, manifest)
    assert not PairReview(folder).undo()


def test_a_swap_that_was_noted_and_not_done_is_not_swapped_by_undoing(folder, monkeypatch):
    before = snapshot(folder)
    monkeypatch.setattr("modules.curation.review.review.swap_sides", lambda *arguments: None)
    PairReview(folder).swap("pair_0001")
    monkeypatch.undo()
    assert PairReview(folder).undo()
    assert snapshot(folder) == before


def test_a_swap_is_taken_back_although_an_image_was_edited_since(folder):
    PairReview(folder).swap("pair_0001")
    swapped = PairReview(folder).find("pair_0001")
    theirs = swapped.rejected.read_bytes()
    swapped.chosen.write_bytes(swapped.chosen.read_bytes() + b"edited")
    mine = swapped.chosen.read_bytes()
    assert PairReview(folder).undo()
    pair = PairReview(folder).find("pair_0001")
    assert (pair.chosen.read_bytes(), pair.rejected.read_bytes()) == (theirs, mine)


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_caption_that_a_person_has_written_since_is_not_replaced_by_undoing(folder, side):
    before = snapshot(folder)
    PairReview(folder).edit_caption("pair_0001", "a caption for both")
    caption = getattr(PairReview(folder).find("pair_0001"), side).with_suffix(".txt")
    caption.write_text("written by hand\n")
    now = snapshot(folder)
    with pytest.raises(UserError, match="was changed since"):
        PairReview(folder).undo()
    assert snapshot(folder) == now
    caption.unlink()
    assert PairReview(folder).undo()
    assert snapshot(folder) == before


def test_steps_on_pairs_that_picking_has_taken_back_are_passed_over(folder):
    PairReview(folder).edit_caption("pair_0002", "another")
    PairReview(folder).edit_caption("pair_0001", "another")
    util.remove_finalized_pair(folder, "pair_0001")
    review = PairReview(folder)
    assert review.undo()
    assert review.undone == "pair_0002"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("files", 0, 0), "../stolen.png"),
        (("files", 0, 0), "/stolen.png"),
        (("files", 0, 0), "manifest.json"),
        (("files", 0, 0), "chosen"),
        (("files", 0, 0), "chosen/a\0.png"),
        (("files", 0, 1), "../../stolen.png"),
        (("files", 0, 1), "steps.jsonl"),
        (("files", 0), "chosen/x"),
        (("files",), None),
        (("pair_id",), "../x"),
        (("pair_id",), 7),
        (("entry", "pair_id"), "../x"),
        (("entry", "chosen_file"), "../x.png"),
        (("entry", "rejected_file"), "rejected/notes.txt"),
        (("entry",), "pair_0001"),
        (("do",), "format"),
    ],
)
def test_a_step_that_names_anything_outside_is_dropped_with_a_message(folder, tmp_path, caplog, place, value):
    PairReview(folder).remove("pair_0001")
    journal = folder / TRASH_NAME / JOURNAL_NAME
    step = json.loads(journal.read_text())
    *way, last = place
    inner = step
    for part in way:
        inner = inner[part]
    inner[last] = value
    journal.write_text(json.dumps(step) + "\n")
    before = {p.relative_to(tmp_path) for p in tmp_path.rglob("*")}
    assert not PairReview(folder).undo()
    assert "is left out" in caplog.text
    assert {p.relative_to(tmp_path) for p in tmp_path.rglob("*")} == before
    util.load_manifest(folder)


def test_a_place_that_is_taken_is_told_and_nothing_is_overwritten(folder):
    place = folder / entries(folder)["pair_0001"]["chosen_file"]
    PairReview(folder).remove("pair_0001")
    place.write_bytes(b"new")
    with pytest.raises(UserError, match="exists again"):
        PairReview(folder).undo()
    assert place.read_bytes() == b"new"
    place.unlink()
    assert PairReview(folder).undo()


def test_emptying_the_trash_says_how_much_it_was_and_ends_undoing(folder, capsys):
    assert PairReview(folder).trash() == (0, 0)
    size = sum(
        len(data) for name, data in snapshot(folder).items() if "pair_0001" in name or "pair_0003" in name
    )
    result = call(folder, "--remove", "pair_0001", "pair_0003", "--swap", "pair_0000")
    assert result["trash"]["pairs"] == 2
    assert result["trash"]["bytes"] > size
    result = call(folder, "--empty-trash")
    assert result["emptied"]["pairs"] == 2
    assert result["trash"] == {"pairs": 0, "bytes": 0}
    assert not (folder / TRASH_NAME).exists()
    call(folder, "--remove", "pair_0002")
    assert call(folder, "--undo")["trash"]["pairs"] == 0, "what came back is not in the trash"
    call(folder, "--empty-trash")
    assert curate.main(["review", str(folder), "--undo"]) == 2
    assert "nothing to undo" in capsys.readouterr().err


def test_a_trash_that_cannot_be_deleted_is_an_error(folder):
    review = PairReview(folder)
    review.remove("pair_0001")
    with full_disk("delete"), pytest.raises(UserError, match="cannot empty "):
        review.empty_trash()
