"""Pairs of edits: their sources are copied, named, taken back and checked together with them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modules.curation import commands
from modules.curation.CurationMode import CurationMode
from modules.curation.exchange.importing import import_pairs
from modules.curation.exchange.public_formats import (
    PublicFile,
    export_datasets_folder,
    export_jsonl_folder,
)
from modules.curation.group_state import SessionSettings
from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake.edit_sources import EditOptions
from modules.curation.intake.groups import ScanOptions, scan_groups
from modules.curation.review.review import PairReview
from modules.curation.review.review_fixes import fix_faults
from modules.curation.session import CurationSession
from modules.curation.store import CurationStore
from modules.dataLoader.source import collect_source
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.dpo_curation_util import load_manifest, remove_finalized_pair
from modules.util.errors import DataError, UserError
from tests.curation.edits import edit_folder, picture, save
from tests.faults.pair_folders import change_manifest, contents, make_pairs
from tests.util.image_metadata.edit_graphs import kontext

Json = dict[str, Any]
SIZE = (16, 16)


def found_groups(images: Path, inputs: Path) -> list[ImageGroup]:
    options = ScanOptions(near_duplicates=None, edits=EditOptions(input_dir=inputs))
    found = scan_groups(images, images.parent / "out", options)
    return sorted((one for one in found if isinstance(one, ImageGroup)), key=lambda group: group.prompt)


def pick(store: CurationStore, group: ImageGroup) -> CurationSession:
    """The second image over the first."""
    session = CurationSession(store, SessionSettings(CurationMode.SELECT))
    session.open(group)
    session.choose(1, 0)
    return session


def sources_in(out: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(out).items() if name.startswith("source/")}


def test_a_pick_copies_the_sources_and_undo_takes_them_back(tmp_path: Path) -> None:
    one = save(tmp_path / "input" / "one.PNG", 100, size=SIZE)
    two = save(tmp_path / "input" / "two.webp", 101, size=SIZE)
    for number in range(2):
        save(tmp_path / "images" / f"{number}.png", number, kontext("one.PNG", "two.webp"), SIZE)
    (group,) = found_groups(tmp_path / "images", tmp_path / "input")
    out = tmp_path / "out"
    with CurationStore(out) as store:
        before = contents(out)
        session = pick(store, group)
        assert sources_in(out) == {
            "source/pair_0000.png": one.read_bytes(),
            "source/pair_0000.2.webp": two.read_bytes(),
        }
        (pair,) = load_manifest(out)["pairs"]
        assert pair["sources"] == {"chosen": str(group.path(1)), "rejected": str(group.path(0))}
        assert [(entry["file"], entry["from"]) for entry in pair["source_images"]] == [
            ("source/pair_0000.png", str(one)),
            ("source/pair_0000.2.webp", str(two)),
        ]
        assert [entry["sha256"] for entry in pair["source_images"]] == [s.sha256 for s in group.sources]
        session.undo()
        assert contents(out) == before
    pair_again = make_pairs(tmp_path / "plain", 1)
    assert "source_images" not in load_manifest(pair_again)["pairs"][0]


def test_a_manifest_without_sources_opens_unchanged(tmp_path: Path) -> None:
    out = make_pairs(tmp_path, 2, finalised=True)
    before = contents(out)
    with CurationStore(out):
        pass
    assert contents(out) == before


@pytest.mark.parametrize(
    "lose",
    [
        lambda source: source.unlink(),
        lambda source: picture(7, SIZE).save(source),
    ],
    ids=["deleted", "replaced"],
)
def test_a_source_that_changed_since_gives_no_pair(lose: Callable[[Path], Any], tmp_path: Path) -> None:
    images, inputs = edit_folder(tmp_path, 1, 2, size=SIZE)
    (group,) = found_groups(images, inputs)
    lose(group.sources[0].path)
    with CurationStore(tmp_path / "out") as store:
        before = contents(tmp_path / "out")
        session = pick(store, group)
        assert session.note.startswith("No pair was saved: the source image ")
        assert store.pairs() == [] and contents(tmp_path / "out") == before
        assert session.state().phase.value == "done"


def test_answers_are_kept_while_the_drive_with_the_sources_is_away(tmp_path: Path) -> None:
    images, inputs = edit_folder(tmp_path, 1, 2, size=SIZE)
    (group,) = found_groups(images, inputs)
    away = inputs.rename(tmp_path / "away")
    with CurationStore(tmp_path / "out") as store:
        session = CurationSession(store, SessionSettings(CurationMode.SELECT))
        session.open(group)
        before = contents(tmp_path / "out")
        with pytest.raises(UserError, match="the folder of source images .*sub is missing or cannot be read"):
            session.choose(1, 0)
        assert contents(tmp_path / "out") == before and session.state().phase.value == "question"
        away.rename(inputs)
        session.choose(1, 0)
        assert len(store.pairs()) == 1


def test_a_source_that_cannot_be_decoded_gives_no_pair(tmp_path: Path) -> None:
    images, inputs = edit_folder(tmp_path, 1, 2)
    source = inputs / "sub" / "source0.png"
    source.write_bytes(source.read_bytes()[:-60])
    (group,) = found_groups(images, inputs)
    with CurationStore(tmp_path / "out") as store:
        assert "cannot be decoded" in pick(store, group).note
        assert store.pairs() == [] and sources_in(tmp_path / "out") == {}


def test_finalised_edits_are_found_by_training(tmp_path: Path) -> None:
    images, inputs = edit_folder(tmp_path, 3, 2, size=SIZE)
    out = tmp_path / "out"
    with CurationStore(out) as store:
        for group in found_groups(images, inputs):
            pick(store, group)
    assert commands.finalize(out, 34.0)["val"] == 1
    rows = json.loads((out / "concepts.json").read_text())
    assert {row["name"]: row["source_path"] for row in rows} == {
        "chosen train": str(out / "source"),
        "rejected train": "",
        "chosen val": str(out / "source"),
        "rejected val": "",
    }
    config = TrainConfig(
        model_type="FLUX_KONTEXT_DEV_1", rlhf_enabled=True, rlhf_dpo_validation=True, resolution="64"
    )
    source = collect_source(config, [ConceptConfig.from_dict(row) for row in rows])
    assert source.faults == [] and source.validation is not None
    entries = [*source.train.entries, *source.validation.entries]
    assert len(entries) == 3
    for pair in entries:
        number = pair.chosen.prompts[0][-1]
        (file,) = pair.chosen.sources
        assert Path(file).read_bytes() == (inputs / "sub" / f"source{number}.png").read_bytes()
        assert pair.rejected.sources == pair.chosen.sources
    before = contents(out)
    commands.finalize(out, 34.0)
    assert contents(out) == before


def test_edits_and_images_of_prompts_alone_are_not_finalised_together(tmp_path: Path) -> None:
    out = make_pairs(tmp_path, 2)
    images, inputs = edit_folder(tmp_path, 1, 2, size=SIZE)
    with CurationStore(out) as store:
        pick(store, found_groups(images, inputs)[0])
    before = contents(out)
    with pytest.raises(DataError, match=r"1 pair is an edit of source images, and 2 have no source image"):
        commands.finalize(out, 10.0)
    assert contents(out) == before


@pytest.mark.parametrize(
    "entry",
    [
        {"file": "../secret.png"},
        {"file": "source/../../secret.png"},
        {"file": "source/sub/pair_0000.png"},
        {"file": "source/pair_0001.png"},
        {"file": "source/pair_0000.txt"},
        {"file": "chosen/pair_0000.png"},
        {"file": "source\\pair_0000.png"},
        {"file": None},
        {"sha256": 5},
        {"from": None},
        "source/pair_0000.png",
    ],
)
def test_a_manifest_that_names_other_files_as_sources_is_refused(entry: Any, tmp_path: Path) -> None:
    out = make_pairs(tmp_path, 1)
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"mine")
    sound = {"file": "source/pair_0000.png", "sha256": "0", "from": "x"}
    change_manifest(out, 0, source_images=[{**sound, **entry} if isinstance(entry, dict) else entry])
    before = contents(out)
    with pytest.raises(UserError, match="source_images"):
        load_manifest(out)
    with pytest.raises(UserError, match="source_images"), CurationStore(out):
        pass
    assert contents(out) == before and secret.read_bytes() == b"mine"


@pytest.mark.parametrize("entries", [{}, [{"file": "source/pair_0000.png"}] * 10, 5])
def test_what_is_no_list_of_sources_is_refused(entries: Any, tmp_path: Path) -> None:
    out = make_pairs(tmp_path, 1)
    change_manifest(out, 0, source_images=entries)
    with pytest.raises(UserError, match="is not a list of up to 9 images"):
        load_manifest(out)


def test_a_link_in_the_place_of_the_sources_is_refused(tmp_path: Path) -> None:
    out = make_pairs(tmp_path, 1)
    (tmp_path / "elsewhere").mkdir()
    (out / "source").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(UserError, match="is a link"), CurationStore(out):
        pass


def test_names_that_are_taken_in_the_folder_of_sources_are_not_used(tmp_path: Path) -> None:
    out = tmp_path / "out"
    mine = save(out / "source" / "pair_0000.2.png", 5, size=SIZE).read_bytes()
    images, inputs = edit_folder(tmp_path, 1, 2, size=SIZE)
    with CurationStore(out) as store:
        pick(store, found_groups(images, inputs)[0])
    (pair,) = load_manifest(out)["pairs"]
    assert pair["pair_id"] == "pair_0001"
    assert (out / "source" / "pair_0000.2.png").read_bytes() == mine


def test_the_review_removes_and_restores_pairs_with_their_sources(tmp_path: Path) -> None:
    out = make_pairs(tmp_path, 2, finalised=True, sources=2)
    before = contents(out)
    review = PairReview(out)
    review.remove("pair_0001")
    assert set(sources_in(out)) == {"source/pair_0000.png", "source/pair_0000.2.png"}
    assert PairReview(out).undo()
    assert {name: data for name, data in contents(out).items() if ".trash" not in name} == before
    review = PairReview(out)
    review.remove("pair_0001")
    review.empty_trash()
    with CurationStore(out) as store:
        assert [pair["pair_id"] for pair in store.pairs()] == ["pair_0000"]
    assert not any("pair_0001" in name for name in contents(out) if name != "manifest.json")


def test_a_finalised_pair_is_removed_with_its_sources_without_a_manifest_too(tmp_path: Path) -> None:
    out = make_pairs(tmp_path, 2, finalised=True, sources=2)
    remove_finalized_pair(out, "pair_0000")
    (out / "manifest.json").unlink()
    remove_finalized_pair(out, "pair_0001")
    assert sources_in(out) == {}


def test_faults_of_sources_are_found_and_fixed(tmp_path: Path) -> None:
    out = make_pairs(tmp_path, 4, finalised=True, sources=1)
    (out / "source" / "pair_0000.png").unlink()
    (out / "source" / "pair_0001.png").write_bytes((out / "chosen/train/pair_0001.png").read_bytes())
    broken = out / "source" / "pair_0002.png"
    broken.write_bytes(broken.read_bytes()[:-30])
    (out / "source" / "pair_0003.png").write_bytes((out / "rejected/train/pair_0003.png").read_bytes())
    found = commands.check(out / "chosen", out / "rejected", 64, 1)
    assert found["ok"], "the sides are fine"
    edits = commands.check_edits(out)
    assert (edits["ok"], edits["missing"]) == (False, ["source/pair_0000.png"])
    assert (edits["not_edited"], edits["kept"]) == (["pair_0001"], ["pair_0003"])
    assert len(edits["unreadable"]) == 1 and "pair_0002.png" in edits["unreadable"][0]
    review = PairReview(out)
    faults = review.faults(64, lambda path: SIZE)
    assert [(f.pair_id, f.kind) for f in faults] == [
        ("pair_0001", "not_edited"),
        ("pair_0002", "unreadable"),
        ("pair_0000", "orphan"),
    ]
    with pytest.raises(DataError, match="1 pair has lost a file"):
        commands.finalize(out, 0.0)
    fix_faults(review, faults)
    assert commands.check_edits(out)["ok"]
    assert commands.finalize(out, 0.0)["train"] == 1


def test_other_programs_get_the_sources_and_an_import_reads_them_back(tmp_path: Path) -> None:
    out = make_pairs(tmp_path, 2, finalised=True, sources=2)
    export_jsonl_folder(out, tmp_path / "lines")
    export_datasets_folder(out, tmp_path / "datasets")
    row = json.loads((tmp_path / "datasets" / "train" / "metadata.jsonl").read_text().splitlines()[0])
    for name in row["source_file_names"]:
        assert (tmp_path / "datasets" / "train" / name).read_bytes() == (out / name).read_bytes()
    with CurationStore(tmp_path / "again") as store:
        assert import_pairs(store, PublicFile(tmp_path / "lines" / "train.jsonl"), "x").imported == 2
    assert sources_in(tmp_path / "again") == sources_in(out)
    lines = tmp_path / "lines" / "bad.jsonl"
    bad = {"prompt": "p", "chosen": "chosen/pair_0000.png", "rejected": "rejected/pair_0000.png"}
    lines.write_text(json.dumps({**bad, "sources": ["../out/source/pair_0000.png"]}))
    with CurationStore(tmp_path / "refused") as store, pytest.raises(DataError, match="leaves the folder"):
        import_pairs(store, PublicFile(lines), "x")


def test_the_protocol_says_what_is_edited_and_what_is_left_out(tmp_path: Path) -> None:
    images, inputs = edit_folder(tmp_path, 2, 2, size=SIZE)
    (inputs / "sub" / "source1.png").unlink()
    requests = [{"do": "choose", "best": 1, "worst": 0}, {"do": "faults"}, {"do": "quit"}]
    replies = io.StringIO()
    commands.serve_pairs(
        images,
        tmp_path / "out",
        SessionSettings(CurationMode.SELECT),
        ScanOptions(near_duplicates=None, edits=EditOptions(input_dir=inputs)),
        io.BytesIO(b"".join(json.dumps(one).encode() + b"\n" for one in requests)),
        replies,
        lambda text: None,
    )
    _, question, done, faults, _ = map(json.loads, replies.getvalue().splitlines())
    assert question["sources"] == [str(inputs / "sub" / "source0.png")]
    assert (done["type"], done["edits_without_source"]) == ("finished", 2)
    assert faults["edits_without_source"] == [{"prompt": "make it night 1", "images": 2}]
    with pytest.raises(UserError, match="does not exist"):
        commands.scan(
            images, io.StringIO(), True, False, EditOptions(input_dir=tmp_path / "no"), lambda text: None
        )


def test_groups_of_another_source_are_other_groups(tmp_path: Path) -> None:
    images, inputs = edit_folder(tmp_path, 1, 2, size=SIZE)
    (group,) = found_groups(images, inputs)
    picture(55, SIZE).save(inputs / "sub" / "source0.png")
    (other,) = found_groups(images, inputs)
    assert group.key != other.key
    assert replace(other, key=group.key, sources=group.sources) == group
