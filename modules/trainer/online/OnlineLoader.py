"""The data of online training: images that the model makes, epoch by epoch, split into optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.dataLoader.Loader import Weights
from modules.rollout.Rollouts import RolloutSettings
from modules.rollout.samplers import GroupSampler
from modules.trainer.online import settings as online_settings
from modules.trainer.online.batch import MadeEpoch, OnlineBatch
from modules.trainer.online.EpochMaker import EpochMaker
from modules.trainer.online.prompts import digest_of
from modules.trainer.online.StepCutter import StepCutter
from modules.util.errors import DataError
from modules.util.TrainProgress import TrainProgress

IDLE_EPOCHS = 8
"""The run ends after this many consecutive epochs without an image to learn from."""


class OnlineLoader:
    """Delivers optimizer steps from any position on. ``EpochMaker`` makes the images, ``StepCutter``
    plans the steps.

    Args:
        maker: has the run's config, model and prompts.
        cutter: plans the steps from the images of ``maker``.

    Attributes:
        training_hooks: hooks that training enters around denoiser calls that a rollout also made.
    """

    def __init__(self, maker: EpochMaker, cutter: StepCutter) -> None:
        self._maker, self._cutter = maker, cutter
        self.config, self.setup, self.model = maker.config, maker.setup, maker.model
        self.processes, self.training_hooks = maker.processes, maker.training_hooks
        self.rank, self.world_size = maker.processes.rank, maker.processes.world_size
        self._prompts = maker.prompts
        self._made: MadeEpoch | None = None

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def sampler(self) -> GroupSampler:
        """Determines which process makes which images."""
        return self._maker.sampler

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch in which no image is skipped."""
        return online_settings.nominal_steps_per_epoch(self.config, self.world_size)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run. There are fewer if images are skipped."""
        return online_settings.nominal_total_steps(self.config, self.world_size)

    def settings(self, epoch: int) -> RolloutSettings:
        """The rollout settings that generation and training of an epoch share."""
        return self._maker.settings(epoch)

    def data_digest(self) -> str:
        """Digest of the run's prompts and of the images that they edit."""
        return digest_of(self._prompts, self._maker.source_digests)

    def facts(self) -> dict[str, object]:
        """Metadata of a saved model: how its images were made and scored."""
        return {"prompts": len(self), "reward": ", ".join(self._maker.judge.rewards.names)}

    def warnings(self) -> list[str]:
        """Findings since the last call."""
        return self._maker.warnings()

    def prepare(self) -> None:
        """Load the rewards, so that their errors appear before the first image is made."""
        self._maker.prepare()

    def ready(self, weights: Weights) -> None:
        """Make images with ``weights`` from now on."""
        self._maker.make_with(weights)

    def close(self) -> None:
        """Release memory."""
        self._maker.close()
        self._made = None

    def accumulation_groups(self, progress: TrainProgress) -> Iterator[AccumulationGroup]:
        """Yield the optimizer steps of the run from a position on. Images are made when the first step of an
        epoch is requested.

        Raises:
            SamplingCancelled: ``tell`` cancelled making images; the epoch can be requested again.
            DataError: nothing is left to train on.
        """
        epoch, start = progress.epoch, progress.epoch_step
        without_votes: list[bool] = []
        most = self.config.max_steps
        # no images are made for steps that will not be taken
        while progress.global_step < most if most else epoch < self.config.epochs:
            if self._made is None or self._made.epoch != epoch:
                self._made = None
                self._made = self._maker.make(epoch, progress.global_step)
            made = self._made
            plan = self._cutter.plan(epoch, made.images)
            without_votes = [] if plan else [*without_votes, self._has_no_votes(made.facts)]
            if len(without_votes) >= IDLE_EPOCHS:
                raise _nothing_to_learn(without_votes)
            yield from made.groups(plan, start, self.config.rlhf_prompts_per_epoch, self.config.batch_size)
            epoch, start = epoch + 1, 0

    def _has_no_votes(self, facts: Mapping[str, float]) -> bool:
        """Return whether no prompt of an epoch was judged, from the epoch's metrics. Rewards that fail for all prompts
        end the run, so only missing votes can be the reason.
        """
        return facts.get("rl/dropped_groups") == self.config.rlhf_prompts_per_epoch

    # -- backups ----------------------------------------------------------------------------------------------

    def snapshot(self, progress: TrainProgress) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The images of the current epoch, of all processes: tensors by rank and name, and JSON values.

        Every process must call this, and gets the same result.
        """
        state: dict[str, Any] = {"rewards": self._maker.judge.rewards.state_dict()}
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

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any] | None) -> None:
        """Restore what ``snapshot`` returned.

        Raises:
            DataError: the snapshot is damaged.
            ConfigError: a reward uses another file than it did then.
        """
        if state is None:
            raise DataError("the backup does not hold the images of the current epoch")
        if not isinstance(rewards := state.get("rewards"), Mapping):
            raise DataError("the backup does not hold the state of the rewards")
        self._maker.judge.rewards.load_state_dict(rewards)
        try:
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


def _nothing_to_learn(without_votes: Sequence[bool]) -> DataError:
    """The error of epochs from which nothing can be learned.

    Args:
        without_votes: of each epoch, whether nobody voted on its prompts in time.
    """
    reasons = []
    if any(without_votes):
        reasons.append("nobody voted on the images in time: vote, or set rlhf_person_timeout higher or to 0")
    if not all(without_votes):
        reasons.append(
            "all images of a prompt get the same reward: choose another reward, or more images per prompt"
        )
    return DataError(
        f"{len(without_votes)} epochs in a row had no image to learn from",
        field="rlhf_person_timeout" if all(without_votes) else "rlhf_reward",
        hint="; ".join(reasons),
    )
