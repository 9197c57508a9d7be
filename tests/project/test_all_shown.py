"""What comes next once the pair tool has shown every prompt that has two different images."""

from __future__ import annotations

import io
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.curation.store import GOAL, STORE_NAME, CurationStore
from modules.generator.Generator import MadeImage
from modules.project.Round import Round
from modules.util.errors import UserError
from modules.util.owned_files import Owned
from scripts import taste
from tests.project.simulated import headless, preferring, told

SAME = "a red fox 1"
"""The prompt of which all images are equal."""


def by_name(path: Path, prompt: str) -> float:
    return float(path.stem.rpartition("-")[2])


@pytest.fixture
def project(tmp_path, prompts_file, drawer, monkeypatch, capsys) -> Path:
    def generate(requests):
        for number, one in enumerate(requests):
            seed = "" if one.prompt == SAME else one.seed
            small = Image.frombytes("RGB", (9, 8), random.Random(f"{one.prompt}{seed}").randbytes(216))
            info, stream = PngInfo(), io.BytesIO()
            info.add_text("parameters", f"{one.prompt}\nSteps: 1, Seed: {one.seed}, Size: 32x32")
            small.resize((32, 32)).save(stream, "PNG", pnginfo=info)
            yield MadeImage(number, stream.getvalue())

    monkeypatch.setattr(drawer, "generate", generate)
    folder = tmp_path / "taste"
    settings = ("--base-model", "resources/demo_model", "--near-duplicates", "2")
    told(capsys, "new", folder, "--prompts", prompts_file, *settings)
    assert SAME in taste.Project(folder).prompts()
    told(capsys, "generate", folder, "--per-prompt", "3")
    return folder


def next_of(capsys, project: Path) -> str:
    return told(capsys, "status", project)["next"]


def test_a_prompt_whose_images_all_look_the_same_holds_nothing_up(project, capsys, monkeypatch):
    said = headless(monkeypatch, preferring(by_name), "pick", str(project))
    assert said[-2]["type"] == "finished" and said[-1]["pairs"] == 7
    assert next_of(capsys, project) == "train"


def test_what_is_undone_or_added_is_to_be_picked_again(project, capsys, monkeypatch):
    headless(monkeypatch, preferring(by_name), "pick", str(project))
    headless(monkeypatch, lambda reply: {"do": "undo"} if reply["type"] == "finished" else None, "pick", str(project))
    assert next_of(capsys, project) == "pick"
    headless(monkeypatch, preferring(by_name), "pick", str(project))
    assert next_of(capsys, project) == "train"
    told(capsys, "generate", project, "--per-prompt", "4")
    assert next_of(capsys, project) == "pick"


def test_a_store_of_an_earlier_version_says_nothing_about_it(project):
    one = Round(Owned(project), 1)
    assert not one.all_shown
    with CurationStore(one.pairs):
        pass
    assert (one.pairs / STORE_NAME).is_file() and not one.all_shown


@pytest.mark.parametrize("goal", ["x", "[1]", "5", '["a", 1]', "[1e999, 1]", "[" * 9999, b"\xff"])
def test_a_damaged_goal_of_a_project_from_elsewhere_is_named(tmp_path: Path, goal: str | bytes) -> None:
    one = Round(Owned(tmp_path), 1)
    with CurationStore(one.pairs) as store:
        store.set_meta(GOAL, "[7, 0.5]")
    assert one.goal == (7, 0.5)
    with closing(sqlite3.connect(one.pairs / STORE_NAME)) as database, database:
        database.execute("UPDATE meta SET value = ? WHERE key = ?", (goal, GOAL))
    with pytest.raises(UserError, match="pairs per prompt"):
        _ = one.goal
