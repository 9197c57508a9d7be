"""Output folders that came from others or were meddled with: nothing outside of them is touched, nothing is lost."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.curation.CurationMode import CurationMode
from modules.curation.group_state import SessionSettings
from modules.curation.ImageGroup import ImageGroup
from modules.curation.session import CurationSession
from modules.curation.store import STORE_NAME, CurationStore
from modules.util.dpo_curation_util import export_single_pair
from modules.util.errors import DataError, UserError
from modules.util.files.EventLog import peek
from scripts import curate
from tests.faults.pair_folders import change_manifest, contents, entry, make_pairs, put_row, write_images
from tests.guard import Guard
from tests.usual import usual


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Path]:
    """Files of a person next to the output folder; compared at the end."""
    with Guard(tmp_path / "person") as guard:
        yield guard.folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert curate.main([str(a) for a in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "Traceback" not in said.err
    return said.err


def worked(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert curate.main([str(a) for a in arguments]) == 0, capsys.readouterr().err
    return dict(json.loads(capsys.readouterr().out))


# -- databases that do something -----------------------------------------------------------------------------

_FOREVER = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


@pytest.mark.parametrize(
    "script",
    [
        f"DROP TABLE pairs; CREATE VIEW pairs AS {_FOREVER} SELECT x pair_id, x entry, x seq FROM c WHERE x < 0",
        "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END",
        "ALTER TABLE events ADD COLUMN more TEXT AS (hex(zeroblob(300000000)))",
        "CREATE VIRTUAL TABLE words USING fts5(word)",
    ],
    ids=["a view", "a trigger", "a computed column", "a virtual table"],
)
@pytest.mark.parametrize("verb", usual(["stats", "review", "finalize"], "finalize"))
def test_a_database_that_computes_is_refused_and_stays(
    script: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path)
    with closing(sqlite3.connect(out / STORE_NAME)) as database:
        database.executescript(script)
    before = contents(out)
    assert "more than tables" in refused(capsys, verb, out)
    assert contents(out) == before
    with pytest.raises(UserError, match="more than tables"):
        peek(out / STORE_NAME, "SELECT entry FROM pairs")


@pytest.mark.parametrize(
    ("script", "cure"),
    [
        ("CREATE VIEW mine AS SELECT pair_id FROM pairs", "DROP VIEW mine"),
        ("CREATE TRIGGER mine AFTER INSERT ON events BEGIN DELETE FROM events; END", "DROP TRIGGER mine"),
    ],
    ids=["view", "trigger"],
)
def test_a_view_or_trigger_of_a_person_is_named_with_a_remedy_that_keeps_the_answers(
    script: str, cure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path)
    before = worked(capsys, "stats", out)
    with closing(sqlite3.connect(out / STORE_NAME)) as database:
        database.executescript(script)
    said = refused(capsys, "stats", out)
    kind = script.split()[1].lower()
    assert f"delete the {kind} 'mine'" in said and "rename" not in said
    with closing(sqlite3.connect(out / STORE_NAME)) as database:
        database.executescript(cure)
    assert worked(capsys, "stats", out) == before


# -- temporary files of others -------------------------------------------------------------------------------


def test_temporary_files_of_other_programs_stay(
    tmp_path: Path, person: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path, finalised=True)
    (out / "work").mkdir()
    (out / "photos").symlink_to(person)
    mine = [".editor.tmp", "work/.draft.tmp", "chosen/.swp.tmp", "chosen/train/.photo.png.x.tmp"]
    own = ["chosen/.pair_0003.png.ab12.tmp", "rejected/val/.tastemaker-0123456789abcdef.tmp"]
    for name in [*mine, *own, "work/.pair_0000.png.x.tmp"]:
        (out / name).write_text("x")
    worked(capsys, "stats", out)
    assert {name: (out / name).exists() for name in [*mine, *own]} == {
        **dict.fromkeys(mine, True),
        **dict.fromkeys(own, False),
    }
    assert (out / "work" / ".pair_0000.png.x.tmp").exists()


def test_they_stay_also_where_an_import_then_fails(
    tmp_path: Path, person: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "photos").symlink_to(person)
    (out / ".editor.tmp").write_text("x")
    (tmp_path / "bad.jsonl").write_text("[]\n")
    refused(capsys, "import", tmp_path / "bad.jsonl", out)
    assert (out / ".editor.tmp").exists()


# -- links in the folder -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [["--empty-trash"], ["--remove", "pair_0000"], ["--undo"]])
def test_a_trash_that_is_a_link_is_refused_before_anything_changes(
    tmp_path: Path, person: Path, capsys: pytest.CaptureFixture[str], order: list[str]
) -> None:
    out = make_pairs(tmp_path, finalised=True)
    (out / ".trash").symlink_to(person)
    before = contents(out)
    said = refused(capsys, "review", out, *order)
    assert str(out / ".trash") in said and str(person) in said
    assert contents(out) == before


@pytest.mark.parametrize("name", ["chosen", "rejected", "chosen/train", "rejected/val"])
@pytest.mark.parametrize(
    "command",
    usual(
        [["review", "--remove", "pair_0000"], ["review", "--swap", "pair_0000"], ["finalize"], ["stats"]],
        ["review", "--swap", "pair_0000"],
        ["finalize"],
    ),
)
def test_a_side_that_is_a_link_is_refused_before_anything_changes(
    tmp_path: Path, person: Path, capsys: pytest.CaptureFixture[str], name: str, command: list[str]
) -> None:
    out = make_pairs(tmp_path, finalised=True)
    (out / name).rename(tmp_path / "elsewhere")
    (out / name).symlink_to(tmp_path / "elsewhere")
    before = {p: p.read_bytes() for p in (tmp_path / "elsewhere").rglob("*") if p.is_file()}, contents(out)
    assert "is a link" in refused(capsys, command[0], out, *command[1:])
    after = {p: p.read_bytes() for p in (tmp_path / "elsewhere").rglob("*") if p.is_file()}, contents(out)
    assert after == before


@pytest.mark.parametrize(
    "name", ["curation.sqlite", "curation.sqlite-wal", ".curation.lock", "manifest.json"]
)
@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
def test_files_of_the_store_that_are_something_else_are_refused(
    tmp_path: Path, person: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    out = make_pairs(tmp_path)
    (out / name).unlink(missing_ok=True)
    makers: dict[str, Callable[[Path], object]] = {
        "link": lambda path: path.symlink_to(person / "mine"),
        "dangling": lambda path: path.symlink_to(person / "new"),
        "fifo": os.mkfifo,
        "folder": lambda path: path.mkdir(),
    }
    makers[kind](out / name)
    assert name in refused(capsys, "stats", out)


def test_an_image_that_is_a_link_is_moved_and_removed_as_a_link(
    tmp_path: Path, person: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path)
    (out / "chosen" / "pair_0000.png").unlink()
    (out / "chosen" / "pair_0000.png").symlink_to(person / "mine.png")
    worked(capsys, "finalize", out, "--val-percentage", "0")
    assert (out / "chosen" / "train" / "pair_0000.png").is_symlink()
    with CurationStore(out) as store:
        store.remove("pair_0000")
    assert not (out / "chosen" / "train" / "pair_0000.png").is_symlink()


# -- names in the store --------------------------------------------------------------------------------------

OUTSIDE = [
    "../person/mine.png", "/etc/hostname", "chosen/../../person/mine.png", "chosen", "chosen/", "chosen/a\0.png",
    "C:/x.png", "chosen/C:x.png", "person/mine.png", "chosen/notes.txt", "chosen/" + "x" * 5000 + ".png", "",
    "chosen\\..\\..\\person\\mine.png", "rejected/x.png",
]  # fmt: skip


@pytest.mark.parametrize("table", ["intents", "pairs"])
@pytest.mark.parametrize("name", [*OUTSIDE, "absolute"])
def test_a_name_in_the_store_that_leads_outside_is_refused_and_nothing_changes(
    tmp_path: Path, person: Path, capsys: pytest.CaptureFixture[str], table: str, name: str
) -> None:
    out = make_pairs(tmp_path)
    put_row(
        out, table, "pair_0009", entry("pair_0009", str(person / "mine.png") if name == "absolute" else name)
    )
    (out / "chosen" / "notes.txt").write_text("mine")
    before = contents(out)
    for command in (["stats", out], ["finalize", out], ["review", out, "--undo"]):
        said = refused(capsys, *command)
        assert "pair_0009" in said and "chosen_file" in said, said
    with pytest.raises(UserError, match="chosen_file"):
        CurationStore(out)
    assert contents(out) == before


@pytest.mark.parametrize(
    "made",
    [
        entry("../x", "chosen/x.png"), entry("pair_0001", "chosen/x.png"), {}, [], "not JSON", b"\xff\xfe", 7,
        "[" * 9999,
        {**entry("pair_0009", "chosen/x.png"), "prompt": None}, {**entry("pair_0009", "chosen/x.png"), "hashes": []},
        {**entry("pair_0009", "chosen/x.png"), "sources": "x"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("table", ["intents", "pairs"])
def test_rows_of_the_store_that_are_no_entries_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, made: object
) -> None:
    out = make_pairs(tmp_path)
    put_row(out, table, "pair_0009", made)
    before = contents(out)
    refused(capsys, "stats", out)
    assert contents(out) == before


def test_two_pairs_that_name_one_file_are_refused_before_anything_moves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path)
    change_manifest(out, 1, chosen_file="chosen/pair_0000.png")
    before = contents(out)
    said = refused(capsys, "finalize", out)
    assert "pair_0000 and pair_0001" in said and "chosen/pair_0000.png" in said
    after = contents(out)
    assert {name: data for name, data in after.items() if name != "manifest.json"} == {
        name: data for name, data in before.items() if name != "manifest.json"
    }


# -- files that look like the program's own ------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["..swap", "...swap", "..png.swap", ".notes.swap", ".a.txt.swap", ".png.swap"]
)
def test_a_file_that_only_looks_like_half_a_swap_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = make_pairs(tmp_path, finalised=True)
    (out / "chosen" / "train" / name).write_text("mine")
    assert len(worked(capsys, "review", out)["pairs"]) == 3
    assert (out / "chosen" / "train" / name).read_text() == "mine"


def test_half_a_swap_of_a_pair_that_is_whole_takes_nothing_s_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path, finalised=True)
    (out / "chosen" / "train" / ".pair_0000.png.swap").write_text("mine")
    before = contents(out)
    worked(capsys, "review", out)
    assert contents(out) == before


def test_images_of_a_person_in_the_folder_are_not_picked_over(tmp_path: Path) -> None:
    out = make_pairs(tmp_path, pairs=1)
    (out / "chosen" / "pair_0001.png").write_text("mine")
    (out / "rejected" / "pair_0002.txt").write_text("mine")
    files = write_images(tmp_path / "in", 4)
    with CurationStore(out) as store:
        (made,) = store.export("g", [(files[2], files[3])], "p", "1:1", {"used": []})
        assert made["pair_id"] == "pair_0003"
        store.undo_last()
    assert (out / "chosen" / "pair_0001.png").read_text() == "mine"
    assert (out / "rejected" / "pair_0002.txt").read_text() == "mine"


# -- before finalising ---------------------------------------------------------------------------------------


def test_a_lost_side_is_mended_before_finalising_and_finalising_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path)
    (out / "chosen" / "pair_0001.png").unlink()
    assert "review --fix" in refused(capsys, "finalize", out)
    found = worked(capsys, "review", out)
    assert {(fault["pair_id"], fault["kind"]) for fault in found["faults"]} == {
        ("pair_0001", "half"),
        ("pair_0001", "orphan"),
    }
    assert next((pair["pair_id"], pair["split"]) for pair in found["pairs"]) == ("pair_0000", "")
    assert worked(capsys, "review", out, "--fix")["faults"] == []
    assert worked(capsys, "finalize", out, "--val-percentage", "0")["train"] == 2


def test_a_pair_with_neither_side_is_mended_though_it_is_the_only_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path, pairs=1)
    for side in ("chosen", "rejected"):
        (out / side / "pair_0000.png").unlink()
    assert worked(capsys, "review", out, "--remove", "pair_0000")["pairs"] == []
    assert "no pairs" in refused(capsys, "finalize", out)


def test_every_step_of_a_review_works_before_finalising_and_is_undone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path)
    before = contents(out)
    orders = ["--remove", "pair_0000", "--swap", "pair_0001", "--caption", "pair_0002", "a fox"]
    found = worked(capsys, "review", out, *orders)
    assert [pair["pair_id"] for pair in found["pairs"]] == ["pair_0001", "pair_0002"]
    after = contents(out)
    assert after["chosen/pair_0001.png"] == before["rejected/pair_0001.png"]
    assert after["chosen/pair_0002.txt"] == after["rejected/pair_0002.txt"] == b"a fox\n"
    with CurationStore(out) as store:
        assert [pair["prompt"] for pair in store.pairs()] == ["prompt 1", "a fox"]
    worked(capsys, "review", out, "--undo", "3")
    undone = contents(out)
    assert {n: d for n, d in undone.items() if not n.startswith((".trash", "manifest"))} == {
        n: d for n, d in before.items() if not n.startswith("manifest")
    }


def test_images_of_a_person_next_to_unfinished_pairs_are_no_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path)
    write_images(out / "chosen", 1)
    assert worked(capsys, "review", out, "--fix")["faults"] == []
    assert (out / "chosen" / "0.png").is_file()


# -- damaged images ------------------------------------------------------------------------------------------


def truncate(image: Path) -> None:
    """Leave the header and most of the pixels."""
    data = image.read_bytes()
    image.write_bytes(data[: len(data) * 3 // 4])


def noise(path: Path) -> Path:
    Image.effect_noise((64, 64), 90).save(path)
    return path


@pytest.mark.parametrize("finalised", [False, True])
def test_a_truncated_image_is_found_by_check_and_review(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], finalised: bool
) -> None:
    out = make_pairs(tmp_path, finalised=finalised)
    image = out / "rejected" / ("train" if finalised else "") / "pair_0001.png"
    truncate(noise(image))
    found = worked(capsys, "review", out)["faults"]
    assert [(fault["pair_id"], fault["kind"], fault["fix"]) for fault in found] == [
        ("pair_0001", "unreadable", "remove")
    ]
    assert str(image) in found[0]["message"]
    assert curate.main(["check", str(out)]) == 1
    checked = json.loads(capsys.readouterr().out)
    assert len(checked["unreadable"]) == 1 and str(image) in checked["unreadable"][0]
    worked(capsys, "review", out, "--fix")
    assert worked(capsys, "check", out)["ok"]


def test_a_truncated_image_is_never_picked_and_leaves_its_group(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        noise(source / f"{number}.png")
    truncate(source / "1.png")
    group = ImageGroup("g", "p", "1:1", source, ("0.png", "1.png", "2.png"))
    with CurationStore(tmp_path / "out") as store:
        session = CurationSession(store, SessionSettings(CurationMode.SELECT))
        session.open(group)
        state = session.choose(0, 1)
        assert session.note == "No pair was saved: 1.png was deleted, replaced or damaged."
        assert store.pairs() == [] and len(state.alive) == 2
        session.choose(0, 1)
        assert [pair["sources"]["rejected"] for pair in store.pairs()] == [str(source / "2.png")]
    assert sorted(path.name for path in (tmp_path / "out" / "chosen").iterdir()) == [
        "pair_0000.png",
        "pair_0000.txt",
    ]


def test_a_truncated_image_is_not_exported_by_the_functions_others_call(tmp_path: Path) -> None:
    good, bad = noise(tmp_path / "good.png"), noise(tmp_path / "bad.png")
    truncate(bad)
    manifest: dict[str, Any] = {"pairs": []}
    with pytest.raises(DataError, match="bad.png cannot be decoded"):
        export_single_pair(tmp_path / "out", manifest, good, bad, "p", "1:1")
    assert manifest == {"pairs": []}
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


# -- a broken manifest, a full disk --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"pairs": [', b"\xff\xfe", b"[]", b'{"pairs": 7}', b"\0" * 4096]
)
@pytest.mark.parametrize("finalised", usual([False, True], True))
def test_a_broken_manifest_next_to_a_sound_store_is_made_anew_and_kept(
    tmp_path: Path, person: Path, capsys: pytest.CaptureFixture[str], text: bytes, finalised: bool
) -> None:
    out = make_pairs(tmp_path, finalised=finalised)
    sound = json.loads((out / "manifest.json").read_text())
    before = {name: data for name, data in contents(out).items() if name != "manifest.json"}
    (out / "manifest.json").write_bytes(text)
    worked(capsys, "stats", out)
    assert json.loads((out / "manifest.json").read_text()) == sound
    (kept,) = out.glob("manifest.unreadable-*.json")
    assert kept.read_bytes() == text
    after = {n: d for n, d in contents(out).items() if n not in ("manifest.json", kept.name)}
    assert after == before
    worked(capsys, "finalize", out, "--val-percentage", "0")


def test_a_manifest_broken_after_files_were_moved_follows_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path)
    for side in ("chosen", "rejected"):
        (out / side / "train").mkdir()
        for ending in ("png", "txt"):
            (out / side / f"pair_0001.{ending}").rename(out / side / "train" / f"pair_0001.{ending}")
            (out / side / f"pair_0002.{ending}").unlink()
    (out / "manifest.json").write_text("{")
    worked(capsys, "stats", out)
    pairs = json.loads((out / "manifest.json").read_text())["pairs"]
    assert [(pair["pair_id"], pair["chosen_file"]) for pair in pairs] == [
        ("pair_0000", "chosen/pair_0000.png"), ("pair_0001", "chosen/train/pair_0001.png"),
    ]  # fmt: skip


def test_a_broken_manifest_alone_is_refused_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path)
    (out / "curation.sqlite").unlink()
    (out / "manifest.json").write_text("{")
    assert "not valid JSON" in refused(capsys, "stats", out)
    assert (out / "manifest.json").read_text() == "{"


def test_a_broken_database_is_told_with_what_there_is_to_go_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = make_pairs(tmp_path)
    (out / "curation.sqlite").write_bytes(b"no database" * 400)
    assert "the pairs are still in manifest.json" in refused(capsys, "stats", out)
    (out / "manifest.json").unlink()
    said = refused(capsys, "stats", out)
    assert "manifest.json" not in said and "rename it" in said


def test_a_full_disk_at_the_start_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import resource

    out = tmp_path / "out"
    out.mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(UserError) as caught:
            CurationStore(out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"is the disk of {out} full" in (caught.value.hint or "")
    assert "MB are free" in (caught.value.hint or "")
    with CurationStore(out) as store:
        assert store.pairs() == []
