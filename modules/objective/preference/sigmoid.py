"""Diffusion-DPO: the logistic loss on the scaled margin."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from modules.objective.preference.base import LossOut, ObjectiveOptions, PairScores, preference_loss


@preference_loss("SIGMOID", label_smoothing=True)
def sigmoid(scores: PairScores, options: ObjectiveOptions) -> LossOut:
    """``-(1-s) logsigmoid(z - g) - s logsigmoid(g - z)`` with ``z = beta (cw - cl)``.

    ``s`` is the label smoothing and each pair's own probability of a wrong label, as two independent flips:
    ``s0 (1 - s1) + s1 (1 - s0)``; ``g`` is the logit that a pair should exceed.

    Returns per-pair losses in nats, (B,); beta = 0 gives log 2 exactly. Sources: Rafailov et al. 2023
    (arXiv 2305.18290), Wallace et al. 2023 (arXiv 2311.12908; its code's beta is twice this one), label
    smoothing as in Mitchell 2023, "A note on DPO with noisy preferences".
    """
    chosen_B, rejected_B = scores.rewards()
    margin_B = chosen_B - rejected_B
    logits_B = options.beta * margin_B
    raw_B = -logsigmoid(logits_B)
    if not options.weighs_labels:
        return LossOut(raw_B, raw_B, logits_B, margin_B, chosen_B, rejected_B)
    asked_B = logits_B if options.gap_B is None else logits_B - options.gap_B.to(logits_B)
    smoothing: float | Tensor = options.label_smoothing
    if options.flip_B is not None:
        flip_B = options.flip_B.to(logits_B)
        smoothing = smoothing * (1.0 - flip_B) + flip_B * (1.0 - smoothing)
    loss_B = -(1.0 - smoothing) * logsigmoid(asked_B) - smoothing * logsigmoid(-asked_B)
    return LossOut(loss_B, raw_B, logits_B, margin_B, chosen_B, rejected_B)
