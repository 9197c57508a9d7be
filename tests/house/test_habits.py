"""Modules tell callbacks and do not print, and no error disappears."""

from __future__ import annotations

import ast
import re

import pytest

from tests.source_tree import Source, nodes, parsed, sources


def printing(source: Source) -> list[str]:
    return [
        f"{source.relative}:{node.lineno}"
        for node in nodes(source, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id in ("print", "pprint")
    ]


def test_modules_do_not_print():
    faults = [fault for source in sources("modules") for fault in printing(source)]
    assert not faults, "\n".join(faults)


def test_printing_is_found():
    assert printing(parsed("def f():\n    print('x')")) == ["modules/x.py:2"]
    assert not printing(parsed("out.print('x')"))


def test_lists_to_choose_from_follow_the_theme():
    made = [
        f"{source.relative}:{node.lineno}"
        for source in sources("modules")
        for node in nodes(source, ast.Call)
        if getattr(node.func, "attr", getattr(node.func, "id", "")) in ("Combobox", "OptionMenu")
    ]
    assert len(made) == 1 and made[0].startswith("modules/ui/form/inputs.py"), f"use choice_box: {made}"


def caught(handler: ast.ExceptHandler) -> set[str]:
    return (
        {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
        if handler.type
        else {"bare"}
    )


def swallows(handler: ast.ExceptHandler, lines: list[str]) -> bool:
    """Whether it takes every error and neither raises it again nor says in its line why not."""
    names = caught(handler)
    if "bare" in names:
        return True
    if not names & {"Exception", "BaseException"} or any(isinstance(n, ast.Raise) for n in ast.walk(handler)):
        return False
    return re.search(r"# noqa: BLE001 - \w+", lines[handler.lineno - 1]) is None


def test_no_error_is_swallowed_whole():
    faults = [
        f"{source.relative}:{node.lineno}"
        for source in sources("modules", "scripts")
        for node in nodes(source, ast.ExceptHandler)
        if swallows(node, source.text.splitlines())
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("handler", "bad"),
    [
        ("except:\n    raise", True),
        ("except Exception:\n    pass", True),
        ("except (OSError, Exception):\n    pass", True),
        ("except Exception:  # noqa: BLE001\n    pass", True),
        ("except Exception:  # noqa: BLE001 - shown to the user\n    pass", False),
        ("except BaseException:\n    raise", False),
        ("except OSError:\n    pass", False),
    ],
)
def test_swallowed_errors_are_found(handler, bad):
    code = f"try:\n    pass\n{handler}"
    (found,) = nodes(parsed(code), ast.ExceptHandler)
    assert swallows(found, code.splitlines()) == bad


TIMERS = ("after", "after_idle", "after_cancel")
TIMERS_HERE = "modules/ui/widgets/tk_support.py"


def bare_timers(source: Source) -> list[str]:
    """Timers of a widget that may be gone before they are due."""
    return [
        f"{source.relative}:{node.lineno}"
        for node in nodes(source, ast.Call)
        if isinstance(node.func, ast.Attribute) and node.func.attr in TIMERS and source.relative != TIMERS_HERE
    ]


def test_timers_are_those_that_end_with_their_widget():
    faults = [fault for source in sources("modules", "scripts") for fault in bare_timers(source)]
    assert not faults, "call later or cancel_timer of modules/ui/widgets/tk_support.py\n" + "\n".join(faults)


def test_bare_timers_are_found():
    code = "\n".join(f"self.window.{name}(f)" for name in TIMERS)
    assert sorted(bare_timers(parsed(code))) == ["modules/x.py:1", "modules/x.py:2", "modules/x.py:3"]
    assert not bare_timers(parsed("later(self, 5, f)"))
