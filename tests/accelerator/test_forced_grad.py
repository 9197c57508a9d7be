"""Gradients on inside code that turned them off."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modules.accelerator.forced_grad import forced_grad
from tests.accelerator.models import TOKENS, flux, noise, velocity

torch.set_num_threads(1)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        self.grad = torch.is_grad_enabled()
        return self.layer(x)


@pytest.mark.parametrize("entry", ["call", "forward"])
def test_both_entry_points(entry):
    model = Small()
    enter = model if entry == "call" else (lambda x: model.forward(x))
    with torch.no_grad():
        with forced_grad([model]):
            out = enter(torch.ones(1, 2))
            assert not torch.is_grad_enabled()
        assert out.requires_grad and model.grad
        assert not enter(torch.ones(1, 2)).requires_grad and not model.grad


@pytest.mark.parametrize("entry", ["call", "forward"])
def test_both_entry_points_of_a_compiled_module(entry):
    torch._dynamo.reset()
    model = Small()
    model.compile(backend="eager")
    impl = model._compiled_call_impl
    enter = model if entry == "call" else (lambda x: model.forward(x))
    with torch.no_grad():
        with forced_grad([model]):
            assert model._compiled_call_impl is not impl
            assert enter(torch.ones(1, 2)).requires_grad
            assert enter(torch.ones(1, 2)).requires_grad
        assert not enter(torch.ones(1, 2)).requires_grad
    assert model._compiled_call_impl is impl
    torch._dynamo.reset()


@pytest.mark.parametrize("compiled", [False, True])
def test_everything_is_put_back_after_an_exception(compiled):
    model = Small()
    if compiled:
        model.compile(backend="eager")
    before = dict(model.__dict__)
    with pytest.raises(KeyError), forced_grad([model, model]):
        assert "forward" in model.__dict__
        raise KeyError
    assert "forward" not in model.__dict__
    assert model.__dict__ == before


def test_a_forward_of_the_instance_comes_back():
    model = Small()
    own = model.forward
    model.forward = own
    with forced_grad([model]), torch.no_grad():
        assert model(torch.ones(1, 2)).requires_grad
    assert model.__dict__["forward"] is own


def test_an_exception_inside_the_compiled_call_leaves_forward_forced():
    model = Small()
    model.compile(backend="eager")
    with forced_grad([model]), torch.no_grad():
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 3))
        assert model.forward(torch.ones(1, 2)).requires_grad
    assert "forward" not in model.__dict__
    torch._dynamo.reset()


def graph_size(tensor) -> int:
    seen, waiting = set(), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return len(seen)


def run(model, steps: int, cut: bool) -> int:
    """Size of the graph behind the last output."""
    x = noise(1)
    for step in range(steps):
        v = velocity(model, x, 1 - step / steps)
        x = x - v / steps
        x = x.detach() if cut else x
    return graph_size(v)


def test_the_graph_does_not_grow_with_the_steps():
    model = flux()
    with forced_grad([model]):
        assert run(model, 4, cut=True) == run(model, 1, cut=True) > TOKENS
        assert run(model, 4, cut=False) > 3 * run(model, 1, cut=False)
