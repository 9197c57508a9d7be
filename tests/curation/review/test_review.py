"""Reviewing exported pairs: every operation, its undo, and every fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from modules.curation.review.review import PairReview, pairs_per_bucket
from modules.curation.statistics import answer_statistics
from modules.curation.store import CurationStore
from modules.util import dpo_curation_util as util
from modules.util.errors import UserError
from modules.util.files.EventLog import Event


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and ".trash" not in p.parts and not p.name.startswith((".", "curation.sqlite"))
    }


@pytest.fixture
def folder(tmp_path):
    out = tmp_path / "out"
    with CurationStore(out) as store:
        for i in range(4):
            paths = []
            for side, extension in (("c", "png"), ("r", "webp")):
                path = tmp_path / f"{side}{i}.{extension}"
                Image.new("RGB", (32, 32), (i, 5, 90 if side == "c" else 0)).save(path)
                paths.append(path)
            store.export(f"g{i}", [(paths[0], paths[1])], f"prompt {i}", "1:1", {"used": []})
        manifest = store.manifest()
        util.finalize_export(out, manifest, 25.0)
        store.sync_from_manifest(manifest)
    return out


@pytest.mark.parametrize(
    "operate",
    [
        lambda review: review.remove("pair_0001"),
        lambda review: review.swap("pair_0001"),
        lambda review: review.edit_caption("pair_0001", "another"),
    ],
)
def test_every_operation_changes_the_folder_and_its_undo_restores_every_byte(folder, operate):
    review = PairReview(folder)
    before = snapshot(folder)
    operate(review)
    assert snapshot(folder) != before
    operate_again = PairReview(folder)
    assert operate_again.faults(32, size_of) == []
    assert review.undo()
    after = snapshot(folder)
    assert {k: v for k, v in after.items() if k != "manifest.json"} == {
        k: v for k, v in before.items() if k != "manifest.json"
    }
    assert util.load_manifest(folder) == {"pairs": sorted(
        util.load_manifest(folder)["pairs"], key=lambda p: p["pair_id"])}  # fmt: skip
    assert len(util.load_manifest(folder)["pairs"]) == 4
    assert not review.undo()


def test_swapping_exchanges_the_images_and_keeps_their_extensions(folder):
    review = PairReview(folder)
    (before,) = [p for p in review.pairs() if p.pair_id == "pair_0002"]
    contents = before.chosen.read_bytes(), before.rejected.read_bytes()
    review.swap("pair_0002")
    (after,) = [p for p in review.pairs() if p.pair_id == "pair_0002"]
    assert (after.rejected.read_bytes(), after.chosen.read_bytes()) == contents
    assert (after.chosen.suffix, after.rejected.suffix) == (".webp", ".png")
    entry = next(p for p in util.load_manifest(folder)["pairs"] if p["pair_id"] == "pair_0002")
    assert util.file_sha256(folder / entry["chosen_file"]) == entry["hashes"]["chosen"]


def test_a_pair_removed_in_review_does_not_come_back_with_the_session(folder):
    PairReview(folder).remove("pair_0001")
    with CurationStore(folder) as store:
        assert [p["pair_id"] for p in store.pairs()] == ["pair_0000", "pair_0002", "pair_0003"]
    assert len(util.load_manifest(folder)["pairs"]) == 3


def test_every_kind_of_fault_is_found(folder):
    pairs = {p.pair_id: p for p in util.scan_finalized_pairs(folder)}
    pairs["pair_0000"].rejected.unlink()
    pairs["pair_0001"].chosen.with_suffix(".txt").write_text("one\ntwo\n")
    pairs["pair_0002"].rejected.write_bytes(pairs["pair_0002"].chosen.read_bytes())
    Image.new("RGB", (64, 16)).save(pairs["pair_0003"].rejected)
    pairs["pair_0003"].chosen.with_suffix(".txt").unlink()
    found = {(f.pair_id, f.kind) for f in PairReview(folder).faults(32, size_of)}
    assert found == {
        ("pair_0000", "half"),
        ("pair_0000", "orphan"),
        ("pair_0001", "captions_differ"),
        ("pair_0001", "caption_lines"),
        ("pair_0002", "identical"),
        ("pair_0003", "buckets"),
        ("pair_0003", "caption_missing"),
    }


def test_bucket_analysis_counts_what_is_missing_to_a_full_batch(folder):
    (counts,) = pairs_per_bucket(PairReview(folder).pairs(), 32, 3, size_of).values()
    assert counts == (4, 2)


def test_an_empty_caption_or_unknown_pair_is_refused(folder):
    review = PairReview(folder)
    with pytest.raises(UserError, match="empty"):
        review.edit_caption("pair_0001", " \n ")
    with pytest.raises(UserError, match="pair_9999"):
        review.remove("pair_9999")


def answer(seq: int, places: list[str], best: str | None, group: str = "g", **more) -> Event:
    worst = None if best is None else next(p for p in places if p != best)
    data = {"places": places, "best": best, "worst": worst, "tie": False, "both_bad": False, **more}
    return Event(seq, group, "answer", data, 0.0)


def test_statistics_count_circles_ties_and_repeats():
    events = [
        answer(1, ["a", "b"], "a"),
        answer(2, ["c", "b"], "b"),
        answer(3, ["a", "c"], "c"),
        answer(4, ["b", "a"], "a"),
        answer(5, ["x", "y"], None, tie=True),
        answer(6, ["x", "y"], None, both_bad=True),
        answer(7, ["x", "y"], None),
        answer(8, ["a", "b"], "b", group="other"),
        answer(9, ["b", "c"], "b", group="other"),
        answer(10, ["a", "c"], "a", group="other"),
        answer(11, ["a", "c"], "c", group="other"),
        Event(12, "g", "pick", {}, 0.0),
    ]
    found = answer_statistics(events)
    assert (found.questions, found.answered, found.ties, found.both_bad, found.skips) == (11, 8, 1, 1, 1)
    assert (found.triples, found.circles) == (2, 1)
    assert (found.repeated, found.agreeing) == (2, 1)
    assert found.first_place_share == 3 / 8


@pytest.mark.parametrize("again", ["a", "b"])
def test_two_images_that_each_won_once_make_no_circle(again):
    """Otherwise the number would depend on the order in which a set lists names."""
    names = [(f"{one}{number}", f"{two}{number}") for number in range(20) for one, two in ("ab", "bc", "ca")]
    events = [answer(seq, list(pair), pair[0], group=pair[0][1:]) for seq, pair in enumerate(names)]
    assert answer_statistics(events).circles == 20
    events += [answer(99, [f"a{number}", f"b{number}"], f"b{number}", group=str(number)) for number in range(20)]
    assert (answer_statistics(events).triples, answer_statistics(events).circles) == (20, 0)
    more = [answer(99, [f"a{number}", f"b{number}"], f"{again}{number}", group=str(number)) for number in range(20)]
    assert answer_statistics(events + more).circles == (20 if again == "a" else 0)
