"""What a person brings to a project: images to pick from, prompts, a workflow."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from modules.project.candidates import adding
from modules.project.candidates.adding import add_images, images_in
from modules.project.overview import overview
from modules.project.Project import Project
from modules.project.Round import Candidate, Round, write_json_in
from modules.project.rounds import ENOUGH_PAIRS
from modules.util.files.OpenFolder import read_plain
from modules.util.owned_files import Owned
from scripts import taste
from tests.curation.edits import save
from tests.project.simulated import headless, preferring, refused, told
from tests.project.test_from_images import GRAPH, by_a1111, write_image
from tests.project.test_project import brightness, project, settings
from tests.util.image_metadata.edit_graphs import PLAIN, kontext, qwen

__all__ = ["project"]


def bright(path: Path, shade: int) -> None:
    with Image.open(path) as image:
        text = image.text["parameters"]
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("parameters", text)
    Image.new("RGB", (96, 64), (shade, 0, 0)).save(path, pnginfo=info)


def test_images_become_candidates_and_are_picked_from(project, tmp_path, capsys, monkeypatch):
    held_out = settings(project)["held_out"]
    by_a1111(tmp_path / "own", ["an owl", "an owl", "an elk", held_out[0]])
    for number, path in enumerate(sorted((tmp_path / "own").iterdir())):
        bright(path, 50 * number + 20)
    write_image(tmp_path / "own" / "deep" / "none.png", "Title", "nothing")
    made = told(capsys, "add", project, tmp_path / "own")
    assert {name: made[name] for name in ("added", "known", "silent", "judging")} == {
        "added": 3, "known": 0, "silent": 1, "judging": 1,
    }  # fmt: skip
    assert told(capsys, "add", project, tmp_path / "own")["known"] == 3
    assert taste.main(["status", str(project)]) == 0
    assert capsys.readouterr().out.startswith("round 1: 3 added images, 0 answers")
    seen = overview(Project(project))
    assert (seen.added, seen.next, seen.steps["pick"].blocked) == (3, "generate", "")
    assert seen.steps["pick"].total == 1, "one elk is nothing to compare"
    asked = [one for one in headless(monkeypatch, preferring(brightness), "pick", str(project))
             if one["type"] == "question"]  # fmt: skip
    assert {one["prompt"] for one in asked} == {"an owl"} and Project(project).round.pair_count == 1
    assert len(list((tmp_path / "own").glob("*.png"))) == 4, "they are copied"
    made = told(capsys, "generate", project)
    assert made["candidates"] == 48, "the images of the project's own prompts are made as ever"
    assert overview(Project(project)).next == "pick"
    headless(monkeypatch, preferring(brightness), "pick", str(project))
    one = Project(project).round
    assert one.groups_done == one.prompt_count and one.pair_count < ENOUGH_PAIRS
    assert overview(Project(project)).next == "train", "a prompt with one image does not keep it waiting"


def test_images_of_any_round_are_not_candidates_again(project, tmp_path, capsys, monkeypatch):
    by_a1111(tmp_path / "own", ["an owl"])
    made = told(capsys, "generate", project, "--per-prompt", 2)["candidates"]
    assert told(capsys, "add", project, tmp_path / "own")["added"] == 1
    with monkeypatch.context() as reading:
        read: Counter[Path] = Counter()
        reading.setattr(adding, "read_plain", lambda path, most: read.update([path]) or read_plain(path, most))
        again = told(capsys, "add", project, project / "round-1" / "candidates")
    assert (again["added"], again["known"]) == (0, made + 1)
    assert max(read.values()) <= 2, "a file is read as a new one, and as one of those that it may equal"
    (project / "round-2").mkdir()
    (project / "round-2" / "plan.json").write_bytes((project / "round-1" / "plan.json").read_bytes())
    (tmp_path / "own" / "new.png").write_bytes(next((tmp_path / "own").iterdir()).read_bytes())
    bright(tmp_path / "own" / "new.png", 99)
    again = told(capsys, "add", project, tmp_path / "own", project / "round-1" / "candidates")
    assert (again["added"], again["known"]) == (1, 1 + made + 1)


@pytest.mark.parametrize("ending", ["txt", "json"])
def test_prompts_in_files_next_to_the_images_are_copied_too(project, tmp_path, capsys, monkeypatch, ending):
    (tmp_path / "own").mkdir()
    for number in range(2):
        Image.new("RGB", (96, 64), (100 * number + 20, 0, 0)).save(tmp_path / "own" / f"{number}.png")
        text = "an owl" if ending == "txt" else json.dumps({"caption": "an owl"})
        (tmp_path / "own" / f"{number}.{ending}").write_text(text)
    assert told(capsys, "add", project, tmp_path / "own")["added"] == 2
    asked = [one for one in headless(monkeypatch, preferring(brightness), "pick", str(project))
             if one["type"] == "question"]  # fmt: skip
    assert {one["prompt"] for one in asked} == {"an owl"} and Project(project).round.pair_count == 1


def test_images_that_a_kill_kept_away_are_added_the_next_time(project, tmp_path, monkeypatch):
    by_a1111(tmp_path / "own", ["an owl", "an owl", "an elk"])
    for number, path in enumerate(sorted((tmp_path / "own").iterdir())):
        bright(path, 50 * number + 20)
    take_in, written = Round.take_in, []

    def killed(one: Round, image: Candidate, *more: object) -> None:
        take_in(one, image, *more)
        raise KeyboardInterrupt

    files = images_in([tmp_path / "own"])
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Round, "take_in", killed)
        add_images(Project(project), files)
    one = Project(project).round
    assert len(one.added()) == 1 and len(list(one.candidates.glob("*.png"))) == 1

    def noted(owned: Owned, name: str, data: object) -> None:
        written.append(name)
        write_json_in(owned, name, data)

    monkeypatch.setattr("modules.project.Round.write_json_in", noted)
    made = add_images(Project(project), files)
    assert (made.added, made.known) == (2, 1) and len(one.added()) == 3
    assert written == ["round-1/added.json"], "the list is written once for all images"


def test_edits_are_counted_and_left_out(project, tmp_path, capsys):
    for number in range(2):
        save(tmp_path / "own" / f"{number}.png", number, kontext("cat.png"))
    save(tmp_path / "own" / "plain.png", 5, PLAIN)
    made = told(capsys, "add", project, tmp_path / "own")
    assert (made["added"], made["edits"], made["silent"]) == (1, 2, 0)
    assert len(list(Project(project).round.candidates.glob("*.png"))) == 1


@pytest.mark.parametrize("graph", [kontext, qwen])
def test_a_workflow_that_edits_images_is_refused(project, tmp_path, capsys, graph):
    before = settings(project)
    (tmp_path / "w.json").write_text(json.dumps(graph("cat.png")))
    said = refused(capsys, "add", project, "--workflow", tmp_path / "w.json")
    assert "edits images (cat.png)" in said and "without source images" in said
    assert settings(project) == before


def test_a_trained_round_takes_no_images(project, tmp_path, capsys):
    by_a1111(tmp_path / "own", ["an owl"])
    told(capsys, "generate", project)
    Project(project).round.adapter_path.write_text("trained")
    Project(project).round.write_trained({"steps": 1})
    assert "begin the next round" in refused(capsys, "add", project, tmp_path / "own")


@pytest.mark.parametrize(("name", "value"), [("card", "8" * 9999), ("model", {"type": "A" * 9999, "base": "b"})])
def test_a_wrong_value_of_any_length_is_named_in_a_few_words(project, capsys, name, value):
    (project / "project.json").write_text(json.dumps(settings(project) | {name: value}))
    said = refused(capsys, "status", project)
    assert ("8" * 50 in said or "A" * 50 in said) and len(said) < 2000


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": None}, {"seed": "1"}, {"prompt": 5}, {"prompt": ["a"]}, {"file": 5}, {"file": ""}, {"file": ".."},
        {"file": "../../secret.png"}, {"file": "/secret.png"}, {"file": "C:\\secret.png"}, {"file": "a\0b"},
        {"file": "a" * 1000}, {"more": 1},
    ],
)  # fmt: skip
def test_a_damaged_list_of_images_is_named_and_leads_nowhere_else(project, capsys, changes):
    image = {"file": "own-1.png", "prompt": "an owl", "seed": 1} | changes
    added, plan = project / "round-1" / "added.json", project / "round-1" / "plan.json"
    added.parent.mkdir(exist_ok=True)
    added.write_text(json.dumps([image]))
    assert "not a list of images" in refused(capsys, "status", project)
    added.unlink()
    plan.write_text(json.dumps({"adapter": "base", "strength": 1, "images": [image]}))
    assert "not a plan of images" in refused(capsys, "status", project)


def test_images_that_were_brought_last_are_shown_last(project, tmp_path, capsys):
    told(capsys, "generate", project)
    one = Project(project).round
    brought = [Candidate(f"own-{number}.png", "a red fox 1", number) for number in range(2)]
    one.expect(brought)
    for image in brought:
        one.take_in(image, b"an image")
    images = overview(Project(project)).steps["generate"].images
    assert len(images) == 8 and [path.name for path in images[-2:]] == ["own-0.png", "own-1.png"]
    for path in images[-2:]:
        os.utime(path, (0, 0))
    assert not [path for path in overview(Project(project)).steps["generate"].images if "own" in path.name]


def test_prompts_are_added_once(project, tmp_path, capsys, drawer):
    before = (project / "prompts.txt").read_text()
    (tmp_path / "more.txt").write_text("# more\nan {owl|elk}\na red fox 1\n")
    assert told(capsys, "add", project, "--prompts", tmp_path / "more.txt")["prompts"] == 2
    assert told(capsys, "add", project, "--prompts", tmp_path / "more.txt")["prompts"] == 0
    assert (project / "prompts.txt").read_text() == f"{before}\nan owl\nan elk\n"
    told(capsys, "generate", project, "--per-prompt", 1)
    assert {"an owl", "an elk"} < {prompt for prompt, _, _ in drawer.made}


def test_a_workflow_makes_the_images_of_a_project_without_images(project, tmp_path, capsys):
    (tmp_path / "w.json").write_text(json.dumps(GRAPH))
    told(capsys, "add", project, "--workflow", tmp_path / "w.json")
    assert settings(project)["generator"] == {"kind": "comfyui", "workflow": GRAPH}
    assert "comfyui" not in refused(capsys, "add", project, "--workflow", tmp_path / "gone.json")


@pytest.mark.parametrize("place", ["round-1/candidates", "arena/images"])
def test_images_of_two_programs_are_not_mixed(project, tmp_path, capsys, place):
    (tmp_path / "w.json").write_text(json.dumps(GRAPH))
    before = settings(project)
    (project / place / "x").mkdir(parents=True)
    assert "begin a new project" in refused(capsys, "add", project, "--workflow", tmp_path / "w.json")
    assert settings(project) == before


def test_mistakes(project, tmp_path, capsys):
    (tmp_path / "w.json").write_text(json.dumps({"1": {"class_type": "Note", "inputs": {}}}))
    before = settings(project)
    assert "no place for the prompt" in refused(capsys, "add", project, "--workflow", tmp_path / "w.json")
    assert "nothing to add" in refused(capsys, "add", project)
    assert "no file" in refused(capsys, "add", project, tmp_path / "gone.png")
    assert settings(project) == before
