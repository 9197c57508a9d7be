"""The lists of exceptions hold what is needed and no more."""

from __future__ import annotations

import pytest

from tests.house.exceptions import breaches


def test_what_is_not_allowed_and_what_is_allowed_in_vain_are_both_told():
    found = {"a": "too long", "b": "too long"}
    assert breaches(found, {"a": "a reason", "b": "another"}) == []
    assert breaches(found, {"a": "a reason"}) == ["b: too long"]
    assert breaches({"a": "too long"}, {"a": "x", "b": "x"}) == ["b: the exception is no longer needed"]


def test_an_exception_without_a_reason_is_refused():
    with pytest.raises(AssertionError, match="reason"):
        breaches({"a": "too long"}, {"a": " "})
