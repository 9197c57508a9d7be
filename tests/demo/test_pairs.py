"""Images as generators leave them, chosen through the pair tool's core."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.util.dpo_curation_util import load_manifest
from modules.util.image_metadata_util import read_metadata
from modules.util.rng import python_random
from scripts.demo.judge import matches, read_image
from scripts.demo.metadata import STYLES, Made, write_image
from scripts.demo.pairs import finalise, load_pixels, pick_pairs, prompt_split
from scripts.demo.taste import TASTES, Person
from scripts.demo.world import Wish, draw_scene, render


@pytest.mark.parametrize("style", STYLES)
def test_what_a_program_writes_is_read_back(tmp_path: Path, style: str) -> None:
    wish = Wish("circle", "red", "blue")
    pixels = render(draw_scene(wish, python_random("test", 1)))
    path = write_image(tmp_path, "one", pixels, Made(wish.caption(), 123, 20, 2.5, 64, 64), style)
    about = read_metadata(path)
    assert (about.prompt, about.seed, about.width, about.height) == (wish.caption(), 123, 64, 64)
    assert (load_pixels(path) == pixels).all()


def drawn(folder: Path, wishes: list[Wish], per_prompt: int) -> None:
    """Images of a generator that always draws what is asked for, in any size."""
    folder.mkdir()
    styles = list(STYLES)
    rng = python_random("test", 2)
    for n, wish in enumerate(wishes):
        for k in range(per_prompt):
            made = Made(wish.caption(), k, 20, 2.5, 64, 64)
            write_image(folder, f"{n}-{k}", render(draw_scene(wish, rng)), made, styles[n % len(styles)])


def test_a_person_who_never_slips_gets_pairs_in_the_order_of_their_taste(tmp_path: Path) -> None:
    wishes = prompt_split(1)[0][:6]
    drawn(tmp_path / "images", wishes, 5)
    told: list[str] = []
    answers = pick_pairs(
        tmp_path / "images", tmp_path / "pairs", Person(TASTES["large"], 1), 2, 1, told.append
    )
    pairs = load_manifest(tmp_path / "pairs")["pairs"]
    assert answers >= len(pairs) >= 6
    assert {pair["prompt"] for pair in pairs} == {wish.caption() for wish in wishes}
    assert "with" in told[-1]
    right = 0
    for pair in pairs:
        wish = Wish.parse(pair["prompt"])
        sizes = []
        for side in ("chosen", "rejected"):
            reading = read_image(load_pixels(tmp_path / "pairs" / pair[f"{side}_file"]))
            assert all(matches(reading, wish).values())
            sizes.append(reading.size)
        right += sizes[0] > sizes[1]
    assert right >= 0.9 * len(pairs)
    train, held_out = finalise(tmp_path / "pairs", 20.0)
    assert train + held_out == len(pairs) and held_out > 0


def test_prompts_for_judging_are_not_prompts_of_pairs() -> None:
    for_pairs, new = prompt_split(1)
    assert not set(for_pairs) & set(new)
    assert len(for_pairs) >= 60 and len(new) >= 40
    assert prompt_split(1) == (for_pairs, new)
    assert prompt_split(2)[0] != for_pairs
