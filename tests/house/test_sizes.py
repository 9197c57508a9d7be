"""Functions are short; long files are pointed out, for a file is split by idea and never by count."""

from __future__ import annotations

import ast
import re
import warnings

import pytest

from tests.source_tree import Source, nodes, parsed, sources

PYTHON = ("modules", "scripts", "tests")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_FAMILY_LINES = 350
FAMILY = re.compile(r"modules/modelSetup/families/\w+Setup\.py")


def long_functions(source: Source) -> list[str]:
    found = []
    for node in nodes(source, ast.FunctionDef, ast.AsyncFunctionDef):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            found.append(f"{source.relative}:{node.lineno}: {node.name} has {length} lines")
    return found


def long_file(source: Source) -> str | None:
    lines = source.text.count("\n")
    return f"{source.relative}: {lines} lines" if lines > MAX_FILE_LINES else None


def test_functions_are_short():
    faults = [fault for source in sources(*PYTHON) for fault in long_functions(source)]
    assert not faults, "\n".join(faults)


def test_long_files_are_pointed_out():
    for source in sources(*PYTHON):
        if (found := long_file(source)) is not None:
            warnings.warn(f"{found}: does it hold two ideas?", stacklevel=1)


def test_a_family_is_one_short_file():
    families = [source for source in sources("modules/modelSetup") if FAMILY.fullmatch(source.relative)]
    assert len(families) >= 10
    assert not [f.relative for f in families if f.text.count("\n") > MAX_FAMILY_LINES]


@pytest.mark.parametrize("length", [60, 61])
def test_what_is_too_long_is_found(length):
    code = "class C:\n    async def f(self):\n" + "        x = 1\n" * (length - 1)
    assert bool(long_functions(parsed(code))) == (length > 60)
    assert bool(long_functions(parsed(code.replace("async ", "")))) == (length > 60)
    assert bool(long_file(parsed("x = 1\n" * (length + 440)))) == (length > 60)
