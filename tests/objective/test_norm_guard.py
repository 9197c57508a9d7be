"""The norm guard: its formula, and the same gradient in every schedule, with and without a cached reference."""

from __future__ import annotations

import pytest
import torch

from modules.objective import execution
from modules.objective.norm_guard import excess_of_norm
from modules.objective.preference import ObjectiveOptions, PairScores, get_preference_loss
from tests.objective.test_execution import SCHEDULES, gradients, relative_error
from tests.objective.toy import ToyNet, ToyReference, ToyScorer, toy_pairs

OPTIONS = ObjectiveOptions(beta=3.0, label_smoothing=0.1)
SIGMOID = get_preference_loss("SIGMOID")
SCALE, MIX, WEIGHT = 0.37, 0.25, 7.0


def test_values_by_hand() -> None:
    norm = torch.tensor([2.0, 3.0, 1.0, 2.2], dtype=torch.float64, requires_grad=True)
    known = torch.tensor([2.0, 2.0, 2.0, 2.0], dtype=torch.float64)
    excess = excess_of_norm(norm, known)
    assert excess.tolist() == pytest.approx([0.0, 0.25, 0.0, 0.01])
    excess.sum().backward()
    assert norm.grad is not None
    assert norm.grad.tolist() == pytest.approx(
        [0.0, 0.5, 0.0, 0.1]
    )  # 2 (n / r - 1) / r above r, else nothing


def test_norms_of_different_shapes() -> None:
    with pytest.raises(ValueError, match="expected"):
        excess_of_norm(torch.ones(2), torch.ones(3))


def guarded_pairs(net: ToyNet, count: int) -> ToyScorer:
    scorer = toy_pairs(net, count)
    scorer.norms = True
    return scorer


def written_out(scorer: ToyScorer, reference: ToyReference) -> tuple[torch.Tensor, int]:
    """The whole loss for autograd, and how many of the 2B images the guard acts on."""
    net = scorer.net
    inputs = torch.cat([scorer.chosen[0], scorer.rejected[0]])
    with torch.no_grad(), reference():
        anchors = (scorer("chosen").score_B, scorer("rejected").score_B)
        known = net(inputs).flatten(1).square().sum(1).sqrt()
    chosen, rejected = scorer("chosen", True), scorer("rejected")
    ratio = net(inputs).flatten(1).square().sum(1).sqrt() / known
    out = SIGMOID(PairScores(chosen.score_B, rejected.score_B, *anchors), OPTIONS)
    assert chosen.supervised_B is not None
    guard = WEIGHT * torch.where(ratio > 1, (ratio - 1) ** 2, 0.0).mean()
    return out.loss_B.mean() + MIX * chosen.supervised_B.mean() + guard, int((ratio > 1).sum())


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
def test_every_schedule_gives_the_gradient_of_the_whole_loss(
    schedule: tuple[str, str], count: int, cached: bool
) -> None:
    net = ToyNet()
    reference = ToyReference(net, existing=True)
    with torch.no_grad():
        for layer in net.layers():
            layer.up.mul_(1.5)  # the policy predicts larger than its reference for some images
    scorer = guarded_pairs(net, count)
    loss, active = written_out(scorer, reference)
    assert active > 0
    wanted = torch.autograd.grad(loss * SCALE, net.trained())
    known = execution.reference_scores(scorer, reference, SIGMOID) if cached else None
    out = execution.run(
        *schedule, scorer, None if cached else reference, SIGMOID, OPTIONS, parameters=net.trained(),
        supervised_mix=MIX, loss_scale=SCALE, norm_guard=WEIGHT, cached_reference=known,
    )  # fmt: skip
    assert relative_error(gradients(net), list(wanted)) < 1e-12
    assert float(out.loss) == pytest.approx(float(loss.detach()), rel=1e-12)


def test_a_reference_without_norms_is_refused() -> None:
    net = ToyNet()
    with pytest.raises(RuntimeError, match="needs the norms"):
        execution.run(
            "FULL_CONCURRENT", "AUTO", toy_pairs(net, 2), ToyReference(net, True), SIGMOID, OPTIONS,
            parameters=net.trained(), norm_guard=1.0,
        )  # fmt: skip


def test_the_sequential_schedule_passes_the_rejected_side_no_more_often_than_it_has_to() -> None:
    """AUTO takes THREE_FORWARD with the guard: the stash would need another forward and backward pass."""
    assert execution.resolve_strategy("AUTO", []) == "GRAD_STASH"
    assert execution.resolve_strategy("AUTO", [], guarded=True) == "THREE_FORWARD"
