"""Sample images: what is written into them is what other programs and the pair tool read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from modules.spec.registry import FAMILIES
from modules.trainer.evaluate.image_files import parameters_text, sample_folder, save_image
from modules.util.config.SampleConfig import FilledSample, SampleConfig
from modules.util.image_metadata_util import read_metadata

PROMPTS = [
    "a red circle",
    'a <lora:x:0.8> cat, (detailed:1.2), 50% "quoted" \\ back',
    "Kätzchen mit Hüten — 猫と犬 🐈",
    "two lines\nof prompt",
]


def sample(prompt: str = "a cat", **changes: object) -> FilledSample:
    made = SampleConfig.from_dict({"prompt": prompt, "negative_prompt": "blurry, bad", **changes})
    return made.filled(FAMILIES["STABLE_DIFFUSION_15"])


def test_the_text_is_the_usual_one() -> None:
    made = sample("a cat", width=64, height=128, cfg_scale=7.0, diffusion_steps=11, noise_scheduler="EULER_A")
    assert parameters_text(made, 99, "tiny") == (
        "a cat\nNegative prompt: blurry, bad\n"
        "Steps: 11, Sampler: EULER_A, CFG scale: 7, Seed: 99, Size: 64x128, Model: tiny"
    )
    bare = parameters_text(sample(negative_prompt=""), 1)
    assert bare.splitlines()[1] == "Steps: 20, Sampler: DDIM, CFG scale: 7, Seed: 1, Size: 512x512"
    assert "Model" not in bare


@pytest.mark.parametrize("ending", ["png", "jpg"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_prompt_is_read_back_from_the_image(tmp_path: Path, prompt: str, ending: str) -> None:
    path = tmp_path / f"sample.{ending}"
    save_image(torch.rand(3, 16, 24), path, parameters_text(sample(prompt), 123, "model"))
    found = read_metadata(path)
    assert found.error in (None, "")
    assert found.prompt == prompt
    assert found.negative_prompt == "blurry, bad"
    assert str(found.seed) == "123"


def test_a_png_holds_the_pixels_exactly(tmp_path: Path) -> None:
    rgb = torch.tensor([[[0.0, 1.0], [0.5, 2.0]], [[-1.0, 0.2], [0.4, 0.6]], [[0.1, 0.3], [0.7, 0.9]]])
    save_image(rgb, tmp_path / "a.png", "")
    with Image.open(tmp_path / "a.png") as image:
        assert image.mode == "RGB"
        pixels = [image.getpixel((x, y)) for y in range(2) for x in range(2)]
    assert pixels == [(0, 0, 26), (255, 51, 76), (128, 102, 178), (255, 153, 230)]


def test_a_jpeg_is_one_and_close(tmp_path: Path) -> None:
    rgb = torch.full((3, 32, 16), 0.25)
    save_image(rgb, tmp_path / "a.JPG", "text")
    with Image.open(tmp_path / "a.JPG") as image:
        assert (image.format, image.size) == ("JPEG", (16, 32))
        low, high = image.convert("L").getextrema()
    assert 60 <= low <= high <= 68


def test_no_half_written_image_is_left(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        save_image(torch.rand(4), tmp_path / "a.png", "text")
    with pytest.raises((UnicodeEncodeError, ValueError)):
        save_image(torch.rand(3, 8, 8), tmp_path / "b.png", "\ud800")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("a red circle", "3 - a red circle"),
        ("", "3"),
        ("../../etc/passwd", "3 - etcpasswd"),
        ('a/b\\c:d*e?f"g<h>i|j', "3 - abcdefghij"),
        ("line\nbreak\t tab", "3 - line break tab"),
        ("...", "3"),
        ("dots at the end...  ", "3 - dots at the end"),
        ("x" * 200, "3 - " + "x" * 60),
        ("猫と犬", "3 - 猫と犬"),
    ],
)
def test_folders_have_names_that_are_safe_everywhere(tmp_path: Path, prompt: str, name: str) -> None:
    folder = sample_folder(tmp_path, 3, prompt)
    assert folder == tmp_path / name
    folder.mkdir()
    assert sample_folder(tmp_path, 3, prompt, " - no-ema").name == f"{name} - no-ema"


def test_a_sample_keeps_its_seed_or_has_one_of_the_step() -> None:
    assert [sample(seed=5).config.seed_at(step) for step in (0, 10)] == [5, 5]
    other = [sample(seed=5, random_seed=True).config.seed_at(step) for step in (0, 10, 10)]
    assert other[0] != other[1] == other[2]
