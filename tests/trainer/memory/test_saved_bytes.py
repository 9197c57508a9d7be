from __future__ import annotations

import torch

from modules.trainer.memory.SavedBytes import SavedBytes


def test_counts_what_a_backward_needs_and_no_more() -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    frozen = torch.ones(4, 4)
    with SavedBytes(ignore=[frozen]) as counter:
        x = torch.ones(8, 4) @ weight  # saves its left operand: 8 x 4 floats
        assert counter.current == 8 * 4 * 4
        y = (x @ frozen).exp()  # saves the result: 8 x 4 floats more
        assert counter.current == 2 * 8 * 4 * 4
        z = y * y  # saves y, which is held already
        assert counter.current == 2 * 8 * 4 * 4
        z.sum().backward()
        assert counter.current == 0
    assert counter.peak == 2 * 8 * 4 * 4
    counted = weight.grad.clone()
    weight.grad = None
    (torch.ones(8, 4) @ weight @ frozen).exp().square().sum().backward()
    assert torch.allclose(counted, weight.grad)


def test_a_dropped_graph_is_given_back() -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    with SavedBytes() as counter:
        out = (torch.ones(8, 4) @ weight).exp()
        assert counter.current > 0
        del out
        assert counter.current == 0


def test_no_graph_saves_nothing() -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    with SavedBytes() as counter, torch.no_grad():
        (torch.ones(8, 4) @ weight).exp()
    assert counter.peak == 0
