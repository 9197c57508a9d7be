"""The safeguard of the chosen image: reduces the rejected side's gradient where it would undo the chosen
side's.

Lowering the score of the rejected image also lowers that of the chosen one if their errors point the same
way. The rejected side's gradient is therefore multiplied by the largest share, at most 1, that keeps the
chosen image's own error from growing to first order (SDPO, arXiv 2511.03317). In DPO the loss weighs both sides
alike; where it does not (KTO, MaPO), its weights take part.
"""

from __future__ import annotations

import math

import torch

from modules.objective.scores import ScoreGradient


def rejected_share(
    chosen_BD: torch.Tensor, rejected_BD: torch.Tensor, mu: float, weights: ScoreGradient | None = None
) -> torch.Tensor:
    """``clamp((1 - mu) q |g_w|^2 / <g_l, g_w>, 0, 1)`` where ``<g_l, g_w> > 0``, else 1; (B,), without a graph.

    Args:
        chosen_BD: g_w, prediction minus target of the chosen images, flattened, (B, D).
        rejected_BD: g_l, likewise of the rejected images.
        mu: share of the chosen side's own progress that is always kept, 0 <= mu < 1.
        weights: the loss's weights of both sides; q is that of the chosen over that of the rejected one, without
            signs. ``None`` for equal ones.

    Raises:
        ValueError: the sides differ in shape; mu is out of range.
    """
    if chosen_BD.shape != rejected_BD.shape or chosen_BD.dim() != 2:
        raise ValueError(
            f"the errors of a pair have shapes {tuple(chosen_BD.shape)} and {tuple(rejected_BD.shape)}; "
            "expected (B, D) twice"
        )
    if not (math.isfinite(mu) and 0.0 <= mu < 1.0):
        raise ValueError(f"mu of the safeguard is {mu!r}; it must be at least 0 and below 1")
    kind = torch.float64 if chosen_BD.dtype == torch.float64 else torch.float32
    chosen_BD, rejected_BD = chosen_BD.detach().to(kind), rejected_BD.detach().to(kind)
    own_B = chosen_BD.square().sum(1)
    shared_B = (chosen_BD * rejected_BD).sum(1)
    against_B = shared_B > 0
    if weights is not None:
        pull_B, push_B = weights.chosen_B.abs(), weights.rejected_B.abs()
        own_B = own_B * torch.where(push_B > 0, pull_B / push_B, torch.ones_like(push_B)).to(own_B)
    share_B = (1.0 - mu) * own_B / torch.where(against_B, shared_B, torch.ones_like(shared_B))
    return torch.where(against_B, share_B.clamp(0.0, 1.0), torch.ones_like(share_B))
