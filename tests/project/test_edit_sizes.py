"""What is known about edits whose sources were scaled: it is found again, and other programs scale nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.project import judging
from modules.project.Project import Adapter, Project
from modules.project.proving import prepare
from modules.project.rounds import lost_prompts
from tests.generator.servers import ComfyServer
from tests.generator.test_contract import edit_graph
from tests.project.simulated import headless, preferring, told
from tests.project.test_edits import INSTRUCTION, drawer, green, new, write_tasks
from tests.usual import usual

__all__ = ["drawer"]
FAKE = Path(__file__).with_name("fake_judges.py")


SIZES, NAMES = [None, 256], ["as they are", "scaled"]


@pytest.fixture
def trained(request, made_once, capsys, monkeypatch, trains, drawer) -> Path:
    """A project with a trained round, whose sources are as they are or scaled."""
    more = () if request.param is None else ("--source-resolution", request.param)
    trains("finish")

    def make(work: Path) -> None:
        folder = work / "p"
        told(capsys, *new(folder, write_tasks(work / "photos"), *more))
        told(capsys, "generate", folder, "--per-prompt", 2)
        headless(monkeypatch, preferring(green), "pick", str(folder))
        told(capsys, "train", folder)

    return made_once(f"trained at {request.param}", make) / "p"


def for_base(folder: Path) -> Callable[[Path, str], float]:
    def score(path: Path, _prompt: str) -> float:
        made = (folder / "arena" / "images").glob("base*/*")
        return float(any(one.read_bytes() == path.read_bytes() for one in made if one.is_file()))

    return score


@pytest.mark.parametrize("trained", usual(SIZES, None), indirect=True, ids=NAMES)
def test_automatic_judgements_are_found_again(trained, capsys, monkeypatch):
    monkeypatch.setattr(judging, "SCRIPT", FAKE)
    (found,) = told(capsys, "judge", trained, "--images", 3)["automatic"]
    assert told(capsys, "status", trained)["rounds"][0]["automatic"] == found
    assert told(capsys, "compare", trained, "--images", 3, "--result")["automatic"] == [found]


@pytest.mark.parametrize("trained", usual(SIZES, 256), indirect=True, ids=NAMES)
def test_a_size_that_changes_keeps_what_a_round_was_judged_by(trained, capsys, monkeypatch):
    monkeypatch.setattr(judging, "SCRIPT", FAKE)
    (found,) = told(capsys, "judge", trained, "--images", 3)["automatic"]
    told(capsys, "compare", trained, "--images", 3, "--prepare")
    Project(trained).note_source_resolution(128)
    assert told(capsys, "status", trained)["rounds"][0]["automatic"] == found
    assert "automatic" not in told(capsys, "compare", trained, "--images", 3, "--result")


@pytest.mark.parametrize("trained", usual(SIZES, 256), indirect=True, ids=NAMES)
def test_prompts_on_which_a_round_lost_are_known_to_the_next(trained, monkeypatch):
    headless(monkeypatch, preferring(for_base(trained)), "compare", str(trained), "--images", "3")
    opened = Project(trained)
    assert lost_prompts(opened, opened.rounds()[0]) == {INSTRUCTION: 1.0}


def test_a_program_that_scales_no_sources_keeps_its_images_and_votes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    (tmp_path / "loras").mkdir()
    (tmp_path / "edit.json").write_text(json.dumps(edit_graph()))
    comfy, folder = ComfyServer(tmp_path / "loras"), tmp_path / "p"
    tasks = write_tasks(tmp_path / "photos")
    with comfy.running() as url:
        made_by = ("--generator", "comfyui", "--url", url, "--workflow", tmp_path / "edit.json")
        told(capsys, *new(folder, tasks, *made_by))
        project = Project(folder)
        before = prepare(project, [Adapter("base")], 3, print)[0]
        asked = len(comfy.asked)
        project.note_source_resolution(128)
        after = prepare(Project(folder), [Adapter("base")], 3, print)[0]
    assert asked == len(comfy.asked) > 0
    assert (after.key, after.images) == (before.key, before.images)
