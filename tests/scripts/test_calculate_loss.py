"""Losses of single images: the same twice, the odd one first, and what the trainer's own arithmetic says."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy
import pytest
import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from PIL import Image
from transformers import CLIPTextModel, CLIPTokenizer

from modules.model.noising import noise
from modules.modelSetup.registry import create_model_setup
from modules.trainer.evaluate import image_losses
from modules.trainer.evaluate.image_losses import SAME, STREAM
from modules.util.config.TrainConfig import TrainConfig
from modules.util.program_files import RESOURCES
from scripts.calculate_loss import main
from scripts.demo.world import make_example
from tests.scripts.test_merge import lora
from tests.trainer.builders import write_config

MODEL = RESOURCES / "demo_model"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "training", base_model_name=str(MODEL), resolution="64")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Shapes, as the demo's model knows them, and among them an image of noise."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(5):
        pixels, scene = make_example(1, number)
        Image.fromarray(numpy.asarray(pixels)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(scene.wish.caption())
    noise = numpy.random.default_rng(5).integers(0, 255, (64, 64, 3), dtype=numpy.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    (folder / "noise.txt").write_text((folder / "0.txt").read_text())
    return folder


def call(*words: object) -> int:
    return main([str(word) for word in words])


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_planted_image_of_noise_is_first_and_numbers_are_the_same_twice(
    tmp_path: Path, config: Path, images: Path
) -> None:
    for name in ("a.csv", "b.csv"):
        assert call("--images", images, "--levels", 3, config, tmp_path / name) == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    rows = table(tmp_path / "a.csv")
    assert Path(rows[0]["image"]).name == "noise.png"
    assert float(rows[0]["loss"]) > 1.5 * float(rows[1]["loss"])
    assert len(rows) == 6
    with Image.open(tmp_path / "a.png") as sheet, Image.open(images / "noise.png") as noise:
        assert sheet.size == (6 * 196, 218)
        # the hardest image is the first, as large as its cell
        drawn = noise.convert("RGB").resize((192, 192), Image.Resampling.BICUBIC)
        assert sheet.crop((0, 0, 192, 192)).tobytes() == drawn.tobytes()
    for row in rows:
        levels = [float(row[f"level {number}"]) for number in (1, 2, 3)]
        assert float(row["loss"]) == pytest.approx(sum(levels) / 3, rel=1e-6)
    losses = [float(row["loss"]) for row in rows]
    assert losses == sorted(losses, reverse=True)
    assert not (tmp_path / "training" / "cache").exists()


@pytest.mark.slow  # the same pixels have the same loss below, with masks and without
def test_an_image_has_its_loss_whatever_its_name_and_whatever_else_is_there(
    tmp_path: Path, config: Path, images: Path
) -> None:
    """Images of one size get the same noise, so the same pixels have the same loss."""
    Image.open(images / "noise.png").save(images / "again.png", compress_level=1)
    (images / "again.txt").write_text((images / "noise.txt").read_text())
    assert call("--images", images, "--levels", 2, config, tmp_path / "all.csv") == 0
    rows = table(tmp_path / "all.csv")
    first, second = rows[:2]
    assert {Path(row["image"]).name for row in (first, second)} == {"again.png", "noise.png"}
    for column in ("loss", "level 1", "level 2"):
        assert float(first[column]) == pytest.approx(float(second[column]), rel=1e-5)
    for name in ("noise", "again"):
        (images / f"{name}.png").unlink()
    assert call("--images", images, "--levels", 2, config, tmp_path / "fewer.csv") == 0
    before = {row["image"]: float(row["loss"]) for row in rows}
    fewer = table(tmp_path / "fewer.csv")
    assert len(fewer) == 5
    for row in fewer:
        assert float(row["loss"]) == pytest.approx(before[row["image"]], rel=1e-4)


def test_masks_count_for_every_image(tmp_path: Path, images: Path) -> None:
    """Training leaves out some masks at random. The same pixels with the same mask still have the same loss."""
    for file in images.glob("?.*"):
        file.unlink()
    for number in range(4):
        (images / f"{number}.png").write_bytes((images / "noise.png").read_bytes())
        (images / f"{number}.txt").write_text((images / "noise.txt").read_text())
    for file in list(images.glob("*.png")):
        half = Image.new("L", (64, 64))
        half.paste(255, (0, 0, 32, 64))
        half.save(images / f"{file.stem}-masklabel.png")
    masked = {"rlhf_enabled": False, "masked_training": True, "unmasked_probability": 0.5}
    config = write_config(tmp_path / "masked", base_model_name=str(MODEL), resolution="64", **masked)
    assert call("--images", images, "--levels", 1, config, tmp_path / "a.csv") == 0
    losses = [float(row["loss"]) for row in table(tmp_path / "a.csv")]
    assert len(losses) == 5
    assert losses == pytest.approx([losses[0]] * 5, rel=1e-5)


def test_images_are_measured_without_random_changes(tmp_path: Path, images: Path) -> None:
    """Training mirrors, crops and darkens some images, and shuffles tags. The same pixels still have the same loss."""
    for file in images.glob("?.*"):
        file.unlink()
    wide = Image.open(images / "noise.png").resize((150, 64))
    for name in ("noise", *"0123"):
        wide.save(images / f"{name}.png")
        (images / f"{name}.txt").write_text("a, red, blue, green, large, small circle")
    image = {"enable_crop_jitter": True, "enable_random_flip": True, "enable_random_brightness": True,
             "random_brightness_max_strength": 0.5}  # fmt: skip
    text = {"enable_tag_shuffling": True, "tag_dropout_enable": True, "tag_dropout_probability": 0.5}
    concept = {"name": "all", "path": str(images), "type": "STANDARD", "image": image, "text": text}
    settings = {"rlhf_enabled": False, "aspect_ratio_bucketing": False, "concepts": [concept]}
    config = write_config(tmp_path / "random", base_model_name=str(MODEL), resolution="64", **settings)
    assert call("--levels", 1, config, tmp_path / "a.csv") == 0
    losses = [float(row["loss"]) for row in table(tmp_path / "a.csv")]
    assert len(losses) == 5
    assert losses == pytest.approx([losses[0]] * 5, rel=1e-5)


def test_the_loss_is_the_error_of_the_prediction_and_an_adapter_changes_it(
    tmp_path: Path, config: Path, images: Path
) -> None:
    """Written with diffusers and transformers alone, apart from the noise and the timestep."""
    assert call("--images", images, "--levels", 1, config, tmp_path / "base.csv") == 0
    vae = AutoencoderKL.from_pretrained(MODEL, subfolder="vae").float()
    unet = UNet2DConditionModel.from_pretrained(MODEL, subfolder="unet").float()
    scheduler = DDPMScheduler.from_pretrained(MODEL, subfolder="scheduler")
    tokens = CLIPTokenizer.from_pretrained(MODEL, subfolder="tokenizer")(
        (images / "noise.txt").read_text(), padding="max_length", return_tensors="pt"
    )
    pixels = numpy.asarray(Image.open(images / "noise.png"), numpy.float32) / 127.5 - 1
    schedule = create_model_setup("STABLE_DIFFUSION_15").load(str(MODEL)).schedule
    with torch.no_grad():
        latents = vae.encode(torch.from_numpy(pixels).permute(2, 0, 1)[None]).latent_dist.mean
        latents = latents * vae.config.scaling_factor
        options = noise.NoiseOptions(strata=1)
        drawn = noise.draw_noise(
            schedule, latents.shape[1:], [SAME], [0], options, TrainConfig().seed, STREAM, (0,), 0
        )
        step = drawn.timestep_B.round().long()
        noisy = scheduler.add_noise(latents, drawn.noise_BChw, step)
        text = CLIPTextModel.from_pretrained(MODEL, subfolder="text_encoder").float()(tokens.input_ids)[0]
        error = unet(noisy, step, text).sample - scheduler.get_velocity(latents, drawn.noise_BChw, step)
    (row,) = [row for row in table(tmp_path / "base.csv") if row["image"].endswith("noise.png")]
    assert float(row["loss"]) == pytest.approx(float(error.square().mean()), rel=1e-3)
    adapter = lora(tmp_path / "a.safetensors", 1, MODEL, patterns=("attn1.to_q",))
    assert call("--images", images, "--levels", 1, "--adapter", adapter, config, tmp_path / "with.csv") == 0
    base, adapted = (
        {r["image"]: r["loss"] for r in table(tmp_path / name)} for name in ("base.csv", "with.csv")
    )
    assert base.keys() == adapted.keys()
    assert all(base[name] != adapted[name] for name in base)


@pytest.mark.slow  # the tests around it have concepts too
def test_images_of_the_config_itself(tmp_path: Path, images: Path) -> None:
    concepts = [{"name": "walls", "path": str(images), "type": "STANDARD"}]
    config = write_config(tmp_path / "own", rlhf_enabled=False, concepts=concepts)
    assert call("--levels", 1, config, tmp_path / "a.csv") == 0
    assert len(table(tmp_path / "a.csv")) == 6


def test_the_weight_of_a_concept_does_not_make_its_images_easy(tmp_path: Path, images: Path) -> None:
    (tmp_path / "odd").mkdir()
    for end in ("png", "txt"):
        (images / f"noise.{end}").rename(tmp_path / "odd" / f"noise.{end}")
    concepts = [
        {"path": str(images), "type": "STANDARD"},
        {"path": str(tmp_path / "odd"), "type": "STANDARD", "loss_weight": 0.0001},
    ]
    changes = {"rlhf_enabled": False, "resolution": "64", "base_model_name": str(MODEL)}
    config = write_config(tmp_path / "training", concepts=concepts, **changes)
    assert call("--levels", 1, config, tmp_path / "a.csv") == 0
    rows = table(tmp_path / "a.csv")
    assert len(rows) == 6 and Path(rows[0]["image"]).name == "noise.png"


def test_what_cannot_be_measured_is_said_before_a_model_is_loaded(
    tmp_path: Path, config: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.csv"
    there.write_text("mine")
    (tmp_path / "sheet.png").write_text("mine")
    for words, message in (
        ((config, tmp_path / "x.csv"), "give a folder of images"),
        (("--images", images, config, there), "already exists"),
        (("--images", images, config, tmp_path / "sheet.csv"), "sheet.png already exists"),
        (("--images", images, config, tmp_path / "x.png"), "ends with .csv"),
        (("--images", images, config, ""), "name of the table is empty"),
        (("--images", images / "gone", config, tmp_path / "x.csv"), "does not exist"),
        (("--images", images, "--levels", 0, config, tmp_path / "x.csv"), "--levels"),
        (("--images", images, tmp_path / "gone.json", tmp_path / "x.csv"), "gone.json"),
        (("--images", images, config, there / "x.csv"), "there.csv is not a folder"),
    ):
        assert call(*words) == 2
        assert message in capsys.readouterr().err
    assert there.read_text() == "mine"
    data = json.loads(config.read_text()) | {"base_model_name": "/gone"}
    config.write_text(json.dumps(data))
    assert call("--images", images, "--dry-run", config, tmp_path / "x.csv") == 0
    assert not (tmp_path / "x.csv").exists()


@pytest.mark.parametrize("name", ["x.csv", "x.png"])
def test_a_file_that_appears_during_the_work_is_not_replaced(
    name: str, tmp_path: Path, config: Path, images: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def measured(*_: object) -> list[image_losses.ImageLoss]:
        (tmp_path / name).write_text("mine")
        return [image_losses.ImageLoss(str(images / "0.png"), 1.0, (1.0,))]

    monkeypatch.setattr(image_losses, "image_losses", measured)
    assert call("--images", images, config, tmp_path / "x.csv") == 2
    assert "already exists" in capsys.readouterr().err and (tmp_path / name).read_text() == "mine"
    # nothing that was measured is lost
    made = {"x-2.csv", "x.png"} if name == "x.csv" else {"x.csv", "x-2.png"}
    assert {path.name for path in tmp_path.glob("x*")} == {name, *made}
    (measured_csv,) = (path for path in tmp_path.glob("x*.csv") if path.name in made)
    assert measured_csv.read_text().startswith("image,loss")
    assert call("--images", images, config, tmp_path / "x.csv", "--overwrite") == 0
    assert (tmp_path / "x.csv").read_text().startswith("image,loss")
