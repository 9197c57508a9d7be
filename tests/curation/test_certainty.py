"""How sure the ranking was of a pair: from the answers into the manifest, and on to where training reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.curation import commands
from modules.curation.CurationMode import CurationMode
from modules.curation.review.review import PairReview
from modules.curation.session import CurationSession, SessionSettings
from modules.curation.store import CurationStore
from modules.util.errors import DataError, UserError
from modules.util.pairs.confidence import read_confidence
from tests.curation.test_session import make_group, open_session


def compared(folder: Path, mode: str = "ELO") -> CurationSession:
    session, _ = open_session(folder, 6, mode=CurationMode(mode))
    for _ in range(5):
        question = session.state().question
        session.answer(max(question), min(question))
    return session


def manifest(folder: Path) -> list[dict]:
    return json.loads((folder / "out" / "manifest.json").read_text())["pairs"]


def test_it_is_that_of_the_ranking_at_the_pick(tmp_path):
    session = compared(tmp_path)
    before = session.state().standing
    session.pick_now()
    session.go_on()
    order = before.order(session.state().alive)
    left = session.state().standing
    session.export_ranked([*order], 2)
    session.store.close()
    first, second, third = manifest(tmp_path)
    number = lambda pair, side: int(Path(pair["sources"][side]).stem[-1])  # noqa: E731
    assert first["certainty"] == before.posterior.probability_ordered(
        number(first, "chosen"), number(first, "rejected")
    )
    assert 0.5 < first["certainty"] < 1
    for pair in (second, third):
        said = left.posterior.probability_ordered(number(pair, "chosen"), number(pair, "rejected"))
        assert pair.get("certainty") == (said if said >= 0.5 else None)


def test_an_order_against_the_ranking_claims_nothing(tmp_path):
    session = compared(tmp_path)
    order = session.state().standing.order(session.state().alive)
    session.export_ranked(order[::-1], 1)
    assert "certainty" not in session.pairs()[0]


@pytest.mark.parametrize("mode", ["SMART", "ELO"])
def test_images_ordered_by_hand_that_were_never_compared_claim_nothing(tmp_path, mode):
    session, _ = open_session(tmp_path, 6, mode=CurationMode(mode))
    best, worst = session.state().question
    session.answer(best, worst)
    others = [i for i in session.state().alive if i not in (best, worst)]
    session.export_ranked([best, *others, worst], 3)
    compared, *ordered = session.pairs()
    assert compared["certainty"] > 0.5
    assert ["certainty" in pair for pair in ordered] == [False, False]


def test_images_ordered_by_hand_that_were_only_compared_with_others_claim_nothing(tmp_path):
    session, _ = open_session(tmp_path, 6, mode=CurationMode.ELO)
    asked = []
    for _ in range(2):
        asked.append(session.state().question)
        session.answer(*asked[-1])
    (first, third), (second, fourth) = asked
    assert len({first, second, third, fourth}) == 4, "each image is compared once"
    rest = [i for i in session.state().alive if i not in (first, second, third, fourth)]
    session.export_ranked([first, third, *rest, fourth, second], 2)
    # both won once, and both lost once
    assert ["certainty" in pair for pair in session.pairs()] == [False, False]


def test_a_choice_without_comparisons_claims_nothing(tmp_path):
    session, _ = open_session(tmp_path, 4, mode=CurationMode.SELECT)
    session.choose(0, 1)
    assert "certainty" not in session.pairs()[0]


def test_finalising_writes_it_next_to_the_chosen_images_swapping_drops_it_and_undo_restores_it(tmp_path):
    out = tmp_path / "out"
    with CurationStore(out) as store:
        session = CurationSession(store, SessionSettings(CurationMode.ELO))
        for number in range(4):
            session.open(make_group(tmp_path / "in", 4, f"prompt {number}"))
            question = session.state().question
            session.answer(max(question), min(question))
            session.pick_now()
    commands.finalize(out, 25)
    known = {pair["pair_id"]: pair["certainty"] for pair in manifest(tmp_path)}
    read = {split: read_confidence(out / "chosen" / split) for split in ("train", "val")}
    assert len(read["train"]) == 3 and len(read["val"]) == 1
    assert {**read["train"], **read["val"]} == known
    swapped = next(iter(read["train"]))
    review = PairReview(out)
    review.swap(swapped)
    # training reads this file, perhaps before the pairs are finalised again
    assert read_confidence(out / "chosen" / "train").keys() == read["train"].keys() - {swapped}
    commands.finalize(out, 25)
    assert read_confidence(out / "chosen" / "train").keys() == read["train"].keys() - {swapped}
    assert review.undo()
    assert read_confidence(out / "chosen" / "train") == read["train"]
    assert {pair["pair_id"]: pair.get("certainty") for pair in manifest(tmp_path)} == known
    review.remove(swapped)
    commands.finalize(out, 25)
    assert PairReview(out).undo()
    assert read_confidence(out / "chosen" / "train") == read["train"]


@pytest.mark.parametrize("value", ["0.9", 0.3, 1.5, True, None, [1]])
def test_a_manifest_with_something_else_is_refused(tmp_path, value):
    session = compared(tmp_path)
    session.pick_now()
    session.store.close()
    (tmp_path / "out" / "curation.sqlite").unlink()
    (pair,) = manifest(tmp_path)
    text = json.dumps({"pairs": [{**pair, "certainty": value}]})
    (tmp_path / "out" / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="certainty is not a number from 0.5 to 1"):
        CurationStore(tmp_path / "out")


@pytest.mark.parametrize("text", ["[]", '{"a": "1"}', '{"a": 0.4}', "{", '{"a": 1e999}'])
def test_a_file_with_something_else_is_refused(tmp_path, text):
    (tmp_path / "confidence.json").write_text(text)
    with pytest.raises((DataError, UserError)):
        read_confidence(tmp_path)
