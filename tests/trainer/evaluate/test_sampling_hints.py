"""Prompts of samples and rollouts that do nothing, or not all of which does, are reported."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from modules.trainer.assembly import assemble
from modules.trainer.distributed import Processes
from modules.trainer.evaluate.Sampler import Sampler
from modules.util.config.load import load_config
from modules.util.config.SampleConfig import SampleConfig
from modules.util.enum.choices import ImageFormat
from tests.tiny import tiny_model, tiny_setup
from tests.trainer.online.builders import write_online


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
        "1 of 1 samples" in line
        and "FLUX.1 dev takes its guidance scale as an input" in line
        and "'red'" in line
    )
    # the usual scale of step-distilled models
    (line,) = hints("Z_IMAGE", tmp_path, caplog, negative_prompt="red", cfg_scale=1.0)
    assert "CFG scale of 1" in line
    assert not hints("Z_IMAGE", tmp_path, caplog, negative_prompt="red")
    assert not hints("FLUX_DEV_1", tmp_path, caplog)
    assert not hints("STABLE_DIFFUSION_15", tmp_path, caplog, negative_prompt="red")


def test_sample_prompts_that_are_cut_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wanted = [SampleConfig.from_dict({"prompt": prompt, "width": 64}) for prompt in ("a cat", "a dog " * 100)]
    with caplog.at_level(logging.WARNING):
        Sampler(tiny_setup(), tiny_model(), wanted, tmp_path, ImageFormat.PNG).check()
    (line,) = [record.getMessage() for record in caplog.records if "are longer" in record.getMessage()]
    assert line.startswith("1 of 4 prompts and negative prompts of samples") and "a dog a dog" in line


@pytest.mark.slow
def test_prompts_of_rollouts_that_are_cut_are_told_of(tmp_path: Path) -> None:
    path = write_online(tmp_path)
    (tmp_path / "prompts.txt").write_text("a cat\n" + "a dog " * 100 + "\n", encoding="utf-8")
    config = load_config(path)
    alone = Processes(0, 1, 0, torch.device("cpu"))
    parts = assemble(config, tmp_path / "run", tmp_path / "samples", alone, lambda *_: True)
    parts.loader.close()
    (told,) = parts.warnings()
    assert told.startswith("1 of 2 prompts are longer") and parts.warnings() == []
