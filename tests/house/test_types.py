"""Types are checked strictly in every room, and settings have a type wherever they are handed on."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable

import pytest

from tests.house.exceptions import breaches
from tests.source_tree import ROOT, Source, nodes, parsed, sources

UNCHECKED: dict[str, str] = {}


def unchecked(folders: Iterable[str], packages: Iterable[str]) -> dict[str, str]:
    """Rooms that mypy does not look at, and packages it checks that are not rooms."""
    rooms, told = set(folders), set(packages)
    missing = dict.fromkeys(sorted(rooms - told), "add it to packages in pyproject.toml")
    return missing | dict.fromkeys(
        sorted(told - rooms), "in packages in pyproject.toml, but no folder of the program"
    )


def _rooms() -> list[str]:
    return [f"modules.{path.parent.name}" for path in (ROOT / "modules").glob("*/__init__.py")] + ["scripts"]


def test_types_are_checked_in_every_room():
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert mypy["strict"] is True
    faults = breaches(unchecked(_rooms(), mypy["packages"]), UNCHECKED)
    assert not faults, "\n".join(faults)


def test_a_room_that_is_not_checked_is_found():
    assert unchecked(["modules.a", "modules.b"], ["modules.a"]) == {
        "modules.b": "add it to packages in pyproject.toml"
    }
    assert list(unchecked(["modules.a"], ["modules.a", "modules.gone"])) == ["modules.gone"]
    assert unchecked(["modules.a"], ["modules.a"]) == {}


def untyped_settings(source: Source) -> list[str]:
    """Parameters called config, or something's config, that take anything."""
    return [
        f"{source.relative}:{function.lineno}: {function.name}({argument.arg}: {_annotation(argument)})"
        for function in nodes(source, ast.FunctionDef, ast.AsyncFunctionDef)
        for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        if argument.arg == "config" or argument.arg.endswith("_config")
        if _annotation(argument) in ("Any", "Any | None", "None | Any", "Optional[Any]", "object", "nothing")
    ]


def _annotation(argument: ast.arg) -> str:
    return ast.unparse(argument.annotation) if argument.annotation else "nothing"


def test_settings_have_a_type_wherever_they_are_handed_on():
    faults = [fault for source in sources("modules", "scripts") for fault in untyped_settings(source)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("parameters", "bad"),
    [
        ("config: Any", True),
        ("a: int, *, part_config: Any | None = None", True),
        ("config, /", True),
        ("config: object", True),
        ("config: TrainConfig", False),
        ("config: ModelPartConfig | None = None", False),
        ("settings: Any", False),
    ],
)
def test_settings_of_any_type_are_found(parameters, bad):
    assert bool(untyped_settings(parsed(f"def f({parameters}): ..."))) == bad
