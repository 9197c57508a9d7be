"""The benchmark of the pair tool's window: a short session is really held, and its figures are what was measured."""

from __future__ import annotations

import argparse

import pytest

from scripts.benchmarks import picking


@pytest.mark.slow  # a start of the program for figures that nobody reads here
@pytest.mark.gui
def test_a_short_session_gives_every_figure(tmp_path):
    parser = argparse.ArgumentParser()
    picking.add_arguments(parser)
    results = picking.run(parser.parse_args(["--images", "16", "--size", "64", "--keys", "4"]))
    key, first, window = results
    assert key.extra["keys"] == 4
    assert (
        0
        < key.extra["quartiles"][0]
        <= key.extra["seconds"]
        <= key.extra["quartiles"][1]
        <= key.extra["slowest"]
    )
    assert key.extra["cpu_seconds"] > 0
    assert key.ratio == pytest.approx(key.extra["seconds"] / picking.KEY_SECONDS)
    assert first.ratio == pytest.approx(first.extra["seconds"])
    assert window.extra["cpu_seconds"] > 0
    assert {result.model for result in results} == {"16 x 64^2"}
