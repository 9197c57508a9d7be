"""The passes of online training on the meta device: making images, and learning from them."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch

from modules.model.batch import Conditioning, ImageBatch, NoiseDraw
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.rollout import transitions
from modules.rollout.generate import guided_prediction, is_guided
from modules.rollout.Rollouts import RolloutSettings
from modules.rollout.timesteps import sample_timesteps
from modules.trainer.online import settings as online_settings
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import GroupStrategy


class OnlinePasses:
    """Calls the denoiser as rollouts and the optimizer steps of online modes do.

    Args:
        batch: images of the run on the meta device; their size is that of the rollouts.
    """

    def __init__(self, setup: BaseModelSetup, model: Model, config: TrainConfig, batch: ImageBatch) -> None:
        self.setup, self.model, self.config, self.batch = setup, model, config, batch
        assert batch.cond is not None, "online training does not train text encoders"
        self._cond = batch.cond.editing(batch.sources) if batch.sources else batch.cond
        self._settings: RolloutSettings = replace(
            online_settings.rollout_settings(config, setup, model, 0), size=batch.size
        )

    @cached_property
    def _negative(self) -> Conditioning | None:
        return self._cond if is_guided(self.model, self.config.rlhf_rollout_cfg_scale) else None

    @property
    def conditions_bytes(self) -> int:
        """Bytes of the prompts on the device, and of the negative prompts of guided images."""
        own = sum(tensor.nbytes for tensor in self._cond.tensors.values())
        return own * (1 if self._negative is None else 2)

    def coupled(self, index: int) -> torch.Tensor:
        """The log-probability of denoising step ``index``, (B,)."""
        settings, plan = self._settings, self._settings.plan
        x_BChw = torch.empty_like(self.batch.latents_BChw)
        t_B = torch.full((len(self.batch),), plan.positions[index].timestep, device="cpu")
        predicted_BChw = guided_prediction(
            self.setup, self.model, x_BChw, t_B, self._cond, self._negative, settings
        )
        made = transitions.step(
            plan.kind_of(index),
            x_BChw,
            predicted_BChw,
            plan.positions[index],
            self.model.schedule.prediction,
            plan.noise_level,
            plan.temperature,
        )
        drawn_BChw = torch.empty_like(x_BChw)
        # the steps between those that are trained have no standard deviation
        return transitions.log_prob(drawn_BChw, replace(made, std=1.0), settings.reduction, settings.form)

    def decoupled(self, draw: NoiseDraw) -> torch.Tensor:
        """The error of finished images with the noise of ``draw``, (B,)."""
        cond = self._cond
        if self.model.spec.embeds_guidance:
            cond = cond.plus(guidance_B=torch.ones(len(self.batch), device="meta"))
        found = self.setup.predict(self.model, self.batch.latents_BChw, cond, draw, self.batch.size)
        return (found.predicted - found.target).square().flatten(1).mean(1)

    @cached_property
    def _strategy(self) -> GroupStrategy | None:
        """The strategy for whole trajectories or groups; ``None`` in modes without either."""
        config, mode = self.config, self.config.rlhf_mode.spec
        if mode.coupled:
            return online_settings.gspo_strategy(config) if mode.whole_trajectories else None
        if not mode.shows("group_loss"):
            return None
        if config.rlhf_dgpo_group_strategy is not GroupStrategy.AUTO:
            return config.rlhf_dgpo_group_strategy
        # what one process does; several may hold a group together, which takes less
        parts = config.batch_size % config.rlhf_group_size and not config.rlhf_kl_beta
        return GroupStrategy.STASH if parts else None

    @property
    def _at_once(self) -> bool:
        """True if all denoising steps of an image have one backward pass."""
        return self.config.rlhf_mode.coupled and self._strategy is GroupStrategy.EXACT

    @property
    def gradients_before(self) -> int:
        """Number of copies of the gradients of earlier backward passes during a later one of the optimizer step:
        those that are added up and, of an image or group that waits for its weight, its own.
        """
        config = self.config
        images = max(config.batch_size * config.gradient_accumulation_steps, config.rlhf_docs_per_step)
        several = self._levels > 1 and not self._at_once
        if self._strategy is not GroupStrategy.STASH:
            return int(several or images > config.batch_size)
        if config.rlhf_mode.coupled:
            return several + (images > 1)
        return (config.rlhf_group_size > config.batch_size) + (several or images > config.rlhf_group_size)

    @property
    def _levels(self) -> int:
        """Number of noise levels at which an image is learned from."""
        config, plan = self.config, self._settings.plan
        if config.rlhf_mode.coupled:
            return len(plan.trained)
        places = [place.timestep for place in plan.positions]
        options = online_settings.timestep_options(config)
        return len(sample_timesteps(self.model.schedule, options, places, config.seed, 0))

    def learn(self, draw: NoiseDraw) -> None:
        """The forward and backward passes of one micro-batch, after those of other weights it compares with."""
        config, mode = self.config, self.config.rlhf_mode
        trained = list(self._settings.plan.trained)
        steps = trained if self._at_once else trained[:1]

        def compute() -> list[torch.Tensor]:
            return [self.coupled(step) for step in steps] if mode.coupled else [self.decoupled(draw)]

        if online_settings.needs_reference(config) or online_settings.needs_old_policy(config):
            with torch.no_grad():
                compute()
        torch.stack(compute()).mean().backward()
