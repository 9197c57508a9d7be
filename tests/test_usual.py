"""Which tests are taken where all of them take too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.usual import share_of, usual


@given(st.integers(0, 100), st.integers(1, 30))
def test_every_test_is_in_one_share(tests: int, count: int) -> None:
    shares = [share_of(range(tests), f"{number}/{count}") for number in range(1, count + 1)]
    assert sorted(one for share in shares for one in share) == list(range(tests))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("share", ["0/3", "4/3", "1/0", "1", "a/b", "-1/3", "1/3/5", ""])
def test_what_is_not_a_share_is_refused(share: str) -> None:
    with pytest.raises(pytest.UsageError, match="--share"):
        share_of([1, 2, 3], share)


def test_cases_that_are_not_taken_are_slow() -> None:
    first, second = usual(["a", "b"], "b")
    assert (second, first.values, [mark.name for mark in first.marks]) == ("b", ("a",), ["slow"])
    with pytest.raises(ValueError, match="no case"):
        usual(["a"], "c")
