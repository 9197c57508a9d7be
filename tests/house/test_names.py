"""A module that is one class has its name."""

from __future__ import annotations

import ast

import pytest

from tests.house.exceptions import breaches
from tests.source_tree import Source, parsed, sources

NAMED_BY_KEY = (
    "modules/accelerator/",
    "modules/curation/choosing/",
    "modules/modelSetup/families/",
    "modules/objective/preference/",
    "modules/reward/",
    "modules/spec/",
    "modules/util/image_metadata/containers/",
    "modules/util/image_metadata/formats/",
)
"""Folders whose files have the key of what they register, or the name of the file format they read."""
ALLOWED: dict[str, str] = {}


def misnamed(source: Source) -> str | None:
    """The class a file is about, where the file has another name."""
    classes, functions = [], []
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            classes.append(node.name)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
            functions.append(node.name)
    if len(classes) == 1 and not functions and classes[0] != source.path.stem:
        return classes[0]
    return None


def test_a_module_of_one_class_has_its_name():
    found = {
        source.relative: f"its one class is {name}"
        for source in sources("modules")
        if source.path.name != "__init__.py"
        and not source.relative.startswith(NAMED_BY_KEY)
        and (name := misnamed(source)) is not None
    }
    faults = breaches(found, ALLOWED)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        ("class Thing: ...", True),
        ("class Thing: ...\ndef _helper(): ...\nclass _Part: ...\nX = 1", True),
        ("class Thing: ...\ndef make(): ...", False),
        ("class Thing: ...\nclass Other: ...", False),
        ("class thing: ...", False),
        ("def make(): ...", False),
    ],
)
def test_a_file_with_another_name_is_found(code, bad):
    assert (misnamed(parsed(code, "modules.util.thing")) is not None) == bad
