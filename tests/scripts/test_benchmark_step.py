"""The step benchmark measures what it says; the figures themselves belong to the benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from modules.model.Model import Model
from modules.model.noising.schedule import DiscreteSchedule
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.families.StableDiffusionSetup import StableDiffusionSetup
from scripts.benchmarks import _models, step
from scripts.benchmarks._models import MODELS, SCHEDULER, WIDTH
from tests.tiny.stable_diffusion import build_unet
from tests.usual import usual


def tiny() -> tuple[BaseModelSetup, Model]:
    setup = StableDiffusionSetup()
    parts = {"unet": build_unet((16,), WIDTH), "scheduler": dict(SCHEDULER)}
    return setup, Model(setup.spec, "tiny", parts, DiscreteSchedule.from_config(SCHEDULER))


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(MODELS, "tiny", tiny)
    monkeypatch.setattr(_models, "LATENT", 16)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    step.add_arguments(parser)
    return parser.parse_args(["--models", "tiny", "--rounds", "1", "--rank", "2", *arguments])


@pytest.mark.parametrize("reference", usual(["NEW_ADAPTER", "EXISTING_ADAPTER"], "NEW_ADAPTER"))
def test_rows(reference: str) -> None:
    rows = {row.case: row.to_dict() for row in step.run(options("--reference", reference))}
    assert set(rows) >= {
        "supervised",
        "four_passes",
        "full_concurrent",
        "policy_concurrent",
        "sequential",
        "cached_reference",
    }
    assert rows["supervised"]["ratio"] == 1.0
    flops = {case: row["flop_ratio"] for case, row in rows.items()}
    assert flops["full_concurrent"] == flops["four_passes"] == flops["sequential"] > 1.2
    assert flops["cached_reference"] == flops["cached_sequential"] == 1.0
    assert flops["sequential_three_forward"] > flops["sequential"]
    assert rows["full_concurrent"]["limit"] == pytest.approx(1.05 * flops["full_concurrent"])
    assert rows["sequential"]["limit"] == pytest.approx(1.05 * rows["four_passes"]["ratio"])
    assert rows["cached_reference"]["limit"] == 1.05
    assert rows["sequential"]["memory_ratio"] <= rows["sequential"]["memory_limit"] == 0.55
    safe = rows["safeguarded_sequential"]
    assert safe["flop_ratio"] == flops["sequential"] and safe["memory_ratio"] <= safe["memory_limit"] == 0.55
    assert rows["safeguarded_cached_reference"]["limit"] == 1.05
    assert rows["full_concurrent"]["memory_ratio"] == pytest.approx(1.0, abs=0.02)
    assert all(row["gradient_error"] < 1e-3 for row in rows.values() if row["gradient_error"] is not None)


def test_the_restated_safeguard_takes_something_off_the_gradient() -> None:
    bench = step.make_bench("tiny", torch.device("cpu"), 2, "NEW_ADAPTER")
    # errors in the same direction, the rejected one about twice as large
    first, _ = bench.draws
    bench.draws = (first, replace(first, noise_BChw=2.0 * first.noise_BChw))
    bench.four_passes()
    plain = bench.gradient()
    bench.clear()
    bench.four_passes_safe()
    assert (bench.gradient() - plain).norm() > 0.01 * plain.norm()


def test_a_schedule_with_another_gradient_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = step.Bench.preference

    def scaled(self: step.Bench, mode: str, *rest: object, **named: object) -> object:
        work = honest(self, mode, *rest, **named)

        def wrong() -> None:
            work()
            for parameter in self.parameters:
                parameter.grad *= 1.01

        return wrong if mode == "SEQUENTIAL" else work

    monkeypatch.setattr(step.Bench, "preference", scaled)
    with pytest.raises(RuntimeError, match="sequential gives a different gradient"):
        step.run(options())


@pytest.mark.slow
def test_script_style_step_encodes_in_the_loop() -> None:
    rows = {row.case: row.to_dict() for row in step.run(options("--against", "diffusers"))}
    assert rows["diffusers_script"]["flop_ratio"] > rows["full_concurrent"]["flop_ratio"]


def test_bad_arguments() -> None:
    with pytest.raises(SystemExit, match="unknown nothing"):
        step.run(options("--models", "nothing"))
    with pytest.raises(SystemExit, match="at least 1"):
        step.run(options("--rounds", "0"))


@pytest.mark.parametrize("name", ["unet", "unet-checkpointing", "flux"])
def test_every_model_scores_a_pair(name: str) -> None:
    bench = step.make_bench(name, torch.device("cpu"), 2, "NEW_ADAPTER")
    scores = bench.cached_scores()
    assert scores is not None
    assert all(score.isfinite().all() and score.shape == (1,) for score in scores.scores)
