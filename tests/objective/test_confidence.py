"""How sure the person was: its formulas in float64, and the same gradient in every schedule."""

from __future__ import annotations

import math

import pytest
import torch

from modules.objective import execution
from modules.objective.confidence import weigh
from modules.objective.preference import ObjectiveOptions, PairScores, get_preference_loss
from modules.util.enum.choices import DPOConfidence
from tests.objective.test_execution import SCHEDULES, gradients, relative_error
from tests.objective.toy import ToyNet, ToyReference, ToyScorer, toy_pairs

SIGMOID = get_preference_loss("SIGMOID")
CERTAINTIES = [0.97, None, 0.5, 0.6, 1.0]
SCALE, MIX = 0.37, 0.25
KINDS = [DPOConfidence.SMOOTHING, DPOConfidence.MARGIN]


def expected(kind: DPOConfidence, margin: float, certainty: float | None, beta: float, s0: float) -> float:
    """The loss of one pair by plain arithmetic."""
    z, s = beta * margin, s0
    if kind is DPOConfidence.SMOOTHING and certainty is not None:
        s = s0 * certainty + (1 - certainty) * (1 - s0)
    if kind is DPOConfidence.MARGIN and certainty is not None:
        p = min(certainty, 0.99)
        z -= math.log(p / (1 - p))
    return (1 - s) * math.log1p(math.exp(-z)) + s * math.log1p(math.exp(z))


@pytest.mark.parametrize("s0", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_every_pair_is_that_of_the_formula(kind: DPOConfidence, s0: float) -> None:
    margins = [0.3, -0.2, 0.7, 0.0, -0.4]
    chosen_B = torch.tensor(margins, dtype=torch.float64)
    zero_B = torch.zeros_like(chosen_B)
    options = weigh(ObjectiveOptions(2.5, s0), kind, CERTAINTIES)
    out = SIGMOID(PairScores(chosen_B, zero_B, zero_B, zero_B), options)
    wanted = [expected(kind, m, c, 2.5, s0) for m, c in zip(margins, CERTAINTIES, strict=True)]
    assert out.loss_B.tolist() == pytest.approx(wanted, rel=1e-13)
    ordinary = [expected(DPOConfidence.OFF, m, None, 2.5, 0.0) for m in margins]
    assert out.raw_loss_B.tolist() == pytest.approx(ordinary, rel=1e-13), (
        "validation compares the ordinary loss"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_of_which_nothing_is_known_keeps_the_ordinary_loss(kind: DPOConfidence) -> None:
    score_B = torch.tensor([0.3, -0.2], dtype=torch.float64)
    scores = PairScores(score_B, -score_B, 0.1 * score_B, 0.2 * score_B)
    ordinary = SIGMOID(scores, ObjectiveOptions(2.0)).loss_B
    weighed = SIGMOID(scores, weigh(ObjectiveOptions(2.0), kind, [None, 0.7])).loss_B
    assert float(weighed[0]) == pytest.approx(float(ordinary[0]), rel=1e-15)
    assert float(weighed[1]) != pytest.approx(float(ordinary[1]), rel=1e-3)


def test_off_changes_nothing() -> None:
    options = ObjectiveOptions(2.0, 0.1)
    assert weigh(options, DPOConfidence.OFF, [0.6]) is options


@pytest.mark.parametrize("key", ["IPO", "HINGE"])
@pytest.mark.parametrize("kind", KINDS)
def test_other_losses_refuse_it(kind: DPOConfidence, key: str) -> None:
    row_B = torch.zeros(1, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"not defined for the {key}"):
        get_preference_loss(key)(
            PairScores(row_B, row_B, row_B, row_B), weigh(ObjectiveOptions(), kind, [0.9])
        )


def written_out(
    scorer: ToyScorer, reference: ToyReference, kind: DPOConfidence, certainties: list[float | None]
) -> torch.Tensor:
    """The whole loss as one expression for autograd, independent of the schedules and of the objective."""
    with torch.no_grad(), reference():
        r_chosen_B, r_rejected_B = scorer("chosen").score_B, scorer("rejected").score_B
    chosen, rejected = scorer("chosen", True), scorer("rejected")
    z_B = 3.0 * ((chosen.score_B - r_chosen_B) - (rejected.score_B - r_rejected_B))
    losses = []
    for z, certainty in zip(z_B, certainties, strict=True):
        s, p = 0.0, 0.5 if certainty is None else min(certainty, 0.99)
        if kind is DPOConfidence.SMOOTHING:
            s = 0.0 if certainty is None else 1 - certainty
        else:
            z = z - math.log(p / (1 - p))
        losses.append((1 - s) * torch.log1p(torch.exp(-z)) + s * torch.log1p(torch.exp(z)))
    assert chosen.supervised_B is not None
    return torch.stack(losses).mean() + MIX * chosen.supervised_B.mean()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
def test_every_schedule_gives_the_weighed_gradient(
    schedule: tuple[str, str], count: int, kind: DPOConfidence
) -> None:
    net = ToyNet()
    reference = ToyReference(net, existing=True)
    scorer = toy_pairs(net, count)
    known = CERTAINTIES[:count]
    wanted = torch.autograd.grad(written_out(scorer, reference, kind, known) * SCALE, net.trained())
    ordinary = torch.autograd.grad(
        written_out(scorer, reference, DPOConfidence.SMOOTHING, [None] * count), net.trained()
    )
    assert relative_error(list(wanted), [SCALE * one for one in ordinary]) > 1e-3, "the case must differ"
    execution.run(
        *schedule, scorer, reference, SIGMOID, weigh(ObjectiveOptions(3.0), kind, known),
        parameters=net.trained(), supervised_mix=MIX, loss_scale=SCALE,
    )  # fmt: skip
    assert relative_error(gradients(net), list(wanted)) < 1e-12
