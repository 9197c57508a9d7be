"""Projects of edits: the same instruction with another source is another group in every step."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors.numpy import save_file

from modules.generator import registry
from modules.generator.ComfyUi import plain_graph
from modules.generator.Generator import ImageRequest
from modules.project.Project import Project
from modules.util.image_metadata_util import read_metadata
from modules.util.owned_files import Owned
from modules.util.prompts_file import read_prompt_rows
from scripts.train_reward import answer_comparisons
from tests.generator.servers import ComfyServer
from tests.generator.test_contract import edit_graph
from tests.project.conftest import Drawer
from tests.project.simulated import headless, preferring, refused, told
from tests.tiny import tiny_folder

KEY = "FLUX_KONTEXT_DEV_1"
INSTRUCTION = "make it night"
SOURCES = 5


class EditDrawer(Drawer):
    """Remembers what each image was to be an edit of."""

    takes_sources = True

    def __init__(self) -> None:
        super().__init__()
        self.edited: dict[int, bytes] = {}
        self.sizes: set[int | None] = set()

    def generate(self, requests):
        self.sizes |= {one.source_resolution for one in requests}
        self.edited |= {one.seed: b"".join(path.read_bytes() for path in one.sources) for one in requests}
        yield from super().generate(requests)


@pytest.fixture
def drawer(monkeypatch: pytest.MonkeyPatch) -> EditDrawer:
    made = EditDrawer()
    monkeypatch.setitem(registry.GENERATORS, "own", lambda settings: made)
    return made


def photo(path: Path, shade: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 64), (shade, 255 - shade, 30)).save(path)
    return path


def write_tasks(folder: Path, *rows: dict[str, str]) -> Path:
    """Tasks with one instruction; all sources have the same file name, and one of them is there twice."""
    for number in range(SOURCES):
        photo(folder / str(number) / "photo.png", 40 * number + 20)
    photo(folder / "copy" / "of the first.png", 20)
    usual = [{"prompt": INSTRUCTION, "source": f"{number}/photo.png"} for number in range(SOURCES)]
    usual.append({"prompt": INSTRUCTION, "source": "copy/of the first.png"})
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, rows or usual)), encoding="utf-8")
    return path


def new(folder: Path, tasks: Path, *more: object) -> tuple[object, ...]:
    usual = {
        "--base-model": tiny_folder(KEY),
        "--model-type": KEY,
        "--device": "cpu",
        "--near-duplicates": -1,
    }
    given = dict(zip(more[::2], more[1::2], strict=True))
    return ("new", folder, "--prompts", tasks, *(word for one in {**usual, **given}.items() for word in one))


@pytest.fixture
def project(tmp_path: Path, drawer: EditDrawer, capsys: pytest.CaptureFixture[str]) -> Path:
    folder = tmp_path / "my taste"
    made = told(capsys, *new(folder, write_tasks(tmp_path / "photos")))
    assert (made["prompts"], made["held_out"], made["sources"], made["next"]) == (4, 1, SOURCES, "generate")
    assert "Kontext edit DPO" in made["preset"]
    # nothing outside is needed any more
    shutil.rmtree(tmp_path / "photos")
    return folder


def settings(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "project.json").read_text(encoding="utf-8"))


def source_of(candidate: Path) -> bytes:
    return candidate.with_name(f"{candidate.stem}-source.png").read_bytes()


def green(path: Path, prompt: str) -> float:
    with Image.open(path) as image:
        return image.convert("RGB").getpixel((0, 0))[2]


def test_one_instruction_and_five_sources_are_five_groups(project, capsys, monkeypatch, trains, drawer):
    kept = {path.read_bytes() for path in (project / "sources").iterdir()}
    assert len(kept) == SOURCES
    held_out = (project / "sources" / f"{settings(project)['held_out_sources'][0]}.png").read_bytes()
    told(capsys, "generate", project, "--per-prompt", 3)
    candidates = [
        path for path in (project / "round-1" / "candidates").iterdir() if "source" not in path.name
    ]
    assert len(candidates) == 12 == len({path.read_bytes() for path in candidates})
    for path in candidates:
        assert source_of(path) == drawer.edited[read_metadata(path).seed] != held_out

    said = headless(monkeypatch, preferring(green), "pick", str(project))
    asked = [one for one in said if one["type"] == "question"]
    for one in asked:
        (source,) = one["sources"]
        files = [Path(image["path"]) for image in one["show"]]
        assert {source_of(path) for path in files} == {Path(source).read_bytes()}
    assert {Path(one["sources"][0]).read_bytes() for one in asked} == kept - {held_out}
    pairs = json.loads((project / "round-1" / "pairs" / "manifest.json").read_text())["pairs"]
    assert len(pairs) == 4 == len({pair["source_images"][0]["sha256"] for pair in pairs})
    for pair in pairs:
        for image in pair["sources"].values():
            name = Path(image if isinstance(image, str) else image["file"]).name
            shown = source_of(project / "round-1" / "candidates" / name)
            assert hashlib.sha256(shown).hexdigest() == pair["source_images"][0]["sha256"]

    one = project / "round-1"
    learned_from = answer_comparisons(one / "pairs", one / "candidates")
    assert len({comparison.tasks[comparison.better] for comparison in learned_from}) == 4
    assert all(source_of(each.better) == source_of(each.worse) for each in learned_from)

    trains("finish")
    assert told(capsys, "train", project)["pairs"] == 4
    (chosen, _) = json.loads((project / "round-1" / "pairs" / "concepts.json").read_text())[:2]
    assert Path(chosen["source_path"]).name == "source"

    drawer.edited.clear()
    said = headless(monkeypatch, preferring(green), "compare", str(project), "--images", "6")
    votes = [one for one in said if one["type"] == "question"]
    assert votes and {Path(one["sources"][0]).read_bytes() for one in votes} == {held_out}
    assert set(drawer.edited.values()) == {held_out}

    assert told(capsys, "next", project, "--per-prompt", 2) == {
        "round": 2, "prompts": 4, "planned": 8, "next": "generate",
    }  # fmt: skip
    told(capsys, "generate", project)
    second = [p for p in (project / "round-2" / "candidates").iterdir() if "source" not in p.name]
    assert sorted(source_of(path) for path in second) == sorted(2 * [*(kept - {held_out})])


def test_a_published_adapter_is_one_for_edits_and_what_its_picture_shows_is_said(
    project, capsys, monkeypatch, trains, drawer, tmp_path
):
    told(capsys, "generate", project, "--per-prompt", 2)
    headless(monkeypatch, preferring(green), "pick", str(project))
    trains("finish")
    told(capsys, "train", project)
    save_file({"a": np.ones(2, np.float32)}, project / "round-1" / "adapter.safetensors")
    about = ("--title", "T", "--author", "A", "--license", "mit")
    made = told(capsys, "publish", project, "--out", tmp_path / "out", *about)
    assert "edits of your source images" in made["warning"]
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert 'pipeline_tag: "image-to-image"' in card and "text-to-image" not in card


def test_images_see_their_sources_at_the_size_of_the_training(project, capsys, monkeypatch, trains, drawer):
    def sizes(*command: object) -> set[int | None]:
        drawer.sizes.clear()
        told(capsys, *command)
        return set(drawer.sizes)

    assert sizes("generate", project, "--per-prompt", 2) == {None}
    headless(monkeypatch, preferring(green), "pick", str(project))
    trains("finish")
    told(capsys, "train", project, "--set", "source_resolution=128")
    one = project / "round-1"
    assert json.loads((one / "run" / "config.json").read_text())["source_resolution"] == 128
    assert sizes("generate", project, "--per-prompt", 3) == {None}, "it is compared with those of its round"
    assert sizes("compare", project, "--images", 3, "--prepare") == {128}
    told(capsys, "next", project, "--per-prompt", 2)
    assert sizes("generate", project) == {128}
    headless(monkeypatch, preferring(green), "pick", str(project))
    told(capsys, "train", project)
    ran = json.loads((project / "round-2" / "run" / "config.json").read_text())
    assert ran["source_resolution"] == 128
    # the base model's images of another size are not taken for these, nor are the votes on them
    headless(monkeypatch, preferring(green), "compare", str(project), "--images", "3")
    first = ("--between", "round-1,base", "--images", "3")
    headless(monkeypatch, preferring(green), "compare", str(project), *first)
    voted = told(capsys, "compare", project, *first, "--result")
    assert voted["votes"] > 0
    told(capsys, "train", project, "--again", "--set", "source_resolution=192")
    before = len(drawer.made)
    assert sizes("compare", project, "--images", 3, "--prepare") == {192}
    assert [one[2] for one in drawer.made[before:]].count("base") == 3
    assert told(capsys, "compare", project, *first, "--result")["votes"] == 0
    known = told(capsys, "status", project)["rounds"][0]["arena"]
    assert known["votes"] == voted["votes"], "what a round was judged by stays"


def test_a_size_of_sources_from_the_beginning(tmp_path, capsys, monkeypatch, trains, drawer):
    folder = tmp_path / "p"
    tasks = write_tasks(tmp_path / "photos")
    assert "source_resolution" in refused(capsys, *new(folder, tasks, "--source-resolution", 32))
    told(capsys, *new(folder, tasks, "--source-resolution", 256))
    told(capsys, "generate", folder, "--per-prompt", 2)
    assert drawer.sizes == {256}
    headless(monkeypatch, preferring(green), "pick", str(folder))
    trains("finish")
    told(capsys, "train", folder)
    assert json.loads((folder / "round-1" / "config.json").read_text())["source_resolution"] == 256
    (tmp_path / "plain.txt").write_text("a fox\nan owl\nan elk\n")
    plain = ("--base-model", "resources/demo_model", "--model-type", "STABLE_DIFFUSION_15")
    said = refused(capsys, *new(tmp_path / "q", tmp_path / "plain.txt", *plain, "--source-resolution", 256))
    assert "no source images" in said and not (tmp_path / "q").exists()


def test_stopped_anywhere_a_candidate_has_its_source(project, capsys, drawer, tmp_path):
    drawer.fails_after = 5
    assert "broke its pen" in refused(capsys, "generate", project)
    drawer.fails_after = 10**6
    moved = tmp_path / "elsewhere"
    shutil.move(project, moved)
    assert told(capsys, "generate", moved)["candidates"] == 24
    assert len(list((moved / "round-1" / "candidates").iterdir())) == 48
    assert len({one[1] for one in drawer.made}) == 24 == len(drawer.made)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: photo(path, 250), "has changed"),
        (lambda path: path.unlink(), "is missing"),
    ],
)
def test_another_source_is_noticed_before_an_image_is_made(project, capsys, drawer, damage, message):
    told(capsys, "generate", project, "--per-prompt", 2)
    plan = json.loads((project / "round-1" / "plan.json").read_text())["images"]
    # written anew, not through the other names of the same file
    path = project / "sources" / f"{plan[0]['source']}.png"
    path.unlink()
    if message == "has changed":
        damage(path)
    drawer.made.clear()
    assert message in refused(capsys, "generate", project, "--per-prompt", 3)
    assert not drawer.made


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        ((), ("--model-type", "FLUX_DEV_1"), "FLUX.1 dev takes none"),
        ((), ("--generator", "a1111"), "cannot be given source images here"),
        (({"prompt": "a"}, {"prompt": "b", "source": "0/photo.png"}), (), "1 prompt has no source image"),
        (
            tuple({"prompt": f"{n}"} for n in range(4)),
            (),
            "edits images, but the prompts have no source images",
        ),
        (({"prompt": "a", "source": "0/none.png"},) * 3, (), "none.png cannot be read"),
        (({"prompt": "a", "source": "tasks.jsonl"},) * 3, (), "is not an image"),
        (
            ({"prompt": "a", "source": "../outside.png"},) * 3,
            (),
            "source images into the folder of this file",
        ),
        (({"prompt": "a", "source": "0/photo.png"},) * 3, (), "1 prompt is too few"),
    ],
)
def test_mistakes_leave_nothing_behind(tmp_path, drawer, capsys, rows, more, message):
    tasks = write_tasks(tmp_path / "photos", *rows)
    assert message in refused(capsys, *new(tmp_path / "p", tasks, *more))
    assert not (tmp_path / "p").exists()


def full(*paths: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("there", [False, True])
def test_a_failure_after_the_sources_were_copied_leaves_nothing_behind(
    tmp_path, drawer, capsys, there, monkeypatch
):
    tasks = write_tasks(tmp_path / "photos")
    (tmp_path / "real.safetensors").write_bytes(b"x")
    folder = tmp_path / "projects" / "p"
    if there:
        folder.mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr(Owned, "copy", full)
        said = refused(capsys, *new(folder, tasks, "--adapter", tmp_path / "real.safetensors"))
    assert "real.safetensors cannot be copied: No space left" in said
    assert list(folder.iterdir()) == [] if there else not folder.parent.exists()
    # nor does a computer that was switched off keep the folder from being used
    left = folder / ".tastemaker-0123456789abcdef.tmp" / "sources"
    left.mkdir(parents=True)
    (left / "half.png").write_bytes(b"half")
    told(capsys, *new(folder, tasks, "--adapter", tmp_path / "real.safetensors"))
    assert sorted(path.name for path in folder.iterdir()) == [
        "project.json", "prompts.jsonl", "sources", "start.safetensors",
    ]  # fmt: skip


def test_what_a_killed_creation_left_next_to_the_folder_is_removed(tmp_path, capsys, drawer):
    tasks = write_tasks(tmp_path / "photos")
    left = tmp_path / "projects" / ".tastemaker-0123456789abcdef.tmp" / "sources"
    left.mkdir(parents=True)
    (left / "half.png").write_bytes(b"half")
    told(capsys, *new(tmp_path / "projects" / "p", tasks))
    assert [path.name for path in (tmp_path / "projects").iterdir()] == ["p"]


def test_a_folder_that_is_refused_keeps_what_looks_like_a_leftover(tmp_path, capsys, drawer):
    tasks = write_tasks(tmp_path / "photos")
    folder = tmp_path / "p"
    kept = folder / ".tastemaker-mine.tmp" / "x.png"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"mine")
    (folder / "photo.png").write_bytes(b"photo")
    assert "is not empty" in refused(capsys, *new(folder, tasks))
    assert kept.read_bytes() == b"mine" and (folder / "photo.png").read_bytes() == b"photo"


def test_more_tasks_and_edits_of_ones_own(project, capsys, monkeypatch, drawer, tmp_path):
    told(capsys, "generate", project, "--per-prompt", 2)
    shelf = project / "sources"
    known = {path.name for path in shelf.iterdir()}
    photos = tmp_path / "more"
    photo(photos / "photo.png", 225)
    (photos / "more.jsonl").write_text(
        "\n".join(
            json.dumps({"prompt": text, "source": "photo.png"}) for text in (INSTRUCTION, "paint it red")
        )
    )
    assert told(capsys, "add", project, "--prompts", photos / "more.jsonl")["prompts"] == 2
    assert told(capsys, "add", project, "--prompts", photos / "more.jsonl")["prompts"] == 0
    (added,) = {path.name for path in shelf.iterdir()} - known
    assert (shelf / added).read_bytes() == (photos / "photo.png").read_bytes()
    (photos / "plain.txt").write_text("a fox\nan owl")
    assert "with source images" in refused(capsys, "add", project, "--prompts", photos / "plain.txt")

    own = tmp_path / "own"
    own.mkdir()
    for name, prompt in (("fox", INSTRUCTION), ("owl", INSTRUCTION), ("held", INSTRUCTION), ("alone", "red")):
        drawer.made.clear()
        request = ImageRequest(prompt, ord(name[0]))
        (own / f"{name}.png").write_bytes(next(iter(drawer.generate([request]))).data)
    shutil.copy(photos / "photo.png", own / "fox-source.png")
    shutil.copy(photos / "photo.png", own / "owl_source.png")
    shutil.copy(shelf / f"{settings(project)['held_out_sources'][0]}.png", own / "held-source.png")
    made = told(capsys, "add", project, own)
    assert [made[name] for name in ("added", "judging", "edits", "known", "silent")] == [2, 1, 1, 0, 0]
    said = headless(monkeypatch, preferring(green), "pick", str(project))
    groups = {Path(one["sources"][0]).read_bytes() for one in said if one["type"] == "question"}
    assert (photos / "photo.png").read_bytes() in groups and len(groups) == 5


def test_comfyui_makes_the_images_of_a_workflow_that_edits(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    (tmp_path / "loras").mkdir()
    (tmp_path / "edit.json").write_text(json.dumps(edit_graph()))
    (tmp_path / "plain.json").write_text(json.dumps(plain_graph("sd15.safetensors")))
    comfy = ComfyServer(tmp_path / "loras")
    folder, tasks = tmp_path / "p", write_tasks(tmp_path / "photos")
    with comfy.running() as url:
        made_by = ("--generator", "comfyui", "--url", url)
        words = [*new(folder, tasks, "--workflow", tmp_path / "plain.json"), *made_by]
        assert "loads no image that it edits" in refused(capsys, *words) and not folder.exists()
        told(capsys, *new(folder, tasks, "--workflow", tmp_path / "edit.json"), *made_by)
        assert told(capsys, "generate", folder, "--per-prompt", 2)["made"] == 8
    uploaded = dict(comfy.uploads)
    plan = json.loads((folder / "round-1" / "plan.json").read_text())["images"]
    wanted = {one["seed"]: source_of(folder / "round-1" / "candidates" / one["file"]) for one in plan}
    assert {asked["seed"]: uploaded[asked["images"][0]] for asked in comfy.asked} == wanted
    assert len(comfy.uploads) == len(set(wanted.values())) == 4


def test_a_changed_source_is_never_a_new_task(project, capsys, drawer):
    path = sorted((project / "sources").iterdir())[0]
    path.unlink()
    photo(path, 251)
    before = sorted(one.name for one in (project / "sources").iterdir())
    assert "has changed" in refused(capsys, "generate", project, "--per-prompt", 2)
    assert sorted(one.name for one in (project / "sources").iterdir()) == before and not drawer.made


def test_more_sources_than_the_model_takes_are_refused_before_they_are_picked_from(project, capsys, tmp_path):
    own = tmp_path / "own"
    made = photo(own / "fox.png", 60)
    with Image.open(made) as image:
        image.load()
    about = PngInfo()
    about.add_text(
        "parameters", "make it night\nSteps: 2, Sampler: Euler, CFG scale: 1, Seed: 3, Size: 64x64"
    )
    image.save(made, pnginfo=about)
    photo(own / "fox-source.png", 70)
    photo(own / "fox-source.2.png", 80)
    before = sorted((project / "sources").iterdir())
    assert "was made from 2 source images, but FLUX.1 Kontext dev takes 1" in refused(
        capsys, "add", project, own
    )
    assert sorted((project / "sources").iterdir()) == before


def test_images_made_in_training_have_the_same_sources(project):
    """The prompts of a run on a learned taste."""
    opened = Project(project)
    one = opened.round
    one.write_prompts(opened.tasks())
    rows = read_prompt_rows(one.prompts_path)
    assert {row.text for row in rows} == {INSTRUCTION}
    assert [row.sources[0].stem for row in rows] == [task.source for task in opened.tasks()]
    assert all(row.sources[0].is_file() for row in rows)


def test_a_project_from_before_sources_still_opens(project, capsys):
    """Of a model that edits, with prompts alone: it could be made, though not trained."""
    stored = {**settings(project), "format": 1, "held_out": ["a"]}
    del stored["held_out_sources"]
    (project / "project.json").write_text(json.dumps(stored))
    (project / "prompts.txt").write_text("a\nb\nc\n")
    assert told(capsys, "status", project)["next"] == "generate"
    assert Project(project).prompts() == ["b", "c"]


def test_a_jsonl_list_without_sources_makes_a_project_of_its_prompts(tmp_path, drawer, capsys):
    tasks = write_tasks(tmp_path, *({"prompt": f"a {name}"} for name in ("fox", "cat", "dog", "owl")))
    base = ("--base-model", "resources/demo_model", "--model-type", "STABLE_DIFFUSION_15")
    told(capsys, *new(tmp_path / "plain", tasks, *base))
    project = Project(tmp_path / "plain")
    assert (tmp_path / "plain" / "prompts.txt").read_text() == "a fox\na cat\na dog\na owl\n"
    judged = {task.prompt for task in project.file.held_out_tasks}
    assert judged and judged.isdisjoint(project.prompts()) and len(project.prompts()) + len(judged) == 4


def test_projects_of_prompts_alone_are_stored_as_ever(tmp_path, drawer, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a fox\nan owl\nan elk\n")
    folder = tmp_path / "p"
    told(
        capsys, "new", folder, "--prompts", prompts, "--base-model", "resources/demo_model", "--device", "cpu"
    )
    told(capsys, "generate", folder, "--per-prompt", 1)
    stored = settings(folder)
    assert stored["format"] == 1 and "held_out_sources" not in stored and (folder / "prompts.txt").is_file()
    plan = json.loads((folder / "round-1" / "plan.json").read_text())
    assert [sorted(one) for one in plan["images"]] == [["file", "prompt", "seed"]] * 2
    assert not (folder / "sources").exists()


@pytest.mark.slow  # starts the sampler and the trainer as programs several times
def test_from_new_to_votes_with_a_model_that_edits(tmp_path, capsys, monkeypatch):
    folder = str(tmp_path / "my taste")
    small = ("--width", 64, "--height", 64, "--steps", 2)
    told(capsys, *new(Path(folder), write_tasks(tmp_path / "photos"), *small))
    assert told(capsys, "generate", folder, "--per-prompt", 2)["made"] == 8
    plan = json.loads((Path(folder) / "round-1" / "plan.json").read_text())["images"]
    assert len({one["source"] for one in plan}) == 4
    headless(monkeypatch, preferring(green), "pick", folder)
    trained = told(
        capsys, "train", folder, "--set", "cpu_threads=1", "--set", "epochs=1", "--set", "lora_rank=1",
        "--set", "train_dtype=FLOAT_32", "--set", "transformer.weight_dtype=FLOAT_32",
    )  # fmt: skip
    assert trained["steps"] >= 1
    said = headless(monkeypatch, preferring(green), "compare", folder, "--images", "4")
    assert said[-1]["result"]["contestants"] == ["round-1", "base"]
    assert [one for one in said if one["type"] == "question" and one["sources"]]
