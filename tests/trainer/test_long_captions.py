"""Runs whose captions have one to several chunks: stopped and continued like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.model.batch import OWN, Conditioning
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from tests.tiny import small_folder
from tests.trainer.builders import run_and_go_back, run_here, same_weights, write_config, write_pairs

CAPTIONS = (
    "a red circle",
    "a large blue square on the left of a photo of a dog",
    "a small dog on the right, a cat on the left, a large red square on a photo of a blue circle " * 2,
    "",
)
SAMPLES = [
    {"prompt": CAPTIONS[0], "negative_prompt": CAPTIONS[2], "width": 64, "height": 64, "diffusion_steps": 2}
]
CASES: dict[str, dict[str, Any]] = {
    "pairs": {},
    "in_one_pass": {"rlhf_dpo_execution_mode": "FULL_CONCURRENT", "rlhf_supervised_mix": 0.25},
    "cached_reference": {"rlhf_dpo_reference_cache": True, "rlhf_dpo_reference_cache_draws": 2},
    "text_encoder": {"text_encoder": {"train": True}},
    "supervised": {"rlhf_enabled": False, "text_encoder": {"dropout_probability": 0.3}, "epochs": 3},
    "xl": {
        "model_type": "STABLE_DIFFUSION_XL_10_BASE",
        "base_model_name": "STABLE_DIFFUSION_XL_10_BASE",
        "sample_after": 1,
        "sample_after_unit": "EPOCH",
        "samples": SAMPLES,
    },
}


def long_concepts(folder: Path, supervised: bool) -> list[dict[str, Any]]:
    concepts = write_pairs(folder)
    for file in sorted(folder.rglob("*.txt")):
        file.write_text(CAPTIONS[int(file.stem) % len(CAPTIONS)], encoding="utf-8")
    return [{**concepts[0], "type": "STANDARD"}] if supervised else concepts


def config(folder: Path, name: str, **changes: Any) -> Path:
    made = {**CASES[name], **changes}
    if "base_model_name" in made:
        made["base_model_name"] = str(small_folder(made["base_model_name"]))
    made["concepts"] = long_concepts(folder / "data", not made.get("rlhf_enabled", True))
    return write_config(folder, **made)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_stopped_and_continued_equals_uninterrupted(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    predict = BaseModelSetup.predict

    def watched(self: Any, model: Any, latents_BChw: Any, cond: Conditioning, draw: Any, size: Any) -> Any:
        seen.append(OWN in cond.tensors)
        return predict(self, model, latents_BChw, cond, draw, size)

    monkeypatch.setattr(BaseModelSetup, "predict", watched)
    path = config(tmp_path, name)
    straight = run_and_go_back(path, 2)
    assert any(seen), "no batch had captions of unlike length"
    assert straight.progress.global_step > 2
    continued = run_here(path, "continue_last_backup=true")
    assert continued.progress.to_dict() == straight.progress.to_dict()
    for (_, ours), (_, theirs) in zip(continued.parts.named, straight.parts.named, strict=True):
        assert torch.equal(ours, theirs)
    assert same_weights(tmp_path / "whole.safetensors", tmp_path / "out.safetensors")


def test_the_end_of_a_caption_is_trained_on(tmp_path: Path) -> None:
    for most in (1, 2, 8):
        run_here(config(tmp_path / str(most), "pairs", max_prompt_chunks=most, epochs=1))
    one, two, eight = (tmp_path / str(most) / "out.safetensors" for most in (1, 2, 8))
    assert not same_weights(one, two) and not same_weights(two, eight)


@pytest.mark.slow
def test_captions_of_one_chunk_are_trained_on_as_if_there_were_no_others(tmp_path: Path) -> None:
    for most in (1, 3):
        run_here(write_config(tmp_path / str(most), max_prompt_chunks=most, epochs=1))
    assert same_weights(tmp_path / "1" / "out.safetensors", tmp_path / "3" / "out.safetensors")
