"""What a saved adapter says about where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

from tests.tiny import small_folder
from tests.trainer.builders import run_here, write_config


def facts(path: Path) -> dict[str, str]:
    with safe_open(str(path), framework="pt") as file:
        return dict(file.metadata())


@pytest.mark.parametrize("objective", ["SIGMOID", "IPO"])
def test_the_pairs_and_the_base(objective: str, tmp_path: Path) -> None:
    trainer = run_here(write_config(tmp_path / "run", rlhf_dpo_objective=objective, max_steps=1))
    said = facts(tmp_path / "run" / "out.safetensors")
    assert said["tastemaker.pairs_hash"] == trainer.parts.loader.pair_digest()
    assert len(said["tastemaker.pairs_hash"]) == 32
    assert said["tastemaker.pairs"] == str(len(trainer.parts.loader))
    assert said["tastemaker.objective"] == objective
    assert ("tastemaker.reference" in said) == (trainer.parts.reference is not None)
    assert said["tastemaker.base_model"] == small_folder().name
    assert str(tmp_path) not in " ".join(said.values())
