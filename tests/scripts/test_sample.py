"""Images from the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modules.model.Model import Model
from modules.trainer import distributed
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


def test_long_prompts_are_read_in_chunks_unless_cut(tmp_path: Path) -> None:
    common = [
        "--model",
        str(tiny_folder()),
        "--steps",
        "2",
        "--width",
        "64",
        "--height",
        "64",
        "--device",
        "cpu",
    ]

    def image(end: str, *arguments: str) -> np.ndarray:
        out = tmp_path / "-".join([end, *arguments])
        assert main([*common, "--prompt", "a red " * 10 + end, *arguments, "--out", str(out)]) == 0
        return pixels(out / "0000-42.png")

    assert not np.array_equal(image("cat"), image("dog"))
    cut = ("--max-prompt-chunks", "1")
    assert np.array_equal(image("cat", *cut), image("dog", *cut))


@pytest.mark.parametrize(
    ("device", "arguments", "dtype"),
    [
        ("cpu", [], torch.float32),
        ("cuda:0", [], torch.bfloat16),
        ("cuda:0", ["--dtype", "FLOAT_32"], torch.float32),
    ],
)
def test_the_denoiser_alone_stays_on_the_device(
    device: str, arguments: list[str], dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[tuple[str, tuple[str, ...] | None]] = []
    types: list[torch.dtype] = []

    def place(model: Model, where: torch.device, parts: tuple[str, ...] | None = None) -> Model:
        placed.append((str(where), parts))
        types.append(next(model.denoiser.parameters()).dtype)
        return model

    monkeypatch.setattr(distributed, "choose_device", lambda name: torch.device(device))
    monkeypatch.setattr(Model, "place", place)
    common = [
        "--model",
        str(tiny_folder()),
        "--prompt",
        "x",
        "--steps",
        "1",
        "--width",
        "64",
        "--height",
        "64",
    ]
    assert main([*common, *arguments, "--out", str(tmp_path)]) == 0
    assert placed == [(device, ("unet",))] and types == [dtype]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--width", "65"], "width"),
        (["--steps", "0"], "diffusion_steps"),
        (["--count", "0"], "--count"),
        (["--max-prompt-chunks", "0"], "--max-prompt-chunks"),
        (["--max-prompt-chunks", "9"], "--max-prompt-chunks"),
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
