"""MaPO: learns from pairs without a reference, held only by the error of the chosen image."""

from __future__ import annotations

from torch.nn.functional import logsigmoid

from modules.objective.preference.base import LossOut, ObjectiveOptions, PairScores, preference_loss


# without a reference, the accuracy says which image is easier to denoise, whatever was learned
@preference_loss("MAPO", needs_reference=False, accuracy_tells=False)
def mapo(scores: PairScores, options: ObjectiveOptions) -> LossOut:
    """``-S_w - c logsigmoid(beta (S_w - S_l))``, (B,), with the policy's scores S (minus the mean squared errors).

    The rewards returned are the bare scores, and the margin is their difference. Source: Hong et al. 2024,
    margin-aware preference optimisation (arXiv 2406.06424), with differences of scores for its log-odds.
    """
    chosen_B, rejected_B = scores.policy_chosen, scores.policy_rejected
    margin_B = chosen_B - rejected_B
    logits_B = options.beta * margin_B
    loss_B = -chosen_B - options.mapo_weight * logsigmoid(logits_B)
    return LossOut(loss_B, loss_B, logits_B, margin_B, chosen_B, rejected_B)
