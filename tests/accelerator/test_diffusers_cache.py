"""Caches: they really save blocks, forget between images, and are gone after the rollout."""

from __future__ import annotations

import logging

import pytest
import torch
from diffusers import FirstBlockCacheConfig

from modules.accelerator.plan import build_plan
from modules.util.errors import UnsupportedError
from tests.accelerator.models import (
    conditioning,
    counted,
    denoise,
    flux,
    inner_layers,
    noise,
    sd3,
    unet,
    velocity,
)
from tests.tiny import tiny_model

torch.set_num_threads(1)
STEPS, LAYERS = 12, 4
RATIOS = {"mag_ratios": [1.0] * STEPS, "num_inference_steps": STEPS}
METHODS = {
    "FirstBlockCache": {"threshold": 1e9},
    "TaylorSeerCache": {"taylor_factors_dtype": "float32"},
    "MagCache": RATIOS,
    "FasterCache": {},
    "PyramidAttentionBroadcast": {},
}
EVALUATIONS = {
    "FirstBlockCache": STEPS + 3,  # the first block always, the other three once
    "TaylorSeerCache": LAYERS * 5,
    "MagCache": LAYERS * 4,
    "FasterCache": LAYERS * 8,
    "PyramidAttentionBroadcast": LAYERS * 8,
}
ALL = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(scope="module")
def model():
    return flux()


@pytest.fixture
def make_plan(model):
    plans = []

    def make(method, **params):
        section = {"rollout": {"name": "diffusers_cache", "params": {"method": method, **params}}}
        plan = build_plan(section, "decoupled", num_inference_steps=STEPS)
        plans.append(plan)
        plan.setup({"transformer": model})
        return plan

    yield make
    for plan in plans:
        plan.teardown()


def hooks_left(model):
    return [
        name
        for part in model.modules()
        if hasattr(part, "_diffusers_hook")
        for name in part._diffusers_hook.hooks
    ]


@ALL
def test_blocks_are_reused_and_only_in_the_rollout(model, make_plan, method):
    plain = denoise(model, 1)
    plan = make_plan(method, **METHODS[method])
    with plan.rollout() as rollout, counted(inner_layers(model)) as calls:
        cached = denoise(model, 1, rollout)
    assert calls == [EVALUATIONS[method]] and calls[0] < STEPS * LAYERS
    assert not torch.equal(cached, plain)
    assert (cached - plain).abs().max() < 0.2
    with counted(inner_layers(model)) as calls:
        assert torch.equal(denoise(model, 1), plain)
    assert calls == [STEPS * LAYERS]
    assert not hooks_left(model) and not model.is_cache_enabled


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("FirstBlockCache", {"threshold": 0.0}),
        ("TaylorSeerCache", {"cache_interval": 1}),
        ("MagCache", {"mag_ratios": [0.5] * STEPS, "num_inference_steps": STEPS, "threshold": 0.0}),
        ("MagCache", {"calibrate": True, "num_inference_steps": STEPS}),
        ("PyramidAttentionBroadcast", {"spatial_attention_block_skip_range": 1}),
    ],
)
def test_without_reuse_the_result_is_the_plain_one(model, make_plan, method, params):
    plan = make_plan(method, **params)
    with plan.rollout() as rollout, counted(inner_layers(model)) as calls:
        assert torch.equal(denoise(model, 1, rollout, guidance=2.0), denoise_plain(model))
    assert calls == [2 * STEPS * LAYERS]


def denoise_plain(model, result={}):  # noqa: B006 - computed once, by a copy without any cache
    if "x" not in result:
        result["x"] = denoise(flux(), 1, guidance=2.0)
    return result["x"]


@ALL
def test_nothing_leaks_from_image_to_image(model, make_plan, method):
    plan = make_plan(method, **METHODS[method])
    with plan.rollout() as rollout:
        first = denoise(model, 1, rollout)
    with plan.rollout() as rollout:
        denoise(model, 2, rollout, steps=5)
    with plan.rollout() as rollout:
        assert torch.equal(denoise(model, 1, rollout), first)
        denoise(model, 2, rollout, steps=7)
        rollout.new_images()
        assert torch.equal(denoise(model, 1, rollout), first)


def test_without_new_images_it_would_leak(model, make_plan):
    """The check above can fail."""
    plan = make_plan("FirstBlockCache", threshold=1e9)
    with plan.rollout() as rollout:
        alone = denoise(model, 1, rollout)
    with plan.rollout() as rollout:
        denoise(model, 2, rollout)
        assert (denoise(model, 1, rollout) - alone).abs().max() > 1e-4


@ALL
def test_branches_share_nothing(model, make_plan, method):
    plan = make_plan(method, **METHODS[method])
    with plan.rollout() as rollout:
        alone = denoise(model, 1, rollout)
    with plan.rollout() as rollout:
        assert torch.equal(denoise(model, 1, rollout, distraction=True), alone)


@pytest.mark.parametrize("method", ["FasterCache", "PyramidAttentionBroadcast"])
def test_a_shared_state_would_be_noticed(model, make_plan, method, monkeypatch):
    plan = make_plan(method)
    with plan.rollout() as rollout:
        alone = denoise(model, 1, rollout)
    with plan.rollout() as rollout:
        plan._rollout[0]._shared_hooks.clear()
        assert not torch.equal(denoise(model, 1, rollout, distraction=True), alone)


@ALL
def test_off_after_an_exception(model, make_plan, method):
    plain = denoise(model, 1)
    plan = make_plan(method, **METHODS[method])
    with pytest.raises(KeyError), plan.rollout() as rollout:
        denoise(model, 1, rollout, steps=3)
        raise KeyError
    assert not hooks_left(model) and not model._forward_pre_hooks
    assert torch.equal(denoise(model, 1), plain)
    with plan.rollout() as rollout:
        denoise(model, 1, rollout)


def test_gradients_are_refused_inside_and_work_outside(model, make_plan):
    plan = make_plan("FirstBlockCache")
    with plan.rollout() as rollout, rollout.branch(), torch.enable_grad():  # noqa: SIM117
        with pytest.raises(RuntimeError, match="gradients on"):
            velocity(model, noise(1), 1.0)
    assert velocity(model, noise(1), 1.0).requires_grad


def test_a_cache_that_is_already_on_is_replaced(model, make_plan, caplog):
    plain = denoise(model, 1)
    model.enable_cache(FirstBlockCacheConfig(threshold=3.0))
    with caplog.at_level(logging.WARNING, "modules.accelerator"):
        plan = make_plan("FirstBlockCache", threshold=0.0)
    assert "it is replaced" in caplog.text
    model.enable_cache(FirstBlockCacheConfig(threshold=3.0))
    with plan.rollout() as rollout:
        assert torch.equal(denoise(model, 1, rollout), plain)
    assert not hooks_left(model)


def test_calls_need_a_branch_and_some_a_timestep(model, make_plan):
    with make_plan("FirstBlockCache").rollout(), pytest.raises(ValueError, match="cache context"):
        velocity(model, noise(1), 1.0)
    with make_plan("PyramidAttentionBroadcast").rollout() as rollout, rollout.branch("cond"):  # noqa: SIM117
        with pytest.raises(RuntimeError, match="give it to branch"):
            velocity(model, noise(1), 1.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [(unet, r"UNet2DConditionModel \(denoiser\): a UNet has no stack"), (sd3, "SD3Transformer2DModel")],
)
def test_other_classes_fail_at_once(make, words):
    plan = build_plan({"rollout": "diffusers_cache"}, "decoupled")
    with pytest.raises(UnsupportedError, match=words):
        plan.setup({"denoiser": make()})


def test_a_method_that_does_not_know_the_blocks_of_a_model_names_another_one():
    model = tiny_model("CHROMA_1").module("transformer")
    with pytest.raises(UnsupportedError, match=r"FirstBlockCache cannot be used on Chroma.*") as refused:
        build_plan({"rollout": "diffusers_cache"}, "decoupled").setup({"transformer": model})
    named = [name for name in METHODS if name in refused.value.hint]
    assert named
    for method in named:
        entry = {"name": "diffusers_cache", "params": {"method": method}}
        build_plan({"rollout": entry}, "decoupled").setup({"transformer": model})


def test_a_method_that_finds_nothing_fails_at_once(model, make_plan):
    with pytest.raises(UnsupportedError, match="finds nothing to reuse"):
        make_plan("TaylorSeerCache", cache_identifiers=["no_such_part"])
    with pytest.raises(UnsupportedError, match="finds nothing to reuse"):
        make_plan("PyramidAttentionBroadcast", spatial_attention_block_identifiers=["no_such_part"])
    assert not hooks_left(model) and not model.is_cache_enabled


def test_a_failed_attempt_leaves_no_hook(monkeypatch):
    from diffusers.hooks import first_block_cache

    def broken(*_, **__):
        raise ValueError("half-way")

    model = flux()
    monkeypatch.setattr(first_block_cache, "_apply_fbc_block_hook", broken)
    plan = build_plan({"rollout": "diffusers_cache"}, "decoupled")
    with pytest.raises(UnsupportedError, match="half-way"):
        plan.setup({"transformer": model})
    assert not hooks_left(model) and not model.is_cache_enabled
    assert velocity(model, noise(1), 1.0).isfinite().all()


def test_the_adapted_model_is_reached_through_its_wrapper(make_plan):
    class Wrapper(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def get_base_model(self):
            return self.inner

        def forward(self, **kwargs):
            return self.inner(**kwargs)

    outer = Wrapper(flux())
    plan = build_plan({"rollout": {"name": "diffusers_cache", "params": {"threshold": 1e9}}}, "decoupled")
    plan.setup({"transformer": outer})
    with plan.rollout() as rollout, counted(inner_layers(outer)) as calls:
        denoise(outer, 1, rollout)
    assert calls == [STEPS + 3]
    plan.teardown()


def test_two_rollouts_at_once_are_a_bug(make_plan):
    plan = make_plan("FirstBlockCache")
    with plan.rollout(), pytest.raises(RuntimeError, match="nested"), plan.rollout():
        pass
    with plan.rollout():
        assert conditioning("cond")


def test_evaluation_uses_no_cache(model, make_plan):
    plan = make_plan("FirstBlockCache", threshold=1e9)
    plain = denoise(model, 1)
    with plan.evaluation() as rollout:
        assert torch.equal(denoise(model, 1, rollout), plain)
