"""Optimizer steps of AWM, the supervised loss weighted by advantages."""

from __future__ import annotations

from modules.objective.policy_gradient import ImageOptions
from modules.objective.policy_gradient.awm import AWMOptions
from modules.trainer.online.steps.images import ImageStep
from modules.trainer.online.steps.modes import STEPS


@STEPS.register("AWM")
class AWMStep(ImageStep):
    """Advantage weighted matching (arXiv 2509.25050)."""

    def options(self) -> ImageOptions:
        config = self.config
        return AWMOptions(
            clip_low=config.rlhf_clip_range_low,
            clip_high=config.rlhf_clip_range_high,
            kl_beta=config.rlhf_kl_beta,
            norm_guard=config.rlhf_norm_guard,
        )
