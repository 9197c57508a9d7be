"""Settings that may change before a run is resumed do not change what it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.trainer.resume.resume_rules import FREE, PART_FREE
from modules.util.config.TrainConfig import TrainConfig
from tests.trainer.builders import run_here, write_config, write_pairs

SAMPLE = {"prompt": "a red circle", "width": 64, "height": 64, "diffusion_steps": 1}
EXACT: dict[str, dict[str, Any]] = {
    "latent_caching": {"latent_caching": False},
    "cache_batch_size": {"cache_batch_size": 1},
    "dataloader_threads": {"dataloader_threads": 2},
    "samples": {"samples": [SAMPLE], "sample_after": 1, "sample_after_unit": "STEP"},
    "backup_after": {"backup_after": 1, "backup_after_unit": "STEP"},
    "tensorboard": {"tensorboard": True},
    "rlhf_dpo_timestep_margin_logging": {"rlhf_dpo_timestep_margin_logging": True},
    "gradient_checkpointing": {"unet": {"gradient_checkpointing": True}},
}
ROUNDED: dict[str, dict[str, Any]] = {
    "rlhf_dpo_execution_mode": {"rlhf_dpo_execution_mode": "SEQUENTIAL"},
}
"""Other orders of the same sums."""


TOGETHER: dict[str, Any] = {
    "nan_patience": 7,
    "samples": [SAMPLE],
    "sample_after": 1,
    "sample_after_unit": "STEP",
    "sample_before_training": True,
    "sample_image_format": "PNG",
    "non_ema_sampling": True,
    "backup_after": 1,
    "backup_after_unit": "STEP",
    "rolling_backup_count": 1,
    "backup_before_save": True,
    "save_every": 1,
    "save_every_unit": "STEP",
    "save_skip_first": 1,
    "save_filename_prefix": "other-",
    "validate_after": 2,
    "validate_after_unit": "STEP",
    "validation_draws": 3,
    "prevent_overwrites": True,
    "dataloader_threads": 3,
    "tensorboard_port": 6123,
    "rlhf_dpo_sequential_strategy": "THREE_FORWARD",
    "rlhf_dpo_timestep_margin_logging": True,
    "rlhf_dpo_save_best": False,
    "rlhf_keep_images": 3,
    "rlhf_reward_swap": True,
}
"""As many as one run can have, each at another value than usual."""


def weights(folder: Path, concepts: list[dict[str, Any]], **changes: Any) -> dict[str, torch.Tensor]:
    run_here(write_config(folder, concepts=concepts, epochs=1, **changes))
    return load_file(folder / "out.safetensors")


@pytest.fixture(scope="module")
def plain(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    folder = tmp_path_factory.mktemp("plain")
    concepts = write_pairs(folder / "data", 5, ((32, 32), (64, 32)))
    return concepts, weights(folder, concepts)


@pytest.mark.parametrize("name", [*EXACT, *ROUNDED])
def test_the_weights_are_the_same(
    tmp_path: Path, plain: tuple[list[dict[str, Any]], dict[str, torch.Tensor]], name: str
) -> None:
    concepts, expected = plain
    assert name in FREE | PART_FREE
    found = weights(tmp_path, concepts, **(EXACT.get(name) or ROUNDED[name]))
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        if name in EXACT:
            assert torch.equal(found[key], tensor), key
        else:
            torch.testing.assert_close(found[key], tensor, rtol=0.0, atol=1e-4)


def test_many_at_once_leave_every_bit(
    tmp_path: Path, plain: tuple[list[dict[str, Any]], dict[str, torch.Tensor]]
) -> None:
    concepts, expected = plain
    assert TOGETHER.keys() <= FREE
    usual = TrainConfig().to_dict()
    assert [name for name, value in TOGETHER.items() if usual[name] == value] == []
    found = weights(tmp_path, concepts, **TOGETHER)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())


def test_a_cache_that_knows_other_pairs_leaves_every_bit(tmp_path: Path) -> None:
    """Images and prompts were encoded in the company of a pair that is gone."""
    concepts = write_pairs(tmp_path / "data", 5, ((32, 32), (64, 32)))
    weights(tmp_path / "five", concepts, cache_dir=str(tmp_path / "shared"))
    for side in ("chosen", "rejected"):
        for end in ("png", "txt"):
            (tmp_path / "data" / side / f"000.{end}").unlink()
    found = weights(tmp_path / "four", concepts, cache_dir=str(tmp_path / "shared"))
    fresh = weights(tmp_path / "fresh", concepts)
    assert found.keys() == fresh.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in fresh.items())


def test_a_setting_that_matters_is_seen(
    tmp_path: Path, plain: tuple[list[dict[str, Any]], dict[str, torch.Tensor]]
) -> None:
    concepts, expected = plain
    found = weights(tmp_path, concepts, learning_rate=2e-3)
    # the bound above is far below what a setting that matters does
    assert max(float((found[key] - expected[key]).abs().max()) for key in expected) > 5e-4
