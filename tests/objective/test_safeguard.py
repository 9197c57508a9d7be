"""The safeguard: its formula, what it promises to first order, and the same gradient in every schedule."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.objective import execution
from modules.objective.metrics import PairMetrics, averages_of
from modules.objective.preference import ObjectiveOptions, PairScores, get_preference_loss
from modules.objective.safeguard import rejected_share
from tests.objective.test_execution import SCHEDULES, gradients, relative_error
from tests.objective.toy import ToyNet, ToyReference, ToyScorer, toy_pairs

OPTIONS = ObjectiveOptions(beta=3.0, label_smoothing=0.1)
SIGMOID = get_preference_loss("SIGMOID")
SCALE, MIX = 0.37, 0.25


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_values_by_hand() -> None:
    chosen = rows([1.0, 0.0], [1.0, 0.0], [3.0, 4.0], [1.0, 1.0], [0.0, 0.0])
    rejected = rows([2.0, 7.0], [-2.0, 1.0], [0.5, 0.5], [0.0, 0.0], [1.0, 1.0])
    assert rejected_share(chosen, rejected, 0.0).tolist() == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert rejected_share(chosen, rejected, 0.2).tolist() == pytest.approx([0.4, 1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("mu", [-0.1, 1.0, float("nan")])
def test_mu_out_of_range(mu: float) -> None:
    with pytest.raises(ValueError, match="mu of the safeguard"):
        rejected_share(rows([1.0]), rows([1.0]), mu)


def test_sides_of_different_shapes() -> None:
    with pytest.raises(ValueError, match=r"\(B, D\) twice"):
        rejected_share(rows([1.0]), rows([1.0, 2.0]), 0.0)


numbers = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=4, max_size=4)


@given(numbers, numbers, st.sampled_from([0.0, 0.1, 0.2]))
def test_the_chosen_error_never_grows_to_first_order(
    chosen: list[float], rejected: list[float], mu: float
) -> None:
    """A step of the outputs towards the chosen and away from the rejected target keeps mu of the progress."""
    own, other = rows(chosen), rows(rejected)
    share = rejected_share(own, other, mu)
    assert bool(((share >= 0) & (share <= 1)).all())
    progress = float((own * (own - share[:, None] * other)).sum())
    assert progress >= mu * float(own.square().sum()) - 1e-9


@pytest.mark.parametrize("mu", [0.0, 0.2])
@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
@pytest.mark.parametrize("name", ["MAPO", "KTO"])
def test_losses_that_weigh_the_sides_differently_are_weakened_as_little_as_needed(
    name: str, schedule: tuple[str, str], mu: float
) -> None:
    """The output's own progress towards the chosen target is exactly the share of it that is kept."""
    options = {
        "MAPO": ObjectiveOptions(beta=0.5, mapo_weight=200.0),
        "KTO": ObjectiveOptions(beta=1.5, reference_point=0.3, class_weights=(0.2, 0.8)),
    }[name]
    net = ToyNet()
    reference, scorer = ToyReference(net, existing=True), correlated_pairs(net, 3)
    anchors = None
    if get_preference_loss(name).needs_reference:
        with torch.no_grad(), reference():
            anchors = (scorer("chosen").score_B, scorer("rejected").score_B)
    with torch.no_grad():
        own_BD, other_BD = scorer("chosen").error_BD, scorer("rejected").error_BD
    assert own_BD is not None and other_BD is not None
    scores = [scorer(side).score_B.detach().requires_grad_() for side in ("chosen", "rejected")]
    loss_B = get_preference_loss(name)(PairScores(*scores, *(anchors or ())), options).loss_B
    pull_B, push_B = (gradient.abs() for gradient in torch.autograd.grad(loss_B.sum(), scores))
    out = execution.run(
        *schedule, scorer, reference, get_preference_loss(name), options, parameters=net.trained(), safeguard_mu=mu
    )
    assert out.safeguard_B is not None and bool((out.safeguard_B < 1).any()), "the case must need the safeguard"
    alone_B = pull_B * own_BD.square().sum(1)
    kept_B = alone_B - out.safeguard_B * push_B * (own_BD * other_BD).sum(1)
    weakened_B = out.safeguard_B < 1
    assert torch.allclose(kept_B[weakened_B], mu * alone_B[weakened_B], atol=1e-12)
    assert bool((kept_B >= mu * alone_B - 1e-12).all())


def written_out(scorer: ToyScorer, reference: ToyReference, mu: float) -> torch.Tensor:
    """A loss whose autograd gradient is the safeguarded one, independent of the schedules."""
    with torch.no_grad(), reference():
        anchors = (scorer("chosen").score_B, scorer("rejected").score_B)
    chosen, rejected = scorer("chosen", True), scorer("rejected")
    with torch.no_grad():
        own = (scorer.net(scorer.chosen[0]) - scorer.chosen[1]).flatten(1)
        other = (scorer.net(scorer.rejected[0]) - scorer.rejected[1]).flatten(1)
        inner = (own * other).sum(1)
        share = torch.where(inner > 0, ((1 - mu) * own.square().sum(1) / inner).clamp(0, 1), 1.0)
        assert (share < 1).any(), "the case must need the safeguard"
    held = rejected.score_B.detach() + share * (rejected.score_B - rejected.score_B.detach())
    out = SIGMOID(PairScores(chosen.score_B, held, *anchors), OPTIONS)
    assert chosen.supervised_B is not None
    return out.loss_B.mean() + MIX * chosen.supervised_B.mean()


def correlated_pairs(net: ToyNet, count: int) -> ToyScorer:
    """Pairs whose errors point the same way, as those of two images of one prompt with shared noise do."""
    scorer = toy_pairs(net, count)
    inputs, targets = scorer.chosen
    scorer.rejected = (inputs + 0.1 * scorer.rejected[0], targets - 0.2 * scorer.rejected[1])
    scorer.errors = True
    return scorer


@pytest.mark.parametrize("mu", [0.0, 0.2])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
def test_every_schedule_gives_the_safeguarded_gradient(
    schedule: tuple[str, str], count: int, mu: float
) -> None:
    net = ToyNet()
    reference = ToyReference(net, existing=True)
    scorer = correlated_pairs(net, count)
    wanted = torch.autograd.grad(written_out(scorer, reference, mu) * SCALE, net.trained())
    out = execution.run(
        *schedule, scorer, reference, SIGMOID, OPTIONS, parameters=net.trained(), supervised_mix=MIX,
        loss_scale=SCALE, safeguard_mu=mu,
    )  # fmt: skip
    assert relative_error(gradients(net), list(wanted)) < 1e-12
    assert out.safeguard_B is not None and out.safeguard_B.shape == (count,)
    metrics = PairMetrics()
    metrics.add(out)
    assert averages_of(metrics.sums())["safeguard"] == pytest.approx(float(out.safeguard_B.mean()))


def test_a_scorer_without_errors_is_refused() -> None:
    net = ToyNet()
    scorer = toy_pairs(net, 2)
    with pytest.raises(RuntimeError, match="gave no errors"):
        execution.run(
            "FULL_CONCURRENT", "AUTO", scorer, ToyReference(net, True), SIGMOID, OPTIONS,
            parameters=net.trained(), safeguard_mu=0.0,
        )  # fmt: skip
