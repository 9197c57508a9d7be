"""Nothing in the program is used by tests alone: vulture, which does not see the tests, finds a use of everything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from vulture import Vulture

from modules.dataLoader.collector import no_search_for_cycles
from tests.house.exceptions import breaches
from tests.source_tree import ROOT, nodes, sources

REGISTERING = re.compile(
    r"(register|REWARDS\.register|model_setup|STEPS\.register|online_loss|preference_loss|rule|choosing"
    r"|field_validator|model_validator)\b"
)
"""Decorators that keep what they are given for somebody who asks by a key."""
CALLED_BY_NAME = (
    # (file, name): found by a scan of a folder, by getattr, or called by a class of the library below it
    ("modules/spec/(families|modes)/.*", r"[A-Z0-9_]+"),
    ("modules/ui/pages/.*", r"\w+Page"),
    ("modules/ui/texts/.*", "PAGE"),
    ("modules/ui/state/RunHistory.py", r"_take_\w+"),
    ("modules/pipeline/base.py", r"_get_\w+"),
    ("scripts/demo/judge_server.py", r"do_(GET|POST)|log_message"),
    ("modules/ui/MainWindow.py", "_set_scaling"),
    ("modules/trainer/control/LocalMeeting.py", "get_backend"),
    ("modules/adapter/magnitudes.py", "merge_safe"),
    ("modules/remote/Connection.py", r"validate_host_public_key|password_auth_requested|kbdint_\w+"),
)
ALLOWED = {
    "modules/reward/groupwise.py: PairwiseReward": "documented base class for rewards of one's own",
    "modules/util/files/OpenFolder.py: observe": "tests look at what it does through this",
}


def unused(folders: Iterable[Path]) -> dict[str, str]:
    """Functions, classes, methods and constants of modules that nothing in these folders uses, with their lines.

    Names of fields and of what is in a function are left out: settings and data classes are full of the first.
    """
    found: dict[str, str] = {}
    search = Vulture()
    with no_search_for_cycles():
        search.scavenge([str(folder) for folder in folders])
    for item in search.get_unused_code():
        path = Path(item.filename)
        place = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
        if _is_called_by_name(place, item.name):
            continue
        if item.typ in ("function", "class", "method", "property"):
            if _is_registered(path, item.name, item.first_lineno):
                continue
        elif item.typ != "variable" or item.name not in _constants(path):
            continue
        found[f"{place}: {item.name}"] = f"line {item.first_lineno}, this {item.typ} is used by nothing"
    return found


def _is_called_by_name(place: str, name: str) -> bool:
    return any(re.fullmatch(file, place) and re.fullmatch(names, name) for file, names in CALLED_BY_NAME)


def _tree(path: Path) -> ast.Module:
    known = {source.path: source.tree for source in sources("modules", "scripts")}
    return known[path] if path in known else ast.parse(path.read_text(encoding="utf-8"))


def _is_registered(path: Path, name: str, line: int) -> bool:
    return any(
        REGISTERING.match(ast.unparse(decorator))
        for node in ast.walk(_tree(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and node.name == name
        and line in (node.lineno, *(one.lineno for one in node.decorator_list))
        for decorator in node.decorator_list
    )


def _constants(path: Path) -> set[str]:
    """Names that a module gives at its top."""
    found = set()
    for node in _tree(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_everything_is_used_by_the_program_itself():
    faults = breaches(unused([ROOT / "modules", ROOT / "scripts"]), ALLOWED)
    assert not faults, "\n".join(faults)


def test_what_is_found_by_name_is_there():
    names = [
        (source.relative, name)
        for source in sources("modules", "scripts")
        for name in [
            *(n.name for n in nodes(source, ast.ClassDef, ast.FunctionDef)),
            *_constants(source.path),
        ]
    ]
    for file, pattern in CALLED_BY_NAME:
        assert any(re.fullmatch(file, place) and re.fullmatch(pattern, name) for place, name in names), file


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("def used(): ...\ndef idle(): ...\nused()", {"idle"}),
        ("class Idle: ...", {"Idle"}),
        ("class C:\n    def idle(self): ...\nC()", {"idle"}),
        ("IDLE = 1\nUSED = 2\nprint(USED)", {"IDLE"}),
        ("@register\nclass C: ...", set()),
        ("@rule('a', 'b')\ndef f(): ...", set()),
        ("@dataclass\nclass Idle:\n    field: int = 1", {"Idle"}),
        ("@dataclass\nclass C:\n    field: int = 1\nC()", set()),
    ],
)
def test_what_nothing_uses_is_found(tmp_path, code, wanted):
    (tmp_path / "one.py").write_text(code, encoding="utf-8")
    assert {key.split(": ")[1] for key in unused([tmp_path])} == wanted
