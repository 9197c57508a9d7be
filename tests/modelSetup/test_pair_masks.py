"""Scores of pairs of which a part counts, and the anchor that holds the rest."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.model.batch import Conditioning, ImageBatch, NoiseDraw, PairBatch
from modules.model.noising.schedule import Prediction
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from modules.objective import execution
from modules.objective.preference import ObjectiveOptions, PairScores, get_preference_loss

SHAPE = (2, 4, 6, 8)
SIGMOID = get_preference_loss("SIGMOID")
OPTIONS = ObjectiveOptions(beta=2.0)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or SHAPE), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Predictions:
    """A setup whose model predicts the tensors it is made of; ``reference`` exchanges them."""

    def __init__(self) -> None:
        self.sides = [normal(1).requires_grad_(), normal(2).requires_grad_()]
        self.known = [normal(3), normal(4)]
        self.targets = [normal(5), normal(6)]
        self.frozen = False

    def condition(self, model: Any, batch: ImageBatch) -> Conditioning:
        return Conditioning({"number": torch.arange(len(batch))})

    def predict(self, model: Any, latents: torch.Tensor, cond: Any, draw: Any, size: Any) -> Prediction:
        shown = self.known if self.frozen else self.sides
        # latents say which side and which pair an image is
        picks = [(int(code) // 10, int(code) % 10) for code in latents[:, 0, 0, 0]]
        predicted = torch.stack([shown[side][pair] for side, pair in picks])
        return Prediction(predicted, torch.stack([self.targets[side][pair] for side, pair in picks]))

    @contextmanager
    def reference(self) -> Any:
        self.frozen = True
        try:
            yield
        finally:
            self.frozen = False


def pair_of(mask: torch.Tensor | None) -> PairBatch:
    def batch(side: int) -> ImageBatch:
        codes = torch.tensor([10.0 * side, 10.0 * side + 1]).view(2, 1, 1, 1).expand(SHAPE)
        return ImageBatch(codes, None, ["", ""], ["a", "b"], [0, 0], (48, 64), torch.ones(2))

    return PairBatch(["a", "b"], batch(0), batch(1), mask)


def scorer(setup: Predictions, mask: torch.Tensor | None, **more: Any) -> ModelPairScorer:
    draw = NoiseDraw(torch.zeros(2, dtype=torch.int64), torch.zeros(SHAPE))
    model = SimpleNamespace(mode="no_dropout", trains_text=False)
    return ModelPairScorer(setup, model, pair_of(mask), (draw, draw), **more)  # type: ignore[arg-type]


def some_mask() -> torch.Tensor:
    mask = torch.rand(2, 1, 6, 8, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    mask[..., 5:] = 0.0
    return mask


@pytest.mark.parametrize("masked_mean", [True, False])
@pytest.mark.parametrize("side", ["chosen", "rejected", "both"])
def test_masks_of_ones_change_no_bit(side: Any, masked_mean: bool) -> None:
    setup, ones = Predictions(), torch.ones(2, 1, 6, 8, dtype=torch.float64)
    plain = scorer(setup, None)(side).score_B
    assert torch.equal(plain, scorer(setup, ones, masked_mean=masked_mean)(side).score_B)


def test_scores_by_hand() -> None:
    setup, mask = Predictions(), some_mask()
    for masked_mean in (True, False):
        made = scorer(setup, mask, masked_mean=masked_mean)("both").score_B
        for number in range(4):
            side, pair = divmod(number, 2)
            error = (setup.sides[side][pair] - setup.targets[side][pair]).square()
            whole = (error * mask[pair]).sum()
            wanted = -whole / (4 * mask[pair].sum()) if masked_mean else -whole / (4 * 6 * 8)
            assert float(made[number]) == pytest.approx(wanted.item(), rel=1e-12)


SCHEDULES = [
    ("FULL_CONCURRENT", "AUTO"), ("POLICY_CONCURRENT", "AUTO"), ("SEQUENTIAL", "THREE_FORWARD"),
    ("SEQUENTIAL", "GRAD_STASH"),
]  # fmt: skip


def trained(
    schedule: tuple[str, str], mask: torch.Tensor | None, anchor: float, **more: Any
) -> tuple[Any, Any]:
    setup = Predictions()
    made = scorer(setup, mask, predictions=anchor > 0, **more)
    out = execution.run(
        *schedule, made, setup.reference, SIGMOID, OPTIONS, parameters=setup.sides, anchor=anchor,
        safeguard_mu=0.1 if made.errors else None,
    )  # fmt: skip
    return setup, out


@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
def test_nothing_outside_a_mask_is_learned_without_an_anchor(schedule: tuple[str, str]) -> None:
    setup, _ = trained(schedule, some_mask(), 0.0)
    for side in setup.sides:
        assert (side.grad[..., 5:] == 0).all() and (side.grad[..., :5] != 0).all()


@pytest.mark.parametrize("schedule", SCHEDULES, ids="-".join)
def test_the_anchor_pulls_what_lies_outside_to_the_reference(schedule: tuple[str, str]) -> None:
    """The gradient there is 2 a (p - p_ref) / N, with N numbers in both sides together, and the loss says so."""
    weight = 3.0
    (free, without), (setup, out) = (
        trained(schedule, some_mask(), 0.0),
        trained(schedule, some_mask(), weight),
    )
    count = 2 * setup.sides[0].numel()
    drift = 0.0
    for side, known, other in zip(setup.sides, setup.known, free.sides, strict=True):
        wanted = 2 * weight * (side.detach() - known) / count
        assert torch.allclose(side.grad[..., 5:], wanted[..., 5:], rtol=1e-12, atol=0)
        assert torch.allclose(side.grad, other.grad + wanted, rtol=1e-9, atol=1e-12)
        drift += float((side.detach() - known).square().sum()) / count
    assert float(out.loss) == pytest.approx(float(without.loss) + weight * drift, rel=1e-9)


def test_every_schedule_gives_the_gradient_of_the_loss_written_out() -> None:
    setup, mask = Predictions(), some_mask()
    made = scorer(setup, mask)
    with torch.no_grad(), setup.reference():
        anchors = (made("chosen").score_B, made("rejected").score_B)
    loss_B = SIGMOID(PairScores(made("chosen").score_B, made("rejected").score_B, *anchors), OPTIONS).loss_B
    wanted = torch.autograd.grad(loss_B.mean(), setup.sides)
    for schedule in SCHEDULES:
        other, _ = trained(schedule, mask, 0.0)
        for side, gradient in zip(other.sides, wanted, strict=True):
            assert torch.allclose(side.grad, gradient, rtol=1e-12, atol=1e-15), schedule


def test_the_safeguard_sees_what_the_score_sees() -> None:
    setup, mask = Predictions(), some_mask()
    error_BD = scorer(setup, mask, errors=True)("chosen").error_BD
    assert error_BD is not None
    wanted = ((setup.sides[0] - setup.targets[0]) * mask).detach().flatten(1)
    assert torch.equal(error_BD, wanted)


def test_an_anchor_without_predictions_is_an_error() -> None:
    setup = Predictions()
    with pytest.raises(RuntimeError, match="predictions"):
        execution.run(
            "FULL_CONCURRENT", "AUTO", scorer(setup, None), setup.reference, SIGMOID, OPTIONS,
            parameters=setup.sides, anchor=1.0,
        )  # fmt: skip
