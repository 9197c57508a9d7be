"""Steps inside the backward pass: the same weights, no gradients left, and a clear no where it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.runner.RunDirectory import RunDirectory
from modules.trainer.assembly import check_settings
from modules.trainer.callbacks import Callback
from modules.trainer.GenericTrainer import GenericTrainer
from modules.trainer.optim.FusedSteps import FusedSteps
from modules.trainer.optim.optimizers import create_optimizer
from modules.util.config.load import load_config, read_config
from modules.util.config.rules.rules import STEP_ALONE
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import Optimizer
from modules.util.errors import DataError, UnsupportedError
from modules.util.TrainProgress import TrainProgress
from tests.trainer.builders import run_here, settings, write_config, write_pairs
from tests.usual import usual


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


@pytest.mark.parametrize("kind", STEP_ALONE)
def test_the_same_weights_and_state_bit_for_bit(kind: Optimizer) -> None:
    results = []
    for fused in (False, True):
        module = net()
        groups = [
            (f"{i}", 1e-2 / (1 + i), list(layer.named_parameters())) for i, layer in enumerate(module[::2])
        ]
        optimizer = create_optimizer(OptimizerConfig(optimizer=kind), groups)
        steps = FusedSteps(optimizer) if fused else None
        norms = []
        for number in range(3):
            loss = module(torch.full((4, 6), 0.1 * number + 0.2)).square().sum()
            loss.backward()
            if steps is None:
                norms.append(torch.nn.utils.get_total_norm([p.grad for p in module.parameters()]))
                optimizer.step()
                optimizer.zero_grad()
            else:
                assert all(p.grad is None for p in module.parameters())
                norms.append(steps.norm())
        results.append((list(module.parameters()), optimizer.state_dict()["state"], torch.stack(norms)))
    (one, first, norms), (other, second, fused_norms) = results
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(
        torch.equal(first[i][k], second[i][k]) for i in first for k in first[i] if first[i][k] is not None
    )
    torch.testing.assert_close(norms, fused_norms)


def test_each_gradient_is_clipped_alone_and_the_norm_is_that_before() -> None:
    module, twin = net(), net()
    before = [p.detach().clone() for p in module.parameters()]
    config = OptimizerConfig(optimizer=Optimizer.SGD)
    steps = FusedSteps(create_optimizer(config, [("all", 1.0, list(module.named_parameters()))]), 5.5)
    for net_ in (module, twin):
        net_(torch.full((4, 6), 0.4)).square().sum().backward()
    norms = [float(p.grad.norm()) for p in twin.parameters()]
    assert min(norms) < 5.5 < max(norms)
    for old, new, gradient, norm in zip(before, module.parameters(), twin.parameters(), norms, strict=True):
        expected = gradient.grad * min(1.0, 5.5 / norm)
        torch.testing.assert_close(old - new, expected, rtol=1e-4, atol=1e-6)
    assert float(steps.norm()) == pytest.approx(sum(n * n for n in norms) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_a_gradient_that_is_no_number_moves_nothing_and_shows(clip: float) -> None:
    module = net()
    before = [p.detach().clone() for p in module.parameters()]
    optimizer = create_optimizer(OptimizerConfig(), [("all", 1e-2, list(module.named_parameters()))])
    steps = FusedSteps(optimizer, clip)
    (module(torch.ones(1, 6)).sum() * float("nan")).backward()
    assert not steps.norm().isfinite()
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    steps.close()
    module(torch.ones(1, 6)).sum().backward()
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("clipped", usual([False, True], True))
def test_a_run_ends_with_the_same_weights(clipped: bool, tmp_path: Path) -> None:
    concept = {"name": "all", "path": write_pairs(tmp_path / "data", 4)[0]["path"], "type": "STANDARD"}
    weights = []
    clipping = {"clip_grad_norm": 0.01, "clip_each_weight": True}
    for fused in (False, True):
        config = write_config(
            tmp_path / str(fused), concepts=[concept], rlhf_enabled=False, training_method="FINE_TUNE",
            output_model_destination=str(tmp_path / str(fused) / "model"), output_model_format="DIFFUSERS", epochs=1,
            **(clipping if clipped else {"clip_grad_norm": 0.0}), optimizer={"fused_back_pass": fused},
        )  # fmt: skip
        parts = run_here(config).parts
        weights.append([p.detach().clone() for p in parts.parameters])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps"),
        ({"clip_grad_norm": 1.0}, "clip_grad_norm"),
        ({"train_dtype": "FLOAT_16"}, "train_dtype"),
        ({"rlhf_enabled": True}, "rlhf_enabled"),
        ({"optimizer": {"optimizer": "PRODIGY", "fused_back_pass": True}}, "optimizer.optimizer"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes: dict[str, Any], field: str) -> None:
    values = {"__version": 1, "clip_grad_norm": 0.0, "optimizer": {"fused_back_pass": True}, **changes}
    with pytest.raises((UnsupportedError, ValueError), match=field):
        read_config(values)


def test_several_processes_are_refused() -> None:
    values = settings(Path("unused"), concepts=[], rlhf_enabled=False, clip_grad_norm=0.0)
    config = TrainConfig.from_dict({**values, "optimizer": {"fused_back_pass": True}})
    with pytest.raises(UnsupportedError, match="several processes"):
        check_settings(config, world_size=2)


def test_the_average_follows_the_weights_that_take_a_step_without_others(tmp_path: Path) -> None:
    concept = {"name": "all", "path": write_pairs(tmp_path / "data", 4)[0]["path"], "type": "STANDARD"}

    class Spoiling(Callback):
        """Makes the gradient of the first weight NaN from the second step on."""

        trainer: Any = None

        def __init__(self) -> None:
            self.averages: list[list[torch.Tensor]] = []

        def step(self, progress: TrainProgress, metrics: Any, total: int, eta: float | None) -> None:
            (first, weight), (other, _), *_ = self.trainer.parts.named
            if not self.averages:
                weight.register_hook(lambda gradient: gradient * float("nan"))
            state = self.trainer.parts.ema.state_dict()
            self.averages.append([state[name].clone() for name in (first, other)])

    listener = Spoiling()
    config = load_config(write_config(
        tmp_path, concepts=[concept], rlhf_enabled=False, training_method="FINE_TUNE", clip_grad_norm=0.0,
        output_model_destination=str(tmp_path / "model"), output_model_format="DIFFUSERS", batch_size=1,
        optimizer={"fused_back_pass": True}, nan_patience=9, ema="CPU", ema_update_step_interval=1,
    ))  # fmt: skip
    run = RunDirectory(config.workspace_dir)
    listener.trainer = GenericTrainer(config, run, listener)
    with run.locked():
        listener.trainer.run()
    assert len(listener.averages) > 2
    for before, after in zip(listener.averages, listener.averages[1:], strict=False):
        assert not torch.equal(before[1], after[1])


def test_a_gradient_that_is_nan_is_named_with_what_happened_to_the_other_weights(tmp_path: Path) -> None:
    concept = {"name": "all", "path": write_pairs(tmp_path / "data", 2)[0]["path"], "type": "STANDARD"}

    class Spoiling(Callback):
        """Makes the gradient of one weight NaN in the second step."""

        trainer: Any = None
        warnings: list[str] = []

        def step(self, progress: TrainProgress, metrics: Any, total: int, eta: float | None) -> None:
            name, weight = self.trainer.parts.named[0]
            weight.register_hook(lambda gradient: gradient * float("nan"))
            self.spoiled = name

    listener = Spoiling()
    config = load_config(write_config(
        tmp_path, concepts=[concept], rlhf_enabled=False, training_method="FINE_TUNE", clip_grad_norm=0.0,
        output_model_destination=str(tmp_path / "model"), output_model_format="DIFFUSERS", batch_size=1,
        optimizer={"fused_back_pass": True}, nan_patience=0,
    ))  # fmt: skip
    run = RunDirectory(config.workspace_dir)
    listener.trainer = GenericTrainer(config, run, listener)
    with run.locked(), pytest.raises(DataError) as caught:
        listener.trainer.run()
    said = caught.value.message
    assert said.startswith(f"step 1: the gradient of {listener.spoiled} is NaN or infinite and not used")
    assert "the other weights have taken this step" in said and "before this step" not in said
