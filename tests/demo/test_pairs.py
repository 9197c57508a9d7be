"""Images as generators leave them, chosen through the pair tool's core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake import groups
from modules.curation.intake.groups import scan_groups
from modules.curation.intake.scan import ScanFault, scan_images
from modules.curation.store import CurationStore
from modules.util.dpo_curation_util import load_manifest
from modules.util.image_metadata_util import read_metadata
from modules.util.rng import python_random
from scripts.demo import pairs
from scripts.demo.judge import matches, read_image
from scripts.demo.metadata import STYLES, Made, write_image
from scripts.demo.pairs import finalise, load_pixels, pick_pairs, prompt_split
from scripts.demo.taste import TASTES, Person
from scripts.demo.world import Wish, draw_scene, render
from tests.usual import usual


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
    made = load_manifest(tmp_path / "pairs")["pairs"]
    assert answers >= len(made) >= 6
    assert {pair["prompt"] for pair in made} == {wish.caption() for wish in wishes}
    assert "with" in told[-1]
    right = 0
    for pair in made:
        wish = Wish.parse(pair["prompt"])
        sizes = []
        for side in ("chosen", "rejected"):
            reading = read_image(load_pixels(tmp_path / "pairs" / pair[f"{side}_file"]))
            assert all(matches(reading, wish).values())
            sizes.append(reading.size)
        right += sizes[0] > sizes[1]
    assert right >= 0.9 * len(made)
    train, held_out = finalise(tmp_path / "pairs", 20.0)
    assert train + held_out == len(made) and held_out > 0


def test_prompts_for_judging_are_not_prompts_of_pairs() -> None:
    for_pairs, new = prompt_split(1)
    assert not set(for_pairs) & set(new)
    assert len(for_pairs) >= 60 and len(new) >= 40
    assert prompt_split(1) == (for_pairs, new)
    assert prompt_split(2)[0] != for_pairs


@pytest.mark.parametrize("seconds", usual([0.04, 0.2], 0.2))
def test_the_answers_do_not_depend_on_how_fast_the_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """A slow scan hands groups out early, half found, and in another order."""
    drawn(tmp_path / "images", prompt_split(1)[0][:6], 5)
    now, orders, answers = 0.0, [], []

    def slow(*arguments: object) -> Iterator[object]:
        nonlocal now
        for found in scan_images(*arguments):  # type: ignore[arg-type]
            now += step
            yield found

    def watched(*arguments: object) -> Iterator[ImageGroup | ScanFault]:
        for found in scan_groups(*arguments):  # type: ignore[arg-type]
            orders[-1].append((found.key, len(found.files)) if isinstance(found, ImageGroup) else None)
            yield found

    monkeypatch.setattr(groups, "scan_images", slow)
    monkeypatch.setattr(groups, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(pairs, "scan_groups", watched)
    for step in (0.0, seconds):
        orders.append([])
        out, person = tmp_path / f"pairs {step}", Person(TASTES["large"], 1, 0.1)
        pick_pairs(tmp_path / "images", out, person, 2, 1, lambda text: None)
        with CurationStore(out) as store:
            answers.append([(e.group_key, e.kind, e.payload) for e in store.events()])
    assert orders[0] != orders[1], "the scan was to hand out otherwise"
    assert len(answers[0]) > 20 and answers[0] == answers[1]
