"""A taste learned from edits trains the model that made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from modules.project import training
from modules.util.prompts_file import read_prompt_rows
from tests.project.simulated import headless, preferring, refused, told
from tests.project.test_edits import drawer, green, new, write_tasks  # noqa: F401
from tests.tiny import tiny_folder

KLEIN = "FLUX_2"


@pytest.mark.slow  # starts the sampler, the learner of the taste and the trainer as programs
def test_from_new_to_changed_images_by_a_taste(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "my taste"
    klein = ("--base-model", tiny_folder(KLEIN), "--model-type", KLEIN)
    small = ("--width", 64, "--height", 64, "--steps", 2)
    told(capsys, *new(folder, write_tasks(tmp_path / "photos"), *klein, *small))
    assert told(capsys, "generate", folder, "--per-prompt", 5)["made"] == 20
    headless(monkeypatch, preferring(green), "pick", str(folder))
    trained = told(
        capsys, "train", folder, "--method", "taste", "--set", "cpu_threads=1", "--set", "epochs=1",
        "--set", "lora_rank=1", "--set", "learning_rate=0.05", "--set", "train_dtype=FLOAT_32",
        "--set", "transformer.weight_dtype=FLOAT_32",
    )  # fmt: skip
    assert trained["method"] == "taste" and trained["steps"] >= 1 and trained["next"] == "compare"
    ran = json.loads((folder / "round-1" / "run" / "config.json").read_text())
    rows = read_prompt_rows(Path(ran["rlhf_prompts_file"]))
    assert ran["rlhf_mode"] == "NFT" and ran["rlhf_prompts_per_epoch"] == 4 == len(rows)
    assert all(row.sources for row in rows), "what is made during training is made from sources"
    said = headless(monkeypatch, preferring(green), "compare", str(folder), "--images", "2")
    assert said[-1]["result"]["contestants"] == ["round-1", "base"]
    made = [sorted(place.glob("*.png")) for place in (folder / "arena" / "images").iterdir()]
    before, after = ([path for path in files if "-source" not in path.name] for files in made)
    assert len(before) == len(after) == 2
    assert all(pixels(one) != pixels(other) for one, other in zip(before, after, strict=True))


def pixels(path: Path) -> bytes:
    with Image.open(path) as image:
        return image.tobytes()


@pytest.mark.usefixtures("drawer")
def test_a_model_without_a_preset_for_it_is_refused_before_anything_is_learned(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "p"
    told(capsys, *new(folder, write_tasks(tmp_path / "photos")))
    told(capsys, "generate", folder, "--per-prompt", 2)
    headless(monkeypatch, preferring(green), "pick", str(folder))

    def learns(*_rest, **_named):
        raise AssertionError("a taste is learned for nothing")

    monkeypatch.setattr(training, "learn_taste", learns)
    said = refused(capsys, "train", folder, "--method", "taste")
    assert "no preset for a learned taste with FLUX.1 Kontext" in said
    assert "--method pairs" in said and "FLUX.2 klein" in said
