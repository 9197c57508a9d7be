from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.objective.draw_pool import draw_index, draw_indices


@given(seed=st.integers(0, 99), pair=st.text(max_size=8), draws=st.integers(1, 20), rounds=st.integers(1, 4))
def test_every_round_uses_each_draw_once(seed: int, pair: str, draws: int, rounds: int) -> None:
    for start in range(0, rounds * draws, draws):
        indices = [draw_index(seed, pair, start + offset, draws) for offset in range(draws)]
        assert sorted(indices) == list(range(draws))


def test_order_differs_between_rounds_pairs_and_seeds() -> None:
    def order(seed: int, pair: str, first: int) -> list[int]:
        return [draw_index(seed, pair, first + offset, 16) for offset in range(16)]

    orders = [order(1, "a", 0), order(1, "a", 16), order(1, "b", 0), order(2, "a", 0)]
    assert len({tuple(o) for o in orders}) == 4
    assert order(1, "a", 0) == orders[0]


def test_a_fixed_value_never_changes() -> None:
    """A run resumed by a later version must find the same draws."""
    assert [draw_index(42, "pair-0", visit, 8) for visit in range(8)] == FIRST_ROUND


def test_batch() -> None:
    ids, visits = ["a", "b", "a"], [0, 5, 7]
    expected = [draw_index(3, i, v, 4) for i, v in zip(ids, visits, strict=True)]
    assert draw_indices(3, ids, visits, 4) == expected
    with pytest.raises(ValueError, match="shorter"):
        draw_indices(3, ids, visits[:2], 4)


def test_bad_values() -> None:
    with pytest.raises(ValueError, match="at least one draw"):
        draw_index(0, "a", 0, 0)
    with pytest.raises(ValueError, match="counted from 0"):
        draw_index(0, "a", -1, 4)


FIRST_ROUND = [5, 6, 7, 1, 3, 2, 4, 0]
