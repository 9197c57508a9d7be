"""A public function that raises an error for people says so in its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from modules.util import errors
from tests.source_tree import Source, parsed, sources

ROOMS = tuple(f"modules/{name}" for name in ("objective", "weights", "model", "rollout", "reward", "util"))
ERRORS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, (errors.UserError, errors.UserErrors))
} | {"RewardError"}


def raised(function: ast.FunctionDef) -> set[str]:
    """Errors for people that the function itself raises, without functions within it."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if (
            isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and isinstance(node.exc.func, ast.Name)
        ):
            found |= {node.exc.func.id} & ERRORS
        waiting += ast.iter_child_nodes(node)
    return found


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield f"{prefix}{node.name}", node


def silent(source: Source) -> list[str]:
    """Functions that do not name an error they raise; overrides without a docstring have that of what they override."""
    found = []
    for name, function in public(source.tree.body):
        said = ast.get_docstring(function)
        missing = {
            error for error in raised(function) if said and error not in said and "UserError" not in said
        }
        if missing:
            place = f"{source.relative}:{function.lineno}"
            found.append(
                f"{place}: {name} raises {', '.join(sorted(missing))}: say when in its docstring (Raises)"
            )
    return found


def test_errors_for_people_are_in_the_docstring() -> None:
    found = [line for source in sources(*ROOMS) for line in silent(source)]
    assert not found, "\n".join(found)


def test_a_silent_function_is_found() -> None:
    code = 'def read(path):\n    """Read it{}."""\n    raise DataError("it is damaged")\n'
    assert silent(parsed(code.format(""))) == [
        "modules/x.py:1: read raises DataError: say when in its docstring (Raises)"
    ]
    assert silent(parsed(code.format("; DataError if it is damaged"))) == []
