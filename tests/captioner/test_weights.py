"""Weights that give no usable answer, and weights of 16 bits, in models that describe, tag and mask images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from scripts import caption, mask
from tests.captioner.models import classifier, clipseg, plain_model, segmentation
from tests.tools.pictures import contents, picture

Make = Callable[[Path], Path]
COMMANDS = [
    (caption, "describe", plain_model, []),
    (caption, "tag", classifier, ["--threshold", "0.01"]),
    (mask, "prompt", clipseg, ["--prompt", "fox"]),
    (mask, "background", segmentation, []),
]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    picture(0).save(folder / "0.png")
    return folder


def changed(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    file = folder / "model.safetensors"
    weights = {
        key: change(value) if value.is_floating_point() else value for key, value in load_file(file).items()
    }
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize(("script", "verb", "make", "more"), COMMANDS, ids=[verb for _, verb, *_ in COMMANDS])
def test_an_answer_that_is_nan_ends_the_command(
    script: Any, verb: str, make: Make, more: list[str], tmp_path: Path, images: Path, capsys: Any
) -> None:
    model = make(tmp_path / "model")
    changed(model, lambda value: value * torch.nan)
    before = contents(images)
    assert script.main([verb, "--device", "cpu", "--model", str(model), *more, str(images)]) == 2
    said = capsys.readouterr().err
    assert "--model" in said and "NaN" in said
    assert contents(images) == before


@pytest.mark.parametrize(
    ("script", "verb", "make", "more"), COMMANDS[1:], ids=[verb for _, verb, *_ in COMMANDS[1:]]
)
def test_weights_of_16_bits_are_used(
    script: Any, verb: str, make: Make, more: list[str], tmp_path: Path, images: Path
) -> None:
    model = make(tmp_path / "model")
    changed(model, torch.Tensor.half)
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**settings, "dtype": "float16"}))
    assert script.main([verb, "--device", "cpu", "--model", str(model), *more, str(images)]) == 0
    assert len(contents(images)) == 2
