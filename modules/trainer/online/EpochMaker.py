from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from modules.accelerator.plan import AccelerationPlan
from modules.dataLoader.Loader import Weights
from modules.dataLoader.long_prompts import told_of_cut_prompts
from modules.dataLoader.progress import Progress
from modules.dataLoader.source import raise_faults
from modules.model.Model import Model
from modules.model.noising.sampling import SamplingCancelled
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.reward.person import Desk, PersonReward
from modules.rollout.generate import (
    RolloutRequest,
    RolloutSource,
    decode,
    generate,
    image_seed,
    step_log_prob,
)
from modules.rollout.Rollouts import Rollouts, RolloutSettings
from modules.rollout.samplers import Slot
from modules.trainer.distributed import Processes
from modules.trainer.evaluate.image_files import save_image
from modules.trainer.online import settings as online_settings
from modules.trainer.online.acceleration import hooks_of, training_hooks
from modules.trainer.online.batch import MadeEpoch, OnlineBatch
from modules.trainer.online.judge import Judge, all_different, member_id
from modules.trainer.online.prompts import EditedImages, OnlinePrompt, source_digests, unmet_needs
from modules.trainer.online.review import ReviewFolder
from modules.trainer.online.ShowingWhileMade import ShowingWhileMade
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import OldLogProbSource
from modules.util.errors import UserError


def _live(_: int) -> AbstractContextManager[None]:
    return nullcontext()


class EpochMaker:
    """Makes the images of an epoch, scores them and computes advantages.

    Args:
        prompts: prompts of the run, with what they edit.
        folder: folder of the run; images for review go below it.
        tell: called with the progress of a rollout; may cancel it.
        acceleration: accelerators of the denoiser.

    Attributes:
        sampler: determines which process makes which images.
        judge: scores the images.
        training_hooks: hooks that training enters around denoiser calls that a rollout also made.
        source_digests: digests of the images that are edited, by path.
    """

    def __init__(
        self,
        config: TrainConfig,
        setup: BaseModelSetup,
        model: Model,
        processes: Processes,
        prompts: list[OnlinePrompt],
        folder: Path,
        tell: Progress,
        acceleration: AccelerationPlan,
    ) -> None:
        self.config, self.setup, self.model, self.processes = config, setup, model, processes
        self.prompts, self._tell, self._hooks = prompts, tell, hooks_of(acceleration)
        self.training_hooks = training_hooks(acceleration)
        self.sampler = online_settings.create_sampler(
            config, len(prompts), processes.rank, processes.world_size
        )
        self.judge = Judge(config, model, processes)
        self._review = ReviewFolder(folder, config.rlhf_keep_images, config.rlhf_keep_image_epochs)
        self._weights: Weights = _live
        self._warnings: list[str] = []
        self._person: PersonReward | None = None
        size = self.settings(0).size
        setup.check_size(model, size)
        self.source_digests = source_digests(prompts)
        self._edited = EditedImages(setup, model, size, config.source_resolution, self.source_digests)

    def settings(self, epoch: int) -> RolloutSettings:
        """The rollout settings that generation and training of an epoch share."""
        return online_settings.rollout_settings(self.config, self.setup, self.model, epoch)

    def prepare(self) -> None:
        """Load the rewards, so that their errors appear before the first image is made.

        Raises:
            UserError: one cannot be loaded, or needs source images that the prompts do not have.
        """
        self.judge.load()
        raise_faults(unmet_needs(self.judge.rewards, any(one.sources for one in self.prompts)))
        texts = [one.text for one in self.prompts]
        told = (told_of_cut_prompts(self.setup, self.model, texts), self._edited.told_of_crops(self.prompts))
        self._warnings += filter(None, told)

    def ask_through(self, desk: Desk) -> None:
        """Set the desk at which a person is asked, if a person is a reward of the run. Called before ``prepare``."""
        for term in self.judge.rewards.terms:
            if isinstance(term.reward, PersonReward):
                self._person = term.reward
                features = online_settings.taste_features(self.config)
                term.reward.ask_through(desk, self.config.rlhf_person_share, features)

    def make_with(self, weights: Weights) -> None:
        """Set the weights that make the images. The trained weights are used if this is never called."""
        self._weights = weights

    def warnings(self) -> list[str]:
        """Findings since the last call."""
        found, self._warnings = self._warnings, []
        return found

    def close(self) -> None:
        """Release the memory of the rewards."""
        self.judge.rewards.unload()

    def make(self, epoch: int, step: int) -> MadeEpoch:
        """Make the images of an epoch with the weights of optimizer step ``step``, with rewards and
        advantages.

        Raises:
            SamplingCancelled: ``tell`` cancelled it; the epoch can be made again.
            UserError: a reward failed, or an image or a reward is NaN or infinite.
        """
        slots = [slot for batch in self.sampler.batches(epoch) for slot in batch]
        edited = self._edited.of([self.prompts[slot.prompt] for slot in slots])
        requests = [self._request(epoch, slot, edited) for slot in slots]
        if not all_different(self.processes.gather([one.seed for one in requests])):
            raise RuntimeError("two images of an epoch would be made from the same noise")
        settings = self.settings(epoch)
        showing = self._showing(epoch, requests)
        with self._weights(step):
            rollouts = generate(
                self.setup,
                self.model,
                requests,
                settings,
                online_settings.rollout_batch_size(self.config),
                lambda done, total: self._tell(f"making images, epoch {epoch + 1}", done, total),
                self._hooks,
                None if showing is None else showing.take,
            )
        rgb_NCHW = self._decoded(rollouts) if showing is None else showing.images(rollouts)
        self._tell("scoring images", 0, len(rollouts))
        scales = self.judge.rewards.state_dict()
        sources = [one.source for one in requests]
        judged = self.judge.judge(rollouts, rgb_NCHW, self._stop_if_asked, sources)
        self._warnings += self.judge.warnings()
        batch = OnlineBatch(rollouts, judged.adv_N, judged.reward_N, torch.arange(len(rollouts)))
        micro = self._micro_batches(judged.kept_N)
        try:
            batch = self._old_values(batch, micro, settings)
        except (SamplingCancelled, torch.OutOfMemoryError, UserError):
            # the epoch will be scored again, and must not count twice
            self.judge.rewards.load_state_dict(scales)
            raise
        if self.processes.first:
            with self._review.keeping(epoch, requests, judged, settings) as places:
                for rgb_CHW, place in zip(rgb_NCHW, places, strict=False):
                    save_image(rgb_CHW, place.path, place.text)
            self._warnings += self._review.problems()
        counts = torch.tensor([len(one) for one in micro], dtype=torch.int64)
        images = [int(one) for one in self.processes.sum(counts).tolist()]
        return MadeEpoch(epoch, batch, micro, images, judged.facts)

    def _showing(self, epoch: int, requests: Sequence[RolloutRequest]) -> ShowingWhileMade | None:
        """Shows a person the images of a prompt while others are made, if a person is asked."""
        if self._person is None:
            return None
        batch = online_settings.rollout_batch_size(self.config)
        return ShowingWhileMade(
            epoch, self.config.rlhf_group_size, self._person.offer,
            lambda latents_NChw: decode(self.setup, self.model, latents_NChw, batch),
            {one.group: one.source for one in requests if one.source is not None},
        )  # fmt: skip

    def _decoded(self, rollouts: Rollouts) -> torch.Tensor:
        return decode(
            self.setup, self.model, rollouts.final_NChw, online_settings.rollout_batch_size(self.config),
            lambda done, total: self._tell("decoding images", done, total),
        )  # fmt: skip

    def _stop_if_asked(self) -> None:
        if self._tell("scoring images", 1, 1) is False:
            raise SamplingCancelled

    def _request(
        self, epoch: int, slot: Slot, edited: Mapping[OnlinePrompt, RolloutSource]
    ) -> RolloutRequest:
        config, prompt = self.config, self.prompts[slot.prompt]
        shared = config.rlhf_shared_start_noise
        return RolloutRequest(
            prompt=prompt.text,
            group=slot.group,
            seed=image_seed(config.seed, epoch, slot.group, slot.member),
            id=member_id(epoch, slot.group, slot.member),
            negative=config.rlhf_rollout_negative_prompt,
            start_seed=image_seed(config.seed, epoch, slot.group, -1) if shared else None,
            source=edited.get(prompt),
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
        """Compute log-probabilities (and, for regulated ratios, means) in the batches of training, if they
        are needed.
        """
        config = self.config
        guard = online_settings.regulates_ratios(config)
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
        outs = [
            step_log_prob(self.setup, self.model, part, step, settings, self.training_hooks)
            for step in part.steps
        ]
        return (
            torch.stack([out.logp_B.cpu() for out in outs], 1),
            torch.stack([out.mean_BChw.cpu() for out in outs], 1),
        )
