"""Pairs as files: exporting, finalising, checking, and what a crash in between leaves behind."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from modules.util import dpo_curation_util as util
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.errors import DataError, UserError


def image(path: Path, shade: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade, shade, 0)).save(path)
    return path


@pytest.fixture
def exported(tmp_path):
    """Ten pairs over five prompts, still flat."""
    manifest = util.load_manifest(tmp_path / "out")
    for i in range(10):
        util.export_single_pair(
            tmp_path / "out",
            manifest,
            image(tmp_path / "in" / f"c{i}.png", i),
            image(tmp_path / "in" / f"r{i}.jpg", 100 + i),
            f"prompt {i % 5}",
            "1:1",
        )
    return tmp_path / "out", manifest


def test_finalising_keeps_prompts_apart_and_writes_loadable_concepts(exported):
    out, manifest = exported
    train, val = util.finalize_export(out, manifest, 20.0)
    assert (train, val) == (8, 2)
    prompts = {split: set() for split in util.SPLITS}
    for pair in util.scan_finalized_pairs(out):
        assert pair.chosen is not None and pair.rejected is not None
        assert pair.chosen_caption == pair.rejected_caption
        prompts[pair.split].add(pair.chosen_caption)
    assert not prompts["train"] & prompts["val"]
    concepts = [ConceptConfig.from_dict(c) for c in json.loads((out / "concepts.json").read_text())]
    assert [c.type.value for c in concepts] == [
        "DPO_CHOSEN", "DPO_REJECTED", "DPO_CHOSEN_VAL", "DPO_REJECTED_VAL"
    ]  # fmt: skip
    assert all(Path(c.path).is_dir() and c.enabled for c in concepts)


def test_finalising_again_with_another_share_moves_files_and_loses_none(exported):
    out, manifest = exported
    before = {p["pair_id"]: p["hashes"] for p in manifest["pairs"]}
    for share in (50.0, 0.0, 100.0, 10.0):
        train, val = util.finalize_export(out, manifest, share)
        assert train + val == 10
        assert train > 0
        assert (val > 0) == (share > 0)
        for pair in util.load_manifest(out)["pairs"]:
            for side in util.SIDES:
                assert util.file_sha256(out / pair[f"{side}_file"]) == before[pair["pair_id"]][side]
    concepts = json.loads((out / "concepts.json").read_text())
    assert len(concepts) == 4


def test_without_validation_pairs_the_validation_concepts_are_switched_off(exported):
    out, manifest = exported
    util.finalize_export(out, manifest, 0.0)
    enabled = {c["type"]: c["enabled"] for c in json.loads((out / "concepts.json").read_text())}
    assert enabled == {
        "DPO_CHOSEN": True, "DPO_REJECTED": True, "DPO_CHOSEN_VAL": False, "DPO_REJECTED_VAL": False
    }  # fmt: skip


def test_a_list_of_concepts_that_a_person_made_or_changed_is_kept(exported, tmp_path):
    out, manifest = exported
    concepts = out / "concepts.json"

    def kept() -> list[bytes]:
        return [path.read_bytes() for path in sorted(out.glob("concepts.before-*.json"))]

    concepts.write_text('[{"path": "/my/other images"}]')
    mine = concepts.read_bytes()
    util.finalize_export(out, manifest, 20.0)
    assert kept() == [mine]
    written = json.loads(concepts.read_text())
    for share in (0.0, 50.0):
        util.finalize_export(out, manifest, share)
    out.rename(tmp_path / "moved")
    out = tmp_path / "moved"
    util.finalize_export(out, util.load_manifest(out), 20.0)
    assert kept() == [mine], "the list of an earlier call, another share or place is the program's own"
    written[0]["balancing"] = 3.0
    concepts = out / "concepts.json"
    concepts.write_text(json.dumps(written))
    changed = concepts.read_bytes()
    util.finalize_export(out, util.load_manifest(out), 20.0)
    assert set(kept()) == {mine, changed}
    assert json.loads(concepts.read_text())[0]["balancing"] == 1.0


@pytest.mark.parametrize("root", ["C:\\pairs", "/data/pairs"])
def test_a_list_of_concepts_from_another_system_is_the_programs_own(exported, root):
    out, manifest = exported
    util.finalize_export(out, manifest, 20.0)
    concepts = out / "concepts.json"
    written = json.loads(concepts.read_text())
    for concept in written:
        parts = [root, *Path(concept["path"]).parts[-2:]]
        concept["path"] = ("\\" if "\\" in root else "/").join(parts)
    concepts.write_text(json.dumps(written))
    util.finalize_export(out, manifest, 20.0)
    assert not list(out.glob("concepts.before-*"))


def test_a_crash_in_the_middle_of_finalising_is_mended_by_the_next_call(exported, monkeypatch):
    out, manifest = exported
    real, calls = util._move_pair_file, []

    def crash(*args):
        calls.append(args)
        if len(calls) == 7:
            raise KeyboardInterrupt
        real(*args)

    monkeypatch.setattr(util, "_move_pair_file", crash)
    with pytest.raises(KeyboardInterrupt):
        util.finalize_export(out, manifest, 20.0)
    monkeypatch.undo()
    again = util.load_manifest(out)
    assert util.find_orphaned_pairs(out, again) == []
    assert util.finalize_export(out, again, 20.0) == (8, 2)


def test_a_pair_with_a_lost_file_stops_finalising_and_is_named(exported):
    out, manifest = exported
    util.find_exported_file(out, "rejected", "pair_0003").unlink()
    with pytest.raises(DataError, match="pair_0003"):
        util.finalize_export(out, manifest, 10.0)
    util.remove_pair(out, manifest, "pair_0003")
    assert util.find_exported_file(out, "chosen", "pair_0003") is None
    assert sum(util.finalize_export(out, manifest, 10.0)) == 9


def test_removing_a_finalised_pair_also_forgets_it(exported):
    out, manifest = exported
    util.finalize_export(out, manifest, 20.0)
    util.remove_finalized_pair(out, "pair_0001")
    assert "pair_0001" not in {p["pair_id"] for p in util.load_manifest(out)["pairs"]}
    assert "pair_0001" not in {p.pair_id for p in util.scan_finalized_pairs(out)}
    with pytest.raises(UserError, match="pair_0001"):
        util.remove_finalized_pair(out, "pair_0001")


def test_check_names_every_fault(tmp_path):
    chosen, rejected = tmp_path / "c", tmp_path / "r"
    for i, stem in enumerate(("ok", "differs", "lines", "same", "bare")):
        image(chosen / "sub" / f"{stem}.png", i)
        image(rejected / "sub" / f"{stem}.jpg", 50 + i)
        for folder in (chosen, rejected):
            (folder / "sub" / f"{stem}.txt").write_text("a prompt\n")
    (rejected / "sub" / "differs.txt").write_text("another\n")
    for folder in (chosen, rejected):
        (folder / "sub" / "lines.txt").write_text("one\ntwo\n")
    (rejected / "sub" / "same.jpg").write_bytes((chosen / "sub" / "same.png").read_bytes())
    (rejected / "sub" / "bare.txt").unlink()
    image(chosen / "lonely.png", 9)
    image(chosen / "sub" / "ok.webp", 9)
    check = util.check_dpo_pairs(chosen, rejected)
    assert not check.ok
    assert check.only_chosen == ["lonely"]
    assert check.only_rejected == []
    assert check.differing_captions == ["sub/differs"]
    assert check.multiline_captions == ["sub/lines"]
    assert check.identical_images == ["sub/same"]
    assert check.missing_captions == ["sub/bare"]
    assert len(check.shared_stems) == 1 and "ok" in check.shared_stems[0]


def test_multiline_captions_are_folded_to_one_line(tmp_path):
    image(tmp_path / "a.png", 1)
    (tmp_path / "a.txt").write_text("a cat\n\non a mat\n")
    (tmp_path / "b.txt").write_text("fine\n")
    assert util.fix_multiline_captions(tmp_path) == [tmp_path / "a.txt"]
    assert (tmp_path / "a.txt").read_text() == "a cat on a mat\n"


def test_concepts_are_zipped_in_order_and_uneven_ones_refused():
    def concept(kind: str, name: str, enabled: bool = True):
        return {"type": kind, "name": name, "enabled": enabled}

    listed = [
        concept("DPO_CHOSEN", "a"),
        concept("STANDARD", "s"),
        concept("DPO_CHOSEN", "b"),
        concept("DPO_REJECTED", "x", False),
        concept("DPO_REJECTED", "y"),
        concept("DPO_REJECTED", "z"),
    ]
    assert [(c["name"], r["name"]) for c, r in util.dpo_concept_pairs(listed)] == [("a", "y"), ("b", "z")]
    with pytest.raises(DataError, match="2 chosen and 1 rejected"):
        util.dpo_concept_pairs(listed[:-1])


@given(
    st.dictionaries(st.text(max_size=8), st.integers(1, 9), max_size=30),
    st.floats(0, 100, allow_nan=False),
)
def test_the_split_never_empties_train(prompts, share):
    validation = util.split_prompts(prompts, share)
    assert validation <= prompts.keys()
    if prompts:
        assert len(validation) < len(prompts)
    if len(prompts) > 1 and share > 0:
        assert validation
    assert validation == util.split_prompts(dict(reversed(prompts.items())), share)


@given(
    st.dictionaries(st.text(max_size=8), st.integers(1, 40), min_size=2, max_size=12),
    st.floats(0.1, 50, allow_nan=False),
)
def test_most_pairs_stay_in_train(prompts, share):
    validation = util.split_prompts(prompts, share)
    pairs = sum(prompts[prompt] for prompt in validation)
    assert pairs <= sum(prompts.values()) / 2
    fitting = [n for n in prompts.values() if n <= sum(prompts.values()) * share / 100]
    if fitting:
        assert pairs >= min(fitting)


@pytest.mark.parametrize("sizes", [(30, 1), (3, 1), (9, 2, 2)])
def test_a_prompt_with_most_of_the_pairs_is_never_put_into_validation(sizes):
    texts = random.Random(3)
    for _ in range(500):
        prompts = {texts.randbytes(8).hex(): size for size in sizes}
        validation = util.split_prompts(prompts, 10)
        assert validation
        assert max(prompts, key=prompts.__getitem__) not in validation


@pytest.mark.parametrize("share", [-1.0, 101.0, float("nan")])
def test_an_impossible_share_is_refused(share):
    with pytest.raises(UserError, match="percentage"):
        util.split_prompts({"a": 1}, share)


def test_one_file_cannot_be_both_sides(tmp_path):
    path = image(tmp_path / "a.png", 1)
    with pytest.raises(UserError, match="same file"):
        util.export_single_pair(tmp_path / "out", {"pairs": []}, path, path, "p", "1:1")


def test_pair_keys_drop_the_extension_only():
    assert util.dpo_pair_key("/r/sub/a.b.png", "/r") == "sub/a.b"
    assert util.dpo_pair_key("/r/v1.5/name", "/r") == "v1.5/name"
