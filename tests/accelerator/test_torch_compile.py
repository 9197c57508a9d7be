"""Compilation in place, with a backend that is quick; the real compiler runs in the slow tests."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model

from modules.accelerator.plan import build_plan
from modules.util.errors import ConfigError, UnsupportedError
from tests.accelerator.models import denoise, flux, noise, sd3, unet, velocity
from tests.usual import usual

torch.set_num_threads(1)
LAYERS = {"regional": 2, "full": 1}
"""Blocks of one kind share a program where each block is compiled, so there have to be two."""


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def graphs():
    """A compile backend ``counting``; the list grows by one with every program."""
    made = []

    def counting(graph, _):
        made.append(torch.is_grad_enabled())
        return graph.forward

    torch._dynamo.register_backend(counting, name="counting")
    yield made
    registry = torch._dynamo.backends.registry
    registry._BACKENDS.pop("counting", None)
    registry._COMPILER_FNS.pop("counting", None)


def plan_for(paradigm="coupled", **params):
    params = {"backend": "eager", **params}
    return build_plan({"shared": {"name": "torch_compile", "params": params}}, paradigm)


def compiled(model) -> list[str]:
    return [type(one).__name__ for one in model.modules() if one._compiled_call_impl is not None]


@pytest.mark.parametrize(
    ("make", "scope", "kinds"),
    [
        (flux, "regional", {"FluxTransformerBlock", "FluxSingleTransformerBlock"}),
        (unet, "regional", {"BasicTransformerBlock"}),
        (flux, "full", {"FluxTransformer2DModel"}),
        (sd3, "full", {"SD3Transformer2DModel"}),
    ],
)
def test_what_is_compiled(make, scope, kinds):
    model = make()
    keys = list(model.state_dict())
    identity = [id(parameter) for parameter in model.parameters()]
    plan = plan_for(scope=scope)
    plan.setup({"denoiser": model})
    assert set(compiled(model)) == kinds
    assert list(model.state_dict()) == keys
    assert [id(parameter) for parameter in model.parameters()] == identity
    plan.teardown()
    plan.teardown()
    assert compiled(model) == []
    assert list(model.state_dict()) == keys


def test_regional_without_repeated_blocks():
    with pytest.raises(
        UnsupportedError, match=r"SD3Transformer2DModel \(transformer\): it names no repeated"
    ):
        plan_for().setup({"transformer": sd3()})


def test_nothing_is_compiled_if_one_model_cannot():
    good = flux()
    with pytest.raises(UnsupportedError):
        plan_for().setup({"a": good, "b": sd3()})
    assert compiled(good) == []


def test_an_unknown_backend_lists_the_known_ones():
    model = flux()
    with pytest.raises(ConfigError, match="unknown compile backend 'turbo'") as caught:
        plan_for(backend="turbo").setup({"transformer": model})
    assert "inductor" in str(caught.value) and "acceleration.shared.params.backend" in str(caught.value)


def test_settings_the_compiler_refuses():
    model = flux()
    with pytest.raises(ConfigError, match="refuses these settings"):
        plan_for(backend="inductor", options={"no_such_option": 1}).setup({"transformer": model})
    assert compiled(model) == []


def test_what_was_compiled_before_is_compiled_after():
    model = flux()
    model.compile(backend="eager")
    before = model._compiled_call_impl
    plan = plan_for(scope="full")
    plan.setup({"transformer": model})
    assert model._compiled_call_impl is not before
    plan.teardown()
    assert model._compiled_call_impl is before


# what the scopes compile is tried above; there is no other difference
@pytest.mark.parametrize("scope", usual(LAYERS, "regional"))
def test_decoupled_rollouts_have_a_program_of_their_own_and_eager_returns(graphs, scope):
    """Tracing is what takes time here: both programs are made once, and all is asked of them."""
    model = flux(layers=LAYERS[scope])
    plain, images = velocity(model, noise(1), 1.0), denoise(model, 1, steps=2)
    plan = plan_for("decoupled", backend="counting", scope=scope)
    plan.setup({"transformer": model})
    torch.testing.assert_close(velocity(model, noise(1), 1.0), plain, atol=1e-6, rtol=1e-6)
    count = len(graphs)
    with plan.rollout() as rollout:
        assert not velocity(model, noise(1), 1.0).requires_grad
        torch.testing.assert_close(denoise(model, 1, rollout, steps=2), images, atol=1e-6, rtol=1e-6)
    assert count and graphs[:count] == [True] * count
    assert graphs[count:] and not any(graphs[count:])
    plan.teardown()
    torch._dynamo.reset()
    count = len(graphs)
    assert torch.equal(denoise(model, 1, steps=2), images)
    assert torch.equal(velocity(model, noise(1), 1.0), plain)
    assert len(graphs) == count


def test_gradients_are_those_of_the_plain_model():
    model, plain = flux(), flux()
    plan = plan_for(backend="aot_eager")
    plan.setup({"transformer": model})
    for one in (model, plain):
        velocity(one, noise(1), 1.0).square().sum().backward()
    pairs = zip(model.named_parameters(), plain.named_parameters(), strict=True)
    for (name, mine), (other, theirs) in pairs:
        assert name == other
        assert (mine.grad is None) == (theirs.grad is None)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-5, rtol=1e-4)
    plan.teardown()


@pytest.mark.slow
def test_cached_rollouts_of_a_compiled_model(graphs):
    """Both at once, where only the images matter."""
    section = {
        "shared": {"name": "torch_compile", "params": {"backend": "eager"}},
        "rollout": {"name": "diffusers_cache", "params": {"threshold": 0.0}},
    }
    model = flux(layers=1)
    plain = denoise(model, 1, steps=3)
    plan = build_plan(section, "decoupled")
    plan.setup({"transformer": model})
    velocity(model, noise(1), 1.0).sum().backward()
    with plan.rollout() as rollout:
        torch.testing.assert_close(denoise(model, 1, rollout, steps=3), plain, atol=1e-6, rtol=1e-6)
    plan.teardown()
    assert torch.equal(denoise(model, 1, steps=3), plain)


def test_adapters_and_wrappers_are_peeled():
    class Adapted(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def get_base_model(self):
            return self.inner

    inner = flux()
    plan = plan_for(scope="full")
    plan.setup({"transformer": torch.compile(Adapted(inner), backend="eager")})
    assert compiled(inner) == ["FluxTransformer2DModel"]
    plan.teardown()


@pytest.mark.parametrize("scope", usual(LAYERS, "full"))
def test_coupled_rollouts_use_the_program_of_training(graphs, scope):
    """With an adapter: names as without compilation, one program for rollout, evaluation and training, gradients in
    the adapter only.
    """
    model = flux(layers=LAYERS[scope])
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=2, target_modules=["to_q"], init_lora_weights=False), model)
    keys = list(model.state_dict())
    plan = plan_for(backend="counting", scope=scope)
    plan.setup({"transformer": model})
    assert list(model.state_dict()) == keys
    trained = velocity(model, noise(1), 1.0)
    trained.sum().backward()
    with_gradient = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    assert with_gradient and all("lora_" in name for name in with_gradient)
    count = len(graphs)
    with plan.rollout() as rollout, torch.no_grad(), rollout.branch():
        made = velocity(model, noise(1), 1.0)
    assert made.requires_grad and torch.equal(made, trained)
    with plan.evaluation(), torch.no_grad():
        velocity(model, noise(1), 1.0)
    velocity(model, noise(1), 1.0)
    assert count and len(graphs) == count
    plan.teardown()


@pytest.mark.slow
def test_the_real_compiler_gives_equal_numbers_in_rollout_and_training():
    model = flux()
    plan = plan_for(backend="inductor")
    plan.setup({"transformer": model})
    with plan.rollout() as rollout, torch.no_grad(), rollout.branch():
        made = velocity(model, noise(1), 1.0)
    assert torch.equal(velocity(model, noise(1), 1.0), made)
    plan.teardown()
    torch.testing.assert_close(velocity(model, noise(1), 1.0), made, atol=1e-4, rtol=1e-4)
