"""The Dockerfile, without Docker: it is read, and what it copies is copied and run.

That an image can be built and started, and what its base image holds, is not tested here.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import bootstrap
from tests.source_tree import ROOT

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
KNOWN = {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "ENTRYPOINT", "CMD"}


def instructions(text: str) -> list[tuple[str, str]]:
    """Name and rest of each instruction, its lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def ignored(text: str, path: str) -> bool:
    """Whether .dockerignore leaves a path out: the last line that fits it or a folder of it counts."""
    parts = path.split("/")
    names = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    out = False
    for line in text.splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#"):
            deep = pattern.removeprefix("**/")
            fits = any(fnmatch.fnmatchcase(name, pattern) for name in names) or (
                deep != pattern and any(fnmatch.fnmatchcase(part, deep) for part in parts)
            )
            out = not line.startswith("!") if fits else out
    return out


FOUND = instructions(TEXT)
IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8")


def rests(name: str) -> list[str]:
    return [rest for found, rest in FOUND if found == name]


def copies() -> list[tuple[list[str], str]]:
    """Sources and target of each COPY."""
    return [(words[:-1], words[-1]) for words in (rest.split() for rest in rests("COPY"))]


def test_every_instruction_is_known_and_the_base_has_the_wanted_python():
    assert {name for name, _ in FOUND} == KNOWN
    assert rests("FROM") == [f"python:{'.'.join(map(str, bootstrap.MINIMUM))}-slim"]


def test_what_is_copied_is_in_the_repository():
    sources = [source for many, _ in copies() for source in many]
    assert len(sources) >= 9
    assert not [source for source in sources if not (ROOT / source).exists()]
    assert not [source for source in sources if ignored(IGNORED, source)]


@pytest.mark.parametrize(
    "path",
    [".venv/bin/python", ".git/config", "workspace/run/secrets.json", "secrets.json", "modules/secrets.json",
     "training_presets/#.json", "modules/util/__pycache__/x.pyc", "tests/x.py", "picture.png"],
)  # fmt: skip
def test_what_is_a_persons_own_is_left_out(path):
    assert ignored(IGNORED, path)


def test_packages_are_the_pinned_ones():
    (command,) = [rest for rest in rests("RUN") if " pip " in rest]
    copied = {source for many, _ in copies() for source in many}
    defaults = dict(rest.split("=", 1) for rest in rests("ARG"))
    files = set(re.findall(r"--(?:requirement|constraint) \"?([\w.$-]+)\"?", command))
    assert files == {"requirements.txt", "$REQUIREMENTS", "constraints.txt"}
    assert defaults["REQUIREMENTS"] in copied
    assert files - {"$REQUIREMENTS"} <= copied
    assert '"$TORCH_INDEX"' in command
    assert defaults["TORCH_INDEX"].endswith("/whl/cpu")
    order = [rest for _, rest in FOUND]
    assert order.index("requirements.txt requirements-gpu.txt constraints.txt ./") < order.index(command)
    comment = "\n".join(line for line in TEXT.splitlines() if line.startswith("#"))
    (gpu,) = re.findall(r"REQUIREMENTS=(\S+)", comment)
    assert gpu in copied


def test_commands_run_as_a_user_without_rights():
    names = [name for name, _ in FOUND]
    (user,) = rests("USER")
    assert user not in ("root", "0")
    assert any(f"useradd --create-home --uid 1000 {user} " in rest for rest in rests("RUN"))
    assert names.index("USER") > max(i for i, name in enumerate(names) if name in ("RUN", "COPY"))
    (made,) = [rest for rest in rests("RUN") if "useradd" in rest]
    for folder in json.loads(rests("VOLUME")[0]):
        assert made.split().count(folder) == 2, f"{folder} is made and given to the user"


@pytest.mark.child
def test_what_is_copied_is_enough_to_run(tmp_path):
    for sources, target in copies():
        for source in sources:
            place = tmp_path / target / ("" if target == "./" else ".")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, tmp_path / target, ignore=_leave_out)
            else:
                shutil.copy(ROOT / source, place)
    assert json.loads(rests("ENTRYPOINT")[0]) == ["python"]
    (start,) = json.loads(rests("CMD")[0])
    environment = {"TASTEMAKER_SETTINGS": str(tmp_path / "settings"), "PATH": ""}
    for command in ([start, "--json"], ["scripts/train.py", "--help"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    examples = re.findall(r"scripts/\w+\.py", TEXT + (ROOT / "docs" / "installing.md").read_text())
    assert {"scripts/train.py", "scripts/update.py"} <= set(examples)
    assert not [name for name in examples if not (ROOT / name).is_file()]


def _leave_out(folder: str, names: list[str]) -> set[str]:
    place = Path(folder).relative_to(ROOT).as_posix()
    return {name for name in names if ignored(IGNORED, f"{place}/{name}")}
