"""Pairs of other programs: their prompts are captions and groups like those of images."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from modules.curation.exchange.importing import ImportCount, import_pairs
from modules.curation.exchange.public_formats import PublicPair
from modules.curation.store import CurationStore
from modules.util import dpo_curation_util as util
from modules.util.errors import DataError


def pair(folder: Path, number: int, prompt: str) -> PublicPair:
    paths = [folder / f"{side}{number}.png" for side in util.SIDES]
    for shade, path in enumerate(paths):
        Image.new("RGB", (8, 8), (number, shade, 0)).save(path)
    return PublicPair(prompt, *paths)


def test_prompts_are_normalised_and_the_same_pair_is_known_again(tmp_path: Path) -> None:
    given = [pair(tmp_path, 0, "a cat, <lora:x:1>\nat night --ar 1:1"), pair(tmp_path, 1, "<lora:x:1>")]
    with CurationStore(tmp_path / "out") as store:
        assert import_pairs(store, given, "test") == ImportCount(2, 0)
        assert [p["prompt"] for p in store.pairs()] == ["a cat, at night", "UNCONDITIONAL"]
        assert import_pairs(store, given, "test") == ImportCount(0, 2)
    captions = [(tmp_path / "out/chosen" / f"pair_000{i}.txt").read_text() for i in range(2)]
    assert captions == ["a cat, at night\n", ""]


def test_exports_normalise_prompts_too(tmp_path: Path) -> None:
    one, two = pair(tmp_path, 0, ""), pair(tmp_path, 1, "")
    out = tmp_path / "out"
    groups = [{"prompt": "a <x> cat", "aspectratio": "1:1"}, {"prompt": "a cat", "aspectratio": "1:1"}]
    results = [[(str(p.chosen), str(p.rejected))] for p in (one, two)]
    assert util.export_curated_pairs(groups, results, out, 50) == (2, 0)
    assert {p["prompt"] for p in util.load_manifest(out)["pairs"]} == {"a cat"}


def test_exports_refuse_or_leave_out_what_contradicts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, three = (pair(tmp_path, number, "") for number in range(3))
    out, manifest = tmp_path / "out", util.load_manifest(tmp_path / "out")
    util.export_single_pair(out, manifest, one.chosen, one.rejected, "a <x> cat", "1:1")
    with pytest.raises(DataError, match="already"):
        util.export_single_pair(out, manifest, one.rejected, one.chosen, "a cat", "1:1")
    util.export_single_pair(out, manifest, one.rejected, one.chosen, "a dog", "1:1")
    picks = [(p.chosen, p.rejected) for p in (two, three)]
    picks += [(one.rejected, one.chosen), (two.rejected, two.chosen)]
    group = {"prompt": "a cat", "aspectratio": "1:1"}
    assert util.export_curated_pairs([group], [picks], out, 0) == (3, 0)
    assert util.load_manifest(out)["pairs"][2]["sources"]["chosen"] == str(three.chosen)
    assert "3 pairs left out" in caplog.text
