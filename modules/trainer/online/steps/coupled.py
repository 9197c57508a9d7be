"""Optimizer steps of the coupled online modes: the current likelihood of the images' steps, and the resulting
loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from modules.adapter.reference import Reference
from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.objective.aggregation import GlobalCounts, count_steps
from modules.objective.gradient_stash import stash_gradients
from modules.objective.policy_gradient import (
    PolicyOut,
    StepTerms,
    check_ratio,
    get_online_loss,
    transition_kl,
)
from modules.rollout.generate import StepOutput, step_log_prob
from modules.rollout.Rollouts import RolloutSettings
from modules.rollout.transitions import mean_gap
from modules.trainer.online import settings as online_settings
from modules.trainer.online.batch import OnlineBatch, OnlineGroup
from modules.trainer.online.OldPolicy import OldPolicy
from modules.trainer.online.OnlineLoader import OnlineLoader
from modules.trainer.online.OnlineMetrics import OnlineMetrics
from modules.trainer.online.steps.modes import STEPS
from modules.trainer.steps import Backward, TrainStep
from modules.util.enum.choices import GroupStrategy, KlType, OldLogProbSource, RatioCheck

QUARTER = 0.25


@dataclass(frozen=True)
class TrainedStep:
    """A trained step of a micro-batch under the current model, (B,) each.

    Args:
        logp: with gradient if requested.
        kl: KL divergence to the reference, or ``None``.
        gap: squared distance of the mean from that of the rollout, or ``None``.
        std: standard deviation of the transition.
    """

    logp: torch.Tensor
    kl: torch.Tensor | None
    gap: torch.Tensor | None
    std: float


@STEPS.register("coupled")
class CoupledStep(TrainStep):
    """Coupled modes (GRPO, GSPO) on the trained steps of the images.

    The loss of an optimizer step is the sum of its micro-batches' shares, whose denominators are counted over
    all of them and all processes before the first backward pass.

    Args:
        reference: the initial weights of the run, if a KL to them is part of the loss.
        old_policy: not used.
        lossless: whether rollouts and training compute exactly the same.
    """

    def __init__(
        self,
        loader: OnlineLoader,
        reference: Reference | None,
        parameters: list[torch.nn.Parameter],
        old_policy: OldPolicy | None,
        lossless: bool,
    ) -> None:
        config, processes = loader.config, loader.processes
        self._config, self._processes = config, processes
        self._setup, self._model = loader.setup, loader.model
        self._reference, self._parameters, self._settings_of = reference, parameters, loader.settings
        self._options = online_settings.step_options(config)
        self._loss = get_online_loss(config.rlhf_mode)
        self._metrics = OnlineMetrics(processes)
        self._findings: list[str] = []
        self._hooks = loader.training_hooks
        self._lossless = lossless

    # -- the protocol -----------------------------------------------------------------------------------------

    def forward_backward(self, group: AccumulationGroup, step: int, backward: Backward) -> None:
        assert isinstance(group, OnlineGroup)
        self._metrics.clear(group.facts)
        counts = self._counts(group)
        settings = self._settings_of(group.epoch)
        for batch in group.batches():
            if self._config.rlhf_mode.spec.whole_trajectories:
                self._whole_trajectories(batch, settings, counts, backward)
            else:
                self._step_by_step(batch, settings, counts, backward)
        if group.fresh:
            self._check_first_ratio(group)

    def metrics(self) -> dict[str, float]:
        return self._metrics.tags()

    def warnings(self) -> list[str]:
        found, self._findings = self._findings, []
        return found

    # -- counts -----------------------------------------------------------------------------------------------

    def _counts(self, group: OnlineGroup) -> GlobalCounts:
        batches = group.batches()
        count = len(self._settings_of(group.epoch).plan.trained)
        skipped_K = group.skipped_K if self._config.rlhf_count_skipped else group.skipped_K[:0]
        masks = [batch.rollouts.mask_NS for batch in batches]
        groups = [batch.rollouts.group_N for batch in batches]
        return count_steps(
            torch.cat([torch.zeros(len(skipped_K), count, dtype=torch.bool), *masks]),
            torch.cat([skipped_K, *groups]) - group.first_group,
            self._processes.sum,
            slots=group.slots,
        )

    # -- one step of the images -------------------------------------------------------------------------------

    def _trained_step(self, batch: OnlineBatch, step: int, settings: RolloutSettings) -> TrainedStep:
        """Evaluate a step in the current gradient mode. The values it is compared with never have a gradient."""
        reference: StepOutput | None = None
        if self._reference is not None:
            # before the pass with gradients, because weights must not be swapped between it and its
            # backward pass
            with torch.no_grad(), self._reference.active():
                reference = self._asked(batch, step, settings)
        out = self._asked(batch, step, settings)
        kl = None if reference is None else self._kl(out, reference, settings.plan.positions[step].dt)
        gap = None
        if batch.means_BSChw is not None:
            old_BChw = batch.means_BSChw[:, batch.rollouts.column(step)].to(out.mean_BChw)
            gap = mean_gap(out.mean_BChw, old_BChw, settings.reduction)
        return TrainedStep(out.logp_B, kl, gap, out.std)

    def _asked(self, batch: OnlineBatch, step: int, settings: RolloutSettings) -> StepOutput:
        return step_log_prob(self._setup, self._model, batch.rollouts, step, settings, self._hooks)

    def _kl(self, out: StepOutput, reference: StepOutput, dt: float) -> torch.Tensor:
        kind = self._config.rlhf_kl_type
        if kind is KlType.V:
            return transition_kl("v", out.predicted_BChw, reference.predicted_BChw)
        return transition_kl(
            kind.lower(),  # type: ignore[arg-type]
            out.mean_BChw,
            reference.mean_BChw,
            std=out.std,
            dt=dt,
        )

    def _terms(
        self, batch: OnlineBatch, steps: list[TrainedStep], places: list[int], whole: bool
    ) -> StepTerms:
        """The steps at indices ``places`` of the trained ones."""
        device = steps[0].logp.device
        rollouts = batch.rollouts
        kls = [one.kl for one in steps if one.kl is not None]
        gaps = [one.gap for one in steps if one.gap is not None]
        stds = torch.tensor([one.std for one in steps], dtype=torch.float32, device=device)
        return StepTerms(
            logp_new_BT=torch.stack([one.logp for one in steps], 1),
            logp_old_BT=rollouts.logp_NS[:, places].to(device),
            adv_B=batch.adv_B.to(device),
            mask_BT=rollouts.mask_NS[:, places].to(device),
            group_B=self._dense_groups(batch).to(device),
            ref_kl_BT=torch.stack(kls, 1) if kls else None,
            image_steps_B=None if whole else rollouts.mask_NS.sum(1).to(device),
            mean_gap_BT=torch.stack(gaps, 1) if gaps else None,
            guard_scale_BT=stds.expand(len(batch), -1) if gaps else None,
        )

    def _dense_groups(self, batch: OnlineBatch) -> torch.Tensor:
        """Group ids counted from 0 within the epoch."""
        return batch.rollouts.group_N % self._config.rlhf_prompts_per_epoch

    def _step_by_step(
        self, batch: OnlineBatch, settings: RolloutSettings, counts: GlobalCounts, backward: Backward
    ) -> None:
        for place, step in enumerate(batch.rollouts.steps):
            terms = self._terms(batch, [self._trained_step(batch, step, settings)], [place], whole=False)
            out = self._loss(terms, self._options, counts)
            backward(out.loss)
            self._metrics.add(out)

    # -- whole trajectories -----------------------------------------------------------------------------------

    def _whole_trajectories(
        self, batch: OnlineBatch, settings: RolloutSettings, counts: GlobalCounts, backward: Backward
    ) -> None:
        strategy = online_settings.gspo_strategy(self._config)
        if strategy is GroupStrategy.STASH:
            for one in range(len(batch)):
                self._stashed(batch.select([one]), settings, counts, backward)
        elif strategy is GroupStrategy.TWO_PASS:
            self._in_two_passes(batch, settings, counts, backward)
        else:
            out = self._whole_out(batch, self._trained_steps(batch, settings), counts)
            backward(out.loss)

    def _trained_steps(self, batch: OnlineBatch, settings: RolloutSettings) -> list[TrainedStep]:
        return [self._trained_step(batch, step, settings) for step in batch.rollouts.steps]

    def _whole_out(self, batch: OnlineBatch, steps: list[TrainedStep], counts: GlobalCounts) -> PolicyOut:
        places = list(range(len(steps)))
        out = self._loss(self._terms(batch, steps, places, whole=True), self._options, counts)
        self._metrics.add(out)
        return out

    def _in_two_passes(
        self, batch: OnlineBatch, settings: RolloutSettings, counts: GlobalCounts, backward: Backward
    ) -> None:
        """Compute the weight of each step in a pass without gradients, then the steps one by one."""
        with torch.no_grad():
            out = self._whole_out(batch, self._trained_steps(batch, settings), counts)
        slopes = out.coefficients
        moves = torch.stack([one.abs().sum(0) for one in slopes.values()]).sum(0) > 0
        for place, step in enumerate(batch.rollouts.steps):
            if not bool(moves[place]):
                # all images of the batch are clipped, so there is no gradient
                continue
            trained = self._trained_step(batch, step, settings)
            loss = (slopes["logp"][:, place] * trained.logp).sum()
            if "kl" in slopes and trained.kl is not None:
                loss = loss + (slopes["kl"][:, place] * trained.kl).sum()
            backward(loss)

    def _stashed(
        self, image: OnlineBatch, settings: RolloutSettings, counts: GlobalCounts, backward: Backward
    ) -> None:
        """Accumulate the gradients of all steps separately, then multiply them by the image's weight."""
        if not bool(image.rollouts.mask_NS.any()):
            return
        steps: list[TrainedStep] = []
        mask_S = image.rollouts.mask_NS[0]
        with stash_gradients(self._parameters) as stash:
            for place, step in enumerate(image.rollouts.steps):
                trained = self._trained_step(image, step, settings)
                if bool(mask_S[place]):
                    backward(trained.logp.sum())
                steps.append(TrainedStep(trained.logp.detach(), None, None, trained.std))
            slope_1S = self._whole_out(image, steps, counts).coefficients["logp"]
            stash.merge(slope_1S[0, mask_S.to(slope_1S.device)][0])

    # -- the first ratio --------------------------------------------------------------------------------------

    def _check_first_ratio(self, group: OnlineGroup) -> None:
        """Check that ratios before the first update are 1. Otherwise rollout and training do not compute the same."""
        check, tolerance = self._ratio_rule(group)
        if check == "off":
            return
        error = self._metrics.totals().get("ratio_error", 0.0)
        found = check_ratio(error, check, tolerance)  # type: ignore[arg-type]
        if found is not None and self._processes.first:
            self._findings.append(found)

    def _ratio_rule(self, group: OnlineGroup) -> tuple[str, float]:
        config = self._config
        loose = min(config.rlhf_clip_range_low, config.rlhf_clip_range_high) * QUARTER
        same = config.rlhf_old_logprob_source is OldLogProbSource.RECOMPUTE or self._same_shapes(group)
        exact = self._lossless and same
        tolerance = config.rlhf_ratio_tolerance
        if tolerance is None:
            tolerance = 0.0 if exact else loose
        if config.rlhf_ratio_check is not RatioCheck.AUTO:
            return config.rlhf_ratio_check.lower(), tolerance
        return ("error" if exact else "warn"), tolerance

    def _same_shapes(self, group: OnlineGroup) -> bool:
        """Return whether training sees the images in the batches they were made in, in all processes."""
        size = self._config.batch_size
        own = online_settings.rollout_batch_size(self._config) == size and all(
            len(batch) == size for batch in group.batches()
        )
        if self._config.rlhf_mode.spec.whole_trajectories and size > 1:
            own = own and online_settings.gspo_strategy(self._config) is not GroupStrategy.STASH
        return not self._processes.agree(0 if own else 1)
