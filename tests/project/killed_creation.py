"""The creation of a project, killed at each of its changes, in a process of its own: forks of one that has loaded torch
take a quarter of a second.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

from scripts import taste
from tests.changes import killed_at, recorded


def _new(folder: Path, prompts: Path) -> tuple[int, str]:
    """Exit status of ``taste.py new``, and what it said."""
    adapter = prompts.with_name("start.safetensors")
    words = ["new", str(folder), "--prompts", str(prompts), "--base-model", "a/model", "--adapter", str(adapter)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        return taste.main(words), said.getvalue()


def a_killed_creation_is_repeated_or_says_what_to_remove(root: Path) -> None:
    """``root`` is empty."""
    prompts = root / "prompts.txt"
    prompts.write_text("\n".join(f"a fox {number}" for number in range(6)))
    prompts.with_name("start.safetensors").write_bytes(b"weights")
    for there in (False, True):
        with recorded() as changes:
            folder = _folder(root / f"count-{there}", there)
            assert _new(folder, prompts)[0] == 0
        whole = {path.name for path in folder.iterdir()}
        outcomes: Counter[str] = Counter()
        for number in range(1, len(changes.made) + 1):
            for moment in ("before", "after"):
                folder = _folder(root / f"{there}-{number}-{moment}", there)
                assert killed_at(number, moment == "after", partial(_new, folder, prompts)), number
                outcomes[_repeat(folder, prompts)] += 1
                # a hidden folder may stay, but only an empty one, in a project that is whole
                names = {path.name for path in folder.iterdir() if path.is_file() or any(path.iterdir())}
                assert names == whole, (number, moment, names)
                assert (folder / "prompts.txt").read_text() == prompts.read_text()
                assert [path.name for path in folder.parent.iterdir()] == ["p"], (number, moment)
        # a folder that takes its name at once needs nobody to empty it
        assert outcomes["made"] > 10 and outcomes["was made"] and bool(outcomes["emptied"]) == there, outcomes


def _folder(parent: Path, there: bool) -> Path:
    (parent / "p" if there else parent).mkdir(parents=True)
    return parent / "p"


def _repeat(folder: Path, prompts: Path) -> str:
    """Repeat what was killed, and do what it asks for."""
    status, said = _new(folder, prompts)
    if status == 0:
        return "made"
    if "is already a project" in said:
        return "was made"
    assert "may have been interrupted" in said and "empty this one if nothing in it is yours" in said, said
    shutil.rmtree(folder)
    folder.mkdir()
    assert _new(folder, prompts)[0] == 0
    return "emptied"
