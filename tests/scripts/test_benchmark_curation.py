"""The pair tool's benchmark measures what it says; the figures themselves belong to the benchmark."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from scripts.benchmarks import curation


def rows(*arguments: str) -> dict[str, dict[str, Any]]:
    parser = argparse.ArgumentParser()
    curation.add_arguments(parser)
    options = [
        "--groups",
        "4",
        "--sizes",
        "6",
        "--files",
        "40",
        "--images",
        "1",
        "--pairs",
        "30",
        "--rounds",
        "1",
    ]
    made = curation.run(parser.parse_args([*options, *arguments]))
    return {f"{row.model}: {row.case}": row.to_dict() for row in made}


def test_files() -> None:
    made = rows("--cases", "scan,dhash")
    (scan,) = (row for name, row in made.items() if "scan" in name)
    assert scan["files_per_second"] > 0
    assert scan["ratio"] == pytest.approx(20_000 / scan["files_per_second"])
    hashes = [row for name, row in made.items() if "hash over decode" in name]
    assert len(hashes) == 3
    assert all(row["ratio"] == pytest.approx(1 / row["dhash_ratio"]) for row in hashes)


def test_answers() -> None:
    made = rows("--cases", "choosing,pick")
    assert any(row.get("next_pair_ms", 0) > 0 for row in made.values())
    picks = [row for row in made.values() if "pick_ms_at_10k" in row]
    assert picks
    for row in picks:
        assert row["pick_ms_at_10k"] == pytest.approx(row["full_ms"] - row["copying_ms"])
        assert row["pairs"] == 30


def test_clicks() -> None:
    made = rows("--cases", "clicks", "--groups", "30")
    counts = {name: row["clicks"] for name, row in made.items() if "clicks:" in name}
    assert set(counts) == {
        f"group of 6: clicks: {name}"
        for name in ("elo_similar_rating", "elo_closest_rating", "smart", "four_up")
    }
    baseline = counts["group of 6: clicks: elo_similar_rating"]
    smart = made["group of 6: clicks: smart"]
    assert smart["ratio"] == pytest.approx(smart["clicks"] / baseline)
    assert smart["stops_at_ordered"] > 0.5


def test_unknown_case() -> None:
    with pytest.raises(SystemExit, match="unknown nothing"):
        rows("--cases", "nothing")
