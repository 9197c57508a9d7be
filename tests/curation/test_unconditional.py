"""Images that were asked for nothing in words: an empty caption, deliberately, from picking to training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from modules.curation import commands
from modules.curation.CurationMode import CurationMode
from modules.curation.intake.groups import ScanOptions, scan_groups
from modules.curation.intake.image_size import image_size
from modules.curation.review.review import PairReview
from modules.curation.review.review_fixes import fix_faults
from modules.curation.session import CurationSession, ImageGroup, SessionSettings
from modules.curation.store import CurationStore
from modules.dataLoader.preflight import preflight
from modules.util import dpo_curation_util as util
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from scripts import curate


def write_image(path: Path, shade: int, prompt: str) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", f"{prompt}\nSteps: 20, Sampler: Euler, Seed: 1, Size: 64x64")
    Image.effect_noise((64, 64), 20 + 60 * shade).convert("RGB").save(path, pnginfo=info)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One pair without a prompt and two with one, finalised by the command."""
    source, output = tmp_path / "images", tmp_path / "pairs"
    source.mkdir()
    for number, prompt in enumerate(("<lora:style:1>", "a fox", "an owl")):
        for side in range(2):
            write_image(source / f"{number}{side}.png", side, prompt)
    with CurationStore(output) as store:
        session = CurationSession(store, SessionSettings(mode=CurationMode.SELECT))
        for group in scan_groups(source, output, ScanOptions(near_duplicates=None)):
            assert isinstance(group, ImageGroup)
            session.open(group)
            session.choose(1, 0)
    assert curate.main(["finalize", str(output), "--val-percentage", "0", "--json", str(tmp_path / "r")]) == 0
    return output


def without_prompt(folder: Path) -> util.FinalizedPair:
    (entry,) = [p for p in util.load_manifest(folder)["pairs"] if p["prompt"] == util.UNCONDITIONAL]
    pair = PairReview(folder).find(entry["pair_id"])
    assert pair is not None
    return pair


def kinds(folder: Path) -> list[tuple[str, str]]:
    return [(fault.pair_id, fault.kind) for fault in PairReview(folder).faults(64, image_size)]


def test_the_caption_files_are_empty_and_the_report_says_how_many(folder, tmp_path, capsys):
    pair = without_prompt(folder)
    assert [image.with_suffix(".txt").read_bytes() for image in (pair.chosen, pair.rejected)] == [b"", b""]
    report = json.loads((tmp_path / "r").read_text())
    assert report["unconditional"] == 1
    assert report["warnings"] == [
        "1 pair has no prompt: the captions are empty, and training uses the empty prompt for them"
    ]
    assert curate.main(["finalize", str(folder), "--val-percentage", "0"]) == 0
    assert "warning: 1 pair has no prompt" in capsys.readouterr().err


def test_training_takes_the_empty_prompt_and_says_so_beforehand(folder, tmp_path):
    config = TrainConfig.from_dict(
        {
            "concept_file_name": str(folder / "concepts.json"),
            "rlhf_enabled": True,
            "resolution": "64",
            "workspace_dir": str(tmp_path / "run"),
            "cache_dir": str(tmp_path / "cache"),
            "output_model_destination": str(tmp_path / "out.safetensors"),
        },
    )
    report = preflight(config)
    assert (report.units, report.faults) == (3, [])
    assert [concept.empty_captions for concept in report.concepts[:2]] == [1, 1]
    assert sum("1 with an empty caption" in line for line in report.lines()) == 2


def test_checks_and_review_accept_it(folder):
    assert kinds(folder) == []
    check = util.check_dpo_pairs(folder / "chosen", folder / "rejected")
    assert check.ok
    assert check.empty_captions == [f"train/{without_prompt(folder).pair_id}"]


def test_an_empty_caption_that_nobody_meant_is_still_a_fault(folder):
    pair = PairReview(folder).find("pair_0000")
    other = next(p for p in PairReview(folder).pairs() if p.pair_id != without_prompt(folder).pair_id)
    assert pair is not None
    other.chosen.with_suffix(".txt").write_text("")
    other.rejected.with_suffix(".txt").write_text("")
    assert kinds(folder) == [(other.pair_id, "caption_missing")]
    without_prompt(folder).chosen.with_suffix(".txt").unlink()
    assert {kind for _, kind in kinds(folder)} == {"caption_missing"}
    review = PairReview(folder)
    assert len(fix_faults(review, review.faults(64, image_size))) == 2
    assert kinds(folder) == []
    assert without_prompt(folder).chosen.with_suffix(".txt").read_bytes() == b""


def test_a_person_can_ask_for_it_by_name_and_undo_that(folder):
    review = PairReview(folder)
    pair = next(p for p in review.pairs() if p.chosen_caption)
    with pytest.raises(UserError, match="UNCONDITIONAL"):
        review.edit_caption(pair.pair_id, "  ")
    review.edit_caption(pair.pair_id, "UNCONDITIONAL")
    assert review.find(pair.pair_id).rejected_caption == ""
    assert kinds(folder) == []
    assert review.undo()
    assert review.find(pair.pair_id) == pair


def test_finalising_mends_captions_of_an_earlier_export(folder):
    pair = without_prompt(folder)
    for image in (pair.chosen, pair.rejected):
        image.with_suffix(".txt").write_text("UNCONDITIONAL\n")
    assert kinds(folder) == []
    commands.finalize(folder, 0.0)
    assert without_prompt(folder).chosen_caption == without_prompt(folder).rejected_caption == ""


def test_it_survives_the_way_through_json_lines(folder, tmp_path):
    commands.export_folder(folder, tmp_path / "lines", "jsonl")
    assert (
        commands.import_file(tmp_path / "lines" / "train.jsonl", tmp_path / "again", None, print)["imported"]
        == 3
    )
    prompts = sorted(p["prompt"] for p in util.load_manifest(tmp_path / "again")["pairs"])
    assert prompts == ["UNCONDITIONAL", "a fox", "an owl"]
    (line,) = [
        x for x in (tmp_path / "lines" / "train.jsonl").read_text().splitlines() if '"prompt": ""' in x
    ]
    row = {k: v for k, v in json.loads(line).items() if k != "prompt"}
    (tmp_path / "lines" / "train.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match="there is no prompt"):
        commands.import_file(tmp_path / "lines" / "train.jsonl", tmp_path / "third", None, print)
