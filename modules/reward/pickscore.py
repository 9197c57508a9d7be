"""PickScore: a CLIP model trained on what people picked (Kirstain et al. 2023, arXiv 2305.01569)."""

from __future__ import annotations

from torch import Tensor

from modules.reward.base import REWARDS, RewardBatch
from modules.reward.clip import CLIP_H14, PICKSCORE, ClipReward, FloatType, has_processor

PICKSCORE_PROCESSOR = CLIP_H14
USUAL_LOGIT = 26.0
"""Typical logit of good images, by which scores are divided to be near 1."""


@REWARDS.register("pickscore")
class PickScore(ClipReward):
    """Score of how much people like an image for its prompt, by PickScore: exp(logit scale) * cosine / 26.

    Args:
        source: folder or repository name of the model.
        processor: folder or repository name of its tokenizer and image preparation; the model's own folder if
            it has them, else the one the model was trained with.
        dtype, batch_size: as ``ClipFeatures``.
    """

    required_fields = ("prompt",)

    def __init__(
        self,
        source: str = PICKSCORE,
        processor: str | None = None,
        dtype: FloatType = "float32",
        batch_size: int = 8,
    ) -> None:
        place = processor or (source if has_processor(source) else PICKSCORE_PROCESSOR)
        super().__init__(source, place, dtype, batch_size)

    def _score(self, batch: RewardBatch) -> Tensor:
        return self.clip.logit_scale * self.cosine(batch) / USUAL_LOGIT
