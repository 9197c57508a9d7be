"""One optimizer step's forward and backward passes: supervised, or on preference pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from modules.adapter.reference import Reference
from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.model.batch import ImageBatch, NoiseDraw, PairBatch
from modules.model.Model import Model
from modules.model.noising.schedule import Prediction
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from modules.objective import execution
from modules.objective.AdaptiveBeta import AdaptiveBeta
from modules.objective.confidence import weigh
from modules.objective.diagnostics import PreferenceDiagnostics
from modules.objective.metrics import PairMetrics, averages_of, training_tags
from modules.objective.preference import ObjectiveOptions, get_preference_loss
from modules.objective.preference.kto import reference_point
from modules.objective.scores import ReferenceOut
from modules.trainer.distributed import Processes
from modules.trainer.reference.ReferenceScores import Draws, ReferenceScores
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.DPOExecutionMode import DPOExecutionMode
from modules.util.errors import UnsupportedError
from modules.util.rng import digest64, seed_torch

Backward = Callable[[torch.Tensor], None]
Look = tuple[ModelPairScorer, ReferenceOut | None]
"""Pairs with their noise, and the reference's output for them if known."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of a step, on its device.

    Args:
        tensors: what the averages are computed from.
        sound: whether all losses are finite, bool, ().
        averages: computes the averages by logged tag from copies of the tensors on the CPU.
    """

    tensors: tuple[torch.Tensor, ...]
    sound: torch.Tensor
    averages: Callable[[Sequence[torch.Tensor]], dict[str, float]]

    def read(self) -> dict[str, float]:
        """The averages, read at once."""
        return self.averages([tensor.cpu() for tensor in self.tensors])


class TrainStep(Protocol):
    """The interface of a way of training."""

    def forward_backward(self, group: AccumulationGroup, step: int, backward: Backward) -> None:
        """Add the gradients of one optimizer step, averaged over its items in all processes."""

    def metrics(self) -> dict[str, float]:
        """Averages of the last step over all processes, by logged tag. They may also be used for learning, so
        it must be called exactly once per step. ``loss/train_step`` is always included.
        """

    def numbers(self) -> Numbers | None:
        """The numbers of the last step on its device, instead of ``metrics``; ``None`` if they must be read before
        the next step.
        """
        return None

    def warnings(self) -> list[str]:
        """Findings since the last call."""
        return []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


class SupervisedStep(TrainStep):
    """The model family's ordinary training loss.

    Items marked as prior preservation get the untouched model's prediction as their target.
    """

    def __init__(
        self, config: TrainConfig, setup: BaseModelSetup, model: Model, processes: Processes
    ) -> None:
        self._setup, self._model, self._processes = setup, model, processes
        self._seed = config.seed
        self._noise = training.noise_options(config)
        self._loss = training.loss_options(config)
        self._outside = config.masked_prior_preservation_weight
        self._keeps_model = config.training_method.keeps_the_model
        self._losses: list[torch.Tensor] = []

    def forward_backward(self, group: AccumulationGroup, step: int, backward: Backward) -> None:
        self._model.set_mode("train")
        self._losses.clear()
        for number, batch in enumerate(group):
            if batch is None:
                continue
            assert isinstance(batch, ImageBatch)
            # dropout draws from torch's global stream, so it is seeded by the position
            seed_torch(digest64("dropout", self._seed, step, number, self._processes.rank) >> 1)
            loss_B = self._loss_of(batch)
            backward(loss_B.sum() / group.total)
            self._losses.append(loss_B.detach())

    def numbers(self) -> Numbers | None:
        if not self._losses:
            return None
        sizes = [len(loss_B) for loss_B in self._losses]
        # copied to the CPU only once and all at once, so that no micro-batch waits for the previous one
        loss_N = torch.cat(self._losses)

        def averages(copies: Sequence[torch.Tensor]) -> dict[str, float]:
            sums = torch.zeros(2, dtype=torch.float64)
            for loss_B in copies[0].split(sizes):
                sums += torch.tensor([float(loss_B.double().sum()), len(loss_B)], dtype=torch.float64)
            return self._average(sums)

        return Numbers((loss_N,), loss_N.isfinite().all(), averages)

    def _loss_of(self, batch: ImageBatch) -> torch.Tensor:
        setup, model = self._setup, self._model
        draw = setup.draw_noise(model, batch, self._noise, self._seed)
        some_prior = batch.prior_B is not None and bool(batch.prior_B.any())
        keeps_outside = self._outside > 0 and batch.loss_mask_B1hw is not None
        if not some_prior and not keeps_outside:
            return setup.calculate_loss(model, batch, draw, self._loss)
        prior = self._prior(batch, draw)
        cond = setup.condition(model, batch, draw)
        made = setup.predict(model, batch.latents_BChw, cond, draw, batch.size)
        target = made.target
        if some_prior and batch.prior_B is not None:
            prior_B = batch.prior_B.to(target.device).view(-1, *[1] * (target.dim() - 1))
            target = torch.where(prior_B, prior, target)
        loss_B = setup.supervised_loss(model, replace(made, target=target), draw, batch, self._loss)
        if keeps_outside:
            outside = Prediction(made.predicted, prior)
            kept_B = setup.supervised_loss(model, outside, draw, batch, self._loss, outside=True)
            loss_B = loss_B + self._outside * kept_B
        return loss_B

    def _prior(self, batch: ImageBatch, draw: NoiseDraw) -> torch.Tensor:
        """The prediction of the untouched model."""
        setup, model = self._setup, self._model
        if not self._keeps_model:
            raise UnsupportedError(
                "prior preservation compares with the model as it was, but its own weights are trained",
                field="training_method",
                hint="set training_method to LORA, or disable the PRIOR_PREDICTION concepts",
            )
        with torch.no_grad(), model.untouched():
            cond = setup.condition(model, batch, draw)
            return setup.predict(model, batch.latents_BChw, cond, draw, batch.size).predicted

    def metrics(self) -> dict[str, float]:
        numbers = self.numbers()
        # without losses of its own, because other processes may have some
        return self._average(torch.zeros(2, dtype=torch.float64)) if numbers is None else numbers.read()

    def _average(self, sums: torch.Tensor) -> dict[str, float]:
        """The average over all processes, from the sum and the number of this one's losses."""
        total, count = self._processes.sum(sums).tolist()
        return {"loss/train_step": total / count if count else math.nan}


@dataclass(frozen=True)
class PairFacts:
    """Facts about all pairs of a run.

    Args:
        certainties: certainty of the person by pair id, as far as known.
        class_weights: weights of a like and of a dislike, for single-image objectives.
    """

    certainties: Mapping[str, float | None] = field(default_factory=dict)
    class_weights: tuple[float, float] = (0.5, 0.5)


class PreferenceStep(TrainStep):
    """Diffusion-DPO and its relatives on pairs (Wallace et al. 2023, arXiv 2311.12908).

    Args:
        reference: the frozen policy that scores are compared with; ``None`` if the objective has no reference.
        reference_scores: computed before training; ``None`` computes them in every step.

    Single-image objectives compare rewards with a reference point: the mean reward of all images of the
    optimizer step, over all micro-batches and processes. It is measured first, in passes without gradients,
    so that it does not depend on how the images are divided.
    """

    def __init__(
        self,
        config: TrainConfig,
        setup: BaseModelSetup,
        model: Model,
        processes: Processes,
        reference: Reference | None,
        parameters: list[torch.nn.Parameter],
        reference_scores: ReferenceScores | None = None,
        facts: PairFacts | None = None,
    ) -> None:
        self._config, self._setup, self._model, self._processes = config, setup, model, processes
        self._facts = facts or PairFacts()
        self._reference, self._parameters, self._reference_scores = reference, parameters, reference_scores
        self._noise = training.noise_options(config, preference=True)
        self._loss = training.loss_options(config)
        self._objective = get_preference_loss(config.rlhf_dpo_objective)
        self._metrics = PairMetrics()
        self._diagnostics = PreferenceDiagnostics(
            reference=self._objective.needs_reference, strength=self._objective.strength
        )
        self._adaptive = AdaptiveBeta(config.rlhf_dpo_beta) if config.rlhf_dpo_adaptive_beta else None
        self._findings: list[str] = []
        self._step = 0

    def _options(self) -> ObjectiveOptions:
        """Options of the objective for the next step."""
        beta = self._config.rlhf_dpo_beta if self._adaptive is None else self._adaptive.beta
        return ObjectiveOptions(
            beta=beta,
            label_smoothing=self._config.rlhf_dpo_label_smoothing,
            ipo_tau=self._config.rlhf_dpo_ipo_tau,
            mapo_weight=self._config.rlhf_dpo_mapo_weight,
            class_weights=self._facts.class_weights,
        )

    def _draws(self, pair: PairBatch) -> tuple[Draws, ReferenceOut | None]:
        if self._reference_scores is not None:
            return self._reference_scores.draws(pair)
        shared = self._config.rlhf_dpo_shared_noise
        return self._setup.draw_pair_noise(self._model, pair, self._noise, self._config.seed, shared), None

    def forward_backward(self, group: AccumulationGroup, step: int, backward: Backward) -> None:
        self._step = step
        self._metrics.clear()
        options = self._options()
        config = self._config
        self._model.set_mode("no_dropout")
        looks: Iterable[Look] = (self._look(batch) for batch in group if isinstance(batch, PairBatch))
        if self._objective.single_images:
            point, looks = self._measured(looks, options.beta)
            options = replace(options, reference_point=point)
        for scorer, cached in looks:
            batch = scorer.pair
            known = [self._facts.certainties.get(pair_id) for pair_id in batch.pair_ids]
            out = execution.run(
                config.rlhf_dpo_execution_mode.value,
                config.rlhf_dpo_sequential_strategy.value,
                scorer,
                self._reference,
                self._objective,
                replace(weigh(options, config.rlhf_dpo_confidence, known), sides_B2=batch.sides_B2),
                parameters=self._parameters,
                supervised_mix=config.rlhf_supervised_mix,
                loss_scale=len(batch) / group.total,
                cached_reference=cached,
                backward=backward,
                safeguard_mu=config.dpo_safeguard_mu,
                norm_guard=config.rlhf_norm_guard,
                anchor=config.rlhf_dpo_anchor_weight,
            )
            wanted = config.rlhf_dpo_timestep_margin_logging
            self._metrics.add(out, scorer.draws[0].timestep_B if wanted else None)

    def _look(self, batch: PairBatch) -> Look:
        config = self._config
        draws, cached = self._draws(batch)
        scorer = ModelPairScorer(
            self._setup,
            self._model,
            batch,
            draws,
            self._loss,
            errors=config.dpo_safeguard_mu is not None,
            norms=config.rlhf_norm_guard > 0,
            predictions=config.rlhf_dpo_anchor_weight > 0,
            masked_mean=training.averages_over_masks(config),
        )
        return scorer, cached

    def _measured(self, looks: Iterable[Look], beta: float) -> tuple[float, list[Look]]:
        """The reference point of an optimizer step over all processes, and the looks with the reference's
        output filled in.
        """
        config = self._config
        together = config.rlhf_dpo_execution_mode is DPOExecutionMode.FULL_CONCURRENT
        singly = execution.passes_singly(
            config.rlhf_dpo_execution_mode,
            config.rlhf_dpo_sequential_strategy,
            self._parameters,
            guarded=config.rlhf_norm_guard > 0 or config.rlhf_dpo_anchor_weight > 0,
        )
        sums = torch.zeros(2, dtype=torch.float64)
        known: list[Look] = []
        for scorer, cached in looks:
            found = execution.reference_scores(
                scorer, self._reference, self._objective, cached, together=together, singly=singly
            )
            assert found is not None
            sums += execution.sum_of_rewards(
                scorer, found.scores, scorer.pair.sides_B2, together=together, singly=singly
            )
            known.append((scorer, found))
        total, images = self._processes.sum(sums).tolist()
        return reference_point(beta, total, images), known

    def numbers(self) -> Numbers | None:
        found, summed = self._metrics.on_device()
        if not found or self._adaptive is not None:
            # the next step's beta depends on this one's margins
            return None
        step = self._step
        sound = self._metrics.losses_of(found).isfinite().all()
        return Numbers(tuple(found), sound, lambda copies: self._tags(step, summed(copies)))

    def metrics(self) -> dict[str, float]:
        return self._tags(self._step, self._metrics.sums())

    def _tags(self, step: int, sums: torch.Tensor) -> dict[str, float]:
        """The logged averages of a step, from the sums of this process."""
        averages = averages_of(self._processes.sum(sums))
        findings = self._diagnostics.update(step, averages)
        self._findings += [f"{finding.kind}: {finding.message}" for finding in findings]
        tags = training_tags(averages)
        if self._adaptive is not None and averages.get("pairs"):
            tags["dpo/beta"] = self._adaptive.beta
            self._adaptive.update(averages["margin"])
        return {"loss/train_step": averages.get("loss", math.nan), **tags}

    def warnings(self) -> list[str]:
        found, self._findings = self._findings, []
        return found

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"diagnostics": self._diagnostics.state_dict()}
        if self._adaptive is not None:
            state["adaptive_beta"] = self._adaptive.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._diagnostics.load_state_dict(state["diagnostics"])
        if self._adaptive is not None and "adaptive_beta" in state:
            self._adaptive.load_state_dict(state["adaptive_beta"])
