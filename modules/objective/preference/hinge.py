"""The hinge loss on the scaled margin."""

from __future__ import annotations

from torch.nn.functional import relu

from modules.objective.preference.base import LossOut, ObjectiveOptions, PairScores, preference_loss


@preference_loss("HINGE")
def hinge(scores: PairScores, options: ObjectiveOptions) -> LossOut:
    """``relu(1 - z)`` with ``z = beta (cw - cl)``, (B,). Pairs with a margin of at least 1/beta have no
    gradient.

    Source: Zhao et al. 2023, SLiC-HF (arXiv 2305.10425), on rewards relative to the reference.
    """
    chosen_B, rejected_B = scores.rewards()
    margin_B = chosen_B - rejected_B
    logits_B = options.beta * margin_B
    loss_B = relu(1.0 - logits_B)
    return LossOut(loss_B, loss_B, logits_B, margin_B, chosen_B, rejected_B)
