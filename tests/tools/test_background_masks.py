"""Masks of what is not background, by a segmentation model in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.captioner.models import segmentation
from tests.tools.pictures import contents, picture
from tests.tools.test_masks import call, pixels


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return segmentation(tmp_path / "model")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(2):
        picture(number).save(folder / f"{number}.png")
    return folder


def probable(model: Path, image: Image.Image) -> numpy.ndarray:
    """How likely each pixel is not background, worked out by itself."""
    from transformers import AutoImageProcessor, MobileNetV2ForSemanticSegmentation

    loaded = MobileNetV2ForSemanticSegmentation.from_pretrained(model).eval()
    processor = AutoImageProcessor.from_pretrained(model)
    given = processor(images=image, return_tensors="pt", do_center_crop=False)["pixel_values"]
    assert given.shape[-2:] == (32, 32)
    with torch.no_grad():
        shares = torch.softmax(loaded(given).logits, 1)
    others = shares[:, 1:].sum(1, keepdim=True)
    size = (image.height, image.width)
    return torch.nn.functional.interpolate(others, size, mode="bilinear")[0, 0].numpy()


def test_white_is_what_is_not_background(model: Path, images: Path, capsys: Any) -> None:
    before = contents(images)
    words = ["background", "--model", model, "--device", "cpu"]
    assert call(*words, "--dry-run", images) == 0
    assert "2 images of 2 would get a mask; nothing was changed" in capsys.readouterr().out
    assert contents(images) == before
    seen = [probable(model, picture(number)) for number in range(2)]
    middle = float(numpy.median(seen[0]))
    assert call(*words, "--threshold", middle, images) == 0
    for number, one in enumerate(seen):
        found = pixels(images / f"{number}-masklabel.png") == 255
        unclear = numpy.abs(one - middle) < 1e-5
        assert ((found == (one >= middle)) | unclear).all()
    white = pixels(images / "0-masklabel.png") == 255
    assert 0 < white.mean() < 1
    assert call(*words, "--threshold", middle, "--mode", "REPLACE", "--invert", images) == 0
    assert ((pixels(images / "0-masklabel.png") == 255) == ~white).all()
    assert call("undo", images) == 0
    assert ((pixels(images / "0-masklabel.png") == 255) == white).all()
    assert call("undo", images) == 0
    assert contents(images) == before


def test_what_cannot_be_used_is_refused_and_nothing_is_written(
    model: Path, images: Path, tmp_path: Path, capsys: Any
) -> None:
    before = contents(images)
    other = segmentation(tmp_path / "other", ("sky", "fox", "cat"))
    damaged = segmentation(tmp_path / "damaged")
    weights = load_file(damaged / "model.safetensors")
    name = min(weights)
    save_file(
        {key: one for key, one in weights.items() if key != name},
        damaged / "model.safetensors",
        {"format": "pt"},
    )
    for source, threshold, said in (
        (other, "0.5", "labels is background"),
        (damaged, "0.5", f"1 weight missing, such as {name}"),
        (tmp_path / "none", "0.5", "a folder of a semantic segmentation model"),
        (model, "1.5", "not between 0 and 1"),
    ):
        assert call("background", "--model", source, "--device", "cpu", "--threshold", threshold, images) == 2
        assert said in capsys.readouterr().err
    assert call("background", "--model", model, "--device", "cpu,cpu", images) == 2
    assert "--device: 'cpu,cpu' lists several" in capsys.readouterr().err
    assert contents(images) == before


def test_a_model_that_fails_ends_the_command(
    model: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("transformers.MobileNetV2ForSemanticSegmentation.forward", full)
    assert call("background", "--device", "cpu", "--model", model, images) == 2
    assert "out of memory" in capsys.readouterr().err
