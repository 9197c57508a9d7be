"""A validation that fails costs no step: what was learned before it is in a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.trainer.callbacks import Callback
from modules.trainer.resume.checkpoint import list_backups
from modules.util.errors import UserError
from tests.trainer.builders import run_here, write_config, write_pairs


class Remover(Callback):
    """Deletes a file when a step is done."""

    def __init__(self, file: Path, at: int) -> None:
        self.file, self.at = file, at

    def step(self, progress: Any, metrics: Any, total: int, eta: float | None) -> None:
        if progress.global_step == self.at:
            self.file.unlink()


@pytest.mark.parametrize("unit", ["STEP", "NEVER"])
def test_an_image_that_is_gone_when_it_is_validated_costs_no_step(tmp_path: Path, unit: str) -> None:
    """After the second step; with NEVER, at the end of the run."""
    held_back, trained = write_pairs(tmp_path / "held", 2)[0], write_pairs(tmp_path / "train", 4)[0]
    concepts = [{**trained, "type": "STANDARD"}, {**held_back, "type": "VALIDATION"}]
    config = write_config(
        tmp_path, concepts=concepts, rlhf_enabled=False, latent_caching=False, validation=True,
        validate_after=2, validate_after_unit=unit, max_steps=2 if unit == "NEVER" else 4,
    )  # fmt: skip
    image = Path(held_back["path"]) / "000.png"
    before = image.read_bytes()
    with pytest.raises(UserError, match="000.png"):
        run_here(config, callback=Remover(image, 2))
    (backup,) = list_backups(tmp_path / "run" / "backup")
    assert "-backup-2-" in backup.name
    image.write_bytes(before)
    trainer = run_here(config, "continue_last_backup=true")
    assert trainer.progress.global_step == trainer.total_steps and (tmp_path / "out.safetensors").is_file()
