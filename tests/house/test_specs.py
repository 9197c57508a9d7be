"""What has a file of its own is described there and nowhere else.

Where a member of such an enum is compared, matched or the key of a table outside its description, adding a thing
takes more than adding its file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from modules.spec.registry import MODES
from tests.source_tree import ROOT, Source, nodes, parsed, sources


@dataclass(frozen=True)
class Described:
    """An enum whose members have a file each.

    Args:
        home: the folder with one file for each member.
        texts: names of members that count as text too, where they mean nothing else.
    """

    home: str
    texts: tuple[str, ...] = ()


DESCRIBED = {
    "CurationMode": Described("modules/curation/choosing/"),
    "RLHFMode": Described("modules/spec/modes/", tuple(MODES)),
}


_DECIDING = (
    ast.Compare, ast.Dict, ast.DictComp, ast.match_case, ast.Subscript, ast.Tuple, ast.List, ast.Set,
)  # fmt: skip


def decided_by_name(source: Source, enum: str, texts: tuple[str, ...] = ()) -> Iterator[ast.expr]:
    """Members of ``enum`` that are compared, looked for in something, matched, or the key of a table."""
    for node in nodes(source, *_DECIDING):
        if isinstance(node, ast.Compare):
            yield from members([node.left, *node.comparators], enum, texts)
        elif isinstance(node, ast.Dict):
            yield from members([key for key in node.keys if key is not None], enum, texts)
        elif isinstance(node, ast.DictComp):
            yield from members([node.key], enum, texts)
        elif isinstance(node, ast.match_case):
            yield from members([node.pattern], enum, texts)
        elif isinstance(node, ast.Subscript):
            yield from members([node.slice], enum, texts)
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            yield from members(node.elts, enum)


def members(roots: list[ast.AST], enum: str, texts: tuple[str, ...] = ()) -> Iterator[ast.expr]:
    """``RLHFMode.X``, ``RLHFMode("X")``, and ``"X"`` where X is in ``texts``."""
    for root in roots:
        for node in ast.walk(root):
            if isinstance(node, ast.Attribute):
                named = ast.unparse(node.value) == enum
            elif isinstance(node, ast.Call):
                named = ast.unparse(node.func) == enum
            else:
                named = isinstance(node, ast.Constant) and node.value in texts
            if named:
                assert isinstance(node, ast.expr)
                yield node


@pytest.mark.parametrize("enum", DESCRIBED)
def test_no_member_is_decided_by_outside_its_description(enum):
    described = DESCRIBED[enum]
    assert (ROOT / described.home).is_dir()
    found = [
        f"{source.relative}:{node.lineno} {ast.unparse(node)}"
        for source in sources("modules", "scripts/demo")
        if not source.relative.startswith(described.home)
        for node in decided_by_name(source, enum, described.texts)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "if mode is CurationMode.ELO: pass",
        "x = mode in (CurationMode.ELO, other)",
        "x = CurationMode.ELO != mode",
        "x = mode is CurationMode('ELO')",
        "table = {CurationMode.ELO: 1}",
        "x = table[CurationMode.ELO]",
        "match mode:\n    case CurationMode.ELO: pass",
        "match mode:\n    case CurationMode.ELO | CurationMode.SMART: pass",
        "RANKING = [CurationMode.ELO]",
    ],
)
def test_the_rule_finds_a_breach(text):
    assert list(decided_by_name(parsed(text), "CurationMode"))


@pytest.mark.parametrize(
    "text",
    [
        "x = mode != 'ONLINE_DPO'",
        "table = {'NFT': 1}",
        "STEPS['NFT']",
        "match mode:\n    case 'GRPO': pass",
    ],
)
def test_the_rule_finds_names_as_text(text):
    assert list(decided_by_name(parsed(text), "RLHFMode", DESCRIBED["RLHFMode"].texts))
    assert not list(decided_by_name(parsed(text), "RLHFMode"))


def test_the_rule_lets_members_be_passed_on():
    text = "mode: CurationMode = CurationMode.ELO\nf(CurationMode.ELO, mode=CurationMode.SMART)"
    assert not list(decided_by_name(parsed(text), "CurationMode"))
    texts = DESCRIBED["RLHFMode"].texts
    assert not list(
        decided_by_name(parsed("@register('NFT')\ndef f(x=RLHFMode('DPO')): 1"), "RLHFMode", texts)
    )
