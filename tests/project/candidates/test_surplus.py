"""With a learned taste more images are made than shown: those it is least sure about, and a share by chance."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from modules.project.candidates import choosing
from modules.project.overview import overview, unfinished
from modules.project.Project import Project
from tests.project.simulated import headless, preferring, refused, told
from tests.project.test_project import brightness, project

FAKE = Path(__file__).with_name("fake_least_sure.py")
__all__ = ["project"]


@pytest.fixture
def learned(project, capsys, monkeypatch, drawer) -> Path:
    """A project with a trained round whose taste is known."""
    monkeypatch.setattr(choosing, "SCRIPT", FAKE)
    told(capsys, "generate", project)
    one = Project(project).round
    one.adapter_path.write_text("trained")
    one.write_trained({"steps": 1})
    one.taste_path.write_bytes(b"learned")
    drawer.made.clear()
    return project


def candidates(folder: Path) -> Counter[str]:
    names = {one["file"]: one["prompt"] for one in plan(folder)["images"]}
    return Counter(names[path.name] for path in (folder / "round-2" / "candidates").iterdir())


def plan(folder: Path) -> dict:
    return json.loads((folder / "round-2" / "plan.json").read_text())


def test_three_times_as_many_are_made_and_a_fifth_of_the_prompts_is_left_to_chance(learned, capsys, drawer):
    said = told(capsys, "next", learned)
    assert said == {"round": 2, "prompts": 8, "planned": 6 * 18 + 2 * 6, "shown": 6, "next": "generate"}
    told(capsys, "generate", learned)
    made = Counter(prompt for prompt, _, _ in drawer.made)
    assert sorted(made.values()) == [6, 6] + [18] * 6
    by_chance = [prompt for prompt, count in made.items() if count == 6]
    first = list(dict.fromkeys(prompt for prompt, _, _ in drawer.made))[:2]
    assert first == by_chance, "what is left to chance comes first, so that picking can begin"
    shown = candidates(learned)
    assert set(shown.values()) == {6} and set(shown) == set(made)
    pool = [one["file"] for one in plan(learned)["images"] if one["prompt"] not in by_chance]
    kept = {path.name for path in (learned / "round-2" / "surplus").iterdir()}
    assert len(kept) == 6 * 12
    for start in range(0, len(pool), 18):
        group = pool[start : start + 18]
        assert not kept.intersection(group[12:]) and kept.issuperset(group[:12]), "not those that were chosen"
    seen = overview(Project(learned))
    assert (seen.next, seen.shown, seen.steps["generate"].blocked) == ("pick", 6, "made")
    assert told(capsys, "generate", learned)["made"] == 0
    seeds = [one["seed"] for number in (1, 2) for one in json.loads(
        (learned / f"round-{number}" / "plan.json").read_text())["images"]]  # fmt: skip
    assert len(set(seeds)) == len(seeds), "an image is shown twice"


def test_it_can_be_switched_off_and_needs_a_learned_taste(learned, capsys):
    told(capsys, "next", learned, "--surplus", 1)
    assert "surplus" not in plan(learned) and len(plan(learned)["images"]) == 48
    (learned / "round-2" / "plan.json").unlink()
    (learned / "round-1" / "taste.safetensors").unlink()
    assert told(capsys, "next", learned)["planned"] == 48


def test_picking_begins_with_what_is_left_to_chance(learned, capsys, monkeypatch, drawer):
    told(capsys, "next", learned)
    drawer.fails_after = 12 + 18
    assert "broke its pen" in refused(capsys, "generate", learned)
    held = unfinished(Project(learned))
    ready = [path.name for path in (learned / "round-2" / "candidates").iterdir() if path.name not in held]
    assert len(ready) == 12 and overview(Project(learned)).steps["pick"].blocked == ""
    questions = [one for one in headless(monkeypatch, preferring(brightness), "pick", str(learned))
                 if one["type"] == "question"]  # fmt: skip
    assert len({one["prompt"] for one in questions}) == 2
    drawer.fails_after = 10**6
    told(capsys, "generate", learned)
    assert set(candidates(learned).values()) == {6}


def test_a_choice_that_was_cut_short_is_finished(learned, capsys, monkeypatch, drawer):
    told(capsys, "next", learned)
    told(capsys, "generate", learned)
    before = candidates(learned)
    one = Project(learned).round
    chosen = json.loads((learned / "round-2" / "shown.json").read_text())
    files = next(iter(chosen.values()))
    for name in files[3:]:
        (one.candidates / name).rename(one.surplus / name)
    assert overview(Project(learned)).next == "generate"
    assert unfinished(Project(learned)).issuperset(files)
    monkeypatch.setattr(choosing, "SCRIPT", learned / "no such script")
    told(capsys, "generate", learned)
    assert (
        candidates(learned) == before
        and json.loads((learned / "round-2" / "shown.json").read_text()) == chosen
    )


def test_more_images_keep_those_that_were_chosen(learned, capsys, drawer):
    told(capsys, "next", learned, "--per-prompt", 2)
    told(capsys, "generate", learned)
    first = {path.name for path in (learned / "round-2" / "candidates").iterdir()}
    told(capsys, "generate", learned, "--per-prompt", 3)
    now = {path.name for path in (learned / "round-2" / "candidates").iterdir()}
    assert first < now and set(candidates(learned).values()) == {3}
    assert sorted(Counter(one["prompt"] for one in plan(learned)["images"]).values()) == [3, 3] + [9] * 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": ["../../project.json"]}', "not a choice"),
        pytest.param("[]", "not a choice", marks=pytest.mark.slow),
        ("{", "JSON"),
    ],
)
def test_a_damaged_choice_moves_nothing(learned, capsys, text, message):
    told(capsys, "next", learned)
    told(capsys, "generate", learned)
    (learned / "round-2" / "shown.json").write_text(text)
    assert message in refused(capsys, "generate", learned)
    assert (learned / "project.json").is_file()


def test_without_the_taste_it_says_what_to_do(learned, capsys):
    told(capsys, "next", learned)
    (learned / "round-1" / "taste.safetensors").unlink()
    assert "learn it again" in refused(capsys, "generate", learned)
