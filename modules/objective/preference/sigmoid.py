"""Diffusion-DPO: the logistic loss on the scaled margin."""

from __future__ import annotations

from torch.nn.functional import logsigmoid

from modules.objective.preference.base import LossOut, ObjectiveOptions, PairScores, preference_loss


@preference_loss("SIGMOID", label_smoothing=True)
def sigmoid(scores: PairScores, options: ObjectiveOptions) -> LossOut:
    """``-(1-s) logsigmoid(z) - s logsigmoid(-z)`` with ``z = beta (cw - cl)``.

    Returns per-pair losses in nats, (B,); beta = 0 gives log 2 exactly. Sources: Rafailov et al. 2023
    (arXiv 2305.18290), Wallace et al. 2023 (arXiv 2311.12908; its code's beta is twice this one), label
    smoothing as in Mitchell 2023, "A note on DPO with noisy preferences".
    """
    chosen_B, rejected_B = scores.rewards()
    margin_B = chosen_B - rejected_B
    logits_B = options.beta * margin_B
    raw_B = -logsigmoid(logits_B)
    smoothing = options.label_smoothing
    loss_B = raw_B if smoothing == 0.0 else (1.0 - smoothing) * raw_B - smoothing * logsigmoid(-logits_B)
    return LossOut(loss_B, raw_B, logits_B, margin_B, chosen_B, rejected_B)
