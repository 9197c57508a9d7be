"""Images from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.util.image_metadata_util import read_metadata
from scripts.sample import main
from tests.tiny import tiny_folder
from tests.trainer.making import run_here, write_config


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_images_with_and_without_an_adapter(tmp_path: Path) -> None:
    run_here(write_config(tmp_path / "run", learning_rate=0.05))
    common = ["--model", str(tiny_folder()), "--prompt", "a red circle", "--steps", "2", "--width", "64", "--height",
              "64", "--device", "cpu", "--count", "2"]  # fmt: skip
    assert main([*common, "--out", str(tmp_path / "base")]) == 0
    assert main([*common, "--out", str(tmp_path / "again")]) == 0
    adapter = str(tmp_path / "run" / "out.safetensors")
    assert main([*common, "--out", str(tmp_path / "adapter"), "--adapter", adapter]) == 0
    names = ["0000-42.png", "0001-43.png"]
    assert sorted(p.name for p in (tmp_path / "base").iterdir()) == names
    for name in names:
        assert np.array_equal(pixels(tmp_path / "base" / name), pixels(tmp_path / "again" / name))
        assert not np.array_equal(pixels(tmp_path / "base" / name), pixels(tmp_path / "adapter" / name))
    about = read_metadata(tmp_path / "base" / names[0])
    assert (about.prompt, about.seed) == ("a red circle", 42)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--width", "65"], "width"),
        (["--steps", "0"], "diffusion_steps"),
        (["--count", "0"], "--count"),
        (["--model-type", "NOTHING"], "NOTHING"),
        (["--dtype", "INT_3"], "INT_3"),
        (["--model", "no/such/model"], "no/such/model"),
        (["--adapter", "no/such/adapter.safetensors"], "no/such/adapter"),
        (["--device", "cuda:77"], "cuda:77"),
    ],
)
def test_mistakes(
    arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [
        "--model",
        str(tiny_folder()),
        "--prompt",
        "x",
        "--out",
        str(tmp_path / "out"),
        "--device",
        "cpu",
    ]
    assert main([*common, "--width", "64", "--height", "64", *arguments]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
