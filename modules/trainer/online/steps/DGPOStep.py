"""Optimizer steps of DGPO, whose loss weights each image by a quantity of its whole prompt group."""

from __future__ import annotations

import torch

from modules.objective.gradient_stash import stash_gradients
from modules.objective.policy_gradient import PolicyOut
from modules.objective.policy_gradient.dgpo import (
    DenoisingTerms,
    GroupScores,
    dgpo,
)
from modules.objective.supervised import mse_per_sample
from modules.trainer.online import settings as online_settings
from modules.trainer.online.steps.decoupled import DecoupledStep, NoisedBatch, joined
from modules.trainer.online.steps.modes import STEPS
from modules.trainer.steps import Backward
from modules.util.enum.choices import GroupStrategy


def _with_weight(out: PolicyOut, weight: torch.Tensor, share: float) -> PolicyOut:
    """The metrics of images whose group weight became known later; ``share`` is their share of the step."""
    shares = {
        name: value * weight if name in ("dgpo_loss", "loss") else value for name, value in out.shares.items()
    }
    return PolicyOut(out.loss, {}, {**shares, "group_weight": weight * share}, out.maxima)


@STEPS.register("DGPO")
class DGPOStep(DecoupledStep):
    """Direct group preference optimization (arXiv 2510.08425), exact for any size of the micro-batches."""

    def _run(self, backward: Backward) -> None:
        self._options = online_settings.dgpo_options(self.config)
        timestep_T = self.timesteps()
        self._images = self.group.total * len(timestep_T)
        strategy = online_settings.dgpo_strategy(self.config, self.loader.sampler)
        run = {
            GroupStrategy.EXACT: self._exact,
            GroupStrategy.STASH: self._stash,
            GroupStrategy.TWO_PASS: self._two_passes,
        }[strategy]
        for index, timestep in enumerate(timestep_T):
            run(index, timestep, backward)

    @property
    def _spread(self) -> bool:
        """True if images of a group are in several processes."""
        return self.processes.world_size > 1 and not online_settings.groups_are_local(self.loader.sampler)

    # -- what the loss needs ----------------------------------------------------------------------------------

    def _fixed(self, noised: NoisedBatch) -> dict[str, torch.Tensor | None]:
        """Errors of the other policies, and the reference's prediction if there is a KL term."""
        options, config = self._options, self.config
        old = noised.error(noised.old()) if options.needs_old else None
        frozen = noised.reference(config.rlhf_dgpo_kl_cfg) if options.needs_frozen_reference else None
        reference = None if frozen is None else noised.error(frozen)
        return {"old": old, "reference": reference, "frozen": frozen if options.kl_beta else None}

    def _terms(self, noised: NoisedBatch, fixed: dict[str, torch.Tensor | None]) -> DenoisingTerms:
        made = noised.policy()
        frozen = fixed["frozen"]
        return DenoisingTerms(
            dsm_B=noised.error(made.predicted),
            adv_B=noised.adv_B,
            group_B=noised.group_B,
            reference_B=fixed["reference"],
            old_B=fixed["old"],
            kl_B=None if frozen is None else mse_per_sample(made.predicted, frozen),
        )

    # -- strategies -------------------------------------------------------------------------------------------

    def _exact(self, index: int, timestep: torch.Tensor, backward: Backward) -> None:
        """Compute whole groups in a micro-batch, over all processes, in one pass."""
        for batch in self.group.online:
            if batch is None:
                self._sit_out()
                continue
            noised = NoisedBatch(self, batch, index, timestep)
            terms = self._terms(noised, self._fixed(noised))
            out = dgpo(
                terms,
                self._options,
                self._images,
                self.config.rlhf_group_size,
                reduce=self.reduce if self._spread else None,
                slots=self.group.slots if self._spread else None,
            )
            backward(out.loss)
            self._results.add(out)

    def _two_passes(self, index: int, timestep: torch.Tensor, backward: Backward) -> None:
        """Compute the weights in a pass without gradients, then the gradients."""
        scores = GroupScores(self._options, self.config.rlhf_group_size)
        all_noised: list[tuple[NoisedBatch, dict[str, torch.Tensor | None]]] = []
        for batch in self.group.batches():
            noised = NoisedBatch(self, batch, index, timestep)
            fixed = self._fixed(noised)
            with torch.no_grad():
                scores.add(self._terms(noised, fixed))
            # kept on the device: one number per image and, with a KL term, a prediction
            all_noised.append((noised, fixed))
        if not all_noised:
            self._sit_out()
            return
        weights = scores.weights(
            self.reduce if self._spread else None, self.group.slots if self._spread else None
        )
        for noised, fixed in all_noised:
            terms = self._terms(noised, fixed)
            out = dgpo(terms, self._options, self._images, self.config.rlhf_group_size, weights)
            backward(out.loss)
            self._results.add(out)

    def _stash(self, index: int, timestep: torch.Tensor, backward: Backward) -> None:
        """Compute each group's gradients without its weight, and multiply them by the weight once it is known."""
        batches = self.group.batches()
        members: dict[int, list[tuple[int, int]]] = {}
        for b, batch in enumerate(batches):
            for i, group in enumerate(batch.rollouts.group_N.tolist()):
                members.setdefault(group, []).append((b, i))
        size = self.config.batch_size
        for images in members.values():
            scores = GroupScores(self._options, self.config.rlhf_group_size)
            outs: list[tuple[PolicyOut, int]] = []
            with stash_gradients(self.parameters) as stash:
                for start in range(0, len(images), size):
                    noised = NoisedBatch(self, joined(batches, images[start : start + size]), index, timestep)
                    terms = self._terms(noised, self._fixed(noised))
                    scores.add(terms)
                    out = dgpo(terms, self._options, self._images, self.config.rlhf_group_size, "stash")
                    backward(out.loss)
                    outs.append((out, len(terms.dsm_B)))
                weight = scores.weights().weight_G
                stash.merge(weight)
            for out, count in outs:
                self._results.add(_with_weight(out, weight, count / self._images))

    def _sit_out(self) -> None:
        """Take part in the sum over the processes without an image."""
        if self._spread:
            self.processes.sum(torch.zeros(2, self.group.slots))
