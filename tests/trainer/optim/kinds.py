"""Update rules as parameters of tests; those whose optional package is not there are skipped."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from modules.trainer.optim.optimizers import CLASSES
from modules.util.enum.choices import Optimizer


def _installed(kind: Optimizer) -> bool:
    return importlib.util.find_spec(CLASSES[kind][0].partition(".")[0]) is not None


KINDS = [
    pytest.param(
        kind,
        id=kind.value,
        marks=() if _installed(kind) else pytest.mark.skip(f"{CLASSES[kind][0]} is not installed"),
    )
    for kind in Optimizer
]


def usual_kinds(*taken: Optimizer) -> list[Any]:
    """As ``KINDS``; those that are not ``taken`` are marked slow."""
    return [
        one
        if one.values[0] in taken
        else pytest.param(*one.values, id=one.id, marks=[*one.marks, pytest.mark.slow])
        for one in KINDS
    ]
