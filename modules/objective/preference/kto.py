"""KTO: every image is a like or a dislike on its own, compared with the average gain of the batch."""

from __future__ import annotations

import torch

from modules.objective.preference.base import LossOut, ObjectiveOptions, PairScores, preference_loss


@preference_loss("KTO", single_images=True)
def kto(scores: PairScores, options: ObjectiveOptions) -> LossOut:
    """``w_l sigmoid(z0 - beta cw) + w_d sigmoid(beta cl - z0)``, (B,), with the optimizer step's reference
    point z0.

    A side without an image adds nothing. ``reference_point`` computes z0, ``class_weights`` the weights. The
    returned logits are beta times the margin, which is meaningless if a side is missing. Sources: Ethayarajh
    et al. 2024 (arXiv 2402.01306) and, for diffusion, Li et al. 2024 (arXiv 2404.04465).
    """
    chosen_B, rejected_B = scores.rewards()
    point, (like, dislike) = options.reference_point, options.class_weights
    liked_B = like * torch.sigmoid(point - options.beta * chosen_B)
    disliked_B = dislike * torch.sigmoid(options.beta * rejected_B - point)
    if options.sides_B2 is not None:
        there_B2 = options.sides_B2.to(chosen_B)
        liked_B, disliked_B = liked_B * there_B2[:, 0], disliked_B * there_B2[:, 1]
    loss_B = liked_B + disliked_B
    margin_B = chosen_B - rejected_B
    return LossOut(loss_B, loss_B, options.beta * margin_B, margin_B, chosen_B, rejected_B)


def class_weights(units: float, likes: float, dislikes: float) -> tuple[float, float]:
    """Weights of a like and of a dislike, with which a mean over units is half the mean over all likes plus
    half the mean over all dislikes, however many there are of each.

    Args:
        units: number of pairs and single images.
        likes, dislikes: numbers of images; without any of one kind, the other counts in full.
    """
    share = 1.0 / max(1, (likes > 0) + (dislikes > 0))
    return (share * units / likes if likes else 0.0), (share * units / dislikes if dislikes else 0.0)


def reference_point(beta: float, total: float, images: float) -> float:
    """z0: beta times the mean reward of the images of an optimizer step, at least 0; a constant of the loss.

    Args:
        total: sum of their beta-free rewards.
        images: number of images.
    """
    return max(0.0, beta * total / images) if images else 0.0
