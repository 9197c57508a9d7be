"""The certainty of the ranking about each pair, as part of the loss. A pair without a known certainty keeps the
ordinary loss. Sources: label smoothing for a known share of flipped labels as in Mitchell 2023, "A note on DPO
with noisy preferences"; an offset of the margin as in Amini et al. 2024 (arXiv 2402.10571), here the log odds
of the ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from modules.objective.preference import ObjectiveOptions
from modules.util.enum.choices import DPOConfidence

MOST_CERTAIN = 0.99
"""Maximum certainty for which a margin is required, because log odds are unbounded."""


def weigh(
    options: ObjectiveOptions, kind: DPOConfidence, certainties: Sequence[float | None]
) -> ObjectiveOptions:
    """The objective's options for one batch.

    Args:
        certainties: of every pair, the probability from 0.5 to 1 that the chosen image is the better one.
    """
    if kind is DPOConfidence.OFF:
        return options
    if kind is DPOConfidence.SMOOTHING:
        flips = [0.0 if one is None else 1.0 - one for one in certainties]
        return replace(options, flip_B=torch.tensor(flips, dtype=torch.float64))
    known_B = torch.tensor([0.5 if one is None else one for one in certainties], dtype=torch.float64)
    return replace(options, gap_B=torch.logit(known_B.clamp(max=MOST_CERTAIN)))
