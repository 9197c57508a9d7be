"""The rules of the house, read from the syntax trees: who imports whom and when, sizes, and words."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from modules.util.enum.ModelType import ModelType
from tests.source_tree import (
    ROOT,
    Import,
    Source,
    imports,
    load_chain,
    load_graph,
    own_names,
    repository_texts,
    sources,
)

# -- rooms ---------------------------------------------------------------------------------------------------

MAY_IMPORT = {
    "scripts": ["ui", "trainer"],
    "ui": ["runner", "curation", "util"],
    "trainer": [
        "dataLoader", "modelSetup", "rollout", "objective", "reward", "accelerator", "adapter", "runner", "util",
    ],
    "dataLoader": ["pipeline", "modelSetup", "util"],
    "modelSetup": ["adapter", "objective", "model", "util"],
    "rollout": ["modelSetup", "objective", "model", "util"],
    "adapter": ["model", "util"],
    "reward": ["util"],
    "objective": ["util"],
    "accelerator": ["util"],
    "pipeline": ["util"],
    "curation": ["util"],
    "runner": ["util"],
    "model": ["util"],
    "util": ["util.config", "util.enum"],
    "util.config": ["util", "util.enum"],
    "util.enum": [],
}  # fmt: skip
"""Who may import whom; what they may import counts too."""

HEAVY = {"torch", "diffusers", "transformers", "peft", "accelerate"}
LIGHT_ROOMS = ("util", "runner", "curation", "ui")
ONLY_IN = {
    "peft": ("modules/adapter/",),
    "accelerate": ("modules/trainer/distributed.py",),
    "torch.distributed": ("modules/trainer/distributed.py",),
}
ALLOWED = {
    # A question, not an operation: AUTO needs to know whether there is more than one process.
    ("modules/objective/execution.py", "torch.distributed"),
}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_FAMILY_LINES = 350


def reachable(room: str) -> set[str]:
    """What a room may import, itself included."""
    found, waiting = set(), [room]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += MAY_IMPORT[name]
    return found


def room_of(name: str) -> str | None:
    """The room a dotted name lies in; ``None`` outside the program."""
    parts = name.split(".")
    if parts[0] == "scripts":
        return "scripts"
    if parts[0] != "modules" or len(parts) < 2:
        return None
    deeper = ".".join(parts[1:3])
    return deeper if deeper in MAY_IMPORT else parts[1]


def faults_of_rooms(source: Source, found: tuple[Import, ...]) -> list[str]:
    room = room_of(source.name)
    if room is None:
        return []
    allowed = reachable(room)
    return [
        f"{source.relative}:{one.line}: {room} may not import {one.name}"
        for one in found
        if (target := room_of(one.name)) is not None and target not in allowed
    ]


def test_every_room_has_its_rule():
    rooms = {path.name for path in (ROOT / "modules").iterdir() if (path / "__init__.py").is_file()}
    assert rooms <= MAY_IMPORT.keys(), "say in MAY_IMPORT what a new room may import"
    assert not [name for names in MAY_IMPORT.values() for name in names if name not in MAY_IMPORT]


def test_rooms_import_only_what_lies_to_their_right():
    assert len(sources("modules")) > 50
    faults = [
        fault
        for source in sources("modules", "scripts")
        for fault in faults_of_rooms(source, imports(source))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("importing", "imported"),
    [
        ("modules.ui.MainWindow", "modules.trainer.steps"),
        ("modules.trainer.steps", "modules.ui.MainWindow"),
        ("modules.model.batch", "modules.adapter.names"),
        ("modules.util.rng", "modules.runner.events"),
        ("modules.util.enum.ModelType", "modules.util.errors"),
        ("modules.runner.events", "scripts.train"),
    ],
)
def test_the_rule_finds_a_breach(importing, imported):
    source = (
        next(one for one in sources("modules") if one.name == importing) if importing in own_names() else None
    )
    source = source or Source(ROOT / "modules" / "x.py", importing, ast.Module([], []), "")
    assert faults_of_rooms(source, (Import(imported, 1, False),))
    assert not faults_of_rooms(source, (Import(source.name, 1, False),))


def test_no_module_is_loaded_while_it_is_being_loaded():
    """No cycles among imports at load."""
    graph = load_graph()
    state: dict[str, int] = {}

    def visit(name: str, path: list[str]) -> None:
        state[name] = 1
        for following in graph.get(name, {}):
            if following not in graph or following == name or name.startswith(f"{following}."):
                continue
            assert state.get(following) != 1, " -> ".join([*path, following])
            if following not in state:
                visit(following, [*path, following])
        state[name] = 2

    for name in graph:
        if name not in state:
            visit(name, [name])


# -- packages ------------------------------------------------------------------------------------------------


def mentions(source: Source) -> Iterator[tuple[str, int]]:
    """Packages a file imports or reaches through an attribute (``torch.distributed``), with the line."""
    for one in imports(source):
        yield one.name, one.line
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}", node.lineno


def test_some_packages_have_one_place():
    faults = []
    for source in sources("modules", "scripts"):
        for name, line in mentions(source):
            for package, places in ONLY_IN.items():
                inside = name == package or name.startswith(f"{package}.")
                if (
                    inside
                    and not source.relative.startswith(places)
                    and (source.relative, package) not in ALLOWED
                ):
                    faults.append(f"{source.relative}:{line}: {name} belongs into {' or '.join(places)}")
    assert not faults, "\n".join(faults)


def test_what_is_allowed_is_needed():
    used = {
        (source.relative, package)
        for source in sources("modules")
        for name, _ in mentions(source)
        for package in ONLY_IN
        if name == package or name.startswith(f"{package}.")
    }
    assert used >= ALLOWED


def light_modules() -> list[str]:
    return [source.name for source in sources("modules") if source.name.split(".")[1:2] and
            source.name.split(".")[1] in LIGHT_ROOMS]  # fmt: skip


def test_light_rooms_load_nothing_heavy_by_their_imports():
    chains = [chain for name in light_modules() if (chain := load_chain(name, HEAVY))]
    assert not chains, "\n".join("\n    ".join(chain) for chain in chains)
    assert load_chain("modules.trainer.steps", HEAVY), "the search finds nothing any more"


def test_light_rooms_load_nothing_heavy_in_fact():
    program = (
        "import importlib, json, sys\n"
        "for name in json.loads(sys.argv[1]):\n"
        "    importlib.import_module(name)\n"
        "print(json.dumps(sorted(name for name in sys.modules if '.' not in name)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(light_modules())],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "modules" in loaded
    assert not HEAVY & loaded


# -- model families ------------------------------------------------------------------------------------------

FAMILIES = tuple(family.value for family in ModelType)
FAMILY_FILES = re.compile(r"modules/(modelSetup/\w+Setup|util/enum/ModelType)\.py")
_PREFIX_METHODS = ("startswith", "endswith", "removeprefix", "removesuffix")


def is_family(node: ast.AST) -> bool:
    """``ModelType.X`` or the name of a family as text."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "ModelType" and node.attr in FAMILIES
    return isinstance(node, ast.Constant) and node.value in FAMILIES


def family_comparisons(tree: ast.AST) -> list[int]:
    """Lines where something is decided by the name of a family."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Compare, ast.MatchValue)):
            found = any(is_family(part) for part in ast.walk(node))
        elif isinstance(node, ast.Dict):
            found = any(key is not None and is_family(key) for key in node.keys)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
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
    faults = [
        f"{source.relative}:{line}: ask the family's FamilySpec instead"
        for source in sources("modules", "scripts")
        if not FAMILY_FILES.fullmatch(source.relative)
        for line in family_comparisons(source.tree)
    ]
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
    assert family_comparisons(ast.parse(code))
    assert not family_comparisons(ast.parse("def f(x=ModelType.STABLE_DIFFUSION_15): return spec.key == x"))


# -- sizes and habits ----------------------------------------------------------------------------------------

PYTHON = ("modules", "scripts", "tests")


def test_files_and_functions_stay_small():
    faults = []
    for source in sources(*PYTHON):
        lines = source.text.count("\n")
        if lines > MAX_FILE_LINES:
            faults.append(f"{source.relative}: {lines} lines")
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    faults.append(f"{source.relative}:{node.lineno}: {node.name} has {length} lines")
    assert not faults, "\n".join(faults)


def test_a_family_is_one_short_file():
    families = [
        s for s in sources("modules/modelSetup") if re.fullmatch(r"(?!Base)\w+Setup\.py", s.path.name)
    ]
    assert families
    assert not [f.relative for f in families if f.text.count("\n") > MAX_FAMILY_LINES]


def test_modules_do_not_print():
    faults = [
        f"{source.relative}:{node.lineno}"
        for source in sources("modules")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("print", "pprint")
    ]
    assert not faults, "\n".join(faults)


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
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ExceptHandler) and swallows(node, source.text.splitlines())
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
    (found,) = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ExceptHandler)]
    assert swallows(found, code.splitlines()) == bad


# -- words ---------------------------------------------------------------------------------------------------

# Put together here, so that this file does not hold them.
WORDS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?<![\w.])/(work|tmp|root|home/\w+)/" + r"\w",
        r"\b(clau" + r"de|anthro" + r"pic|chat" + r"gpt|co" + r"pilot)\b",
        r"\bas an a" + r"i\b|\blanguage mo" + r"del assistant",
        r"\b(sub|coding[ -]|ai[ -])ag" + r"ents?\b",
        r"\b(team|task|this|the) br" + r"ief\b(?! (look|summary|moment|pause))",
        r"\bthe sp" + r"ec says\b|\bshared/(sp" + r"ec|des" + r"ign)\b|\bcontract\.m" + r"d\b",
        r"\b(issue|pull request|closes|fixes|resolves) #" + r"\d",
        r"\b(previous|earlier|this|another|next|coding) se" + r"ssion'?s? (of work|wrote|left|did|will)\b",
    )
]


def offending(text: str) -> list[tuple[int, str]]:
    """Lines with words that are not about the product."""
    return [
        (number, line.strip()[:100])
        for number, line in enumerate(text.splitlines(), 1)
        if any(word.search(line) for word in WORDS)
    ]


def test_texts_are_about_the_product_alone():
    texts = dict(repository_texts())
    assert {"pyproject.toml", "tests/test_architecture.py", "docs/config.md"} <= texts.keys()
    faults = [f"{name}:{line}: {words}" for name, text in texts.items() for line, words in offending(text)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "see /wo_rk/main",
        "wrote /t_mp/x",
        "fixes #_12",
        "as the sp_ec says",
        "asked Clau_de",
        "two subag_ents",
    ],
)
def test_other_words_are_found(text):
    assert offending(text.replace("_", ""))
    assert not offending("a session of rating; workspace/run; a brief look; specification; #12 in the list")
