"""No module needs, by any import of any kind, a module that needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.house.exceptions import breaches
from tests.source_tree import imports, load_graph, own_names, sources

ALLOWED: dict[str, str] = {}


def circles(needs: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of modules that all need each other, by whatever way (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_ones: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        open_ones.append(name)
        for other in needs.get(name, ()):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in open_ones:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            start = open_ones.index(name)
            group = open_ones[start:]
            del open_ones[start:]
            if len(group) > 1:
                found.append(sorted(group))

    for name in needs:
        if name not in order:
            visit(name)
    return found


def every_need() -> dict[str, set[str]]:
    """For each module those it imports: at load, inside functions and for type checkers alone."""
    return {
        source.name: {one.name for one in imports(source) if one.name in own_names()} - {source.name}
        for source in sources("modules", "scripts")
    }


def test_no_module_lies_on_a_circle_of_imports():
    found = {name: " <-> ".join(group) for group in circles(every_need()) for name in group}
    faults = breaches(found, ALLOWED)
    assert not faults, "\n".join(faults)


def test_a_circle_is_found_by_whatever_way_it_closes():
    assert circles({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": []}) == [["a", "b", "c"]]
    assert circles({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}) == []
    assert sorted(circles({"a": ["b"], "b": ["a", "c"], "c": ["d"], "d": ["c"]})) == [["a", "b"], ["c", "d"]]


def test_imports_of_functions_and_of_type_checkers_count():
    needs = every_need()
    found = {
        (source.name, one.name)
        for source in sources("modules")
        for one in imports(source)
        if not one.at_load and one.name in own_names() and one.name != source.name
    }
    assert len(found) > 20
    assert all(other in needs[name] for name, other in found)


def test_no_module_is_loaded_while_it_is_being_loaded():
    """Imports at load alone, with the packages that are loaded on the way; these have no exceptions."""
    needs = {
        name: {
            other for other in edges if other in own_names() and name != other and not name.startswith(f"{other}.")
        }
        for name, edges in load_graph().items()
    }  # fmt: skip
    assert circles(needs) == []
