"""Prompts as captions."""

from __future__ import annotations

import time
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
        ("I <3 foxes and 2 > 1", "I <3 foxes and 2 > 1"),
        ("<123>, <_x>, <>", "<123>, <_x>, <>"),
        ("<<lora:x>>cat", "cat"),
        ("portrait, <wildcard:hair>, light", "portrait, light"),
        ("portrait, <lora:x:1>", "portrait"),
        ("<lora:x:1>, portrait", " portrait"),
        ("a cat <lora:x:1>, light", "a cat, light"),
        ("a, <x>, <y>,<z>, b", "a,  b"),
        ("a, <x>, <y>", "a"),
        ("a, <x>b, c", "a, b, c"),
        ("猫，<x>，光", "猫，光"),
        ("a, , b, <x>", "a, , b"),
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
        ("portrait, <wildcard:hair>, light", "portrait, light"),
        ("I <3 foxes and 2 > 1", "I <3 foxes and 2 > 1"),
        ("a \x1b[31mred\x1b[0m \x07cat\x1b", "a red cat"),
        ("a\x85b\x1cc\u2028d", "a b c d"),
        ("a \u202ecat\u200b \ufeff", "a cat"),
        ("👩\u200d🔧 at work", "👩\u200d🔧 at work"),
        ("a fox --ar 1:1 --v 6.1", "a fox"),
        ("a fox, --no text, frames --s 250 --style raw --sref https://x.y/z.png 77 --niji", "a fox"),
        ("a fox —ar 3:2", "a fox"),
        ("<lora:x> --ar 1:1", "UNCONDITIONAL"),
        ("a dress --v neck", "a dress --v neck"),
        ("one --ar 1:1 two", "one --ar 1:1 two"),
        ("time -- and again --", "time -- and again --"),
        ("a wide--ar 1:1", "a wide--ar 1:1"),
    ],
)
def test_normalising(text: str, prompt: str) -> None:
    assert normalise_prompt(text) == prompt


@pytest.mark.parametrize(
    "text",
    [
        "<" * 60_000 + "x" + ">" * 60_000,
        "<a" * 30_000 + ">" * 30_000,
        "<" * 60_000,
        "<a>," * 15_000,
        " --ar 1:1" * 7_000 + " x",
        "--no " * 12_000,
        "--sref " + "a " * 30_000,
        "\x1b[" * 30_000,
        "\x1b[" + "1;" * 30_000,
    ],
    ids=range(9),
)
def test_long_prompts_take_little_time(text: str) -> None:
    start = time.process_time()
    normalise_prompt(text)
    assert time.process_time() - start < 1


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
    assert (nothing["prompt"], nothing["aspectratio"], nothing["error"]) == (
        None,
        "",
        "the file no longer exists",
    )
