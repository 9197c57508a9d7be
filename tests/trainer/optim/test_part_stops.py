"""A part whose training ends before the run's: frozen from then on, and its prompts cached again."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.pipeline.cache import ContentCache
from modules.trainer.callbacks import Callback
from modules.trainer.optim.optimizers import create_optimizer
from modules.trainer.resume.checkpoint import list_backups
from modules.util.config.load import find_problems
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import Optimizer
from modules.util.errors import DataError
from modules.util.TrainProgress import TrainProgress
from tests.trainer.builders import run_here, same_weights, write_config, write_pairs
from tests.trainer.optim.kinds import KINDS
from tests.trainer.optim.test_every_rule import CURVATURE, rate_of, start

AFTER_ONE = {"train": True, "stop_training_after": 1, "stop_training_after_unit": "EPOCH"}
AFTER_TWO_STEPS = {"train": True, "stop_training_after": 2, "stop_training_after_unit": "STEP"}


class Watch(Callback):
    """Copies of all weights after each step, what was logged, and how prompts became states."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.weights: list[dict[str, torch.Tensor]] = []
        self.rates: list[dict[str, float]] = []
        self.cached: list[bool] = []
        self.warnings: list[str] = []

    def step(
        self, progress: TrainProgress, metrics: Mapping[str, float], total: int, eta: float | None
    ) -> None:
        parts = self.trainer.parts
        self.weights.append({name: p.detach().clone() for name, p in parts.named})
        self.rates.append({tag: value for tag, value in metrics.items() if tag.startswith("lr/")})
        self.cached.append(not parts.model.trains_text)

    def warning(self, message: str) -> None:
        self.warnings.append(message)


def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Any, Watch]:
    from modules.trainer.GenericTrainer import GenericTrainer

    seen = Watch()
    train = GenericTrainer.train

    def training(trainer: GenericTrainer) -> str:
        seen.trainer = trainer
        return train(trainer)

    monkeypatch.setattr(GenericTrainer, "train", training)
    return run_here(write_config(folder, **changes), callback=seen), seen


def pictures(folder: Path, **changes: Any) -> dict[str, Any]:
    write_pairs(folder / "data", 4)
    concept = {"name": "all", "path": str(folder / "data" / "chosen"), "type": "STANDARD"}
    decays = {"optimizer": {"optimizer": "ADAMW", "weight_decay": 0.5}, "dropout_probability": 0.2}
    return {"rlhf_enabled": False, "concepts": [concept], "epochs": 3, "ema": "OFF", **decays, **changes}


def of(part: str, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in weights.items() if name.startswith(f"{part}.")}


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    assert one.keys() == other.keys() and one
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", ["LORA", "FINE_TUNE"])
def test_a_text_encoder_that_stops_keeps_its_weights_and_its_prompts_are_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    changes = pictures(tmp_path, training_method=method, text_encoder=AFTER_ONE)
    trainer, seen = watched(tmp_path, monkeypatch, **changes)
    assert [of_epoch > 1 for of_epoch in range(6)] == seen.cached
    stopped_at, last = seen.weights[1], seen.weights[-1]
    assert not same(of("text_encoder", seen.weights[0]), of("text_encoder", stopped_at))
    assert same(of("text_encoder", stopped_at), of("text_encoder", last))
    assert not same(of("unet", stopped_at), of("unet", last))
    name = "text_encoder_lora" if method == "LORA" else "text_encoder"
    assert [rates[f"lr/{name}"] > 0 for rates in seen.rates] == [True] * 2 + [False] * 4
    assert all(rates[f"lr/{name.replace('text_encoder', 'unet')}"] > 0 for rates in seen.rates)
    check_cached_texts(trainer)


def test_a_schedule_free_text_encoder_that_stops_has_the_weights_that_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = pictures(tmp_path, text_encoder=AFTER_ONE, learning_rate=1e-2)
    changes["optimizer"] = {"optimizer": "SCHEDULE_FREE_ADAMW"}
    trainer, seen = watched(tmp_path, monkeypatch, **changes)
    assert seen.cached == [False] * 2 + [True] * 4
    stopped_at, last = seen.weights[2], seen.weights[-1]
    assert not same(of("text_encoder", seen.weights[1]), of("text_encoder", stopped_at))
    assert same(of("text_encoder", stopped_at), of("text_encoder", last))
    with trainer.parts.exported_weights():
        saved = {name: parameter.detach().clone() for name, parameter in trainer.parts.named}
        assert same(of("text_encoder", saved), of("text_encoder", last))
        assert not same(of("unet", saved), of("unet", last))
        check_cached_texts(trainer)


def check_cached_texts(trainer: Any) -> None:
    """What is cached is what the trained encoder says, and not what it said before."""
    loader, model, setup = trainer.parts.images, trainer.parts.model, trainer.parts.setup
    batch = next(iter(loader.accumulation_groups(TrainProgress(epoch=1, global_step=2))))[0]

    def direct() -> torch.Tensor:
        with model.in_mode("eval"):
            rows = [setup.encode_text(model, [prompt]).tensors for prompt in batch.prompts]
        return torch.cat([row[name] for row in rows])

    name = next(iter(batch.cond.tensors))
    assert torch.equal(batch.cond.tensors[name], direct())
    with torch.no_grad():
        for parameter in (p for n, p in trainer.parts.named if n.startswith("text_encoder.")):
            parameter.zero_()
    assert not torch.equal(batch.cond.tensors[name], direct())


def test_another_run_does_not_take_the_cached_prompts_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rate in (1e-3, 2e-3):
        changes = pictures(tmp_path, text_encoder=AFTER_ONE, epochs=2, learning_rate=rate)
        trainer, _ = watched(tmp_path, monkeypatch, **changes)
        check_cached_texts(trainer)


def test_a_full_disk_while_prompts_are_cached_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures_of = {
        name: pictures(tmp_path / name, text_encoder=AFTER_ONE, epochs=2) for name in ("full", "whole")
    }
    write, training = ContentCache.save_file, []

    def full(*given: Any, **more: Any) -> None:
        if training:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*given, **more)

    class Started(Callback):
        def started(self, info: Mapping[str, Any]) -> None:
            training.append(info)

    config = write_config(tmp_path / "full", **pictures_of["full"])
    with monkeypatch.context() as patched, pytest.raises(DataError, match="cache cannot be written"):
        patched.setattr(ContentCache, "save_file", full)
        run_here(config, callback=Started())
    (backup,) = list_backups(tmp_path / "full" / "run" / "backup")
    assert "-2-" in backup.name
    assert run_here(config, "continue_last_backup=true").progress.global_step == 4
    run_here(write_config(tmp_path / "whole", **pictures_of["whole"]))
    assert same_weights(tmp_path / "full" / "out.safetensors", tmp_path / "whole" / "out.safetensors")


def test_a_denoiser_may_stop_and_the_run_ends_with_the_last_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = {"train": True, "stop_training_after": 2, "stop_training_after_unit": "EPOCH"}
    changes = pictures(
        tmp_path, unet={"gradient_checkpointing": False, **AFTER_TWO_STEPS}, text_encoder=until
    )
    trainer, seen = watched(tmp_path, monkeypatch, **changes)
    assert (len(seen.weights), trainer.total_steps) == (4, 6)
    assert any("every part" in message for message in seen.warnings)
    assert same(of("unet", seen.weights[1]), of("unet", seen.weights[3]))
    assert not same(of("text_encoder", seen.weights[1]), of("text_encoder", seen.weights[3]))
    assert not any(seen.cached)
    found = find_problems(TrainConfig.from_dict({**changes, "rlhf_dpo_beta": 100.0}))
    assert [warning.field for warning in found.warnings if "every part" in warning.message] == [
        "unet.stop_training_after"
    ]


def test_pairs_read_their_prompts_with_both_encoders_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, seen = watched(tmp_path, monkeypatch, text_encoder=AFTER_TWO_STEPS, epochs=2)
    assert len(seen.cached) == 6 and not any(seen.cached)
    assert same(of("text_encoder", seen.weights[1]), of("text_encoder", seen.weights[-1]))
    assert not same(of("unet", seen.weights[1]), of("unet", seen.weights[-1]))


@pytest.mark.parametrize("kind", KINDS)
def test_no_optimizer_moves_or_decays_what_has_no_gradient(kind: Optimizer) -> None:
    moving, frozen, rate = start(), start(), rate_of(kind)
    config = OptimizerConfig(optimizer=kind)
    groups = [("one", rate, [("block", frozen)]), ("other", rate, [("block", moving)])]
    optimizer = create_optimizer(config, groups)
    for group in optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = 0.1
    for step in range(6):
        moving.grad = CURVATURE * moving.detach()
        frozen.grad = CURVATURE * frozen.detach() if step < 3 else None
        if step == 3:
            kept = frozen.detach().clone()
            state = {n: t.clone() for n, t in optimizer.state[frozen].items() if isinstance(t, torch.Tensor)}
            before = moving.detach().clone()
        optimizer.step()
    assert torch.equal(frozen, kept)
    for name, tensor in state.items():
        assert torch.equal(optimizer.state[frozen][name], tensor), name
    assert not torch.equal(moving, before)


def test_a_part_that_would_never_be_trained_is_refused() -> None:
    data = {"text_encoder": {"train": True, "stop_training_after_unit": "EPOCH"}}
    errors = find_problems(TrainConfig.from_dict(data)).errors
    assert [error.field for error in errors] == ["text_encoder.stop_training_after"]
    data["text_encoder"]["train"] = False
    assert not find_problems(TrainConfig.from_dict(data)).errors
