"""Passes that only score: how many images each of them holds."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.objective.scores import PairScorer, ReferenceOut, ScorePair, detached_float32, split_both


def score_sides(scorer: PairScorer, together: bool, singly: bool = False) -> ReferenceOut:
    """The scores of B pairs with the current weights, detached, with norms and predictions if the scorer gives them.

    Args:
        together: both sides in one pass of 2B images, or one side after the other.
        singly: one image per pass.
    """
    if singly and len(scorer) > 1:
        return _joined([score_sides(scorer.select(i, i + 1), together=False) for i in range(len(scorer))])
    if together:
        both = scorer("both")
        chosen_B, rejected_B = split_both(both.score_B)
        norms = None if both.norm_B is None else split_both(detached_float32(both.norm_B))
        predictions = None
        if both.predicted_BD is not None:
            chosen_BD, rejected_BD = detached_float32(both.predicted_BD).tensor_split(2)
            predictions = (chosen_BD, rejected_BD)
        return ReferenceOut((detached_float32(chosen_B), detached_float32(rejected_B)), norms, predictions)
    chosen, rejected = scorer("chosen"), scorer("rejected")
    scores = (detached_float32(chosen.score_B), detached_float32(rejected.score_B))
    return ReferenceOut(
        scores,
        _detached_pair(chosen.norm_B, rejected.norm_B),
        _detached_pair(chosen.predicted_BD, rejected.predicted_BD),
    )


def _joined(parts: Sequence[ReferenceOut]) -> ReferenceOut:
    """The results of all pairs from those of single ones."""
    columns = zip(*parts, strict=True)
    scores, norms, predictions = (
        None
        if column[0] is None
        else (torch.cat([one[0] for one in column]), torch.cat([one[1] for one in column]))
        for column in columns
    )
    assert scores is not None
    return ReferenceOut(scores, norms, predictions)


def _detached_pair(chosen: torch.Tensor | None, rejected: torch.Tensor | None) -> ScorePair | None:
    if chosen is None or rejected is None:
        return None
    return detached_float32(chosen), detached_float32(rejected)
