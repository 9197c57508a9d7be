"""Reference scores computed before training: fills the cache and looks up the scores of a step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from modules.adapter.reference import Reference
from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.source import reference_cache_faults
from modules.model.batch import NoiseDraw, PairBatch, to_device
from modules.model.Model import Model
from modules.model.noising.schedule import Schedule
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from modules.objective.draw_pool import POOL_STREAM
from modules.objective.execution import passes_singly, reference_scores
from modules.objective.preference import get_preference_loss
from modules.objective.scores import ReferenceOut
from modules.trainer.distributed import Processes
from modules.trainer.reference.reference_cache import Progress, ReferenceCache, pooled, reference_key
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import DPOTimestepSampling, PairMasks
from modules.util.enum.DPOExecutionMode import DPOExecutionMode
from modules.util.errors import ConfigError

Draws = tuple[NoiseDraw, NoiseDraw]
FOLDER = "reference"


class ReferenceScores:
    """The pools of draws of a run's pairs and the reference's scores of them.

    Args:
        reference: the frozen policy.
        processes: each process computes its share; all read everything.
    """

    def __init__(
        self,
        config: TrainConfig,
        setup: BaseModelSetup,
        model: Model,
        reference: Reference,
        processes: Processes,
    ) -> None:
        self._config, self._setup, self._model = config, setup, model
        self._reference, self._processes = reference, processes
        self._size = config.rlhf_dpo_reference_cache_draws
        self._together = config.rlhf_dpo_execution_mode is DPOExecutionMode.FULL_CONCURRENT
        self._norms = config.rlhf_norm_guard > 0
        # passes of one image are rounded differently from batches; an optimizer step fused into the backward pass
        # needs the strategy with batches
        self._singly = not config.optimizer.fused_back_pass and passes_singly(
            config.rlhf_dpo_execution_mode, config.rlhf_dpo_sequential_strategy, (), guarded=self._norms
        )
        # a pair's draws; the largest batch that differs from the next smaller one
        self._batch_size = min(2 * config.batch_size, self._size)
        stratified = config.rlhf_dpo_timestep_sampling is DPOTimestepSampling.STRATIFIED
        self._noise = replace(
            training.noise_options(config, preference=True), strata=self._size if stratified else 0, pool=0
        )
        self._objective = get_preference_loss(config.rlhf_dpo_objective)
        folder = Path(config.cache_dir) / FOLDER
        self._cache = ReferenceCache(folder, self._key(), self._size, processes.rank, norms=self._norms)

    def _key(self) -> str:
        model, config = self._model, self._config
        snapshot = hashlib.blake2b(digest_size=16)
        for name, tensor in sorted(self._reference.snapshot_state().items()):
            snapshot.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
            snapshot.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        parts = [model.spec.denoiser, *(model.text_encoders if model.trains_text else ())]
        # cached text states of a batch carry their own digest
        in_chunks = model.prompt_chunks > 1 and model.trains_text
        told: list[Any] = [model.prompt_weighting, model.guidance if model.spec.embeds_guidance else 0.0]
        told += [sorted(model.layer_skips.items())] if model.layer_skips else []
        if model.prompt_length or model.masks_padding is not None:
            told.append(["padding", model.prompt_length, model.masks_padding])
        told += [] if model.words is None else [["embeddings", model.words.start_digest()]]
        noise = asdict(self._noise)
        if not self._noise.offset_by_level:
            # compatible with keys of versions that did not have it
            del noise["offset_by_level"]
        return reference_key(
            {
                "base": {part: model.fingerprint(part) for part in parts},
                "adapter": snapshot.hexdigest(),
                "seed": config.seed,
                "draws": self._size,
                "shared": config.rlhf_dpo_shared_noise,
                "noise": noise,
                "schedule": [model.schedule.prediction, *_levels(model.schedule)],
                "told": [*told, *([model.prompt_chunks] if in_chunks else [])],
                "compute": str(model.compute_dtype),
                "weights": {part: str(next(model.module(part).parameters()).dtype) for part in parts},
                "device": model.device.type,
                **({"norms": True} if self._norms else {}),
                # the masks themselves are part of the pairs
                **(
                    {}
                    if config.rlhf_dpo_mask is PairMasks.OFF
                    else {"masks": config.rlhf_dpo_mask_norm.value}
                ),
                # the batch size determines the rounding
                "company": [self._together, self._batch_size, *(["singly"] if self._singly else [])],
            }
        )

    def check(self, loader: BaseDataLoader) -> None:
        """Raise ``ConfigError`` if a pair does not look the same on every visit, because its scores would
        differ too.
        """
        for fault in reference_cache_faults(loader.rules):
            raise fault

    def prepare(self, loader: BaseDataLoader, progress: Progress, should_stop: Callable[[], bool]) -> bool:
        """Compute missing scores. Return ``False`` if stopped."""
        self.check(loader)
        share = len(loader) // self._processes.world_size
        pairs = (batch for batch in loader.batches() if isinstance(batch, PairBatch))
        done = self._cache.fill(
            pairs, self._score, self._batch_size, total=share, progress=progress, should_stop=should_stop
        )
        stopped = self._processes.agree(int(not done))
        self._cache.reload()
        return not stopped

    @torch.no_grad()
    def _score(self, pair: PairBatch) -> ReferenceOut:
        self._model.set_mode("no_dropout")
        averages = training.averages_over_masks(self._config)
        scorer = ModelPairScorer(
            self._setup, self._model, pair, self._draw(pair), norms=self._norms, masked_mean=averages
        )
        scores = reference_scores(
            scorer, self._reference, self._objective, together=self._together, singly=self._singly
        )
        if scores is None:
            raise ConfigError(
                f"the {self._objective.key} objective has no reference to cache",
                "rlhf_dpo_reference_cache",
                "switch it off",
            )
        return scores

    def _draw(self, pair: PairBatch) -> Draws:
        config = self._config
        shared = config.rlhf_dpo_shared_noise
        return self._setup.draw_pair_noise(self._model, pair, self._noise, config.seed, shared, POOL_STREAM)

    def draws(self, pair: PairBatch) -> tuple[Draws, ReferenceOut]:
        """The draws of a training step and the reference's scores (chosen, rejected) at them, each (B,)."""
        at_draw, indices = pooled(pair, self._config.seed, self._size)
        known, device = self._cache.lookup(at_draw, indices), self._model.device
        chosen_B, rejected_B = (to_device(column, device) for column in known.scores)
        norms = None
        if known.norms is not None:
            norms = (to_device(known.norms[0], device), to_device(known.norms[1], device))
        return self._draw(at_draw), ReferenceOut((chosen_B, rejected_B), norms)


def _levels(schedule: Schedule) -> list[float]:
    """Values that identify a noise schedule: the share of the image at some of its levels."""
    return schedule.coefficients(schedule.timestep(torch.linspace(0.0, 0.999, 9)))[0].tolist()
