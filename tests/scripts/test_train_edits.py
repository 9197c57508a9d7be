"""Editing models on the command line: from results and their sources to an adapter and an image."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from scripts.sample import main as sample
from scripts.train import main as train
from tests.contracts.test_family_training import family_config
from tests.tiny import tiny_folder

KEYS = ("FLUX_KONTEXT_DEV_1", "FLUX_2", "QWEN_EDIT", "LONGCAT_IMAGE_EDIT", "QWEN_21")


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_pairs_with_sources_become_an_adapter_that_edits(key: str, tmp_path: Path) -> None:
    source = tmp_path / "data" / "source" / "000.png"
    picture = {
        "prompt": "make it red",
        "width": 64,
        "height": 64,
        "diffusion_steps": 2,
        "source_path": str(source),
    }
    path = family_config(
        tmp_path,
        key,
        epochs=1,
        learning_rate=0.05,
        samples=[picture],
        sample_after=1,
        sample_after_unit="EPOCH",
    )
    assert train(["--config", str(path)]) == 0
    adapter = tmp_path / "out.safetensors"
    with safe_open(adapter, "pt") as file:
        assert len(list(file.keys())) > 4
    made = list((tmp_path / "run").rglob("*training-sample*"))
    assert made

    def image(name: str, *more: str) -> np.ndarray:
        out = tmp_path / name
        common = [
            "--model",
            str(tiny_folder(key)),
            "--model-type",
            key,
            "--prompt",
            "make it red",
            "--steps",
            "2",
        ]
        size = ["--width", "64", "--height", "64", "--device", "cpu", "--out", str(out)]
        assert sample([*common, *size, *more]) == 0
        with Image.open(next(out.glob("*.png"))) as opened:
            return np.asarray(opened.convert("RGB"))

    edited = image("edited", "--source", str(source))
    assert not np.array_equal(edited, image("other", "--source", str(source.with_name("002.png"))))
    assert not np.array_equal(edited, image("without"))
    assert not np.array_equal(edited, image("trained", "--source", str(source), "--adapter", str(adapter)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / "data/source/001.png").unlink(),
            "1 image has no source image of the same name",
        ),
        (lambda folder: (folder / "data/source/001.png").write_bytes(b"x"), "001.png: not an image"),
    ],
)
def test_faults_of_sources_end_a_run_before_it_begins(
    change, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = family_config(tmp_path, KEYS[0], samples=[])
    change(tmp_path)
    assert train(["--config", str(path)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists() and not (tmp_path / "out.safetensors").exists()


def test_a_sample_s_source_is_looked_at_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--model", str(tmp_path / "none"), "--prompt", "x", "--out", str(tmp_path / "out")]
    missing = ["--source", str(tmp_path / "gone.png")]
    assert sample([*common, "--model-type", "FLUX_KONTEXT_DEV_1", *missing]) == 2
    assert "gone.png: the file does not exist" in capsys.readouterr().err
    assert sample([*common, "--model-type", "FLUX_DEV_1", *missing]) == 2
    assert "FLUX.1 dev makes images of prompts alone" in capsys.readouterr().err
    assert json.dumps(sorted(path.name for path in tmp_path.iterdir())) == "[]"
