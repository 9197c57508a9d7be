"""Scores image pairs with a model; the bridge between a family and the preference schedules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from modules.model.batch import Conditioning, ImageBatch, NoiseDraw, PairBatch, to_device
from modules.model.dtypes import wide_dtype
from modules.model.Model import Model
from modules.model.noising.schedule import Prediction
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.objective.scores import ScoreOut, Side
from modules.objective.supervised import LossOptions, mse_per_sample


@dataclass(frozen=True)
class ModelPairScorer:
    """Scores B pairs for fixed draws with the current weights, for ``modules.objective.execution``.

    A trained text encoder encodes the prompts inside every call, so that a reference pass uses the
    reference's encoder too. Only sides with an image pass through the model. Without one, the score, the
    error and the prediction are 0 and the norm is 1.

    Args:
        draws: draws of the chosen and the rejected side, from ``draw_pair_noise``.
        errors: return prediction minus target with the scores, for the safeguard.
        norms: return the norm of every prediction with its score, for the norm guard.
        predictions: return every prediction with its score, for the anchor.
        masked_mean: average the error over the mask of a pair, if it has one; otherwise over the image.

    Raises:
        RuntimeError: the rejected side is missing; in calls: dropout is on, which would score the two sides
            with different weights.
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
        rows = self._rows(side)
        if rows is not None and not len(rows):
            return self._nothing(with_supervised)
        batch, draw, cond = self._inputs(side, rows)
        prediction = self.setup.predict(self.model, batch.latents_BChw, cond, draw, batch.size)
        mask_B1hw = self._mask(side, prediction.predicted.device)
        made = ScoreOut(
            -mse_per_sample(prediction.predicted, prediction.target, mask_B1hw, self.masked_mean),
            self._supervised(prediction, rows) if with_supervised else None,
            self._errors(prediction, mask_B1hw) if self.errors else None,
            prediction.predicted.flatten(1).norm(dim=1) if self.norms else None,
            prediction.predicted.flatten(1) if self.predictions else None,
        )
        return made if rows is None else self._spread(made, rows, side)

    def _rows(self, side: Side) -> torch.Tensor | None:
        """Indices of the images of a side, among those of both for ``"both"``; ``None`` if all are present."""
        if self.pair.sides_B2 is None:
            return None
        there_B2 = self.pair.sides_B2
        there = there_B2.T.flatten() if side == "both" else there_B2[:, int(side == "rejected")]
        return None if bool(there.all()) else there.nonzero().flatten()

    def _supervised(self, prediction: Prediction, rows: torch.Tensor | None) -> torch.Tensor:
        """The training loss of the chosen images, which come first in ``prediction``, (B,)."""
        count, batch, draw = len(self), self.pair.chosen, self.draws[0]
        if rows is not None:
            rows = rows[rows < count]
            count, batch, draw = len(rows), batch.select(rows), draw.select(rows)
            if not count:
                return prediction.predicted.new_zeros(len(self))
        variance = None if prediction.variance is None else prediction.variance[:count]
        chosen = type(prediction)(prediction.predicted[:count], prediction.target[:count], variance)
        loss_B = self.setup.supervised_loss(self.model, chosen, draw, batch, self.options)
        return loss_B if rows is None else _placed(loss_B, rows, len(self))

    def _spread(self, made: ScoreOut, rows: torch.Tensor, side: Side) -> ScoreOut:
        """Scatter the results of images to their indices among all."""
        count = len(self) * (2 if side == "both" else 1)
        return ScoreOut(
            _placed(made.score_B, rows, count),
            made.supervised_B,
            None if made.error_BD is None else _placed(made.error_BD, rows, count),
            None if made.norm_B is None else _placed(made.norm_B, rows, count, 1.0),
            None if made.predicted_BD is None else _placed(made.predicted_BD, rows, count),
        )

    def _nothing(self, with_supervised: bool) -> ScoreOut:
        """The result of a side without any image: values with a graph that contains no weight."""
        latents_BChw = self.pair.chosen.latents_BChw
        wide = wide_dtype(latents_BChw.dtype)
        zeros_BD = torch.zeros_like(latents_BChw, dtype=wide, device=self.model.device).flatten(1)
        zeros_B = torch.zeros_like(zeros_BD[:, 0]).requires_grad_(torch.is_grad_enabled())
        return ScoreOut(
            zeros_B,
            zeros_B.detach() if with_supervised else None,
            zeros_BD if self.errors else None,
            torch.ones_like(zeros_B) if self.norms else None,
            zeros_BD if self.predictions else None,
        )

    def _mask(self, side: Side, device: torch.device) -> torch.Tensor | None:
        """The weight of each cell of the images of a side."""
        if self.pair.mask_B1hw is None:
            return None
        mask_B1hw = to_device(self.pair.mask_B1hw, device)
        return torch.cat([mask_B1hw, mask_B1hw]) if side == "both" else mask_B1hw

    @staticmethod
    def _errors(prediction: Prediction, mask_B1hw: torch.Tensor | None) -> torch.Tensor:
        """The direction in which the predictions of a score move, (B, D). Areas outside a mask do not move."""
        error_BChw = (prediction.predicted - prediction.target).detach()
        return (error_BChw if mask_B1hw is None else error_BChw * mask_B1hw).flatten(1)

    def _inputs(self, side: Side, rows: torch.Tensor | None) -> tuple[ImageBatch, NoiseDraw, Conditioning]:
        chosen, rejected = self.pair.both_sides()
        if side == "chosen":
            batch, draw = chosen, self.draws[0]
        elif side == "rejected":
            batch, draw = rejected, self.draws[1]
        else:
            batch, draw = ImageBatch.cat([chosen, rejected]), NoiseDraw.cat(self.draws)
        if rows is not None:
            batch, draw = batch.select(rows), draw.select(rows)
        same = chosen.prompts == rejected.prompts and chosen.seen.same_as(rejected.seen)
        if side == "both" and rows is None and self.model.trains_text and same:
            # one pass for the prompts of both sides, whose images differ
            text = self.setup.text_condition(self.model, chosen)
            cond = self.setup.with_images(self.model, Conditioning.cat([text, text]), batch)
        else:
            cond = self.setup.condition(self.model, batch)
        return batch, draw, cond


def _placed(values: torch.Tensor, rows: torch.Tensor, count: int, filler: float = 0.0) -> torch.Tensor:
    """Scatter ``values`` to the indices ``rows`` of ``count``, with ``filler`` elsewhere."""
    empty = values.new_full((count, *values.shape[1:]), filler)
    return empty.index_copy(0, rows.to(values.device), values)
