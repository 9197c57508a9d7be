"""Optimizer steps of decoupled modes whose loss treats each image separately, such as NFT."""

from __future__ import annotations

import torch

from modules.model.noising.schedule import Schedule
from modules.objective.policy_gradient import ImageOptions, ImageTerms, get_online_loss
from modules.trainer.online import settings as online_settings
from modules.trainer.online.steps.decoupled import DecoupledStep, NoisedBatch
from modules.trainer.online.steps.modes import STEPS
from modules.trainer.steps import Backward


@STEPS.register("decoupled")
class ImageStep(DecoupledStep):
    """Applies the mode's loss ``(ImageTerms, options, images)`` to each image and timestep."""

    def options(self) -> ImageOptions:
        """The options passed to the loss."""
        return online_settings.image_options(self.config)

    def _run(self, backward: Backward) -> None:
        loss_of = get_online_loss(self.config.rlhf_mode)
        timestep_T = self.timesteps()
        images = self.group.total * len(timestep_T)
        options = self.options()
        for index, timestep in enumerate(timestep_T):
            for batch in self.group.batches():
                out = loss_of(
                    self._terms(NoisedBatch(self, batch, index, timestep), options), options, images
                )
                backward(out.loss)
                self._results.add(out)

    def _terms(self, noised: NoisedBatch, options: ImageOptions) -> ImageTerms:
        old_BChw = None if self.old_policy is None else noised.old()
        frozen_BChw = noised.reference() if options.compares else None
        # last, because other weights must not be swapped in between this pass and its backward pass
        made = noised.policy()
        factor_B = x0_factor(self.loader.model.schedule, noised.timestep_B).to(made.predicted.device)
        return ImageTerms(made.predicted, made.target, noised.adv_B, factor_B, old_BChw, frozen_BChw)


@STEPS.register("NFT")
class NFTStep(ImageStep):
    """Good images attract the policy, bad ones attract its mirror image about the old policy (arXiv 2509.16117)."""

    def options(self) -> ImageOptions:
        return online_settings.nft_options(self.config)


@STEPS.register("AWM")
class AWMStep(ImageStep):
    """Advantage weighted matching (arXiv 2509.25050): the supervised loss weighted by advantages."""

    def options(self) -> ImageOptions:
        return online_settings.awm_options(self.config)


def x0_factor(schedule: Schedule, timestep_B: torch.Tensor) -> torch.Tensor:
    """Return how much the finished image changes with the prediction, (B,) float32."""
    signal_B, noise_B = schedule.coefficients(timestep_B)
    factor_B = noise_B / signal_B if schedule.prediction == "epsilon" else noise_B
    return factor_B.float()
