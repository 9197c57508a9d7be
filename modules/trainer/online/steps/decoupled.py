"""The model passes of the decoupled modes: finished images with added noise, at timesteps chosen by the mode."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.adapter.reference import Reference
from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.model.batch import Conditioning, NoiseDraw
from modules.model.noising.schedule import Prediction
from modules.model.text.NegativePrompt import NegativePrompt
from modules.objective.supervised import mse_per_sample
from modules.rollout.timesteps import group_noise, sample_timesteps
from modules.trainer.online import settings as online_settings
from modules.trainer.online.batch import OnlineBatch, OnlineGroup
from modules.trainer.online.OldPolicy import OldPolicy
from modules.trainer.online.OnlineLoader import OnlineLoader
from modules.trainer.online.OnlineMetrics import OnlineMetrics
from modules.trainer.steps import Backward, TrainStep


class NoisedBatch:
    """Images of a micro-batch with the noise of one timestep.

    Args:
        index: index of the timestep in the list of the pass.
        timestep: the timestep given to the denoiser.
    """

    def __init__(self, step: DecoupledStep, batch: OnlineBatch, index: int, timestep: torch.Tensor) -> None:
        self._step, self._batch = step, batch
        loader, group = step.loader, step.group
        rollouts = batch.rollouts
        self._latents_BChw = rollouts.final_NChw.to(loader.model.device)
        noise_BChw = group_noise(
            loader.config.rlhf_dgpo_noise,
            rollouts.group_N.tolist(),
            rollouts.ids,
            self._latents_BChw.shape[1:],
            loader.config.seed,
            group.epoch,
            group.inner,
            index,
        )
        self.timestep_B = timestep.expand(len(batch))
        self._draw = NoiseDraw(self.timestep_B, noise_BChw).to(loader.model.device)
        self._cond = rollouts.condition(loader.model.device)

    def _ask(self, cond: Conditioning) -> Prediction:
        loader = self._step.loader
        model = loader.model
        model.set_mode("no_dropout")
        if model.spec.embeds_guidance:
            cfg = torch.full((len(cond),), loader.config.rlhf_rollout_cfg_scale, device=model.device)
            cond = cond.plus(guidance_B=cfg)
        size = self._batch.rollouts.settings.size
        return loader.setup.predict(model, self._latents_BChw, cond, self._draw, size)

    def policy(self) -> Prediction:
        """The prediction of the trained weights, in the current gradient mode."""
        return self._ask(self._cond)

    def old(self) -> torch.Tensor:
        """The old policy's prediction. Must not be called between a forward pass and its backward pass."""
        assert self._step.old_policy is not None
        with torch.no_grad(), self._step.old_policy.active():
            return self._ask(self._cond).predicted

    def reference(self, cfg: float = 1.0) -> torch.Tensor:
        """The prediction of the initial weights, with guidance if ``cfg`` is above 1."""
        assert self._step.reference is not None
        with torch.no_grad(), self._step.reference.active():
            wanted = self._ask(self._cond).predicted
            if cfg <= 1.0 or not self._step.loader.model.spec.reads_negatives:
                return wanted
            unwanted = self._ask(self._negative()).predicted
        return self._step.loader.setup.guide(wanted, unwanted, cfg)

    def _negative(self) -> Conditioning:
        """The negative prompt for each image, with what that edits."""
        sources, device = self._cond.sources, self._step.loader.model.device
        own = self._batch.rollouts.negative(device)
        if sources and own is not None:
            # an encoder may have read it with what is edited
            return own
        return self._step.negative().select([0] * len(self._batch)).editing(sources)

    @property
    def target(self) -> torch.Tensor:
        """The target of the denoiser's prediction."""
        schedule = self._step.loader.model.schedule
        return schedule.target(self._latents_BChw, self._draw.noise_BChw, self._draw.timestep_B)

    def error(self, predicted_BChw: torch.Tensor) -> torch.Tensor:
        """Mean squared error of each image, (B,) float32."""
        return mse_per_sample(predicted_BChw, self.target)

    @property
    def adv_B(self) -> torch.Tensor:
        return self._batch.adv_B.to(self._latents_BChw.device)

    @property
    def group_B(self) -> torch.Tensor:
        """Group ids, from 0 within the epoch."""
        return (self._batch.rollouts.group_N - self._step.group.first_group).to(self._latents_BChw.device)


class DecoupledStep(TrainStep):
    """The base of the decoupled modes. Subclasses implement ``_run``.

    The loss is the mean over the images and over the timesteps of the pass.

    Args:
        reference: the initial weights of the run, if the mode compares with them.
        old_policy: the slowly following weights, if the mode has them.
        lossless: not used, because rollouts and training never compute the same here.
    """

    def __init__(
        self,
        loader: OnlineLoader,
        reference: Reference | None,
        parameters: list[torch.nn.Parameter],
        old_policy: OldPolicy | None,
        lossless: bool,
    ) -> None:
        self.loader, self.config, self.processes = loader, loader.config, loader.processes
        self.reference, self.parameters, self.old_policy = reference, parameters, old_policy
        self._results = OnlineMetrics(loader.processes)
        self._timesteps = online_settings.timestep_options(loader.config)
        self._group: OnlineGroup | None = None
        self._negative: Conditioning | None = None

    @property
    def group(self) -> OnlineGroup:
        """The current optimizer step."""
        if self._group is None:
            raise RuntimeError("no optimizer step is in progress")
        return self._group

    def forward_backward(self, group: AccumulationGroup, step: int, backward: Backward) -> None:
        assert isinstance(group, OnlineGroup)
        self._group = group
        self._results.clear(group.facts)
        self._run(backward)

    def _run(self, backward: Backward) -> None:
        """Add the gradients of the step."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        return self._results.tags()

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, on the tensor's device."""
        return self.processes.sum(tensor.cpu()).to(tensor.device)

    def timesteps(self) -> torch.Tensor:
        """The timesteps of the pass, (T,), the same for all images and processes."""
        settings = self.loader.settings(self.group.epoch)
        return sample_timesteps(
            self.loader.model.schedule,
            self._timesteps,
            [place.timestep for place in settings.plan.positions],
            self.config.seed,
            self.group.epoch,
            self.group.inner,
        )

    def negative(self) -> Conditioning:
        """The conditioning of the negative prompt, (1, ...); encoded once."""
        if self._negative is None:
            model = self.loader.model
            with model.borrowed_encoders():
                text = NegativePrompt(self.config.rlhf_rollout_negative_prompt)
                self._negative = self.loader.setup.encode_text(model, [text]).to("cpu")
        return self._negative.to(self.loader.model.device)


def joined(batches: Sequence[OnlineBatch], images: Sequence[tuple[int, int]]) -> OnlineBatch:
    """Join the images (batch, index) of one group or pair into a batch. They belong to one epoch."""
    from modules.rollout.Rollouts import Rollouts

    parts = [batches[b].select([i]) for b, i in images]
    return OnlineBatch(
        Rollouts.cat([part.rollouts for part in parts]),
        torch.cat([part.adv_B for part in parts]),
        torch.cat([part.reward_B for part in parts]),
        torch.cat([part.place_B for part in parts]),
    )
