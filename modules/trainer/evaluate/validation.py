"""Validation on data that is not trained on: eval mode, no gradients, the same draws every time."""

from __future__ import annotations

import collections
from abc import ABC, abstractmethod
from dataclasses import replace

import torch

from modules.adapter.reference import Reference
from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.model.batch import ImageBatch, PairBatch
from modules.model.Model import Model
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from modules.objective import execution
from modules.objective.metrics import PairMetrics, averages_of, validation_tags
from modules.objective.preference import ObjectiveOptions, get_preference_loss
from modules.objective.scores import ReferenceOut
from modules.trainer.distributed import Processes
from modules.util.config.TrainConfig import TrainConfig

STREAM = "validation"


class Validation(ABC):
    """The interface of a validation."""

    @abstractmethod
    def run(self) -> dict[str, float]:
        """Averages over all validation data of all processes, by tag."""


class PairValidation(Validation):
    """``dpo/val_*`` over all validation pairs at R stratified timesteps each, weighted by pairs.

    The draws depend only on (seed, pair, r). The loss is the raw one at the configured beta, without
    smoothing or supervised share, so that values stay comparable over a run. Reference scores are the same in
    every validation and are computed only once.

    Args:
        loader: delivers this process's share of the validation pairs.
        reference: the frozen policy; ``None`` if the objective has no reference.
    """

    def __init__(
        self,
        config: TrainConfig,
        setup: BaseModelSetup,
        model: Model,
        loader: BaseDataLoader,
        reference: Reference | None,
        processes: Processes,
    ) -> None:
        self._setup, self._model, self._loader = setup, model, loader
        self._reference, self._processes = reference, processes
        self._seed, self._shared = config.seed, config.rlhf_dpo_shared_noise
        self._draws = config.rlhf_dpo_validation_draws
        self._noise = replace(training.noise_options(config, preference=True), strata=self._draws, pool=0)
        self._objective = get_preference_loss(config.rlhf_dpo_objective)
        self._options = ObjectiveOptions(
            beta=config.rlhf_dpo_beta,
            ipo_tau=config.rlhf_dpo_ipo_tau,
            mapo_weight=config.rlhf_dpo_mapo_weight,
        )
        self._masked_mean = training.averages_over_masks(config)
        self._known: dict[tuple[int, int], ReferenceOut | None] = {}

    def run(self) -> dict[str, float]:
        metrics = PairMetrics()
        setup, model = self._setup, self._model
        model.set_mode("eval")
        for number, pair in enumerate(self._loader.batches()):
            assert isinstance(pair, PairBatch)
            for r in range(self._draws):
                drawn = setup.draw_pair_noise(
                    model, pair, self._noise, self._seed, self._shared, STREAM, (r,), stratum=r
                )
                scorer = ModelPairScorer(setup, model, pair, drawn, masked_mean=self._masked_mean)
                if (number, r) not in self._known:
                    self._known[number, r] = execution.reference_scores(
                        scorer, self._reference, self._objective
                    )
                metrics.add(
                    execution.evaluate(
                        scorer,
                        self._reference,
                        self._objective,
                        self._options,
                        cached_reference=self._known[number, r],
                    )
                )
        return validation_tags(averages_of(self._processes.sum(metrics.sums())))


class ImageValidation(Validation):
    """``loss/validation`` and, with several concepts, ``loss/validation/<concept>``: the supervised loss without
    weights of noise levels, at R stratified timesteps of each image, averaged over images.

    Args:
        loader: delivers this process's share of the validation images.
    """

    def __init__(
        self,
        config: TrainConfig,
        setup: BaseModelSetup,
        model: Model,
        loader: BaseDataLoader,
        processes: Processes,
    ) -> None:
        self._setup, self._model, self._loader, self._processes = setup, model, loader, processes
        self._seed, self._draws = config.seed, config.validation_draws
        self._noise, self._loss = training.measuring_options(config, self._draws)
        self._concepts = [rules.name for rules, _ in loader.units.groups]
        self._concept_of = {item.id: rules.name for rules, items in loader.units.parts() for item in items}

    @torch.no_grad()
    def run(self) -> dict[str, float]:
        sums: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
        self._model.set_mode("eval")
        for batch in self._loader.batches():
            assert isinstance(batch, ImageBatch)
            for r in range(self._draws):
                drawn = self._setup.draw_noise(
                    self._model, batch, self._noise, self._seed, STREAM, (r,), stratum=r
                )
                loss_B = self._setup.calculate_loss(self._model, batch, drawn, self._loss)
                for name, loss in zip(batch.ids, loss_B.cpu().double().tolist(), strict=True):
                    held = sums[self._concept_of[name]]
                    held[0] += loss
                    held[1] += 1
        table = torch.tensor([sums[concept] for concept in self._concepts], dtype=torch.float64)
        table = self._processes.sum(table)
        made = {"loss/validation": float(table[:, 0].sum() / table[:, 1].sum())}
        if len(self._concepts) > 1:
            for concept, (total, count) in zip(self._concepts, table.tolist(), strict=True):
                if count:
                    made[f"loss/validation/{concept}"] = total / count
        return made
