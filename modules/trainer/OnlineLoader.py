"""The data of online training: images the model makes, epoch by epoch, cut into optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from modules.dataLoader.long_prompts import told_of_cut_prompts
from modules.dataLoader.progress import Progress
from modules.dataLoader.samplers import Step
from modules.model.Model import Model
from modules.model.noising.sampling import SamplingCancelled
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.rollout.generate import (
    NO_HOOKS,
    RolloutHooks,
    RolloutRequest,
    decode,
    generate,
    image_seed,
    step_log_prob,
)
from modules.rollout.Rollouts import Rollouts, RolloutSettings
from modules.rollout.samplers import Slot
from modules.trainer.distributed import Processes
from modules.trainer.online import settings as online_settings
from modules.trainer.online.batch import OnlineBatch, OnlineGroup
from modules.trainer.online.judge import Judge, all_different, member_id
from modules.trainer.online.prompts import digest_of
from modules.trainer.online.review import forget_old, keep_images
from modules.trainer.online.step_plan import PlannedStep, order_of, plan_steps
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.OldLogProbSource import OldLogProbSource
from modules.util.errors import DataError, UserError
from modules.util.TrainProgress import TrainProgress

Policy = Callable[[int], AbstractContextManager[None]]
"""The weights that make images at an optimizer step, for the length of a block."""

IDLE_EPOCHS = 8
"""So many epochs in a row may teach nothing before the run ends."""


def _live(_: int) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass
class MadeEpoch:
    """The images of an epoch in this process.

    Args:
        micro: places of the images of each micro-batch, after those that are not trained on were taken out.
        images: of each micro-batch over all processes.
        facts: what is logged with its first step.
    """

    epoch: int
    batch: OnlineBatch
    micro: list[list[int]]
    images: list[int]
    facts: dict[str, float] = field(default_factory=dict)


class OnlineLoader:
    """Makes, scores and compares images, and delivers them as optimizer steps from any position on.

    Args:
        prompts: of the run.
        folder: of the run; images for review go below it.
        tell: told how far a rollout is; may cancel it.

    Attributes:
        policy: whose images are learned from; the trained weights unless set.
        hooks: of the accelerators.
        warnings: findings that are not told yet.
    """

    def __init__(
        self,
        config: TrainConfig,
        setup: BaseModelSetup,
        model: Model,
        processes: Processes,
        prompts: list[str],
        folder: Path,
        tell: Progress,
    ) -> None:
        self.config, self.setup, self.model, self.processes = config, setup, model, processes
        self.prompts, self.rank, self.world_size = prompts, processes.rank, processes.world_size
        self._folder, self._tell = folder, tell
        self.sampler = online_settings.create_sampler(config, len(prompts), self.rank, self.world_size)
        self.judge = Judge(config, model, processes)
        self.policy: Policy = _live
        self.hooks: RolloutHooks = NO_HOOKS
        self.warnings: list[str] = []
        self._told_of_old = False
        self._made: MadeEpoch | None = None
        self._rule = online_settings.step_rule(config, self.sampler)
        setup.check_size(model, self.settings(0).size)

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch none of whose images are left out."""
        return online_settings.nominal_steps_per_epoch(self.config, self.world_size)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run; fewer are taken where images are left out."""
        return self.config.max_steps or self.steps_per_epoch * self.config.epochs

    def settings(self, epoch: int) -> RolloutSettings:
        """What generation and training of an epoch agree on."""
        return online_settings.rollout_settings(self.config, self.setup, self.model, epoch)

    def data_digest(self) -> str:
        """Tells the run's prompts from others."""
        return digest_of(self.prompts)

    def prepare(self) -> None:
        """Load the rewards, so that what is wrong with them is found before the first image is made."""
        self.judge.load()
        told = told_of_cut_prompts(self.setup, self.model, self.prompts)
        if told:
            self.warnings.append(told)

    def close(self) -> None:
        """Give memory back."""
        self.judge.rewards.unload()
        self._made = None

    # -- steps ------------------------------------------------------------------------------------------------

    def accumulation_groups(self, progress: TrainProgress) -> Iterator[OnlineGroup]:
        """The optimizer steps of the run from a position on; images are made when the first step of an epoch is
        asked for.

        Raises:
            SamplingCancelled: ``tell`` said so while images were made; the epoch can be asked for again.
            DataError: nothing is left to train on.
        """
        epoch, start, idle = progress.epoch, progress.epoch_step, 0
        most = self.config.max_steps
        # no images are made for steps that will not be taken
        while progress.global_step < most if most else epoch < self.config.epochs:
            if self._made is None or self._made.epoch != epoch:
                self._made = None
                self._made = self._make(epoch, progress.global_step)
            made = self._made
            steps = list(self._steps(made))
            idle = 0 if steps else idle + 1
            if idle >= IDLE_EPOCHS:
                raise DataError(
                    f"{idle} epochs in a row had no image to learn from",
                    field="rlhf_reward",
                    hint="all images of a prompt get the same reward: choose another one, or more images per prompt",
                )
            for number, (inner, planned) in enumerate(steps):
                if number >= start:
                    yield self._group(made, number, inner, planned, number + 1 == len(steps))
            epoch, start = epoch + 1, 0

    def _steps(self, made: MadeEpoch) -> Iterator[tuple[int, PlannedStep]]:
        for inner in range(self.config.rlhf_inner_epochs):
            order = order_of(len(made.micro), self._rule.unit, self.config.seed, made.epoch, inner)
            for planned in plan_steps(order, made.images, self._rule):
                yield inner, planned

    def _group(
        self, made: MadeEpoch, number: int, inner: int, planned: PlannedStep, last: bool
    ) -> OnlineGroup:
        batches = [
            made.batch.select(made.micro[one]) if made.micro[one] else None for one in planned.micro_batches
        ]
        step = Step(made.epoch, number, (), planned.images, last)
        return OnlineGroup(
            batches,
            step,
            inner=inner,
            fresh=number == 0,
            first_group=made.epoch * self.config.rlhf_prompts_per_epoch,
            slots=self.config.rlhf_prompts_per_epoch,
            facts=made.facts if number == 0 else {},
        )

    # -- an epoch's images ------------------------------------------------------------------------------------

    def _make(self, epoch: int, step: int) -> MadeEpoch:
        slots = [slot for batch in self.sampler.batches(epoch) for slot in batch]
        requests = [self._request(epoch, slot) for slot in slots]
        if not all_different(self.processes.gather([one.seed for one in requests])):
            raise RuntimeError("two images of an epoch would be made from the same noise")
        settings = self.settings(epoch)
        with self.policy(step):
            rollouts = generate(
                self.setup,
                self.model,
                requests,
                settings,
                online_settings.rollout_batch_size(self.config),
                lambda done, total: self._tell(f"making images, epoch {epoch + 1}", done, total),
                self.hooks,
            )
        rgb_NCHW = decode(
            self.setup, self.model, rollouts.final_NChw, online_settings.rollout_batch_size(self.config),
            lambda done, total: self._tell("decoding images", done, total),
        )  # fmt: skip
        self._tell("scoring images", 0, len(rollouts))
        scales = self.judge.rewards.state_dict()
        judged = self.judge.judge(rollouts, rgb_NCHW, self._stop_if_asked)
        batch = OnlineBatch(rollouts, judged.adv_N, judged.reward_N, torch.arange(len(rollouts)))
        micro = self._micro_batches(judged.kept_N)
        try:
            batch = self._old_values(batch, micro, settings)
        except (SamplingCancelled, torch.OutOfMemoryError):
            # the epoch will be scored again, and must not count twice
            self.judge.rewards.load_state_dict(scales)
            raise
        self._keep_for_review(epoch, rgb_NCHW, batch)
        counts = torch.tensor([len(one) for one in micro], dtype=torch.int64)
        images = [int(one) for one in self.processes.sum(counts).tolist()]
        return MadeEpoch(epoch, batch, micro, images, judged.facts)

    def _stop_if_asked(self) -> None:
        if self._tell("scoring images", 1, 1) is False:
            raise SamplingCancelled

    def _request(self, epoch: int, slot: Slot) -> RolloutRequest:
        config = self.config
        shared = config.rlhf_shared_start_noise
        return RolloutRequest(
            prompt=self.prompts[slot.prompt],
            group=slot.group,
            seed=image_seed(config.seed, epoch, slot.group, slot.member),
            id=member_id(epoch, slot.group, slot.member),
            negative=config.rlhf_rollout_negative_prompt,
            start_seed=image_seed(config.seed, epoch, slot.group, -1) if shared else None,
        )

    def _micro_batches(self, kept_N: torch.Tensor) -> list[list[int]]:
        size = self.config.batch_size
        return [
            [i for i in range(start, min(start + size, len(kept_N))) if kept_N[i]]
            for start in range(0, len(kept_N), size)
        ]

    def _old_values(
        self, batch: OnlineBatch, micro: list[list[int]], settings: RolloutSettings
    ) -> OnlineBatch:
        """Log-probabilities (and, for regulated ratios, means) in the batches of training, if they are wanted."""
        config = self.config
        guard = online_settings.step_options(config, self.world_size).guard
        if not config.rlhf_mode.coupled or not (
            guard or config.rlhf_old_logprob_source is OldLogProbSource.RECOMPUTE
        ):
            return batch
        logp_NS = batch.rollouts.logp_NS.clone()
        means: torch.Tensor | None = None
        for done, index in enumerate(micro):
            if index:
                logp_BS, means_BSChw = self._recomputed(batch.rollouts.select(index), settings)
                logp_NS[index] = logp_BS
                if guard and means is None:
                    means = torch.zeros(len(batch), *means_BSChw.shape[1:])
                if means is not None:
                    means[index] = means_BSChw
            if self._tell("asking for the probabilities again", done + 1, len(micro)) is False:
                raise SamplingCancelled
        return batch.with_old(logp_NS, means)

    @torch.no_grad()
    def _recomputed(self, part: Rollouts, settings: RolloutSettings) -> tuple[torch.Tensor, torch.Tensor]:
        outs = [step_log_prob(self.setup, self.model, part, step, settings) for step in part.steps]
        return (
            torch.stack([out.logp_B.cpu() for out in outs], 1),
            torch.stack([out.mean_BChw.cpu() for out in outs], 1),
        )

    def _keep_for_review(self, epoch: int, rgb_NCHW: torch.Tensor, batch: OnlineBatch) -> None:
        config = self.config
        if not self.processes.first or not config.rlhf_keep_images:
            return
        try:
            keep_images(self._folder, epoch, rgb_NCHW, batch, config.rlhf_keep_images)
        except UserError as error:
            # a full disk costs the pictures, not the run
            self.warnings.append(str(error))
        try:
            forget_old(self._folder, config.rlhf_keep_image_epochs)
        except UserError as error:
            if not self._told_of_old:
                self.warnings.append(str(error))
            self._told_of_old = True

    # -- backups ----------------------------------------------------------------------------------------------

    def collect(self, progress: TrainProgress) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The images of the epoch under way, of all processes: tensors by rank and name, and JSON values.

        Every process calls this; the result is the same in each.
        """
        state: dict[str, Any] = {"rewards": self.judge.rewards.state_dict()}
        made = self._made
        if made is None or made.epoch != progress.epoch:
            return {}, state
        own = (made.batch.to_tensors(), made.batch.rollouts.metadata(), made.micro)
        parts = self.processes.gather(own)
        state |= {
            "epoch": made.epoch,
            "images": made.images,
            "facts": made.facts,
            "metadata": [metadata for _, metadata, _ in parts],
            "micro": [micro for _, _, micro in parts],
        }
        tensors = {
            f"{rank}.{name}": value.contiguous()
            for rank, (values, _, _) in enumerate(parts)
            for name, value in values.items()
        }
        return tensors, state

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Take up what ``collect`` made.

        Raises:
            DataError: it is damaged.
        """
        try:
            self.judge.rewards.load_state_dict(state["rewards"])
            if "epoch" not in state:
                return
            prefix = f"{self.rank}."
            own = {
                name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
            }
            self._made = MadeEpoch(
                epoch=int(state["epoch"]),
                batch=OnlineBatch.from_tensors(own, state["metadata"][self.rank]),
                micro=[[int(i) for i in one] for one in state["micro"][self.rank]],
                images=[int(one) for one in state["images"]],
                facts={str(name): float(value) for name, value in state["facts"].items()},
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(f"the images of the epoch in the backup cannot be read: {error}") from error
