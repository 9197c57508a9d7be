"""The metadata benchmark measures what it says; the figures themselves belong to the benchmark."""

from __future__ import annotations

import argparse

from scripts.benchmarks import metadata
from scripts.demo.metadata import STYLES


def test_every_case_is_measured() -> None:
    parser = argparse.ArgumentParser()
    metadata.add_arguments(parser)
    results = metadata.run(parser.parse_args(["--files", "3", "--rounds", "1", "--folder", "40"]))
    assert {result.case for result in results if result.model == "read"} == {*STYLES, "comfyui-png by Pillow"}
    assert all(result.ratio > 0 for result in results)
    (first,) = (result for result in results if result.case == "first group")
    assert first.extra["images"] >= 2
    assert [result.limit is None for result in results].count(True) == 1
