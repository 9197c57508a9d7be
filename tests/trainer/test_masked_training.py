"""Masks decide what is learned: whole runs of a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.trainer.builders import run_here, same_weights, train, write_config
from tests.usual import usual


def pictures(root: Path, white: int) -> list[dict[str, Any]]:
    """Noise images with masks that are white in that many of 32 columns."""
    place = root / "pictures"
    place.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2)
    levels = np.zeros((32, 32), dtype=np.uint8)
    levels[:, :white] = 255
    for number in range(4):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(place / f"{number}.png")
        Image.fromarray(levels).save(place / f"{number}-masklabel.png")
        (place / f"{number}.txt").write_text("a red circle")
    return [{"name": "pictures", "path": str(place), "type": "STANDARD"}]


def run(root: Path, white: int = 16, **more: Any) -> Path:
    given = {"masked_training": True, "unmasked_probability": 0.0, "rlhf_enabled": False, "epochs": 1, **more}
    run_here(write_config(root, concepts=pictures(root, white), **given))
    return root / "out.safetensors"


def test_white_masks_and_masks_that_are_never_used_train_the_same_weights_as_none(tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", masked_training=False)
    white = run(tmp_path / "white", 32, masked_prior_preservation_weight=1.0, normalize_masked_area_loss=True)
    ignored = run(tmp_path / "ignored", unmasked_probability=1.0)
    half = run(tmp_path / "half")
    assert same_weights(plain, white)
    assert same_weights(plain, ignored)
    assert not same_weights(plain, half)


@pytest.mark.slow
def test_a_run_repeats_bit_by_bit(tmp_path: Path) -> None:
    given = {"unmasked_probability": 0.5, "masked_prior_preservation_weight": 1.0}
    assert same_weights(run(tmp_path / "one", **given), run(tmp_path / "two", **given))


@pytest.mark.slow
def test_what_lies_outside_is_kept(tmp_path: Path) -> None:
    """With black masks and a weight for the outside alone, the adapter is to predict what is predicted without it. It
    does so from the start, so that it learns nothing."""
    given = {"unmasked_weight": 0.0, "optimizer": {"optimizer": "SGD"}, "learning_rate": 1.0}
    for name, weight in (("kept", 1.0), ("free", 0.0)):
        run(tmp_path / name, 0, masked_prior_preservation_weight=weight, **given)
        ups = [t for key, t in load_file(tmp_path / name / "out.safetensors").items() if "lora_up" in key]
        assert ups and all(bool((up == 0).all()) for up in ups)
    learned = run(tmp_path / "learned", 16, masked_prior_preservation_weight=0.0, **given)
    held = run(tmp_path / "held", 16, masked_prior_preservation_weight=20.0, **given)
    size = [
        sum(float(t.square().sum()) for key, t in load_file(path).items() if "lora_up" in key)
        for path in (learned, held)
    ]
    assert size[0] > 0 and not torch.isclose(torch.tensor(size[0]), torch.tensor(size[1]))


WRONG = ({"mask_source": "ALPHA"}, "none of the 4 images has a mask")


@pytest.mark.parametrize(
    ("changes", "told"),
    usual(
        [
            ({"rlhf_enabled": True}, "masked_training"),
            (
                {"training_method": "FINE_TUNE", "masked_prior_preservation_weight": 1.0},
                "masked_prior_preservation_weight",
            ),
            ({"mask_source": "FOLDER"}, "mask_source"),
            WRONG,
        ],
        WRONG,
    ),
)
def test_what_makes_no_sense_ends_before_the_model_is_loaded(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    given = {
        "masked_training": True,
        "rlhf_enabled": False,
        "base_model_name": str(tmp_path / "none"),
        **changes,
    }
    ended = train(write_config(tmp_path, concepts=pictures(tmp_path, 16), **given))
    assert ended.returncode == 2
    assert told in ended.stderr and "Traceback" not in ended.stderr
