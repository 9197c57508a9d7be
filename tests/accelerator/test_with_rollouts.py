"""Accelerators around the real making of images: the ratio stays 1, caches engage and forget."""

from __future__ import annotations

import pytest
import torch

from modules.accelerator.plan import AccelerationPlan, build_plan
from modules.rollout.generate import RolloutHooks, generate
from modules.rollout.plan import PlanOptions, plan_for
from modules.rollout.Rollouts import RolloutSettings
from modules.rollout.transitions import ODE
from tests.accelerator.models import counted, inner_layers
from tests.rollout.helpers import requests
from tests.tiny import tiny_model, tiny_setup

torch.set_num_threads(1)


def hooks_of(plan: AccelerationPlan) -> RolloutHooks:
    return RolloutHooks(rollout_context=plan.rollout, branch=plan.branch)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("method", ["TaylorSeerCache", "PyramidAttentionBroadcast"])
def test_cached_images_of_a_flow_model(method):
    setup, model = tiny_setup("FLUX_DEV_1"), tiny_model("FLUX_DEV_1")
    size = (16, 16)
    steps = plan_for(setup, model, PlanOptions(steps=12, kind=ODE), size, seed=3, epoch=0)
    settings = RolloutSettings(steps, size, cfg=3.0)

    def make(hooks, count):
        with counted(inner_layers(model.denoiser)) as calls:
            made = generate(setup, model, requests(count), settings, 1, hooks=hooks)
        return made.final_NChw, calls[0]

    plain, all_calls = make(RolloutHooks(), 2)
    section = {"rollout": {"name": "diffusers_cache", "params": {"method": method}}}
    plan = build_plan(section, "decoupled", num_inference_steps=12)
    plan.setup({"transformer": model.denoiser})
    cached, calls = make(hooks_of(plan), 2)
    assert 0 < calls < 0.8 * all_calls
    assert not torch.equal(cached, plain)
    alone, _ = make(hooks_of(plan), 1)
    assert torch.equal(alone[0], cached[0])
    plan.teardown()
    assert torch.equal(make(RolloutHooks(), 2)[0], plain)
