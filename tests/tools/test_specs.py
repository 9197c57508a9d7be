"""A tool's window and its command line ask for the same."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from modules.tools.catalog import (
    CAPTION_EDITS,
    CAPTION_TOOLS,
    DATASET_TOOLS,
    MASK_TOOLS,
    MERGE_TOOLS,
    MODEL_TOOLS,
    RENAME,
    REWRITE,
    UPDATE,
)
from modules.tools.ToolSpec import ToolSpec
from modules.util.program_files import ROOT
from scripts import caption, dataset, mask, merge


def parsed(spec: ToolSpec, *words: str) -> argparse.Namespace:
    script = (
        merge if spec in MERGE_TOOLS else caption if spec in (*CAPTION_TOOLS, *CAPTION_EDITS) else dataset
    )
    script = mask if spec in MASK_TOOLS else script
    return script.make_parser().parse_args(list(words))


def test_values_of_the_window_arrive_as_they_are() -> None:
    values = {"folder": "--my images", "pattern": "-{number}", "start": "3", "subfolders": True}
    found = parsed(RENAME, *RENAME.words(values, preview=True))
    assert (found.folder, found.pattern, found.start) == (Path("--my images"), "-{number}", 3)
    assert (found.subfolders, found.overwrite, found.dry_run) == (True, False, True)


@pytest.mark.parametrize("spec", [*DATASET_TOOLS, *CAPTION_TOOLS, *CAPTION_EDITS, *MASK_TOOLS, *MERGE_TOOLS])
def test_what_is_left_empty_is_the_default_of_the_command_line(spec: ToolSpec) -> None:
    given = {field.key: field.choices[0] if field.choices else "x" for field in spec.fields if field.needed}
    empty = {field.key: "" if field.kind != "switch" else False for field in spec.fields} | given
    named = [field.key for field in spec.fields if field.name.startswith("-")]
    words = [f"--{key}={value}" for key, value in given.items() if key in named]
    bare = vars(parsed(spec, spec.verb, *words, *(value for key, value in given.items() if key not in named)))
    assert vars(parsed(spec, *spec.words(empty, preview=False))) == bare
    shown = {field.key: field.default for field in spec.fields} | given
    assert vars(parsed(spec, *spec.words(shown, preview=False))) == bare


def test_what_is_needed_is_named() -> None:
    assert RENAME.missing({"folder": " ", "pattern": "{number}"}) == ["Folder"]
    assert REWRITE.missing({"folder": "x"}) == []


@pytest.mark.parametrize(
    "spec", [*DATASET_TOOLS, *CAPTION_TOOLS, *CAPTION_EDITS, *MASK_TOOLS, *MODEL_TOOLS, UPDATE]
)
def test_every_tool_has_its_script(spec: ToolSpec) -> None:
    assert (ROOT / "scripts" / spec.script).is_file()
    assert spec.about.endswith(".")
    assert all(field.tip.endswith(".") for field in spec.fields)
