"""The data benchmark measures what it says; the figures themselves belong to the benchmark."""

from __future__ import annotations

import argparse

import pytest

from modules.dataLoader.Text2ImageDataLoader import Text2ImageDataLoader
from modules.util.errors import UserError
from scripts.benchmarks import data


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    data.add_arguments(parser)
    return parser.parse_args(arguments)


SMALL = ("--pairs", "2", "--side", "64", "--rounds", "1")


def test_every_case_is_measured_against_its_bare_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "WIDTHS", (32, 32))
    rows = data.run(options(*SMALL))
    assert [row.case for row in rows] == [
        "VAE alone", "filling the cache", "Pillow alone", "reading images", "tensors alone", "batches of pairs",
    ]  # fmt: skip
    assert [row.ratio for row in rows[::2]] == [1.0] * 3 and all(row.ratio > 0 for row in rows)
    # on a CPU the VAE has no limit
    assert [row.limit for row in rows] == [None, None, None, data.LIMIT, None, None]
    assert rows[0].extra["per_second"] == pytest.approx(4 / rows[0].extra["seconds"])
    assert rows[4].extra["per_second"] == pytest.approx(2 / rows[4].extra["seconds"])


def test_a_cache_that_was_not_filled_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "WIDTHS", (32, 32))
    monkeypatch.setattr(Text2ImageDataLoader, "fill", lambda self, tasks: None)
    with pytest.raises((RuntimeError, KeyError)):
        data.run(options(*SMALL))


def test_bad_arguments() -> None:
    with pytest.raises(UserError, match="at least 1 pair"):
        data.run(options("--rounds", "0"))
