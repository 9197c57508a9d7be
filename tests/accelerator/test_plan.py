"""The plan of a run: order, failures half-way, gradients in rollouts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from modules.accelerator.base import Accelerator, Params, peel
from modules.accelerator.plan import AccelerationPlan, build_plan
from modules.accelerator.slots import Checked
from modules.util.errors import UserError
from tests.accelerator.models import denoise, flux, noise, velocity
from tests.usual import usual

torch.set_num_threads(1)


def recorder(label: str, diary: list[str], fails: str = "") -> Accelerator:
    class Recorder(Accelerator):
        name = label
        safety = "lossless"
        stage = "both"

        def setup(self, models):
            diary.append(f"setup {label}")
            if fails == "setup":
                raise UserError(f"{label} does not work")

        def teardown(self):
            diary.append(f"teardown {label}")
            if fails == "teardown":
                raise RuntimeError(label)

    return Recorder(Params({}, label))


def test_in_order_and_back_in_reverse():
    diary: list[str] = []
    plan = AccelerationPlan(
        Checked([recorder("a", diary), recorder("b", diary)], [recorder("c", diary)]), "decoupled"
    )
    plan.setup({"transformer": flux()})
    plan.teardown()
    plan.teardown()
    assert diary == ["setup a", "setup b", "setup c", "teardown c", "teardown b", "teardown a"]


def test_a_failure_takes_back_what_was_done():
    diary: list[str] = []
    plan = AccelerationPlan(Checked([recorder("a", diary), recorder("b", diary, "setup")]), "decoupled")
    with pytest.raises(UserError, match="b does not work"):
        plan.setup({"transformer": flux()})
    assert diary == ["setup a", "setup b", "teardown b", "teardown a"]


def test_all_is_taken_back_even_if_one_fails():
    diary: list[str] = []
    plan = AccelerationPlan(Checked([recorder("a", diary), recorder("b", diary, "teardown")]), "decoupled")
    plan.setup({"transformer": flux()})
    with pytest.raises(RuntimeError, match="b"):
        plan.teardown()
    assert diary[-2:] == ["teardown b", "teardown a"]


def test_misuse_is_a_bug():
    plan = build_plan(None, "coupled")
    with pytest.raises(RuntimeError, match="before setup"), plan.rollout():
        pass
    with pytest.raises(ValueError, match="no models"):
        plan.setup({})
    plan.setup({"transformer": flux()})
    with pytest.raises(RuntimeError, match="already set up"):
        plan.setup({"transformer": flux()})
    with plan.rollout(), pytest.raises(RuntimeError, match="nested"), plan.evaluation():
        pass
    plan.teardown()
    with pytest.raises(RuntimeError, match="before setup"), plan.rollout():
        pass
    plan.setup({"transformer": flux()})


@pytest.mark.parametrize("stage", ["rollout", "evaluation"])
def test_an_empty_plan_turns_gradients_off(stage):
    model = flux()
    plan = build_plan(None, "coupled")
    plan.setup({"transformer": model})
    plain = denoise(model, 1, steps=3)
    with getattr(plan, stage)() as rollout:
        assert not torch.is_grad_enabled() and not rollout.forced_grad
        assert torch.equal(denoise(model, 1, rollout, steps=3), plain)
        assert not velocity(model, noise(1), 1.0).requires_grad
    assert torch.is_grad_enabled() and velocity(model, noise(1), 1.0).requires_grad


def test_forced_gradients_and_latents_without_graph():
    torch._dynamo.reset()
    model = flux(layers=1)
    plan = build_plan({"shared": {"name": "torch_compile", "params": {"backend": "eager"}}}, "coupled")
    plan.setup({"transformer": model})
    for stage in (plan.rollout, plan.evaluation):
        with stage() as rollout:
            assert not torch.is_grad_enabled() and rollout.forced_grad, stage
            v = velocity(model, noise(1), 1.0)
            assert v.requires_grad, stage
            assert not (noise(1) - v).requires_grad, stage
        with torch.no_grad():
            assert not velocity(model, noise(1), 1.0).requires_grad, stage
    plan.teardown()
    torch._dynamo.reset()


@pytest.mark.parametrize("paradigm", usual(["coupled", "decoupled"], "decoupled"))
def test_the_unconditional_half_runs_the_same_program_in_training(paradigm):
    """Gradients are off around it in training as well; ``branch`` decides as it did in the rollout."""
    torch._dynamo.reset()
    model = flux(layers=1)
    plan = build_plan({"shared": {"name": "torch_compile", "params": {"backend": "eager"}}}, paradigm)
    with plan.branch("uncond"), torch.no_grad():
        assert not velocity(model, noise(1), 1.0).requires_grad
    plan.setup({"transformer": model})
    with torch.no_grad():
        with plan.rollout(), plan.branch("uncond", 1000.0):
            in_rollout = velocity(model, noise(1), 1.0).requires_grad
        with plan.branch("uncond", 1000.0):
            in_training = velocity(model, noise(1), 1.0).requires_grad
        assert in_rollout == in_training == (paradigm == "coupled")
        assert not velocity(model, noise(1), 1.0).requires_grad
    plan.teardown()
    torch._dynamo.reset()


def test_the_branch_of_the_plan_is_that_of_the_rollout():
    """A sampler may be given ``plan.rollout`` and ``plan.branch`` and need not know the rollout's object."""
    model = flux()
    section = {"rollout": {"name": "diffusers_cache", "params": {"method": "PyramidAttentionBroadcast"}}}
    plan = build_plan(section, "decoupled")
    plan.setup({"transformer": model})
    with plan.rollout() as rollout:
        expected = denoise(model, 1, rollout, distraction=True)
    with plan.rollout():
        through = SimpleNamespace(branch=plan.branch)
        assert torch.equal(denoise(model, 1, through, distraction=True), expected)
    plan.teardown()


def test_no_ratio_error_on_the_first_update():
    """The whole way of a coupled mode: rollout, then the training forward of the same inputs."""
    model = flux()
    plan = build_plan(
        {"shared": [{"name": "attention_backend", "params": {"backend": "_native_math"}}]}, "coupled"
    )
    plan.setup({"transformer": model})
    with plan.rollout() as rollout, rollout.branch():
        old = velocity(model, noise(1), 1.0).square().mean()
    new = velocity(model, noise(1), 1.0).square().mean()
    assert (torch.exp(new - old) - 1).abs().item() == 0.0 and plan.lossless
    plan.teardown()


def test_peeling():
    inner = flux()
    assert peel(inner) is inner
    assert peel(torch.compile(inner, backend="eager")) is inner
    assert peel(torch.nn.DataParallel(inner)) is inner
