"""A project that an older version began is continued: no answer and no pair is lost, and picking resumes in the middle.

``older/project`` is what the version of November 22, 2026 left: twelve images of four prompts, two prompts answered (a
tie was taken back) and exported as pairs, and one answer about the third prompt.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.project.simulated import headless, preferring, told

OLDER = Path(__file__).parent / "older" / "project"
LIKED = {"01": 2.0, "00": 1.0, "02": 0.0}
"""How the person likes the images of a prompt, by the number in the name of their file."""


def liking(path: Path, prompt: str) -> float:
    return LIKED[path.name.split("-")[1]]


def files(folder: Path) -> dict[str, bytes]:
    sides = ("chosen", "rejected")
    return {f"{side}/{path.name}": path.read_bytes() for side in sides for path in (folder / side).iterdir()}


def test_picking_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(OLDER, tmp_path / "project")
    pairs = folder / "round-1" / "pairs"
    before = files(pairs)
    told(capsys, "new", folder, "--base-model", "resources/demo_model")
    (status,) = told(capsys, "status", folder)["rounds"]
    assert (status["candidates"], status["answers"], status["pairs"]) == (12, 11, 2)

    said = headless(monkeypatch, preferring(liking), "pick", str(folder))
    first = next(reply for reply in said if reply["type"] == "question")
    assert first["prompt"] == "a green circle on a yellow background"
    assert (first["answers"], first["groups_finished"], first["pairs"]) == (1, 2, 2)

    after = files(pairs)
    assert len(before) == 8 and before.items() <= after.items()
    images = sorted(path.name for path in (folder / "round-1" / "candidates").iterdir())
    of = {content: name for name in images for content in [(folder / "round-1/candidates" / name).read_bytes()]}
    made = [(of[after[f"chosen/pair_{n:04d}.png"]], of[after[f"rejected/pair_{n:04d}.png"]]) for n in range(4)]
    assert [(one[:6], other[:6]) for one, other in made] == [
        ("002-01", "002-02"),
        ("001-01", "001-02"),
        ("003-01", "003-02"),
        ("000-01", "000-02"),
    ]
    assert told(capsys, "status", folder)["rounds"][0]["pairs"] == 4
