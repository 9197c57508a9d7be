"""Who imports whom and when: rooms, packages with one place, and light rooms that load nothing heavy."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.source_tree import ROOT, Import, Source, imports, load_chain, nodes, own_names, sources

MAY_IMPORT = {
    "scripts": ["project", "ui", "trainer", "captioner", "remote"],
    "ui": ["tools", "project", "remote", "runner", "curation", "spec", "util"],
    "trainer": [
        "dataLoader", "modelSetup", "rollout", "objective", "reward", "accelerator", "adapter", "runner", "spec",
        "util",
    ],
    "dataLoader": ["pipeline", "modelSetup", "util"],
    "modelSetup": ["weights", "adapter", "objective", "model", "spec", "util"],
    "weights": ["model", "spec", "util"],
    "rollout": ["modelSetup", "objective", "model", "util"],
    "adapter": ["weights", "model", "spec", "util"],
    "reward": ["modelSetup", "util"],
    "objective": ["util"],
    "accelerator": ["util"],
    "pipeline": ["util"],
    "project": ["arena", "generator", "curation", "runner", "spec", "util"],
    "tools": ["curation", "runner", "util"],
    "remote": ["runner", "util"],
    "captioner": ["util"],
    "arena": ["curation", "util"],
    "generator": ["runner", "util"],
    "curation": ["util"],
    "runner": ["util"],
    "model": ["spec", "util"],
    "util": ["util.config", "util.enum"],
    "util.config": ["util", "util.enum"],
    "util.enum": ["spec"],
    "spec": [],
}  # fmt: skip
"""Who may import whom; what they may import counts too."""

HEAVY = {"torch", "diffusers", "transformers", "peft", "accelerate"}
LIGHT_ROOMS = ("spec", "util", "runner", "remote", "curation", "arena", "generator", "project", "tools", "ui")
ONLY_IN = {
    "peft": ("modules/adapter/",),
    "accelerate": ("modules/trainer/distributed.py",),
    "asyncssh": ("modules/remote/Connection.py", "modules/remote/host_keys.py"),
    "torch.distributed": ("modules/trainer/distributed.py", "modules/trainer/control/LocalMeeting.py"),
}
ALLOWED = {
    # A question, not an operation: AUTO needs to know whether there is more than one process.
    ("modules/objective/execution.py", "torch.distributed"),
}


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


def mentions(source: Source) -> Iterator[tuple[str, int]]:
    """Packages a file imports or reaches through an attribute (``torch.distributed``), with the line."""
    for one in imports(source):
        yield one.name, one.line
    for node in nodes(source, ast.Attribute):
        if isinstance(node.value, ast.Name):
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


@pytest.mark.child
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
