"""The simulated person of the demo and of the benchmark answers to the end, also where all images are equally good."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.curation.commands import serve_pairs
from modules.curation.intake.groups import ScanOptions
from modules.curation.session import SessionSettings
from scripts.demo.answering import CLICKS, Answering
from scripts.demo.taste import TASTES, Person
from scripts.demo.world import combinations

PROMPTS, IMAGES = 3, 5


def answered(folder: Path, indifference: float) -> tuple[int, int]:
    """Answers given about all prompts, and pairs made of them."""
    for place, wish in enumerate(combinations(held_out=False)[:PROMPTS]):
        for number in range(IMAGES):
            info = PngInfo()
            info.add_text("parameters", f"{wish.caption()}\nSteps: 1, Seed: {number}, Size: 64x64")
            shade = 40 * number
            (folder / "images").mkdir(exist_ok=True)
            path = folder / "images" / f"{place}-{number}.png"
            Image.new("RGB", (64, 64), (shade, shade, shade)).save(path, pnginfo=info)
    person = Answering(Person(TASTES["large"], 1, indifference=indifference), 100, CLICKS, "round-1")
    serve_pairs(
        folder / "images", folder / "pairs", SessionSettings(seed=1), ScanOptions(1, None), *person.as_streams(),
        lambda text: None,
    )  # fmt: skip
    return person.given, int(person.last["pairs"])


def test_ties_alone_do_not_end_the_answers(tmp_path: Path) -> None:
    assert answered(tmp_path, indifference=10.0) == (PROMPTS * CLICKS, 0)


def test_a_refused_answer_is_an_error() -> None:
    person = Answering(Person(TASTES["large"], 1), 100, CLICKS, "round-1")
    with pytest.raises(RuntimeError, match="no such image"):
        person.write(json.dumps({"type": "error", "message": "no such image"}))
