"""A project that begins with images: what their metadata propose, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.generator.Generator import ImageRequest
from modules.generator.Remote import parameters, with_parameters
from tests.curation.edits import edit_folder, save
from tests.project.simulated import refused, told
from tests.util.image_metadata.edit_graphs import kontext

A1111_TEXT = (
    "{prompt}\nNegative prompt: blurry\nSteps: 25, Sampler: {sampler}, Schedule type: Karras, CFG scale: 6.5, "
    "Seed: {seed}, Size: 96x64, Model: {model}"
)
GRAPH = {
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "fox.safetensors"}},
    "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a fox", "clip": ["1", 1]}},
    "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["1", 1]}},
    "4": {"class_type": "EmptyLatentImage", "inputs": {"width": 96, "height": 64, "batch_size": 1}},
    "5": {
        "class_type": "KSampler",
        "inputs": {
            "seed": 7, "steps": 12, "cfg": 3.0, "sampler_name": "dpmpp_2m", "scheduler": "karras", "denoise": 1.0,
            "model": ["1", 0], "positive": ["2", 0], "negative": ["3", 0], "latent_image": ["4", 0],
        },
    },
    "6": {"class_type": "VAEDecode", "inputs": {"samples": ["5", 0], "vae": ["1", 2]}},
    "7": {"class_type": "SaveImage", "inputs": {"filename_prefix": "x", "images": ["6", 0]}},
}  # fmt: skip


def write_image(path: Path, name: str, text: str, size: tuple[int, int] = (96, 64)) -> None:
    info = PngInfo()
    info.add_text(name, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(path, pnginfo=info)


def by_a1111(folder: Path, prompts: list[str], model: str = "demo_model", sampler: str = "DPM++ 2M") -> None:
    for seed, prompt in enumerate(prompts):
        text = A1111_TEXT.format(prompt=prompt, sampler=sampler, seed=seed, model=model)
        write_image(folder / f"{model}-{seed}.png", "parameters", text)


def by_comfyui(folder: Path, count: int = 4) -> None:
    for number in range(count):
        graph = json.loads(json.dumps(GRAPH))
        graph["2"]["inputs"]["text"] = f"a fox {number}"
        write_image(folder / f"{number}.png", "prompt", json.dumps(graph))


def settings(folder: Path) -> dict:
    return json.loads((folder / "project.json").read_text())


PROMPTS = ["a red fox", "a blue fox", "a red fox", "a grey\nowl", "an <lora:x:1> elk"]


def test_a_project_for_the_own_sampler(tmp_path, capsys):
    by_a1111(tmp_path / "images", PROMPTS)
    made = told(capsys, "new", tmp_path / "p", "--images", tmp_path / "images", "--generator", "own")
    kept = settings(tmp_path / "p")
    assert kept["image"] == {
        "width": 96, "height": 64, "steps": 25, "cfg": 6.5, "sampler": "DPMPP_KARRAS", "negative": "blurry",
    }  # fmt: skip
    assert kept["generator"] == {"kind": "own"}
    assert kept["model"]["type"] == "STABLE_DIFFUSION_15" and Path(kept["model"]["base"]).is_dir()
    prompts = (tmp_path / "p" / "prompts.txt").read_text().splitlines()
    assert (
        sorted(prompts) == ["a blue fox", "a grey owl", "a red fox", "an elk"] and prompts[0] == "a red fox"
    )
    assert made["proposed"]["used"] == 5 and "LoRA" in " ".join(made["proposed"]["notes"])


KONTEXT = ("--base-model", "some/kontext", "--model-type", "FLUX_KONTEXT_DEV_1", "--generator", "own")


def sources_of(folder: Path) -> dict[str, set[bytes]]:
    """The sources of each instruction of a project, by their content."""
    found: dict[str, set[bytes]] = {}
    for line in (folder / "prompts.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["prompt"], set()).add((folder / row["source"]).read_bytes())
    return found


def test_edits_made_in_comfyui_begin_a_project_of_edits_and_are_picked_from(tmp_path, capsys):
    images, inputs = edit_folder(tmp_path, instructions=4, per_group=2)
    # a source outside the input folder is never read, whatever a graph says
    save(tmp_path / "secret.png", 99)
    save(images / "evil.png", 98, kontext("../secret.png"))
    by_a1111(images, ["a red fox"])
    made = told(capsys, "new", tmp_path / "p", "--images", images, "--input-dir", inputs, *KONTEXT)
    wanted = {f"make it night {n}": {(inputs / "sub" / f"source{n}.png").read_bytes()} for n in range(4)}
    assert sources_of(tmp_path / "p") == wanted
    assert (made["prompts"], made["held_out"], made["sources"]) == (3, 1, 4)
    assert len(list((tmp_path / "p" / "sources").iterdir())) == 4
    notes = " ".join(made["proposed"]["notes"])
    assert "2 images without a usable source image were ignored" in notes
    added = told(capsys, "add", tmp_path / "p", images, "--input-dir", inputs)
    assert (added["added"], added["judging"], added["edits"]) == (6, 2, 2)
    candidates = tmp_path / "p" / "round-1" / "candidates"
    shown = {path.read_bytes() for path in candidates.glob("*-source.png")}
    assert len(shown) == 3 and shown < set.union(*wanted.values())


def test_the_workflow_that_made_edits_makes_more_of_them(tmp_path, capsys):
    images, inputs = edit_folder(tmp_path, instructions=3)
    made = told(capsys, "new", tmp_path / "p", "--images", images, "--input-dir", inputs, *KONTEXT[:4])
    kept = settings(tmp_path / "p")["generator"]
    assert kept["kind"] == "comfyui" and kept["workflow"]["300"]["class_type"] == "LoadImage"
    assert made["sources"] == 3


@pytest.mark.parametrize("layout", ["next to it", "folder", "one for all"])
def test_edits_of_other_programs_begin_a_project_with_sources_found_as_in_the_pair_tool(
    tmp_path, capsys, layout
):
    images, more = tmp_path / "images", []
    by_a1111(images, ["make it night", "make it day", "paint it red"], model="kontext")
    for number, path in enumerate(sorted(images.iterdir())):
        if layout == "next to it":
            save(path.with_name(f"{path.stem}_source.png"), 100 + number)
        elif layout == "folder":
            save(images / "source" / path.name, 100 + number)
    if layout == "folder":
        more = ["--edits"]
    elif layout == "one for all":
        more = ["--source", save(tmp_path / "one.png", 100)]
    told(capsys, "new", tmp_path / "p", "--images", images, *more, *KONTEXT)
    found = sources_of(tmp_path / "p")
    assert found.keys() == {"make it night", "make it day", "paint it red"}
    assert len(set.union(*found.values())) == (1 if layout == "one for all" else 3)


def test_each_instruction_is_for_each_image_of_a_folder(tmp_path, capsys):
    photos, prompts = tmp_path / "photos", tmp_path / "prompts.txt"
    prompts.write_text("# mine\nmake it night\nmake it {day|rain}\n")
    for number, name in enumerate(("cat.png", "sub/cat.jpg", "sub/dog.png")):
        save(photos / name, number)
    (photos / "notes.txt").write_text("no image")
    made = told(capsys, "new", tmp_path / "p", "--prompts", prompts, "--to-edit", photos, *KONTEXT)
    every = {(photos / name).read_bytes() for name in ("cat.png", "sub/cat.jpg", "sub/dog.png")}
    # choices stay as they were written
    assert sources_of(tmp_path / "p") == dict.fromkeys(("make it night", "make it {day|rain}"), every)
    assert made["prompts"] + made["held_out"] == 9 and made["sources"] == 3
    one = photos / "cat.png"
    told(capsys, "new", tmp_path / "q", "--prompts", prompts, "--to-edit", one, *KONTEXT)
    assert set.union(*sources_of(tmp_path / "q").values()) == {one.read_bytes()}


def test_a_second_image_to_edit_is_no_image_of_its_own(tmp_path, capsys):
    photos, prompts = tmp_path / "photos", tmp_path / "prompts.txt"
    prompts.write_text("a\nb\nc\n")
    for number, name in enumerate(("cat.png", "cat.2.png", "dog.png", "dog.2.jpg")):
        save(photos / name, number)
    two = ("--base-model", "some/model", "--model-type", "QWEN_EDIT_PLUS")
    made = told(capsys, "new", tmp_path / "p", "--prompts", prompts, "--to-edit", photos, *two)
    assert made["prompts"] + made["held_out"] == 6 and made["sources"] == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--prompts", "prompts.txt", "--to-edit", "nowhere"), "there is no folder or image"),
        (("--prompts", "prompts.txt", "--to-edit", "empty"), "no images to edit"),
        (("--prompts", "prompts.txt", "--to-edit", "prompts.txt"), "no images to edit"),
        (("--prompts", "tasks.jsonl", "--to-edit", "photos"), "already name their source images"),
        (("--to-edit", "photos"), "no prompts that say how to edit"),
        (("--images", "photos", "--to-edit", "photos"), "no prompts that say how to edit"),
        (("--prompts", "prompts.txt"), "--to-edit"),
    ],
)
def test_images_to_edit_that_cannot_be_used_are_named(tmp_path, capsys, monkeypatch, given, said):
    monkeypatch.chdir(tmp_path)
    save(Path("photos/cat.png"), 1)
    Path("empty").mkdir()
    Path("prompts.txt").write_text("a\nb\nc\n")
    Path("tasks.jsonl").write_text(json.dumps({"prompt": "a", "source": "photos/cat.png"}))
    assert said in refused(capsys, "new", tmp_path / "p", *given, *KONTEXT)
    assert not (tmp_path / "p").exists()


def test_places_of_sources_that_are_of_no_use_are_named(tmp_path, capsys):
    images, inputs = edit_folder(tmp_path)
    (tmp_path / "prompts.txt").write_text("a\nb\nc\n")
    base = ("--base-model", "resources/demo_model", "--model-type", "STABLE_DIFFUSION_15")
    new = ("new", tmp_path / "p")
    none = tmp_path / "none"
    assert "does not exist" in refused(capsys, *new, "--images", images, "--input-dir", none, *KONTEXT)
    assert "takes none" in refused(capsys, *new, "--images", images, "--input-dir", inputs, *base)
    assert "input folder itself" in refused(
        capsys, *new, "--images", images, "--input-dir", tmp_path, *KONTEXT
    )
    assert "--images" in refused(
        capsys, *new, "--prompts", tmp_path / "prompts.txt", "--input-dir", inputs, *base
    )
    assert not (tmp_path / "p").exists()
    told(capsys, *new, "--prompts", tmp_path / "prompts.txt", *base)
    assert "prompts alone" in refused(capsys, "add", tmp_path / "p", images, "--input-dir", inputs)


def test_edits_without_sources_begin_no_project_and_are_ignored_among_others(tmp_path, capsys):
    for number in range(2):
        save(tmp_path / "edits" / f"{number}.png", number, kontext("cat.png"))
    said = refused(capsys, "new", tmp_path / "p", "--images", tmp_path / "edits")
    assert "made from other images, which are not found" in said and "--input-dir" in said
    assert not (tmp_path / "p").exists()
    by_a1111(tmp_path / "edits", PROMPTS)
    made = told(capsys, "new", tmp_path / "p", "--images", tmp_path / "edits", "--generator", "own")
    assert made["proposed"]["used"] == 5 and settings(tmp_path / "p")["generator"] == {"kind": "own"}
    assert "2 images made from other images were ignored." in made["proposed"]["notes"]


def test_the_workflow_of_comfyui_is_taken_over(tmp_path, capsys):
    by_comfyui(tmp_path / "ComfyUI" / "output")
    checkpoint = tmp_path / "ComfyUI" / "models" / "checkpoints" / "sub" / "fox.safetensors"
    checkpoint.parent.mkdir(parents=True)
    head = json.dumps({"__metadata__": {"modelspec.architecture": "stable-diffusion-xl-v1-base"}}).encode()
    checkpoint.write_bytes(len(head).to_bytes(8, "little") + head)
    told(capsys, "new", tmp_path / "p", "--images", tmp_path / "ComfyUI" / "output")
    kept = settings(tmp_path / "p")
    assert kept["model"]["base"] == str(checkpoint) and kept["model"]["type"] == "STABLE_DIFFUSION_XL_10_BASE"
    assert kept["generator"]["kind"] == "comfyui" and kept["generator"]["checkpoint"] == "fox.safetensors"
    assert kept["generator"]["workflow"]["5"]["inputs"]["sampler_name"] == "dpmpp_2m"
    assert kept["image"]["sampler"] == "dpmpp_2m" and kept["image"]["steps"] == 12


OWN_TEXT = "a fox {n}\nSteps: 25, Sampler: {sampler}, CFG scale: 6.5, Seed: {n}, Size: 96x64, Model: demo_model"


@pytest.mark.parametrize("sampler", ["DDIM", "EULER_A"])
def test_images_of_the_own_sampler_are_made_by_it_again(tmp_path, capsys, sampler):
    for n in range(4):
        write_image(tmp_path / "images" / f"{n}.png", "parameters", OWN_TEXT.format(n=n, sampler=sampler))
    told(capsys, "new", tmp_path / "p", "--images", tmp_path / "images")
    kept = settings(tmp_path / "p")
    assert kept["generator"] == {"kind": "own"} and kept["image"]["sampler"] == sampler


@pytest.mark.parametrize(
    ("program", "kind", "checkpoint"),
    [("ComfyUI", "comfyui", "fox.safetensors"), ("SwarmUI", "swarmui", "owl"), ("A1111", "a1111", "hen")],
)
def test_images_of_another_project_are_made_by_the_program_of_that_project(
    tmp_path, capsys, program, kind, checkpoint
):
    """A project's candidates have a line of settings in front of what the program wrote."""
    swarm = {"prompt": "a fox", "model": "owl", "seed": 1, "steps": 12, "cfgscale": 3.0, "sampler": "euler"}
    written = {
        "ComfyUI": ("prompt", json.dumps(GRAPH)),
        "SwarmUI": ("parameters", json.dumps({"sui_image_params": swarm})),
        "A1111": ("parameters", A1111_TEXT.format(prompt="a fox", sampler="Euler a", seed=1, model="hen")),
    }[program]
    for n in range(4):
        path = tmp_path / "images" / f"{n}.png"
        write_image(path, *written)
        asked = parameters(ImageRequest(f"a fox {n}", n, width=96, height=64), "", program)
        path.write_bytes(with_parameters(path.read_bytes(), asked))
    made = told(capsys, "new", tmp_path / "p", "--images", tmp_path / "images", "--base-model", "some/model",
                "--model-type", "STABLE_DIFFUSION_15")  # fmt: skip
    kept = settings(tmp_path / "p")
    assert (kept["generator"]["kind"], kept["generator"]["checkpoint"]) == (kind, checkpoint)
    assert made["proposed"]["workflow"] == (program == "ComfyUI")


def test_what_is_said_wins_and_most_images_decide(tmp_path, capsys):
    by_a1111(tmp_path / "images", PROMPTS)
    by_a1111(tmp_path / "images", ["another"], model="other")
    (tmp_path / "images" / "junk.png").write_bytes(b"no image")
    seen = told(
        capsys, "new", tmp_path / "p", "--images", tmp_path / "images", "--generator", "own", "--propose"
    )["proposed"]  # fmt: skip
    assert (seen["images"], seen["used"], seen["prompts"]) == (7, 5, 4) and not (tmp_path / "p").exists()
    told(
        capsys, "new", tmp_path / "p", "--images", tmp_path / "images", "--generator", "own", "--steps", "9",
        "--base-model", "other/model", "--model-type", "SANA",
    )  # fmt: skip
    kept = settings(tmp_path / "p")
    assert kept["model"] == {"type": "SANA", "base": "other/model", "adapter": ""}
    assert kept["image"]["steps"] == 9 and kept["image"]["cfg"] == 6.5


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("lost", (), "the images name 'lost', which is not found here"),
        ("lost", ("--base-model", "some/model"), "does not say which type of model"),
        ("demo_model", ("--images", "{none}"), "no folder"),
        ("demo_model", ("--images", "{empty}"), "names its prompt"),
    ],
)
def test_what_is_missing_is_asked_for(tmp_path, capsys, model, arguments, message):
    by_a1111(tmp_path / "images", PROMPTS, model)
    write_image(tmp_path / "empty" / "x.png", "Title", "nothing")
    given = [one.format(none=tmp_path / "none", empty=tmp_path / "empty") for one in arguments]
    if "--images" not in given:
        given += ["--images", str(tmp_path / "images")]
    assert message in refused(capsys, "new", tmp_path / "p", *given)
    assert not (tmp_path / "p").exists()
