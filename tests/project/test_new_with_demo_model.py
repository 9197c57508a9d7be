"""How ``taste.py new`` makes images with the bundled demo model, whose images are 64 pixels wide."""

from __future__ import annotations

import json

import pytest

from tests.project.simulated import told

DEMO = {"width": 64, "height": 64, "steps": 20, "cfg": 2.5, "sampler": "DDIM"}


@pytest.mark.parametrize(
    ("given", "image", "near_duplicates"),
    [
        ((), DEMO, -1),
        (("--steps", 8, "--near-duplicates", 3), {**DEMO, "steps": 8}, 3),
        (("--base-model", "somebody/model"), dict.fromkeys(DEMO), 2),
    ],
)
def test_images_have_the_size_that_the_demo_model_makes(
    tmp_path, prompts_file, drawer, capsys, given, image, near_duplicates
):
    base = () if "--base-model" in given else ("--base-model", "resources/demo_model")
    told(capsys, "new", tmp_path / "taste", "--prompts", prompts_file, *base, *given)
    made = json.loads((tmp_path / "taste" / "project.json").read_text())
    assert {name: made["image"][name] for name in DEMO} == image
    assert made["near_duplicates"] == near_duplicates
