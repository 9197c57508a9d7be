"""Prompts as captions."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.util.image_metadata_util import extract_metadata, normalise_prompt, strip_angle_bracket_segments
from tests.util.image_metadata import files as f


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ("a cat", "a cat"),
        ("a <lora:x:0.5> cat", "a  cat"),
        ("<random:a|<wildcard:b>|c>cat<segment:face,0.5>", "cat"),
        ("a < b", "a < b"),
        ("a > b", "a > b"),
        ("a < b <c> d > e", "a < b  d > e"),
        ("<lora:x", "<lora:x"),
        ("<3 and <lora:x>", "<3 and "),
        ("<" * 50_000 + "x" + ">" * 50_000, ""),
        ("<a>" * 50_000, ""),
        ("", ""),
    ],
)
def test_stripping(text: str, stripped: str) -> None:
    assert strip_angle_bracket_segments(text) == stripped


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("a cat,\n on  a\tmat ", "a cat, on a mat"),
        ("猫", "猫"),
        ("<lora:x>", "UNCONDITIONAL"),
        ("..., ()", "UNCONDITIONAL"),
        ("", "UNCONDITIONAL"),
        ("7", "7"),
    ],
)
def test_normalising(text: str, prompt: str) -> None:
    assert normalise_prompt(text) == prompt


def test_what_a_file_says_as_a_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(
        f.png(f.text("parameters", "a <x> cat\nSteps: 2, Sampler: x, Seed: 1"), width=60, height=40)
    )
    assert extract_metadata(path) == {
        "prompt": "a cat",
        "raw_prompt": "a <x> cat",
        "negative_prompt": "",
        "width": 60,
        "height": 40,
        "aspectratio": "3:2",
        "generator": "A1111",
        "seed": 1,
        "error": None,
    }
    nothing = extract_metadata(tmp_path / "none.png")
    assert (nothing["prompt"], nothing["aspectratio"], nothing["error"]) == (None, "", "the file is gone")
