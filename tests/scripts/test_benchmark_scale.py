"""The benchmark of large folders gives every figure and proves what it says; how fast the machine is, is not a test."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from modules.util.errors import UserError
from scripts.benchmarks import _scale_child, scale
from tests.usual import usual


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    scale.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each start says, without a process of its own, which would load its libraries again."""
    said: list[dict[str, Any]] = []

    def child(config: Path, what: str, *more: str) -> dict[str, Any]:
        said.append(_scale_child.measured([what, str(config), *more]))
        return said[-1]

    monkeypatch.setattr(scale, "child", child)
    return said


@pytest.mark.parametrize("kind", usual(["images", "pairs"], "images"))
def test_a_small_folder_gives_every_figure(in_this_process: list[dict[str, Any]], kind: str) -> None:
    more = ("--pairs",) if kind == "pairs" else ()
    rows = scale.run(options("--items", "100", "--plans", "2", *more))
    start, plan, kept, changed, check, decoded, first = rows
    assert {row.model for row in rows} == {"50 pairs" if kind == "pairs" else "100 images"}
    begun, again, walked, looked, checked, after = in_this_process
    assert begun["images"] == 100 and begun["texts"] == (50 if kind == "pairs" else 100)
    assert (again["images"], again["texts"], walked["images"]) == (0, 0, 0)
    assert changed.ratio == after["images"] == 1 and after["texts"] == 0 and changed.within
    assert start.ratio == pytest.approx(again["cpu"] / scale.START_SECONDS)
    assert start.memory_ratio == pytest.approx(again["peak"] / scale.START_BYTES)
    assert plan.ratio == max(again["plans"]) and len(again["plans"]) == 2
    assert (
        kept.extra["bytes"] == walked["memory"] and len(walked["memory"]) == 3 and kept.limit == scale.GROWTH
    )
    assert check.extra["cpu_seconds"] == checked["cpu"] > 0 and looked["faults"] == checked["faults"] == []
    assert decoded.limit is None and first.extra["cpu_seconds"] == begun["cpu"]


def test_what_is_encoded_again_without_a_change_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"images": 3, "texts": 0, "faults": [], "units": 100}
    monkeypatch.setattr(scale, "child", lambda *_: answer)
    with pytest.raises(RuntimeError, match="3 images were encoded again"):
        scale.run(options("--items", "100"))


def test_too_few_to_measure() -> None:
    with pytest.raises(UserError, match="at least 100 items"):
        scale.run(options("--items", "5"))
    with pytest.raises(UserError, match="3 epochs"):
        scale.run(options("--epochs", "2"))
