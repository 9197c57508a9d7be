"""Optimizer steps of online DPO, on pairs formed from a prompt's own images."""

from __future__ import annotations

import torch

from modules.objective.policy_gradient import PolicyOut
from modules.objective.policy_gradient.online_dpo import RankedPairs, online_dpo, rank_pairs
from modules.objective.preference import ObjectiveOptions
from modules.trainer.online.batch import OnlineBatch
from modules.trainer.online.steps.decoupled import DecoupledStep, NoisedBatch, joined
from modules.trainer.online.steps.modes import STEPS
from modules.trainer.steps import Backward


@STEPS.register("ONLINE_DPO")
class OnlinePairStep(DecoupledStep):
    """Compares the better with the worse images of each prompt, as DPO does with pairs from disk.

    The weight of each image is computed in a pass without gradients. The second pass then processes the
    images in micro-batches of any size.
    """

    def _run(self, backward: Backward) -> None:
        batches = self.group.batches()
        pairs, images = self._pairs(batches)
        total = int(self.processes.sum(torch.tensor([len(pairs)], dtype=torch.int64))[0])
        timestep_T = self.timesteps()
        if not total:
            # only equal rewards: a step that changes nothing
            zero = torch.zeros(())
            self._results.add(PolicyOut(zero, {}, {"loss": zero}))
            return
        size = self.config.batch_size
        chunks = [joined(batches, images[start : start + size]) for start in range(0, len(images), size)]
        for index, timestep in enumerate(timestep_T):
            if chunks:
                self._at(chunks, pairs, total * len(timestep_T), index, timestep, backward)

    def _pairs(self, batches: list[OnlineBatch]) -> tuple[RankedPairs, list[tuple[int, int]]]:
        """Pairs as indices of their images, and these images as (batch, index)."""
        if not batches:
            nothing = torch.zeros(0, dtype=torch.int64)
            return RankedPairs(nothing, nothing, 0), []
        reward_N = torch.cat([batch.adv_B for batch in batches])
        group_N = torch.cat([batch.rollouts.group_N for batch in batches])
        where = [(b, i) for b, batch in enumerate(batches) for i in range(len(batch))]
        found = rank_pairs(reward_N, group_N, self.config.rlhf_online_dpo_pairs.lower())  # type: ignore[arg-type]
        used = sorted({*found.chosen_P.tolist(), *found.rejected_P.tolist()})
        place = {image: i for i, image in enumerate(used)}
        chosen_P = torch.tensor([place[one] for one in found.chosen_P.tolist()], dtype=torch.int64)
        rejected_P = torch.tensor([place[one] for one in found.rejected_P.tolist()], dtype=torch.int64)
        return RankedPairs(chosen_P, rejected_P, found.skipped_groups), [where[one] for one in used]

    def _at(
        self,
        chunks: list[OnlineBatch],
        pairs: RankedPairs,
        total: int,
        index: int,
        timestep: torch.Tensor,
        backward: Backward,
    ) -> None:
        all_noised = [NoisedBatch(self, chunk, index, timestep) for chunk in chunks]
        with torch.no_grad():
            dsm_N = torch.cat([noised.error(noised.policy().predicted) for noised in all_noised])
        reference_N = torch.cat([noised.error(noised.reference()) for noised in all_noised])
        options = ObjectiveOptions(beta=self.config.rlhf_online_dpo_beta)
        out = online_dpo(dsm_N, reference_N, pairs, options, total)
        self._results.add(out)
        for noised, slope_B in zip(
            all_noised, torch.split(out.coefficients["dsm"], [len(c) for c in chunks]), strict=True
        ):
            backward((slope_B * noised.error(noised.policy().predicted)).sum())
