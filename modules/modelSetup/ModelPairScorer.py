"""Scores of image pairs by a model: the bridge between a family and the preference schedules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from modules.model.batch import Conditioning, ImageBatch, NoiseDraw, PairBatch, to_device
from modules.model.Model import Model
from modules.model.noising.schedule import Prediction
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.objective.scores import ScoreOut, Side
from modules.objective.supervised import LossOptions, mse_per_sample


@dataclass(frozen=True)
class ModelPairScorer:
    """Scores B pairs for fixed draws with whatever weights are live, for ``modules.objective.execution``.

    A trained text encoder encodes the prompts inside every call, so a reference pass sees the reference's
    encoder too.

    Args:
        draws: of the chosen and the rejected side, as ``draw_pair_noise`` makes them.
        errors: give prediction minus target along with the scores, as the safeguard needs them.
        norms: give the norm of every prediction along with its score, as the norm guard needs them.
        predictions: give every prediction along with its score, as the anchor needs them.
        masked_mean: average the error over the mask of a pair, where it has one; otherwise over the image.

    Raises:
        RuntimeError: the rejected side is missing; in calls: dropout is on, which would score the two sides with
            different weights.
    """

    setup: BaseModelSetup
    model: Model
    pair: PairBatch
    draws: tuple[NoiseDraw, NoiseDraw]
    options: LossOptions = field(default_factory=LossOptions)
    errors: bool = False
    norms: bool = False
    predictions: bool = False
    masked_mean: bool = True

    def __post_init__(self) -> None:
        self.pair.both_sides()

    def __len__(self) -> int:
        return len(self.pair)

    def select(self, start: int, stop: int) -> ModelPairScorer:
        index = slice(start, stop)
        draws = (self.draws[0].select(index), self.draws[1].select(index))
        return replace(self, pair=self.pair.select(index), draws=draws)

    def __call__(self, side: Side, with_supervised: bool = False) -> ScoreOut:
        if with_supervised and side == "rejected":
            raise ValueError("the supervised loss belongs to the chosen images")
        if self.model.mode == "train":
            raise RuntimeError("pairs are scored without dropout: set the model's mode first")
        batch, draw, cond = self._inputs(side)
        prediction = self.setup.predict(self.model, batch.latents_BChw, cond, draw, batch.size)
        mask_B1hw = self._mask(side, prediction.predicted.device)
        score_B = -mse_per_sample(prediction.predicted, prediction.target, mask_B1hw, self.masked_mean)
        error_BD = self._errors(prediction, mask_B1hw) if self.errors else None
        norm_B = prediction.predicted.flatten(1).norm(dim=1) if self.norms else None
        predicted_BD = prediction.predicted.flatten(1) if self.predictions else None
        if not with_supervised:
            return ScoreOut(score_B, None, error_BD, norm_B, predicted_BD)
        count = len(self)
        chosen = type(prediction)(prediction.predicted[:count], prediction.target[:count])
        supervised_B = self.setup.supervised_loss(
            self.model, chosen, self.draws[0], self.pair.chosen, self.options
        )
        return ScoreOut(score_B, supervised_B, error_BD, norm_B, predicted_BD)

    def _mask(self, side: Side, device: torch.device) -> torch.Tensor | None:
        """How much each cell of the images of a side counts."""
        if self.pair.mask_B1hw is None:
            return None
        mask_B1hw = to_device(self.pair.mask_B1hw, device)
        return torch.cat([mask_B1hw, mask_B1hw]) if side == "both" else mask_B1hw

    @staticmethod
    def _errors(prediction: Prediction, mask_B1hw: torch.Tensor | None) -> torch.Tensor:
        """The direction in which the predictions of a score move, (B, D): what lies outside a mask does not."""
        error_BChw = (prediction.predicted - prediction.target).detach()
        return (error_BChw if mask_B1hw is None else error_BChw * mask_B1hw).flatten(1)

    def _inputs(self, side: Side) -> tuple[ImageBatch, NoiseDraw, Conditioning]:
        chosen, rejected = self.pair.both_sides()
        if side == "chosen":
            return chosen, self.draws[0], self.setup.condition(self.model, chosen)
        if side == "rejected":
            return rejected, self.draws[1], self.setup.condition(self.model, rejected)
        batch = ImageBatch.cat([chosen, rejected])
        same = chosen.prompts == rejected.prompts and chosen.seen.same_as(rejected.seen)
        if self.model.trains_text and same:
            # one pass for the prompts of both sides; their images differ
            text = self.setup.text_condition(self.model, chosen)
            cond = self.setup.with_images(self.model, Conditioning.cat([text, text]), batch)
        else:
            cond = self.setup.condition(self.model, batch)
        return batch, NoiseDraw.cat(self.draws), cond
