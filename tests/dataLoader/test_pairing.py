from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from modules.dataLoader.pairing import Pair, crop_faults, match_pairs, split_by_prompt
from modules.dataLoader.pipelineModules.PairByFilename import PairByFilename
from modules.pipeline.Item import Item
from modules.pipeline.Pipeline import Pipeline
from modules.util.errors import DataError
from modules.util.rng import digest64


def item(key: str, *prompts: str, side: str = "good", extension: str = "png") -> Item:
    return Item(f"/{side}/{key}.{extension}", f"{side}/{key}.{extension}", key, 0, prompts or ("p",))


def match(chosen: list[Item], rejected: list[Item], ignore: tuple[str, ...] = ()) -> tuple[list[Pair], str]:
    made = match_pairs(chosen, rejected, "good", "bad", ignore)
    pairs, faults = made.pairs, made.faults
    assert all(isinstance(fault, RuntimeError) for fault in faults)
    return pairs, "\n".join(str(fault) for fault in faults)


def test_pairs_match_by_key_in_order() -> None:
    chosen = [item("b"), item("sub/a", extension="jpg"), item("a")]
    rejected = [item(key, side="bad") for key in ("sub/a", "a", "b")]
    pairs, faults = match(chosen, rejected)
    assert not faults and [pair.id for pair in pairs] == ["good/a", "good/b", "good/sub/a"]
    assert all(pair.chosen.key == pair.rejected.key for pair in pairs)
    assert pairs[2].chosen.path == "/good/sub/a.jpg"


def test_images_without_partner_on_each_side_are_faults_of_their_own() -> None:
    _, faults = match(
        [item("a"), item("b")], [item("a", side="bad"), item("c", side="bad"), item("d", side="bad")]
    )
    assert "1 image of concept 'good' has no partner of the same name in 'bad':\n    good/b.png" in faults
    assert "2 images of concept 'bad' have no partner" in faults and "bad/d.png" in faults
    assert match([item("b")], [item("c", side="bad")], ignore=("b", "c"))[1] == ""


def test_twenty_offenders_are_listed() -> None:
    _, faults = match([item(f"k{n:02d}") for n in range(30)], [item("k00", side="bad")])
    assert (
        "29 images" in faults and "k20.png" in faults and "k21.png" not in faults and "and 9 more" in faults
    )


def test_two_files_of_one_stem() -> None:
    chosen = [item("a"), item("a", extension="jpg")]
    _, faults = match(chosen, [item("a", side="bad")])
    assert "differ only in their extension" in faults and "good/a.png and good/a.jpg" in faults
    _, faults = match([item("a")], [item("a", side="bad"), item("a", side="bad", extension="webp")])
    assert "concept 'bad' has files" in faults


def test_prompts_that_differ() -> None:
    long = "x" * 100
    _, faults = match(
        [item("a", "red"), item("b", long)], [item("a", "blue", side="bad"), item("b", side="bad")]
    )
    assert "the prompts of 2 pairs differ" in faults and "good/a: 'red' / 'blue'" in faults
    assert "x" * 61 not in faults


@pytest.mark.parametrize("theirs", [("a", "c"), ("b", "a"), ("a",), ("a", "b", "c")])
def test_several_lines_must_be_the_same_on_both_sides(theirs: tuple[str, ...]) -> None:
    _, faults = match([item("k", "a", "b")], [item("k", *theirs, side="bad")])
    assert "several lines" in faults and "good/k: 2 lines" in faults
    assert match([item("k", "a", "b")], [item("k", "a", "b", side="bad")])[1] == ""


def test_crops_that_differ() -> None:
    pairs, _ = match([item("a"), item("b")], [item("a", side="bad"), item("b", side="bad")])
    faults = crop_faults(
        pairs, lambda p: [((8, 8), (8, 8)), ((8, 8), (16, 8) if p.id == "good/b" else (8, 8))]
    )
    assert len(faults) == 1 and "good/b: 8x8 / 8x16" in str(faults[0]) and "good/a" not in str(faults[0])
    assert crop_faults(pairs, lambda p: [((8, 8), (8, 8))]) == []


def test_the_module_gives_both_sides() -> None:
    pairs, _ = match([item("a")], [item("a", side="bad")])
    pipeline = Pipeline([PairByFilename(pairs)], ["name", "chosen_item", "rejected_item"])
    pipeline.start()
    assert pipeline.length() == 1
    assert pipeline.get_item(0, 0) == {
        "name": "good/a", "chosen_item": pairs[0].chosen, "rejected_item": pairs[0].rejected
    }  # fmt: skip


captions = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=2, unique=True).map(tuple)


def pairs_of(prompts: list[tuple[str, ...]]) -> list[Pair]:
    return [
        Pair(f"p{n}", item(f"p{n}", *own), item(f"p{n}", *own, side="bad")) for n, own in enumerate(prompts)
    ]


@given(st.lists(captions, min_size=2, max_size=40), st.floats(0, 100), st.integers(0, 9))
def test_no_prompt_is_on_both_sides_of_a_split(
    prompts: list[tuple[str, ...]], percentage: float, seed: int
) -> None:
    pairs = pairs_of(prompts)
    try:
        train, held = split_by_prompt(pairs, percentage, seed)
    except DataError as error:
        assert "at least two prompts" in str(error)
        # only if everything hangs together through shared alternatives
        joined = set(prompts[0])
        for _ in prompts:
            joined |= {p for own in prompts if joined & set(own) for p in own}
        assert joined == {p for own in prompts for p in own}
        return
    assert train and held and sorted(p.id for p in train + held) == sorted(p.id for p in pairs)
    both = [{prompt for pair in side for prompt in pair.chosen.prompts} for side in (train, held)]
    assert not both[0] & both[1]
    assert (train, held) == split_by_prompt(pairs, percentage, seed)
    shuffled = split_by_prompt(pairs[::-1], percentage, seed)
    assert {pair.id for pair in shuffled[1]} == {pair.id for pair in held}


def test_the_share_is_about_right_and_depends_on_the_seed() -> None:
    pairs = pairs_of([(f"prompt {n // 2}",) for n in range(200)])
    held = {seed: {p.id for p in split_by_prompt(pairs, 10, seed)[1]} for seed in range(4)}
    assert all(18 <= len(ids) <= 22 for ids in held.values())
    assert len({frozenset(ids) for ids in held.values()}) == 4


@pytest.mark.parametrize("seed", range(6))
def test_a_prompt_with_most_of_the_pairs_stays_in_train(seed: int) -> None:
    train, held = split_by_prompt(pairs_of([("often",)] * 30 + [("once",)]), 10, seed)
    assert (len(train), len(held)) == (30, 1)
    few = [(f"prompt {n}",) for n in range(10)]
    train, held = split_by_prompt(pairs_of([("often",)] * 30 + few), 10, seed)
    assert len(train) > 30 and 1 <= len(held) <= 4


def grouped(*sizes: int) -> list[Pair]:
    return pairs_of([(f"prompt {n}",) for n, size in enumerate(sizes) for _ in range(size)])


@pytest.mark.parametrize(
    ("sizes", "percentage", "wanted"),
    [
        ((4, 12, 4), 50, {8}),
        ((10, 10, 1), 10, {1}),
        ((19, 1), 50, {1}),
        ((70, 30), 60, {30}),
        ((5, 4, 3), 5, {3}),
        ((40, 12, 1, 1, 1, 1), 10, {4}),
    ],
)
def test_large_prompts_are_skipped_where_small_ones_do(
    sizes: tuple[int, ...], percentage: float, wanted: set[int]
) -> None:
    assert {len(split_by_prompt(grouped(*sizes), percentage, seed)[1]) for seed in range(60)} == wanted


@given(st.lists(st.integers(1, 30), min_size=2, max_size=12), st.floats(0, 100), st.integers(0, 99))
def test_not_much_more_than_the_share_is_held_back(sizes: list[int], percentage: float, seed: int) -> None:
    pairs = grouped(*sizes)
    train, held = split_by_prompt(pairs, percentage, seed)
    assert train and held
    assert len(held) <= max(1.5 * len(pairs) * percentage / 100, len(pairs) / 2) + 1e-6


@given(st.lists(st.integers(1, 8), min_size=2, max_size=12), st.floats(0, 100), st.integers(0, 99))
def test_prompts_no_larger_than_the_share_are_taken_in_turn(sizes: list[int], percentage: float, seed: int) -> None:
    pairs = grouped(*sizes)
    target = len(pairs) * percentage / 100
    assume(max(sizes) <= target)
    names = [f"prompt {n}" for n in range(len(sizes))]
    order = sorted(names, key=lambda name: (digest64("validation-split", seed, name), name))
    wanted: list[Pair] = []
    for name in order[:-1]:
        group = [pair for pair in pairs if pair.chosen.prompts == (name,)]
        if wanted and len(wanted) + len(group) / 2 > target:
            break
        wanted += group
    assert {pair.id for pair in split_by_prompt(pairs, percentage, seed)[1]} == {pair.id for pair in wanted}


def test_with_single_images_what_has_no_partner_is_a_like_or_a_dislike() -> None:
    chosen = [item("a"), item("b"), item("c", "a cat")]
    rejected = [item("b", side="bad"), item("c", "a dog", side="bad"), item("d", side="bad")]
    made = match_pairs(chosen, rejected, "good", "bad", singles=True)
    assert not made.faults
    assert [(one.id, one.sides) for one in made.pairs] == [("good/b", (True, True))]
    assert [(one.id, one.sides) for one in made.likes] == [(f"good/{n}", (True, False)) for n in "ac"]
    assert [(one.id, one.sides) for one in made.dislikes] == [(f"bad/{n}", (False, True)) for n in "cd"]
    assert [one.items for one in (*made.likes, *made.dislikes)] == [
        (one,) for one in (chosen[0], chosen[2], *rejected[1:])
    ]
