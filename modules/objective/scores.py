"""The types between a model that scores pairs and the schedules that train on the scores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch

from modules.objective.preference import LossOut, ObjectiveOptions, PairScores, PreferenceLoss

Side = Literal["chosen", "rejected", "both"]
ReferenceFactory = Callable[[], AbstractContextManager[object]]
ScorePair = tuple[torch.Tensor, torch.Tensor]
Backward = Callable[[torch.Tensor], None]


@dataclass(frozen=True)
class ScoreOut:
    """Scores of one forward pass.

    Args:
        score_B: minus the plain per-sample MSE; (B,) for one side, (2B,) for ``"both"`` with the chosen ones
            first.
        supervised_B: the ordinary training loss of the chosen images, (B,), from the same forward pass;
            ``None`` unless requested.
        error_BD: prediction minus target of every image of ``score_B``, flattened, without a graph; ``None``
            from scorers that were not made to give it.
        norm_B: L2 norm of the prediction of every image of ``score_B``, with the graph; ``None`` likewise.
        predicted_BD: the predictions of those images, flattened, with the graph; ``None`` likewise.
    """

    score_B: torch.Tensor
    supervised_B: torch.Tensor | None = None
    error_BD: torch.Tensor | None = None
    norm_B: torch.Tensor | None = None
    predicted_BD: torch.Tensor | None = None


class ReferenceOut(NamedTuple):
    """Reference scores of B pairs: (chosen, rejected), each (B,), detached.

    ``norms`` are the L2 norms of its predictions, ``predictions`` the predictions themselves, each (B, D);
    both are ``None`` if the scorer does not return them.
    """

    scores: ScorePair
    norms: ScorePair | None
    predictions: ScorePair | None = None


class Excess(NamedTuple):
    """A side's terms of the loss besides its score, each a scalar; ``None`` without that guard.

    Args:
        norm: excess of the norms of its predictions over the reference's.
        drift: squared distance of its predictions to the reference's.
    """

    norm: torch.Tensor | None = None
    drift: torch.Tensor | None = None


class PairScorer(Protocol):
    """Scores the B pairs of one micro-batch with the current weights.

    Every call with the same side must give the same numbers (same draw, no dropout) and must run in the
    gradient mode it is called in. Mixed precision belongs inside the call, because casts cached by autocast
    would otherwise carry the policy's weights into the reference pass.
    """

    def __len__(self) -> int:
        """B, the number of pairs."""
        ...

    def __call__(self, side: Side, with_supervised: bool = False) -> ScoreOut:
        """Score one side or both; ``with_supervised`` adds the training loss of the chosen images."""
        ...

    def select(self, start: int, stop: int) -> PairScorer:
        """A scorer of the pairs ``start`` to ``stop - 1`` with the draws they have here."""
        ...


@dataclass(frozen=True)
class PairOut:
    """The result of one micro-batch of pairs. Everything is detached; tensors have shape (B,) unless noted.

    ``loss`` (scalar) is the total: smoothed preference loss plus the supervised share. ``raw_loss_B`` is the
    preference loss without smoothing. ``supervised_B`` is the unweighted supervised loss, ``None`` without a
    supervised share. Rewards and margin are free of beta. ``accuracy_B`` is 1 where chosen beats rejected
    strictly. ``safeguard_B`` is the share of the rejected side's gradient that the safeguard let through,
    ``None`` without a safeguard. ``sides_B2`` is which sides have an image, ``None`` for all; the numbers of
    a side without one mean nothing.
    """

    loss: torch.Tensor
    raw_loss_B: torch.Tensor
    supervised_B: torch.Tensor | None
    chosen_reward_B: torch.Tensor
    rejected_reward_B: torch.Tensor
    margin_B: torch.Tensor
    accuracy_B: torch.Tensor
    safeguard_B: torch.Tensor | None = None
    sides_B2: torch.Tensor | None = None

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return self.margin_B.shape[0]

    @property
    def raw_loss(self) -> torch.Tensor:
        """Mean over the pairs, scalar."""
        return self.raw_loss_B.mean()

    @property
    def supervised_loss(self) -> torch.Tensor | None:
        """Mean of the supervised losses, a scalar; ``None`` without a supervised part."""
        return None if self.supervised_B is None else self.supervised_B.mean()

    @property
    def accuracy(self) -> torch.Tensor:
        """Share of the pairs ranked as the person chose, a scalar."""
        return self.accuracy_B.mean()


@dataclass(frozen=True)
class ScoreGradient:
    """dL/dS of the (scaled) preference loss: one coefficient per pair and side, each (B,)."""

    chosen_B: torch.Tensor
    rejected_B: torch.Tensor


def detached_float32(score: torch.Tensor) -> torch.Tensor:
    """Convert to at least float32, keeping float64, and detach."""
    score = score.detach()
    return score if score.dtype == torch.float64 else score.float()


def split_both(score_2B: torch.Tensor) -> ScorePair:
    """(2B,) -> chosen (B,) and rejected (B,).

    Raises:
        RuntimeError: the shape is not (2B,).
    """
    if score_2B.dim() != 1 or score_2B.shape[0] % 2:
        raise RuntimeError(
            f"scoring both sides gave shape {tuple(score_2B.shape)}; expected (2B,) with the chosen first"
        )
    chosen_B, rejected_B = score_2B.chunk(2)
    return chosen_B, rejected_B


def differentiate(
    objective: PreferenceLoss,
    options: ObjectiveOptions,
    policy: ScorePair,
    reference: ScorePair | None,
    scale: float,
) -> tuple[LossOut, ScoreGradient]:
    """The loss and its derivative with respect to the policy scores, detached from the model's graph.

    Args:
        policy: chosen and rejected scores, each (B,); only their values are used.
        reference: likewise, or ``None``.
        scale: factor on the mean over the pairs.

    Raises:
        RuntimeError: the objective returned another number of losses than of pairs.
    """
    with torch.enable_grad():
        chosen_B = detached_float32(policy[0]).clone().requires_grad_()
        rejected_B = detached_float32(policy[1]).clone().requires_grad_()
        anchors = (None, None) if reference is None else reference
        out = objective(PairScores(chosen_B, rejected_B, *anchors), options)
        if out.loss_B.shape != chosen_B.shape:
            raise RuntimeError(
                f"the {objective.key} objective gave {tuple(out.loss_B.shape)}, expected one loss per pair"
            )
        # A loss that is flat here (hinge beyond its margin, beta = 0) may not depend on the scores at all.
        d_chosen_B, d_rejected_B = torch.autograd.grad(
            out.loss_B.mean() * scale, (chosen_B, rejected_B), materialize_grads=True
        )
    return out, ScoreGradient(d_chosen_B, d_rejected_B)


def summarise(
    out: LossOut,
    supervised_B: torch.Tensor | None,
    supervised_mix: float,
    safeguard_B: torch.Tensor | None = None,
    sides_B2: torch.Tensor | None = None,
) -> PairOut:
    """Detach everything and compute the total."""
    loss = out.loss_B.detach().mean()
    if supervised_B is not None:
        supervised_B = detached_float32(supervised_B)
        loss = loss + supervised_mix * supervised_B.mean()
    chosen_B, rejected_B = out.chosen_reward_B.detach(), out.rejected_reward_B.detach()
    return PairOut(
        loss=loss,
        raw_loss_B=out.raw_loss_B.detach(),
        supervised_B=supervised_B,
        chosen_reward_B=chosen_B,
        rejected_reward_B=rejected_B,
        margin_B=out.margin_B.detach(),
        accuracy_B=(chosen_B > rejected_B).to(chosen_B.dtype),
        safeguard_B=safeguard_B,
        sides_B2=sides_B2,
    )
