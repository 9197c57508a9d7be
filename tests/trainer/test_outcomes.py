"""What the rules of training do to the weights, measured at the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.model.noising.noise import NoiseDraw
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.runner.RunDirectory import RunDirectory
from modules.trainer.callbacks import Callback
from modules.trainer.distributed import Processes
from modules.trainer.GenericTrainer import GenericTrainer
from modules.trainer.steps import Backward, SupervisedStep
from modules.util.config.load import load_config
from modules.util.errors import DataError
from tests.trainer.builders import write_config, write_pairs
from tests.usual import usual

SGD: dict[str, Any] = {
    "optimizer": {"optimizer": "SGD"}, "clip_grad_norm": 0.0, "layer_filter_preset": "attn-mlp",
}  # fmt: skip


class Keeping(Callback):
    """Keeps the metrics of every step and the warnings."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []
        self.warnings: list[str] = []

    def step(self, progress: Any, metrics: Any, total: int, eta: float | None) -> None:
        self.metrics.append(dict(metrics))

    def warning(self, message: str) -> None:
        self.warnings.append(message)


@contextmanager
def started(folder: Path, callback: Callback | None = None, **changes: Any) -> Iterator[GenericTrainer]:
    """A run before its first step; ``train`` takes the steps."""
    config = load_config(write_config(folder, **changes))
    run = RunDirectory(config.workspace_dir)
    with run.locked():
        trainer = GenericTrainer(config, run, callback or Callback(), Processes(0, 1, 0, torch.device("cpu")))
        trainer.start()
        try:
            yield trainer
        finally:
            trainer.close()


def weights(trainer: GenericTrainer) -> torch.Tensor:
    """All trained weights in one row, float64."""
    return torch.cat([p.detach().double().flatten() for p in trainer.parts.parameters])


def first_move(folder: Path, limit: float, rate: float) -> tuple[torch.Tensor, float]:
    """How one step of plain SGD moves the weights, and the norm of the gradient that was logged."""
    told = Keeping()
    changes = {**SGD, "clip_grad_norm": limit, "learning_rate": rate, "max_steps": 1, "seed": 3}
    with started(folder, told, **changes) as trainer:
        before = weights(trainer)
        trainer.train()
        return weights(trainer) - before, told.metrics[0]["grad_norm"]


def test_a_gradient_longer_than_the_limit_moves_the_weights_by_rate_times_limit(tmp_path: Path) -> None:
    rate = 0.5
    free, norm = first_move(tmp_path / "free", 0.0, rate)
    assert float(free.norm()) == pytest.approx(rate * norm, rel=1e-6)
    limit = norm / 10
    clipped, logged = first_move(tmp_path / "clipped", limit, rate)
    assert logged == norm, "the norm that is logged is the one before clipping"
    assert float(clipped.norm()) == pytest.approx(rate * limit, rel=1e-6)
    torch.testing.assert_close(clipped * 10, free, rtol=1e-5, atol=float(free.abs().max()) * 1e-6)
    short, _ = first_move(tmp_path / "short", norm * 1.01, rate)
    assert torch.equal(short, free), "a gradient shorter than the limit stays as it is"


class SpoiledStep:
    """The step of a run; the loss is NaN in the optimizer steps of these numbers, counted from 1."""

    def __init__(self, step: Any, spoiled: set[int]) -> None:
        self._step, self._spoiled = step, spoiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def forward_backward(self, group: AccumulationGroup, step: int, backward: Backward) -> None:
        spoiled = step + 1 in self._spoiled
        self._step.forward_backward(group, step, lambda loss: backward(loss * (torch.nan if spoiled else 1)))


@pytest.mark.parametrize("spoiled", usual([{1, 3, 5, 7}, {1, 2, 4, 5, 7, 8}], {1, 2, 4, 5, 7, 8}))
def test_invalid_steps_that_are_not_consecutive_do_not_end_the_run(tmp_path: Path, spoiled: set[int]) -> None:
    told = Keeping()
    with started(tmp_path, told, nan_patience=2, epochs=3) as trainer:
        trainer.parts.step = SpoiledStep(trainer.parts.step, spoiled)
        before = weights(trainer)
        assert trainer.train() == "finished"
        assert trainer.progress.global_step == 9
        assert weights(trainer).isfinite().all()
        assert not torch.equal(weights(trainer), before)
    assert len([w for w in told.warnings if "skipped" in w]) == len(spoiled)


def test_three_invalid_steps_in_a_row_end_a_run_that_tolerates_two(tmp_path: Path) -> None:
    told = Keeping()
    with started(tmp_path, told, nan_patience=2, epochs=3) as trainer:
        trainer.parts.step = SpoiledStep(trainer.parts.step, {2, 4, 5, 6})
        with pytest.raises(DataError, match="step 5"):
            trainer.train()
        assert weights(trainer).isfinite().all()
        assert len(list(trainer.run_directory.backup_dir.glob("*-backup-5-*"))) == 1
    assert [w.split(":")[0] for w in told.warnings if "skipped" in w] == ["step 1", "step 3", "step 4"]


class SpoiledLoss(SpoiledStep):
    """The same, and the loss that is logged is NaN too."""

    def metrics(self) -> dict[str, float]:
        return {**self._step.metrics(), "loss/train_step": float("nan")}


def test_a_nan_loss_in_float16_counts_at_once(tmp_path: Path) -> None:
    """No smaller scale of the loss fixes it."""
    told = Keeping()
    with started(tmp_path, told, nan_patience=1, train_dtype="FLOAT_16", epochs=3) as trainer:
        trainer.parts.step = SpoiledLoss(trainer.parts.step, {1, 2, 3})
        scale = trainer.parts.scaler.scale
        with pytest.raises(DataError, match="step 1: the loss is nan"):
            trainer.train()
        assert trainer.parts.scaler.scale == scale > 1
    assert [w.split(":")[0] for w in told.warnings if "skipped" in w] == ["step 0"]


@pytest.mark.parametrize(
    ("shared", "mode"),
    usual(
        product((True, False), ("FULL_CONCURRENT", "SEQUENTIAL")),
        (True, "SEQUENTIAL"),
        (False, "FULL_CONCURRENT"),
    ),
)
def test_both_sides_of_a_pair_have_the_same_noise_only_where_it_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, mode: str
) -> None:
    drawn: list[tuple[bytes, float]] = []
    predict = BaseModelSetup.predict

    def kept(self: BaseModelSetup, model: Any, latents: Any, cond: Any, draw: NoiseDraw, size: Any) -> Any:
        timesteps = draw.timestep_B.tolist()
        drawn.extend((n.cpu().numpy().tobytes(), t) for n, t in zip(draw.noise_BChw, timesteps, strict=True))
        return predict(self, model, latents, cond, draw, size)

    monkeypatch.setattr(BaseModelSetup, "predict", kept)
    changes = {"rlhf_dpo_shared_noise": shared, "rlhf_dpo_execution_mode": mode, "max_steps": 1}
    with started(tmp_path, batch_size=3, **changes) as trainer:
        trainer.train()
    wanted = 3 if shared else 6
    # of policy and reference, of chosen and rejected
    assert len(drawn) >= 12
    assert len({noise for noise, _ in drawn}) == len({timestep for _, timestep in drawn}) == wanted


def trained(folder: Path, **changes: Any) -> torch.Tensor:
    """How plain SGD moves the weights in one epoch."""
    with started(folder, **{**SGD, "learning_rate": 0.5, "epochs": 1, **changes}) as trainer:
        before = weights(trainer)
        trainer.train()
        assert trainer.progress.global_step == 1
        return weights(trainer) - before


@pytest.mark.parametrize("mode", usual(["FULL_CONCURRENT", "SEQUENTIAL"], "SEQUENTIAL"))
def test_five_pairs_as_three_and_two_are_one_batch_of_five(tmp_path: Path, mode: str) -> None:
    common = {"concepts": write_pairs(tmp_path / "data", 5), "rlhf_dpo_execution_mode": mode}
    whole = trained(tmp_path / "whole", batch_size=5, **common)
    parts = trained(tmp_path / "parts", batch_size=3, gradient_accumulation_steps=2, **common)
    assert float(whole.norm()) > 0
    # the sides of a pair nearly cancel, in float32; weights per micro-batch would be off by a fifth
    assert float((whole - parts).norm() / whole.norm()) < 2e-5


def test_five_images_as_three_and_two_are_one_batch_of_five(tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "data", 5)[0]["path"]
    common = {"concepts": [{"name": "all", "path": path, "type": "STANDARD"}], "rlhf_enabled": False}
    whole = trained(tmp_path / "whole", batch_size=5, **common)
    parts = trained(tmp_path / "parts", batch_size=3, gradient_accumulation_steps=2, **common)
    assert float((whole - parts).norm() / whole.norm()) < 1e-6


@pytest.mark.parametrize("dropout", [0.5, 0.0])
def test_every_process_drops_other_inputs_of_the_adapter(tmp_path: Path, dropout: float) -> None:
    path = write_pairs(tmp_path / "data", 2)[0]["path"]
    concepts = [{"name": "all", "path": path, "type": "STANDARD"}]
    changes = {"concepts": concepts, "rlhf_enabled": False, "dropout_probability": dropout}
    with started(tmp_path, **changes) as trainer:
        parts = trainer.parts
        group = next(iter(parts.loader.accumulation_groups(trainer.progress)))
        moved = []
        for rank in (0, 1, 0):
            # the same images in both processes: nothing but the process differs
            step = SupervisedStep(
                trainer.config, parts.setup, parts.model, Processes(rank, 1, 0, torch.device("cpu"))
            )
            parts.optimizer.zero_grad()
            step.forward_backward(group, 0, lambda loss: loss.backward())
            moved.append(torch.cat([p.grad.flatten() for p in parts.parameters if p.grad is not None]))
    assert torch.equal(moved[0], moved[2])
    assert torch.equal(moved[0], moved[1]) == (dropout == 0.0)


def test_losses_of_all_micro_batches_are_read_from_the_device_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_pairs(tmp_path / "data", 5)[0]["path"]
    concepts = [{"name": "all", "path": path, "type": "STANDARD"}]
    changes = {"concepts": concepts, "rlhf_enabled": False, "gradient_accumulation_steps": 3}
    with started(tmp_path, batch_size=2, **changes) as trainer:
        group = next(iter(trainer.parts.loader.accumulation_groups(trainer.progress)))
        losses: list[torch.Tensor] = []
        honest = BaseModelSetup.calculate_loss

        def noted(*rest: Any) -> torch.Tensor:
            losses.append(honest(*rest))
            return losses[-1]

        monkeypatch.setattr(BaseModelSetup, "calculate_loss", noted)
        trainer.parts.step.forward_backward(group, 0, lambda loss: loss.backward())
        reads: list[int] = []
        read = torch.Tensor.cpu
        monkeypatch.setattr(torch.Tensor, "cpu", lambda self: reads.append(1) or read(self))
        found = trainer.parts.step.metrics()["loss/train_step"]
    assert sorted(len(loss_B) for loss_B in losses) == [1, 2, 2] and len(reads) == 1
    # as if each had been read by itself
    assert found == sum(float(loss_B.detach().double().sum()) for loss_B in losses) / 5
