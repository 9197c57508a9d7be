"""IPO: a squared loss that aims at a margin of 1 / (2 tau) and no more."""

from __future__ import annotations

from modules.objective.preference.base import LossOut, ObjectiveOptions, PairScores, preference_loss


@preference_loss("IPO", strength="rlhf_dpo_ipo_tau")
def ipo(scores: PairScores, options: ObjectiveOptions) -> LossOut:
    """``(cw - cl - 1/(2 tau))^2``, (B,), in squared score units; beta takes no part.

    The logits returned are the margin in units of its target, so 1 means the target is met.
    Source: Azar et al. 2023 (arXiv 2310.12036).
    """
    chosen_B, rejected_B = scores.rewards()
    margin_B = chosen_B - rejected_B
    target = 1.0 / (2.0 * options.ipo_tau)
    loss_B = (margin_B - target) ** 2
    return LossOut(loss_B, loss_B, margin_B / target, margin_B, chosen_B, rejected_B)
