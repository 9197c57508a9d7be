"""Every flow-matching family learns from 16 pairs which of two images is preferred, and its base stays as it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from modules.model.Model import base_tensors
from modules.trainer.callbacks import Callback
from tests.contracts.test_family_training import CASES, family_config
from tests.tiny import tiny_folder, tiny_setup
from tests.trainer.builders import run_here, write_pairs
from tests.usual import usual

pytestmark = pytest.mark.usefixtures("from_memory")
FLOWS = [key for key in CASES if tiny_setup(key).spec.flow_matching]
PAIRS, DRAWS = 16, 8


class Validations(Callback):
    """Keeps what the validations found."""

    def __init__(self) -> None:
        self.accuracy: list[float] = []

    def validation(self, progress: object, metrics: Mapping[str, float]) -> None:
        self.accuracy.append(metrics["dpo/val_accuracy"])


def measured(concepts: list[dict[str, object]]) -> list[dict[str, object]]:
    """The same pairs, to be measured at fixed noise levels with noise that training does not draw."""
    return [{**one, "name": f"{one['name']} measured", "type": f"{one['type']}_VAL"} for one in concepts]


@pytest.mark.parametrize("key", usual(FLOWS, "SANA"))
def test_it_is_learned_which_image_is_preferred(key: str, tmp_path: Path) -> None:
    spec = tiny_setup(key).spec
    side, edited = max(32, spec.size_multiple), spec.sources > 0
    trained = write_pairs(tmp_path / "data", PAIRS, ((side, side),), edited)
    config = family_config(
        tmp_path,
        key,
        concepts=[*trained, *measured(trained)],
        batch_size=8,
        epochs=32,
        learning_rate=5e-3,
        rlhf_dpo_beta=1000.0,
        lora_rank=16,
        lora_alpha=16.0,
        rlhf_dpo_validation=True,
        rlhf_dpo_validation_draws=DRAWS,
        rlhf_dpo_save_best=False,
        validate_after=32,
        samples=[],
    )
    told = Validations()
    trainer = run_here(config, callback=told)
    assert told.accuracy[-1] >= 0.9, "of 16 pairs at 8 noise levels each"
    base = tiny_setup(key).load(str(tiny_folder(key)), parts=[spec.denoiser]).denoiser.state_dict()
    after = dict(base_tensors(trainer.parts.model.denoiser))
    assert after.keys() == base.keys()
    assert all(torch.equal(base[name], tensor) for name, tensor in after.items())
