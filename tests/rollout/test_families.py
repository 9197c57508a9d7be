"""Rollouts of model families that differ: embedded guidance, prompts of their own lengths, shifted noise levels."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from modules.rollout.generate import (
    RolloutHooks,
    RolloutRequest,
    generate,
    step_log_prob,
)
from modules.rollout.plan import PlanOptions, plan_for
from modules.rollout.Rollouts import RolloutSettings
from tests.rollout.helpers import recomputed
from tests.tiny import SIZE, tiny_model, tiny_setup

PROMPTS = ("cat", "a small red circle on the left of a large blue square")


@pytest.mark.parametrize(
    ("family", "kind", "layout"),
    [
        ("FLUX_DEV_1", "FLOW_SDE", "SPLIT"),
        ("STABLE_DIFFUSION_3", "FLOW_SDE", "JOINT"),
        ("SANA", "DANCE_SDE", "SPLIT"),
        ("Z_IMAGE", "FLOW_SDE", "JOINT"),
        ("QWEN", "FLOW_SDE", "SPLIT"),
        ("PIXART_SIGMA", "DDIM", "JOINT"),
        ("STABLE_DIFFUSION_XL_10_BASE", "DDIM", "SPLIT"),
    ],
)
def test_the_ratio_is_exactly_one(family: str, kind: str, layout: str) -> None:
    setup, model = tiny_setup(family), tiny_model(family)
    plan = plan_for(setup, model, PlanOptions(3), SIZE, 0, 0)
    assert plan.kind == kind or kind == "DANCE_SDE"
    plan = plan_for(setup, model, PlanOptions(3, kind), SIZE, 0, 0)
    settings = RolloutSettings(plan, SIZE, 4.0, layout, storage="BFLOAT_16")
    requests = [RolloutRequest(PROMPTS[i % 2], i % 2, i, str(i)) for i in range(4)]
    calls = []

    @contextmanager
    def branch(name: str, timestep: float):
        calls.append(name)
        yield

    hooks = RolloutHooks(branch=branch)
    made = generate(setup, model, requests, settings, 2, hooks=hooks)
    embedded = model.spec.embeds_guidance
    assert (made.negative_N is None) == embedded
    names = {"cond"} if embedded else {"joint"} if layout == "JOINT" else {"cond", "uncond"}
    assert set(calls) == names
    assert made.logp_NS.std() > 0
    calls.clear()
    model.denoiser.requires_grad_(True)
    for batch in made.batches(2):
        for step in batch.steps:
            out = step_log_prob(setup, model, batch, step, settings, hooks)
            assert torch.equal(out.logp_B.detach(), batch.logp_NS[:, batch.column(step)])
    assert set(calls) == names
    assert torch.equal(recomputed(setup, model, made, 2, hooks), made.logp_NS)


def test_an_embedded_guidance_scale_reaches_the_model() -> None:
    setup, model = tiny_setup("FLUX_DEV_1"), tiny_model("FLUX_DEV_1")
    plan = plan_for(setup, model, PlanOptions(3, "ODE"), SIZE, 0, 0)
    one, other = (
        generate(setup, model, [RolloutRequest("cat", 0, 1, "a")], RolloutSettings(plan, SIZE, cfg), 1)
        for cfg in (1.0, 6.0)
    )
    assert not torch.equal(one.final_NChw, other.final_NChw)
