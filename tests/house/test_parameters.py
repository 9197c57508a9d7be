"""A function that needs to be told more than a few things does more than one thing."""

from __future__ import annotations

import ast

from tests.house.exceptions import breaches
from tests.source_tree import Source, nodes, parsed, sources

MOST_PARAMETERS = 8
ALLOWED = {
    "modules/util/config/setting.py: setting": "each parameter is one thing that can be said of a setting",
    "modules/dataLoader/BaseDataLoader.py: __init__": "takes what a loader works with apart",
    "modules/dataLoader/create.py: create_data_loader": "hands on what a loader is made of",
    "modules/model/noising/noise.py: draw_noise": "what a random draw depends on is told in full",
    "modules/modelSetup/converting.py: merge_adapter": "takes the options of a command line one by one",
    "modules/objective/execution.py: run": "takes the scores of both models and both sides as functions",
    "modules/trainer/optim/Adafactor.py: __init__": "what optimizer.params may hold is read off it",
    "scripts/demo/vae.py: run_phase": "has the numbers of a phase of training one by one",
}


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Names of what can be given to a function, without ``self`` and ``cls``."""
    given = node.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    names += [one.arg for one in (given.vararg, given.kwarg) if one is not None]
    return [name for name in names if name not in ("self", "cls")]


def overloaded(source: Source) -> dict[str, str]:
    """Functions with too many parameters, and how many they have."""
    return {
        f"{source.relative}: {node.name}": f"line {node.lineno}, {count} parameters, at most {MOST_PARAMETERS}"
        for node in nodes(source, ast.FunctionDef, ast.AsyncFunctionDef)
        if (count := len(parameters(node))) > MOST_PARAMETERS
    }


def test_functions_have_few_parameters():
    found: dict[str, str] = {}
    for source in sources("modules", "scripts"):
        found |= overloaded(source)
    faults = breaches(found, ALLOWED)
    assert not faults, "\n".join(faults)


def test_every_kind_of_parameter_counts():
    eight = "class C:\n    def f(self, a, b, /, c, d=1, *rest, e, g=2, **more): ..."
    assert not overloaded(parsed(eight))
    assert overloaded(parsed(eight.replace("g=2", "g=2, h=3"))).keys() == {"modules/x.py: f"}
    assert overloaded(parsed("async def f(a, b, c, d, e, f, g, h, i): ..."))
