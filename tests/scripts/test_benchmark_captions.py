"""The benchmark of the caption editor gives every figure; how fast the machine is, is not a test."""

from __future__ import annotations

import argparse

import pytest

from scripts.benchmarks import captions


@pytest.mark.gui
@pytest.mark.slow  # starts a program of its own; tests/ui/captions tries the editor itself
def test_a_small_folder_gives_every_figure():
    parser = argparse.ArgumentParser()
    captions.add_arguments(parser)
    opened, key, find, waited, brush = captions.run(parser.parse_args(["--images", "40", "--keys", "4"]))
    assert 0 < opened.extra["seconds"] <= opened.extra["all_read_seconds"]
    assert opened.ratio == pytest.approx(opened.extra["seconds"] / captions.OPEN_SECONDS)
    assert 0 < key.extra["seconds"] <= key.extra["slowest"]
    assert find.extra["seconds"] > 0
    assert find.ratio == find.extra["cpu_seconds"] / captions.KEY_SECONDS > 0
    assert waited.ratio == find.extra["seconds"] / captions.KEY_SECONDS and waited.limit is None
    assert 0 < brush.extra["seconds"] <= brush.extra["slowest"]
    assert {result.model for result in (opened, key, find)} == {"40 images"}
