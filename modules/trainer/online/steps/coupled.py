"""One optimizer step of the coupled online modes: how likely the steps of the images are now, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from modules.adapter.reference import Reference
from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.objective.aggregation import GlobalCounts, count_steps
from modules.objective.gradient_stash import stash_gradients
from modules.objective.policy_gradient import (
    PolicyOut,
    StepTerms,
    check_ratio,
    get_online_mode,
    transition_kl,
)
from modules.rollout.generate import StepOutput, step_log_prob
from modules.rollout.Rollouts import RolloutSettings
from modules.trainer.distributed import Processes
from modules.trainer.online import settings as online_settings
from modules.trainer.online.batch import OnlineBatch, OnlineGroup
from modules.trainer.online.OnlineMetrics import OnlineMetrics
from modules.trainer.steps import Backward
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.GroupStrategy import GroupStrategy
from modules.util.enum.KlType import KlType
from modules.util.enum.OldLogProbSource import OldLogProbSource
from modules.util.enum.RatioCheck import RatioCheck
from modules.util.enum.RLHFMode import RLHFMode

QUARTER = 0.25
SettingsOf = Callable[[int], RolloutSettings]
"""What generation and training of an epoch agree on."""


@dataclass(frozen=True)
class Column:
    """A trained step of a micro-batch as the model sees it now, (B,) each.

    Args:
        logp: with gradient where it was asked for.
        kl: to the reference, or ``None``.
        gap: squared distance of the mean from that of the rollout, or ``None``.
        std: deviation of the transition.
    """

    logp: torch.Tensor
    kl: torch.Tensor | None
    gap: torch.Tensor | None
    std: float


class CoupledStep:
    """GRPO and GSPO on the trained steps of the images.

    The loss of an optimizer step is the sum of its micro-batches' shares, whose denominators are counted over
    all of them and all processes before the first backward pass.

    Args:
        reference: the weights the run started from, where a KL to them is part of the loss.
        parameters: what is trained.
        settings_of: of an epoch.
        lossless: whether nothing in use computes rollouts otherwise than training.
    """

    def __init__(
        self,
        config: TrainConfig,
        setup: BaseModelSetup,
        model: Model,
        processes: Processes,
        reference: Reference | None,
        parameters: list[torch.nn.Parameter],
        settings_of: SettingsOf,
        lossless: bool = True,
    ) -> None:
        self._config, self._setup, self._model, self._processes = config, setup, model, processes
        self._reference, self._parameters, self._settings_of = reference, parameters, settings_of
        self._options = online_settings.step_options(config, processes.world_size)
        self._loss = get_online_mode(config.rlhf_mode.value).function
        self._metrics = OnlineMetrics(processes)
        self._findings: list[str] = []
        self._lossless = lossless

    # -- the protocol -----------------------------------------------------------------------------------------

    def forward_backward(self, group: AccumulationGroup, step: int, backward: Backward) -> None:
        assert isinstance(group, OnlineGroup)
        self._metrics.clear(group.facts)
        counts = self._counts(group)
        settings = self._settings_of(group.epoch)
        for batch in group.batches():
            if self._config.rlhf_mode is RLHFMode.GSPO:
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

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return

    # -- counts -----------------------------------------------------------------------------------------------

    def _counts(self, group: OnlineGroup) -> GlobalCounts:
        batches = group.batches()
        columns = len(self._settings_of(group.epoch).plan.trained)
        masks = [batch.rollouts.mask_NS for batch in batches]
        groups = [batch.rollouts.group_N - group.first_group for batch in batches]
        return count_steps(
            torch.cat([torch.zeros(0, columns, dtype=torch.bool), *masks]),
            torch.cat([torch.zeros(0, dtype=torch.int64), *groups]),
            self._processes.sum,
            slots=group.slots,
        )

    # -- one step of the images -------------------------------------------------------------------------------

    def _column(self, batch: OnlineBatch, step: int, settings: RolloutSettings) -> Column:
        """In the gradient mode it is called in; what it is compared with never has a gradient."""
        beside: StepOutput | None = None
        if self._reference is not None:
            # before the pass with gradients: weights must not be exchanged between it and its backward pass
            with torch.no_grad(), self._reference.active():
                beside = step_log_prob(self._setup, self._model, batch.rollouts, step, settings)
        out = step_log_prob(self._setup, self._model, batch.rollouts, step, settings)
        kl = None if beside is None else self._kl(out, beside, settings.plan.positions[step].dt)
        gap = None
        if batch.means_BSChw is not None:
            old_BChw = batch.means_BSChw[:, batch.rollouts.column(step)].to(out.mean_BChw)
            gap = (out.mean_BChw - old_BChw).square().flatten(1).mean(1)
        return Column(out.logp_B, kl, gap, out.std)

    def _kl(self, out: StepOutput, beside: StepOutput, dt: float) -> torch.Tensor:
        kind = self._config.rlhf_kl_type
        if kind is KlType.V:
            return transition_kl("v", out.predicted_BChw, beside.predicted_BChw)
        return transition_kl(
            kind.lower(),  # type: ignore[arg-type]
            out.mean_BChw,
            beside.mean_BChw,
            std=out.std,
            dt=dt,
        )

    def _terms(self, batch: OnlineBatch, columns: list[Column], places: list[int], whole: bool) -> StepTerms:
        """The columns at ``places`` of the trained steps."""
        device = columns[0].logp.device
        rollouts = batch.rollouts
        kls = [column.kl for column in columns if column.kl is not None]
        gaps = [column.gap for column in columns if column.gap is not None]
        stds = torch.tensor([column.std for column in columns], dtype=torch.float32, device=device)
        return StepTerms(
            logp_new_BT=torch.stack([column.logp for column in columns], 1),
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
        """Ids as they were counted: from 0 within the epoch."""
        return batch.rollouts.group_N % self._config.rlhf_prompts_per_epoch

    def _step_by_step(
        self, batch: OnlineBatch, settings: RolloutSettings, counts: GlobalCounts, backward: Backward
    ) -> None:
        for place, step in enumerate(batch.rollouts.steps):
            terms = self._terms(batch, [self._column(batch, step, settings)], [place], whole=False)
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
            out = self._whole_out(batch, self._columns(batch, settings), counts)
            backward(out.loss)

    def _columns(self, batch: OnlineBatch, settings: RolloutSettings) -> list[Column]:
        return [self._column(batch, step, settings) for step in batch.rollouts.steps]

    def _whole_out(self, batch: OnlineBatch, columns: list[Column], counts: GlobalCounts) -> PolicyOut:
        places = list(range(len(columns)))
        out: PolicyOut = self._loss(self._terms(batch, columns, places, whole=True), self._options, counts)
        self._metrics.add(out)
        return out

    def _in_two_passes(
        self, batch: OnlineBatch, settings: RolloutSettings, counts: GlobalCounts, backward: Backward
    ) -> None:
        """What each step counts for from a pass without gradients, then the steps one by one."""
        with torch.no_grad():
            out = self._whole_out(batch, self._columns(batch, settings), counts)
        slopes = out.coefficients
        moves = torch.stack([one.abs().sum(0) for one in slopes.values()]).sum(0) > 0
        for place, step in enumerate(batch.rollouts.steps):
            if not bool(moves[place]):
                # the clip holds all images of the batch: there is nothing to pass back
                continue
            column = self._column(batch, step, settings)
            loss = (slopes["logp"][:, place] * column.logp).sum()
            if "kl" in slopes and column.kl is not None:
                loss = loss + (slopes["kl"][:, place] * column.kl).sum()
            backward(loss)

    def _stashed(
        self, image: OnlineBatch, settings: RolloutSettings, counts: GlobalCounts, backward: Backward
    ) -> None:
        """Gradients of all steps added up on their own, then multiplied by what the image counts for."""
        if not bool(image.rollouts.mask_NS.any()):
            return
        columns: list[Column] = []
        mask_S = image.rollouts.mask_NS[0]
        with stash_gradients(self._parameters) as stash:
            for place, step in enumerate(image.rollouts.steps):
                column = self._column(image, step, settings)
                if bool(mask_S[place]):
                    backward(column.logp.sum())
                columns.append(Column(column.logp.detach(), None, None, column.std))
            slope_1S = self._whole_out(image, columns, counts).coefficients["logp"]
            stash.merge(slope_1S[0, mask_S.to(slope_1S.device)][0])

    # -- the first ratio --------------------------------------------------------------------------------------

    def _check_first_ratio(self, group: OnlineGroup) -> None:
        """Before the first update the ratios are 1, or rollout and training do not compute the same."""
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
        """Whether training sees the images in the batches they were made in, in all processes."""
        size = self._config.batch_size
        own = online_settings.rollout_batch_size(self._config) == size and all(
            len(batch) == size for batch in group.batches()
        )
        if self._config.rlhf_mode is RLHFMode.GSPO and size > 1:
            own = own and online_settings.gspo_strategy(self._config) is not GroupStrategy.STASH
        return not self._processes.agree(0 if own else 1)
