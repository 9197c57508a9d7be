"""A fixed pool of draws per pair, so that reference scores need to be computed only once.

Every pair owns N draws of (timestep, noise). A draw is not stored: it is the draw its pair would have on
visit ``index`` of a run with N strata, from a stream of its own, so it can always be computed again from
(pair id, index). Training visits a pair's pool in shuffled rounds: each draw is used once before any is used
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from modules.util.rng import python_random

POOL_STREAM = "reference-pool"


def draw_index(seed: int, pair_id: str, visit: int, draws: int) -> int:
    """Return the index of the draw that a pair uses from its pool.

    Args:
        seed: the run's seed.
        pair_id: stable id of the pair.
        visit: how many times the pair was visited before in this run, >= 0.
        draws: N, the size of the pool, >= 1.

    Returns:
        An index in [0, N); over visits kN to kN + N - 1 each index occurs once, in an order drawn for
        every round k and every pair.

    Raises:
        ValueError: ``draws`` below 1 or ``visit`` below 0.
    """
    if draws < 1:
        raise ValueError(f"a pool needs at least one draw, not {draws}")
    if visit < 0:
        raise ValueError(f"a visit is counted from 0, not {visit}")
    return _round_order(seed, pair_id, visit // draws, draws)[visit % draws]


@lru_cache(maxsize=1 << 16)
def _round_order(seed: int, pair_id: str, round_index: int, draws: int) -> tuple[int, ...]:
    order = list(range(draws))
    python_random("reference-pool-order", seed, pair_id, round_index).shuffle(order)
    return tuple(order)


def draw_indices(seed: int, pair_ids: Sequence[str], visits: Sequence[int], draws: int) -> list[int]:
    """``draw_index`` for every pair of a batch."""
    return [draw_index(seed, pair_id, visit, draws) for pair_id, visit in zip(pair_ids, visits, strict=True)]
