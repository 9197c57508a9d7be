"""The program's own source as syntax trees: what imports what, when, and through whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

from modules.dataLoader.collector import no_search_for_cycles

ROOT = Path(__file__).resolve().parents[1]
TEXT_SUFFIXES = {
    ".py", ".md", ".toml", ".txt", ".json", ".jsonl", ".sh", ".bat", ".ps1", ".yml", ".yaml", ".cfg", ".ini", ".svg",
}  # fmt: skip
FOLDERS = ("modules", "scripts", "tests", "docs", "resources", "training_presets", ".ci")


@dataclass(frozen=True)
class Import:
    """One import statement.

    Args:
        name: dotted name of what is imported.
        line: where.
        at_load: whether it happens when the module is loaded (not in a function, not for type checkers).
    """

    name: str
    line: int
    at_load: bool


@dataclass(frozen=True, eq=False)
class Source:
    """One Python file. ``name`` is its dotted name, without ``.__init__``."""

    path: Path
    name: str
    tree: ast.Module
    text: str

    @cached_property
    def relative(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


def parsed(code: str, name: str = "modules.x") -> Source:
    """A file of the program that holds this code, to try a rule on."""
    return Source(ROOT / f"{name.replace('.', '/')}.py", name, ast.parse(code), code)


# making a million nodes that all stay takes three times as long with a search for cycles
@cache
@no_search_for_cycles()
def _sources(folder: str) -> tuple[Source, ...]:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Source(path, name, ast.parse(text, str(path)), text))
    return tuple(found)


def sources(*folders: str) -> tuple[Source, ...]:
    """All Python files below folders of the project, each read and parsed once."""
    return tuple(source for folder in folders for source in _sources(folder))


_KINDS = (
    ast.Attribute, ast.Call, ast.ClassDef, ast.Compare, ast.Constant, ast.Dict, ast.DictComp, ast.ExceptHandler,
    ast.FunctionDef, ast.AsyncFunctionDef, ast.Import, ast.ImportFrom, ast.List, ast.MatchValue, ast.Set, ast.Subscript,
    ast.Tuple, ast.With, ast.match_case,
)  # fmt: skip
_Node = TypeVar("_Node", bound=ast.AST)


@cache
def _nodes(source: Source) -> dict[type[ast.AST], list[ast.AST]]:
    found: dict[type[ast.AST], list[ast.AST]] = {kind: [] for kind in _KINDS}
    waiting: list[ast.AST] = [source.tree]
    while waiting:
        node = waiting.pop()
        if type(node) in found:
            found[type(node)].append(node)
        waiting.extend(ast.iter_child_nodes(node))
    return found


def nodes(source: Source, *kinds: type[_Node]) -> list[_Node]:
    """All nodes of some kinds in a file, which is walked once for all rules.

    Raises:
        KeyError: a kind that is not collected; add it to ``_KINDS``.
    """
    return [node for kind in kinds for node in _nodes(source)[kind]]  # type: ignore[misc]


@cache
def own_names() -> frozenset[str]:
    return frozenset(source.name for source in sources("modules", "scripts"))


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def _statements(node: ast.AST, at_load: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Imports below a statement, of whatever depth, and whether they happen at load."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        at_load = False
    for name in _BODIES:
        inside = at_load and not (name == "body" and _is_for_type_checkers(node))
        for child in getattr(node, name, ()):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                yield child, inside
            else:
                yield from _statements(child, inside)


@cache
def imports(source: Source) -> tuple[Import, ...]:
    """Every import of a file. ``from a import b`` is ``a.b`` where that is a module of the program, else ``a``."""
    found = []
    for node, at_load in _statements(source.tree, True):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, at_load) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{source.relative}:{node.lineno}: a relative import"
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                name = deeper if deeper in own_names() else node.module
                found.append(Import(name, node.lineno, at_load))
    return tuple(found)


def with_packages(name: str) -> list[str]:
    """A module's name and those of the packages it lies in: all of them are loaded with it."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


@cache
def load_graph() -> dict[str, dict[str, str]]:
    """For each of the program's modules what loading it imports directly: name to ``file:line``."""
    graph: dict[str, dict[str, str]] = {}
    for source in sources("modules", "scripts"):
        edges = graph.setdefault(source.name, {})
        for package in with_packages(source.name)[:-1]:
            if package in own_names():
                edges[package] = source.relative
        for found in imports(source):
            if found.at_load:
                for name in with_packages(found.name):
                    edges.setdefault(name, f"{source.relative}:{found.line}")
    return graph


def load_chain(start: str, wanted: set[str]) -> list[str] | None:
    """How loading ``start`` comes to load one of ``wanted``: places in order; ``None`` when it does not."""
    graph = load_graph()
    queue, seen = [(start, [start])], {start}
    while queue:
        name, chain = queue.pop(0)
        if name in wanted:
            return chain
        for following, place in graph.get(name, {}).items():
            if following not in seen:
                seen.add(following)
                queue.append((following, [*chain, f"{place} imports {following}"]))
    return None


def repository_texts() -> Iterator[tuple[str, str]]:
    """Every text file of the repository: its name and what is in it."""
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        paths += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted(paths):
        if "__pycache__" not in path.parts and (path.suffix in TEXT_SUFFIXES or path.parent.name == ".ci"):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8", errors="replace")
