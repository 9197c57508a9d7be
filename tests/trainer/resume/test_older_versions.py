"""Runs that an older version began are resumed, and trained anew, to the weights that the older version trained.

``older`` holds what the versions of November 22 (``kto``: 23) 2026 left: a tiny base model, pairs, and for each run its
config, a backup in the middle (step 4) and the adapter at the end (``whole.safetensors``). They were trained on another
processor perhaps, whose sums differ in the last bits: a weight may differ by a fiftieth of a step.

``older/adapters`` holds adapters as the version of November 28 2026 wrote them, in every layout. ``sums.json`` says by
how much each changes its layers. These numbers were computed from the formulas by numpy, not by this program.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import read_adapter
from modules.adapter.PeftAdapter import NAME, attach
from modules.trainer.callbacks import Callback
from modules.util.errors import UserError
from modules.util.TrainProgress import TrainProgress
from tests.tiny import tiny_folder, tiny_model
from tests.trainer.builders import run_here, write_config
from tests.usual import usual

OLDER = Path(__file__).parent / "older"
RUNS = ("dpo", "kto", "plain", "grpo", "nft")
FIFTIETH_OF_A_STEP = 1e-3 / 50


class Steps(Callback):
    """Keeps the numbers of the steps that were taken."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def step(
        self, progress: TrainProgress, metrics: Mapping[str, float], total: int, eta: float | None
    ) -> None:
        self.steps.append(progress.global_step)


def brought(tmp_path: Path, run: str) -> Path:
    """A copy of the older run on this computer, where the folders have other names; returns its config."""
    for name in ("base", "data", run):
        shutil.copytree(OLDER / name, tmp_path / name)
    config = tmp_path / run / "config.json"
    config.write_text(
        config.read_text(encoding="utf-8").replace("/data/ada", tmp_path.as_posix()), encoding="utf-8"
    )
    return config


def farthest(found: Path, wanted: Path) -> float:
    """The largest mean difference of a tensor."""
    one, other = load_file(found), load_file(wanted)
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().mean().item() for name in one)


@pytest.mark.parametrize("run", RUNS)
def test_a_run_is_resumed(tmp_path: Path, run: str) -> None:
    config = brought(tmp_path, run)
    seen = Steps()
    run_here(
        config,
        "continue_last_backup=true",
        f"output_model_destination={tmp_path / 'now.safetensors'}",
        callback=seen,
    )
    assert seen.steps[0] == 5
    whole = config.parent / "whole.safetensors"
    assert farthest(tmp_path / "now.safetensors", whole) < FIFTIETH_OF_A_STEP


# the others are resumed above
@pytest.mark.parametrize("run", usual(RUNS, "dpo"))
def test_its_config_trains_the_same_weights(tmp_path: Path, run: str) -> None:
    config = brought(tmp_path, run)
    run_here(config, f"output_model_destination={tmp_path / 'now.safetensors'}")
    whole = config.parent / "whole.safetensors"
    assert farthest(tmp_path / "now.safetensors", whole) < FIFTIETH_OF_A_STEP


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    ["learning_rate_warmup_steps=3", "rlhf_dpo_beta=150", "batch_size=3"],
)
def test_another_rule_would_be_noticed(tmp_path: Path, change: str) -> None:
    config = brought(tmp_path, "dpo")
    run_here(config, change, f"output_model_destination={tmp_path / 'now.safetensors'}")
    whole = config.parent / "whole.safetensors"
    assert farthest(tmp_path / "now.safetensors", whole) > FIFTIETH_OF_A_STEP


ADAPTERS = OLDER / "adapters"
SUMS = json.loads((ADAPTERS / "sums.json").read_text(encoding="utf-8"))


def sums_of_change(before: torch.Tensor, after: torch.Tensor) -> list[float]:
    """The sum of a layer's change, and its sum weighted by cos(0.7 i), so that no two values can be exchanged."""
    change = (after.double() - before.double()).flatten()
    weights = torch.cos(0.7 * torch.arange(change.numel(), dtype=torch.float64))
    return [change.sum().item(), (change * weights).sum().item()]


@pytest.mark.parametrize("path", sorted(ADAPTERS.glob("*.safetensors")), ids=lambda path: path.stem)
def test_its_adapters_have_the_same_strength(path: Path) -> None:
    told = SUMS[path.stem.rpartition("-")[0]]
    model = tiny_model(told["family"])
    bases: dict[str, torch.Tensor] = {}
    for place in told["sums"]:
        part, _, name = place.partition(".")
        weight = model.module(part).get_parameter(f"{name}.weight")
        values = 0.1 * torch.sin(1.0 + torch.arange(weight.numel(), dtype=torch.float64))
        weight.data = values.reshape(weight.shape).float()
        bases[place] = weight.data.clone()
    layers: dict[str, Any] = attach(model, AdapterOptions(), read_adapter(path, model)).layers
    assert layers.keys() == told["sums"].keys()
    for place, layer in layers.items():
        layer.merge(safe_merge=True, adapter_names=[NAME])
        found = sums_of_change(bases[place], layer.get_base_layer().weight.detach())
        assert found == pytest.approx(told["sums"][place], rel=1e-4, abs=2e-4), place


def test_a_run_that_began_without_the_settings_of_peft_resumes_with_a_copy_of_the_file_alone(tmp_path: Path) -> None:
    """Earlier versions did not read them, and trained with alpha equal to the rank."""
    layers = ["attn1.to_q", "attn2.to_v"]
    given = get_peft_model(tiny_model().denoiser, LoraConfig(r=4, lora_alpha=10, target_modules=layers))
    given.save_pretrained(str(tmp_path / "peft"))
    file, settings = (tmp_path / "peft" / name for name in ("adapter_model.safetensors", "adapter_config.json"))
    later = settings.read_bytes()
    settings.unlink()

    def run(steps: int, **changes: Any) -> None:
        common = {"lora_rank": 4, "layer_filter_preset": "custom", "layer_filter": ",".join(layers)}
        common |= {"backup_after": 2, "backup_after_unit": "STEP", "lora_model_name": str(file)}
        common |= {"base_model_name": str(tiny_folder())}
        run_here(write_config(tmp_path / "run", max_steps=steps, **{**common, **changes}))

    run(2)
    settings.write_bytes(later)
    with pytest.raises(UserError, match="did not read an adapter_config.json"):
        run(4, continue_last_backup=True)
    alone = Path(shutil.copy(file, tmp_path / "alone.safetensors"))
    run(4, continue_last_backup=True, lora_model_name=str(alone))
