"""Folders that OneTrainer's pair tool began are opened, counted and finished like those of this program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.curation.store import CurationStore
from modules.util import dpo_curation_util as util
from modules.util.errors import UserError
from modules.util.pairs.foreign_manifest import shape_name


def entry(number: int, **changes: Any) -> dict[str, Any]:
    """What OneTrainer's pair tool writes for one pair."""
    return {
        "pair_id": number,
        "prompt": "portrait, <wildcard:hair>, light",
        "aspectratio": "16:9",
        "chosen_file": f"pair_{number:04d}.png",
        "rejected_file": f"pair_{number:04d}.jpg",
        "chosen_source": f"/images/{number}.png",
        "rejected_source": f"/images/{number}.jpg",
        "chosen_sha256": "aa",
        "rejected_sha256": None,
        "chosen_size": 5,
        **changes,
    }


def put(folder: Path, *entries: dict[str, Any], split: str = "") -> Path:
    """A folder as OneTrainer leaves it: captions next to the chosen images only."""
    for one in entries:
        for side in util.SIDES:
            path = folder / side / split / one[f"{side}_file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (one["pair_id"], 0, len(side))).save(path)
        (folder / "chosen" / split / f"pair_{one['pair_id']:04d}.txt").write_text("portrait,  light")
    (folder / "manifest.json").write_text(json.dumps({"pairs": entries}))
    return folder


def test_its_entries_come_in_our_form(tmp_path: Path) -> None:
    (pair,) = util.load_manifest(put(tmp_path, entry(3)))["pairs"]
    assert pair == {
        "pair_id": "pair_0003",
        "prompt": "portrait, light",
        "aspectratio": "7:4",
        "chosen_file": "chosen/pair_0003.png",
        "rejected_file": "rejected/pair_0003.jpg",
        "sources": {"chosen": "/images/3.png", "rejected": "/images/3.jpg"},
        "hashes": {"chosen": "aa"},
        "chosen_size": 5,
    }


@pytest.mark.parametrize("split", ["", "train"])
def test_its_folder_resumes_being_used(tmp_path: Path, split: str) -> None:
    folder = put(tmp_path / "out", entry(0), entry(1, prompt="<lora:x>", aspectratio=""), split=split)
    with CurationStore(folder) as store:
        assert [pair["pair_id"] for pair in store.pairs()] == ["pair_0000", "pair_0001"]
        for name in ("a.png", "b.png"):
            Image.new("RGB", (8, 8)).save(tmp_path / name)
        (made,) = store.export("key", [(tmp_path / "a.png", tmp_path / "b.png")], "a cat", "1:1", {})
        assert made["pair_id"] == "pair_0002"
    manifest = util.load_manifest(folder)
    assert util.find_orphaned_pairs(folder, manifest) == []
    assert sum(util.finalize_export(folder, manifest, 0)) == 3
    captions = {pair.pair_id: pair.rejected_caption for pair in util.scan_finalized_pairs(folder)}
    assert captions == {"pair_0000": "portrait, light", "pair_0001": "", "pair_0002": "a cat"}


def test_pairs_count_for_the_group_they_would_fall_into_today(tmp_path: Path) -> None:
    manifest = {
        "pairs": [
            {"prompt": "portrait, <wildcard:hair>, light", "aspectratio": "16:9"},
            {"prompt": "portrait,  light", "aspectratio": "1344x768"},
            {"prompt": "portrait, light", "aspectratio": "7:4"},
            {"prompt": "", "aspectratio": ""},
        ]
    }
    assert util.manifest_pair_counts(manifest) == {("portrait, light", "7:4"): 3, ("UNCONDITIONAL", ""): 1}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("16:9", "7:4"), ("9:16", "4:7"), ("1343:768", "7:4"), ("1.78", "7:4"), ("0.5", "1:2"), ("832x1216", "2:3"),
        ("3:2", "3:2"), ("", ""), ("wide", "wide"), ("0:5", "0:5"), ("1:0.0000001", "1:0.0000001"),
    ],
)  # fmt: skip
def test_names_of_shapes(text: str, name: str) -> None:
    assert shape_name(text) == name


@pytest.mark.parametrize(
    "changes",
    [
        {"pair_id": -1},
        {"pair_id": True},
        {"pair_id": 10**12},
        {"chosen_file": "../../x.png"},
        {"chosen_file": "..\\x.png"},
        {"chosen_file": ".."},
        {"rejected_file": "C:x.png"},
        {"rejected_file": "/etc/passwd"},
        {"chosen_file": "rejected/x.png"},
        {"chosen_file": ""},
        {"chosen_file": 5},
        {"prompt": None},
    ],
)
def test_a_bad_entry_is_refused_all_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"pairs": [entry(0, **changes)]}))
    with pytest.raises(UserError, match=r"pairs\[0\]"):
        util.load_manifest(tmp_path)


def test_two_entries_of_one_number_are_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"pairs": [entry(0), entry(0)]}))
    with pytest.raises(UserError, match="two pairs"):
        util.load_manifest(tmp_path)
