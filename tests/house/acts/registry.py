"""All cases, by the setting they are about."""

from __future__ import annotations

from functools import cache

from tests.house.acts import (
    data_cases,
    embedding_cases,
    model_cases,
    online_cases,
    pair_cases,
    remote_cases,
    run_cases,
    training_cases,
)
from tests.house.acts.case import Case


@cache
def cases() -> tuple[Case, ...]:
    modules = (
        run_cases, model_cases, data_cases, training_cases, embedding_cases, pair_cases, online_cases, remote_cases,
    )  # fmt: skip
    return tuple(case for module in modules for case in module.CASES)
