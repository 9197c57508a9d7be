"""Samples of which parts do nothing are reported before the run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from modules.trainer.sampling import Sampler
from modules.util.config.SampleConfig import SampleConfig
from modules.util.enum.ImageFormat import ImageFormat
from tests.tiny import tiny_model, tiny_setup


def hints(key: str, folder: Path, caplog: pytest.LogCaptureFixture, **sample: object) -> list[str]:
    wanted = SampleConfig.from_dict({"prompt": "a cat", "width": 64, "height": 64, **sample})
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        Sampler(tiny_setup(key), tiny_model(key), [wanted], folder, ImageFormat.PNG).check()
    return [record.getMessage() for record in caplog.records if "negative prompt" in record.getMessage()]


def test_negative_prompts_without_effect_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = hints("FLUX_DEV_1", tmp_path, caplog, negative_prompt="red", cfg_scale=5.0)
    assert (
        "1 of 1 samples" in line and "FLUX.1 dev takes its guidance as a number" in line and "'red'" in line
    )
    # the usual scale of step-distilled models
    (line,) = hints("Z_IMAGE", tmp_path, caplog, negative_prompt="red")
    assert "CFG scale of 1" in line
    assert not hints("Z_IMAGE", tmp_path, caplog, negative_prompt="red", cfg_scale=5.0)
    assert not hints("FLUX_DEV_1", tmp_path, caplog)
    assert not hints("STABLE_DIFFUSION_15", tmp_path, caplog, negative_prompt="red")
