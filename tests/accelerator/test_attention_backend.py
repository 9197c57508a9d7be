"""The attention backend: where it acts, that it acts, and that nothing else in the process notices."""

from __future__ import annotations

import pytest
import torch
from diffusers.models import attention_dispatch
from diffusers.models.attention_dispatch import AttentionBackendName
from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

from modules.accelerator.attention_backend import keep_global_backend, switchable_processors
from modules.accelerator.plan import build_plan
from modules.util.errors import ConfigError, UnsupportedError
from tests.accelerator.models import denoise, flux, noise, sd3, unet, velocity

torch.set_num_threads(1)
MATH = "_native_math"


def plan_for(backend: str):
    return build_plan({"shared": {"name": "attention_backend", "params": {"backend": backend}}}, "coupled")


def choices(model) -> list:
    return [one._attention_backend for one in switchable_processors(model)]


@pytest.fixture(autouse=True)
def global_backend():
    """Every test has to leave the process as it was, failures included."""
    before = Registry._active_backend
    yield before
    assert Registry._active_backend == before


@pytest.fixture
def used(monkeypatch):
    """Which backends really ran."""
    ran = []
    for backend in (AttentionBackendName(MATH), AttentionBackendName.NATIVE):
        function = Registry._backends[backend]

        def spy(*args, _function=function, _name=backend.value, **kwargs):
            ran.append(_name)
            return _function(*args, **kwargs)

        monkeypatch.setitem(Registry._backends, backend, spy)
    return ran


def test_the_kernel_of_the_denoiser_changes_and_no_other(used, global_backend):
    model, other = flux(), flux(1)
    plan = plan_for(MATH)
    plan.setup({"transformer": model})
    assert choices(model) == [AttentionBackendName(MATH)] * 4
    assert Registry._active_backend == global_backend
    used.clear()
    velocity(model, noise(1), 1.0)
    assert used == [MATH] * 4
    used.clear()
    velocity(other, noise(1), 1.0)
    assert used == ["native"] * 4
    plan.teardown()
    used.clear()
    velocity(model, noise(1), 1.0)
    assert used == ["native"] * 4
    assert choices(model) == choices(other)


def test_it_is_lossless():
    model = flux()
    plan = plan_for(MATH)
    plan.setup({"transformer": model})
    with plan.rollout() as rollout, rollout.branch():
        made = velocity(model, noise(1), 1.0)
    assert torch.equal(velocity(model, noise(1), 1.0), made)
    plan.teardown()


def test_a_choice_made_before_comes_back():
    model = flux()
    with keep_global_backend():
        model.set_attention_backend(MATH)
    plan = plan_for("native")
    plan.setup({"transformer": model})
    assert choices(model) == [AttentionBackendName.NATIVE] * 4
    plan.teardown()
    plan.teardown()
    assert choices(model) == [AttentionBackendName(MATH)] * 4


def test_a_global_choice_made_before_stays():
    model = flux()
    with keep_global_backend():
        Registry.set_active_backend(AttentionBackendName(MATH))
        plan = plan_for("native")
        plan.setup({"transformer": model})
        assert Registry._active_backend == AttentionBackendName(MATH)
        plan.teardown()
        assert Registry._active_backend == AttentionBackendName(MATH)


@pytest.mark.parametrize("make", [unet, sd3])
def test_models_it_does_nothing_for(make):
    model = make()
    plan = plan_for(MATH)
    with pytest.raises(UnsupportedError, match=rf"changes nothing in {type(model).__name__} \(denoiser\)"):
        plan.setup({"denoiser": model})


def test_one_of_two_models_cannot():
    good = flux()
    before = choices(good)
    with pytest.raises(UnsupportedError, match="UNet2DConditionModel"):
        plan_for(MATH).setup({"transformer": good, "unet": unet()})
    assert choices(good) == before


def test_an_unknown_backend_lists_the_known_ones():
    model = flux()
    with pytest.raises(ConfigError, match="unknown attention backend 'warp'") as caught:
        plan_for("warp").setup({"transformer": model})
    assert MATH in str(caught.value) and "acceleration.shared.params.backend" in str(caught.value)


@pytest.mark.parametrize("failure", [RuntimeError, ImportError, OSError])
def test_a_missing_package_is_the_users_matter(monkeypatch, failure):
    def missing(*_):
        raise failure("flash-attn is not installed")

    model = flux()
    before = choices(model)
    monkeypatch.setattr(attention_dispatch, "_check_attention_backend_requirements", missing)
    with pytest.raises(UnsupportedError, match="flash-attn is not installed"):
        plan_for("flash").setup({"transformer": model})
    assert choices(model) == before


def test_flash_attention_without_its_package():
    if attention_dispatch._CAN_USE_FLASH_ATTN:
        pytest.skip("flash-attn is installed here")
    with pytest.raises(UnsupportedError, match="'flash' cannot be used here"):
        plan_for("flash").setup({"transformer": flux()})


def test_an_exception_between_the_model_and_the_process(monkeypatch):
    """The library sets the process-wide backend last; a fault after it must not leave it."""
    model = flux()
    before = choices(model)

    def set_both(self, backend):
        for one in switchable_processors(self):
            one._attention_backend = AttentionBackendName(backend)
        Registry.set_active_backend(AttentionBackendName(backend))
        raise RuntimeError("late")

    monkeypatch.setattr(type(model), "set_attention_backend", set_both)
    with pytest.raises(UnsupportedError, match="late"):
        plan_for(MATH).setup({"transformer": model})
    assert choices(model) == before


def test_a_kernel_without_gradient_is_refused(monkeypatch):
    function = Registry._backends[AttentionBackendName(MATH)]

    def forward_only(*args, **kwargs):
        return function(*args, **kwargs).detach()

    model = flux()
    before = choices(model)
    monkeypatch.setitem(Registry._backends, AttentionBackendName(MATH), forward_only)
    with pytest.raises(UnsupportedError, match="does not pass gradients"):
        plan_for(MATH).setup({"transformer": model})
    assert choices(model) == before


def test_a_kernel_that_does_not_run_here_is_refused(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no kernel image")

    monkeypatch.setitem(Registry._backends, AttentionBackendName(MATH), broken)
    with pytest.raises(UnsupportedError, match="does not run on cpu: no kernel image"):
        plan_for(MATH).setup({"transformer": flux()})


def test_images_stay_the_same_up_to_rounding():
    model = flux()
    plain = denoise(model, 1)
    plan = plan_for(MATH)
    plan.setup({"transformer": model})
    torch.testing.assert_close(denoise(model, 1), plain, atol=1e-5, rtol=1e-5)
    plan.teardown()
    assert torch.equal(denoise(model, 1), plain)
