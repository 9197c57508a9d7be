"""Nothing is decided by the name of a model family: its spec is asked instead."""

from __future__ import annotations

import ast
import re

import pytest

from modules.util.enum.ModelType import ModelType
from tests.house.exceptions import breaches
from tests.source_tree import Source, nodes, parsed, sources

FAMILIES = tuple(family.value for family in ModelType)
FAMILY_FILES = re.compile(r"modules/(modelSetup/families/\w+Setup|spec/families/\w+)\.py")
ALLOWED: dict[str, str] = {}
_PREFIX_METHODS = ("startswith", "endswith", "removeprefix", "removesuffix")


def is_family(node: ast.AST) -> bool:
    """``ModelType.X`` or the name of a family as text."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "ModelType" and node.attr in FAMILIES
    return isinstance(node, ast.Constant) and node.value in FAMILIES


def family_comparisons(source: Source) -> list[int]:
    """Lines where something is decided by the name of a family."""
    lines = []
    for node in nodes(source, ast.Compare, ast.MatchValue, ast.Dict, ast.Call):
        if isinstance(node, (ast.Compare, ast.MatchValue)):
            found = any(is_family(part) for part in ast.walk(node))
        elif isinstance(node, ast.Dict):
            found = any(key is not None and is_family(key) for key in node.keys)
        elif isinstance(node.func, ast.Attribute):
            texts = [part.value for part in node.args if isinstance(part, ast.Constant)]
            found = node.func.attr in _PREFIX_METHODS and any(
                isinstance(text, str) and len(text) > 3 and any(text in family for family in FAMILIES)
                for text in texts
            )
        else:
            continue
        if found:
            lines.append(node.lineno)
    return lines


def test_nothing_is_decided_by_the_name_of_a_family():
    found = {
        source.relative: f"lines {lines}: ask the family's FamilySpec instead"
        for source in sources("modules", "scripts")
        if not FAMILY_FILES.fullmatch(source.relative) and (lines := family_comparisons(source))
    }
    faults = breaches(found, ALLOWED)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "code",
    [
        "x == ModelType.STABLE_DIFFUSION_15",
        "x in (ModelType.STABLE_DIFFUSION_15, y)",
        "x != 'STABLE_DIFFUSION_15'",
        "{ModelType.STABLE_DIFFUSION_15: 1}[x]",
        "x.value.startswith('STABLE_DIFFUSION')",
        "match x:\n    case ModelType.STABLE_DIFFUSION_15:\n        pass",
    ],
)
def test_decisions_by_family_are_found(code):
    assert family_comparisons(parsed(code))
    assert not family_comparisons(parsed("def f(x=ModelType.STABLE_DIFFUSION_15): return spec.key == x"))
