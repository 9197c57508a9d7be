"""Files are deleted, moved and replaced through one door, and written whole or for a reason that is said here."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.exceptions import breaches
from tests.source_tree import Source, nodes, parsed, sources

DOOR = ("modules/util/owned_files.py", "modules/util/files/OpenFolder.py")
FUNCTIONS = {
    "remove", "unlink", "rmdir", "removedirs", "rename", "renames", "replace", "link", "symlink", "rmtree", "move",
    "copytree",
}  # fmt: skip
"""What only the door calls of ``os`` and ``shutil``."""
METHODS = {"unlink", "rmdir", "rename", "symlink_to", "hardlink_to"}
WRITES = {
    "write_text",
    "write_bytes",
    "touch",
    "mkstemp",
    "NamedTemporaryFile",
    "copyfile",
    "copy2",
    "truncate",
}
"""Calls that write to a path, besides ``open``."""
WRITE_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"}
GIVEN_BY = {"atomic_path", "write", "fresh_folder"}
"""What yields a temporary path of the door, in a ``with``: whatever is written there is not a person's."""

MAY_WRITE = {
    "modules/util/tensors/tensor_files.py": "writes tensors to the temporary path its caller has of the door",
    "modules/util/tensors/lazy_tensors.py": "writes tensors to the temporary path its caller has of the door",
    "modules/runner/events.py": "the log of events grows line by line, and a torn last line is repaired",
    "modules/runner/launcher.py": "a trainer's output is added to its log as it comes",
    "modules/runner/RunDirectory.py": "opens the lock of a run, which stays empty",
    "modules/runner/RunQueue.py": "opens the lock of the queue, which stays empty",
    "modules/runner/known_runs.py": "opens a lock in the settings folder, which stays empty",
    "modules/ui/state/SessionStore.py": "opens the lock of a window's session, which stays empty",
    "modules/util/files/EventLog.py": "opens the lock of a log, which stays empty, and its database",
    "modules/tools/Journal.py": "opens the lock of a folder of images, which stays empty",
    "modules/tools/dataset/rewriting.py": "writes images to the temporary path its caller has of the door",
    "modules/tools/dataset/caption_edits.py": "writes captions to the temporary path its caller has of the door",
    "modules/tools/dataset/captioning.py": "writes captions to the temporary path its caller has of the door",
    "modules/project/Project.py": "opens the lock of a project, which stays empty",
    "modules/remote/there/Starts.py": "opens the locks of starts, which stay empty",
    "modules/remote/there/Store.py": "opens the lock of a file that is received, which stays empty",
    "modules/remote/growing.py": "opens the lock of a folder that mirrors a run, which stays empty",
    "modules/project/share/metadata.py": "writes an adapter to the temporary path its caller has of the door",
    "modules/curation/intake/duplicates.py": "a database, which keeps itself whole; losing it costs time",
    "modules/pipeline/cache/FactsFile.py": "a database, which keeps itself whole; losing it costs time",
    "modules/curation/exchange/importing.py": "unpacks images into a scratch folder of the system",
    "scripts/bootstrap.py": "runs before the program's packages are there; writes its lock and its stamp in .venv",
    "scripts/make_demo.py": "fills a new folder with images that are drawn",
    "scripts/demo/training.py": "a trainer's output goes to the demo's log",
    "scripts/benchmarks/captions.py": "images to measure on, in a scratch folder",
    "scripts/benchmarks/data.py": "images to measure on, in a scratch folder",
    "scripts/benchmarks/scale.py": "images to measure on, in a scratch folder",
    "scripts/benchmarks/curation.py": "images to measure on, in a scratch folder",
    "scripts/benchmarks/_plain_step.py": "images and a model to measure on, in a scratch folder",
    "scripts/benchmarks/_onetrainer.py": "another program's output goes to a log in a scratch folder",
}


def modules_named(source: Source) -> dict[str, str]:
    """Names under which ``os`` and ``shutil`` are known in a file."""
    found = {}
    for node in nodes(source, ast.Import):
        found.update({a.asname or a.name: a.name for a in node.names if a.name in ("os", "shutil")})
    return found


def changing(source: Source) -> Iterator[str]:
    """Deletes, moves and replacements in a file: its lines."""
    modules = modules_named(source)
    where = f"{source.relative}:{{}}: {{}}".format
    for brought in nodes(source, ast.ImportFrom):
        if brought.module in ("os", "shutil"):
            for alias in brought.names:
                if alias.name in FUNCTIONS:
                    yield where(brought.lineno, f"from {brought.module} import {alias.name}")
    for part in nodes(source, ast.Attribute):
        if part.attr in FUNCTIONS and _name(part.value) in modules:
            yield where(part.lineno, f"{modules[_name(part.value)]}.{part.attr}")
    for call in nodes(source, ast.Call):
        yield from (where(call.lineno, what) for what in _changing_call(call, modules))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _changing_call(node: ast.Call, modules: dict[str, str]) -> Iterator[str]:
    function = node.func
    if isinstance(function, ast.Name) and function.id == "getattr" and len(node.args) > 1:
        of, name = node.args[:2]
        if _name(of) in modules and isinstance(name, ast.Constant) and name.value in FUNCTIONS:
            yield f"getattr of {name.value}"
    if not isinstance(function, ast.Attribute):
        return
    if _name(function.value) in modules:
        return  # said already, by its attribute
    if function.attr in METHODS:
        yield f".{function.attr}()"
    # texts are replaced with two arguments, and dates with others' names
    names = [keyword.arg for keyword in node.keywords]
    if function.attr == "replace" and (len(node.args), names) in ((1, []), (0, ["target"])):
        yield ".replace() of a path"


def given_by_the_door(source: Source) -> set[str]:
    """Names of temporary paths that the door gave."""
    found = set()
    for node in nodes(source, ast.With):
        for item in node.items:
            call = item.context_expr
            function = call.func if isinstance(call, ast.Call) else None
            name = getattr(function, "attr", getattr(function, "id", ""))
            if name in GIVEN_BY and isinstance(item.optional_vars, ast.Name):
                found.add(item.optional_vars.id)
    return found


def writing(source: Source) -> Iterator[str]:
    """Calls that open something to write, apart from temporary paths of the door: their lines."""
    given = given_by_the_door(source)
    for node in nodes(source, ast.Call):
        function = node.func
        name = getattr(function, "attr", getattr(function, "id", ""))
        owner = (
            function.value.id
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
            else ""
        )
        if owner in given or owner == "owned":
            continue
        jsonio = isinstance(function, ast.Name)
        if (
            (name == "open" and _opens_to_write(node, owner))
            or (name in WRITES and not (jsonio and name.startswith("write_")))
            or (owner == "sqlite3" and name == "connect")
        ):
            yield f"{source.relative}:{node.lineno}: {name}"


def _opens_to_write(node: ast.Call, owner: str) -> bool:
    if owner == "os":
        words = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
        return bool(words & WRITE_FLAGS) and "devnull" not in words
    place = 1 if isinstance(node.func, ast.Name) else 0
    modes = [node.args[place]] if len(node.args) > place else []
    modes += [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    return any(len(text) <= 3 and set(text) & set("wax+") for text in texts)


def test_nothing_is_deleted_moved_or_replaced_outside_the_door():
    faults = [
        fault
        for source in sources("modules", "scripts")
        if source.relative not in DOOR
        for fault in changing(source)
    ]
    assert not faults, "use modules/util/owned_files.py:\n" + "\n".join(faults)


def test_the_door_itself_is_found():
    assert {s.relative for s in sources("modules") if list(changing(s))} == set(DOOR)


def test_files_are_opened_to_write_where_a_reason_is_said():
    found: dict[str, str] = {}
    for source in sources("modules", "scripts"):
        if source.relative not in DOOR:
            for line in writing(source):
                found.setdefault(source.relative, line)
    assert not breaches(found, MAY_WRITE), "\n".join(breaches(found, MAY_WRITE))


@pytest.mark.parametrize(
    "code",
    [
        *(f"import os\nos.{name}(a)" for name in sorted(FUNCTIONS - {"rmtree", "move", "copytree"})),
        "import shutil\nshutil.rmtree(a)", "import shutil as s\ns.move(a, b)", "import shutil\nshutil.copytree(a, b)",
        "from os import remove", "from shutil import rmtree as gone", "import os as o\nf = o.unlink",
        "import os\ngetattr(os, 'remove')(a)", "path.unlink()", "(a / b).rmdir()", "path.rename(b)",
        "Path(a).symlink_to(b)", "a.hardlink_to(b)", "path.replace(b)", "path.replace(target=b)",
    ],
)  # fmt: skip
def test_a_change_of_files_is_found(code):
    assert len(list(changing(parsed(code)))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "text.replace('a', 'b')", "now.replace(hour=0)", "dataclasses.replace(a, b=1)", "names.remove(a)",
        "owned.move(a, b)", "owned.remove(a)", "import os\nos.path.join(a)", "import shutil\nshutil.disk_usage(a)",
    ],
)  # fmt: skip
def test_what_changes_no_file_is_passed_over(code):
    assert not list(changing(parsed(code)))


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("open(a, 'w')", 1), ("open(a, mode='ab')", 1), ("a.open('a+b')", 1), ("a.open(mode='x')", 1),
        ("a.open('r+')", 1),
        ("a.write_text(b)", 1), ("(a / b).write_bytes(c)", 1), ("a.touch()", 1), ("tempfile.mkstemp()", 1),
        ("shutil.copyfile(a, b)", 1), ("os.open(a, os.O_WRONLY | os.O_CREAT)", 1), ("sqlite3.connect(a)", 1),
        ("with atomic_path(a) as t:\n    t.write_text(b)", 0), ("with owned.write(a) as t:\n    t.open('wb')", 0),
        ("with atomic_path(a) as t:\n    u.write_text(b)", 1), ("open(a)", 0), ("a.open('rb')", 0),
        ("write_text(a, b)", 0),
        ("os.open(a, os.O_RDONLY)", 0), ("os.open(os.devnull, os.O_WRONLY)", 0),
        ("window.open()", 0),
    ],
)  # fmt: skip
def test_opening_to_write_is_found(code, found):
    assert len(list(writing(parsed(code)))) == found
