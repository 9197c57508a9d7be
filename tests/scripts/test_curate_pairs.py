"""``curate.py scan`` and ``serve-pairs`` as programs, killed at any moment too."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from scripts import curate
from tests.children.warm import start_picking

ROOT = Path(__file__).resolve().parents[2]
CURATE = ROOT / "scripts" / "curate.py"
Reply = dict[str, Any]


def generated(path: Path, prompt: str, seed: int, size: tuple[int, int] = (48, 32)) -> None:
    """A noise image that says how it was made, unlike every other one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = numpy.random.default_rng(seed).integers(0, 256, (8, 9, 3), dtype=numpy.uint8)
    info = PngInfo()
    info.add_text("parameters", f"{prompt}\nNegative prompt: blurry\nSteps: 20, Seed: {seed}, Size: 9x9")
    Image.fromarray(coarse).resize(size, Image.Resampling.NEAREST).save(path, pnginfo=info)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    for group in range(3):
        for i in range(6):
            generated(folder / f"g{group}" / f"{i}.png", f"a red <lora:x:1> fox {group}", 100 * group + i)
    return folder


def started_anew(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "scripts/curate.py", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


class Served:
    """A running ``serve-pairs`` process.

    Args:
        new: whether it begins with nothing: a new process, which takes a while to start.
    """

    def __init__(self, source: Path, output: Path, *arguments: str, new: bool = False) -> None:
        words = ("serve-pairs", str(source), str(output), *arguments)
        self.process: Any = started_anew(*words) if new else start_picking(CURATE, *words, folder=ROOT)

    def read(self) -> Reply | None:
        """The next reply; ``None`` when the process has ended in the middle of it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def ask(self, **request: Any) -> Reply | None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        return self.read()

    def end(self, status: int | None = 0) -> str:
        """Close its input; what it said on stderr."""
        _, said = self.process.communicate(timeout=60)
        if status is not None:
            assert self.process.returncode == status
        return said if isinstance(said, str) else said.decode()


def refused(*arguments: object) -> str:
    process = start_picking(CURATE, *arguments, folder=ROOT, text=True)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2, said
    assert "Traceback" not in said
    return said


class TestScan:
    def test_rows(self, source, capsys):
        generated(source / "ünïcode 10.png", "a dog", 7, (64, 64))
        (source / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        (source / "notes.txt").write_text("no image")
        assert curate.main(["scan", str(source)]) == 0
        said = capsys.readouterr()
        rows = json.loads(said.out)
        assert [row["path"] for row in rows[:3]] == ["broken.png", "ünïcode 10.png", "g0/0.png"]
        assert rows[0]["error"]
        assert rows[0]["prompt"] is rows[0]["group"] is rows[0]["width"] is None
        assert rows[2] == {
            "path": "g0/0.png",
            "prompt": "a red <lora:x:1> fox 0",
            "negative_prompt": "blurry",
            "width": 48,
            "height": 32,
            "generator": rows[2]["generator"],
            "seed": 0,
            "sources": [],
            "group": rows[3]["group"],
            "error": None,
        }
        assert len({row["group"] for row in rows} - {None}) == 4
        assert "20 files, 4 groups, 1 file without a prompt" in said.err

    def test_into_a_file_flat_and_empty(self, source, tmp_path, capsys):
        target = tmp_path / "rows.json"
        assert curate.main(["scan", str(source), "--flat", "--json", str(target)]) == 0
        assert capsys.readouterr().out == ""
        assert json.loads(target.read_text()) == []

    def test_a_name_that_is_no_text(self, source, tmp_path):
        name = os.fsencode(source) + b"/bad\xff.png"
        with contextlib.suppress(OSError):
            Path(os.fsdecode(name)).write_bytes(b"x")
            assert curate.main(["scan", str(source), "--json", str(tmp_path / "rows.json")]) == 0
            rows = json.loads((tmp_path / "rows.json").read_text())
            assert [r["error"] for r in rows if r["path"] == "bad\\xff.png"] != [None]

    def test_mistakes(self, tmp_path):
        assert "cannot be read" in refused("scan", tmp_path / "nowhere", "--json", tmp_path / "x.json")
        assert not (tmp_path / "x.json").exists()


class TestMistakes:
    def test_a_second_session_is_refused_and_the_first_resumes(self, source, tmp_path):
        out = tmp_path / "out"
        first = Served(source, out)
        assert first.read()["type"] == "hello"
        assert first.read()["type"] == "question"
        assert "open in another window" in refused("serve-pairs", source, out)
        assert first.ask(do="skip")["type"] == "question"
        first.end()
        again = Served(source, out)
        assert [again.read()["type"] for _ in range(2)] == ["hello", "question"]
        again.end()

    def test_folders_that_do_not_go_together(self, source, tmp_path):
        assert "inside the output folder" in refused("serve-pairs", source, source)
        assert "inside the output folder" in refused("serve-pairs", source, source.parent)
        assert "inside the output folder" in refused("serve-pairs", source / "g0", source)
        (tmp_path / "link").symlink_to(source)
        assert "inside the output folder" in refused("serve-pairs", source / "g1", tmp_path / "link")
        assert "does not exist" in refused("serve-pairs", tmp_path / "nowhere", tmp_path / "out")
        assert "is a file" in refused("serve-pairs", source, source / "g0" / "0.png")
        assert not (source / "curation.sqlite").exists()

    def test_bad_settings(self, source, tmp_path):
        assert "threshold" in refused("serve-pairs", source, tmp_path / "out", "--threshold", "1.5")
        assert "invalid choice" in refused("serve-pairs", source, tmp_path / "out", "--mode", "GUESS")
        assert not (tmp_path / "out").exists()

    def test_an_output_inside_the_source_is_left_out_of_the_scan(self, source):
        for _ in range(2):
            served = Served(source, source / "out", "--mode", "SELECT")
            served.read()
            question = served.read()
            assert len(question["show"]) == 6
            assert not any("out/" in image["file"] for image in question["show"])
            served.ask(do="choose", best=0, worst=1)
            assert served.ask(do="finish_group")["groups_finished"]
            served.end()


def test_picking_through_the_program(source, tmp_path):
    """In a new process, and again in another one."""
    for group in range(3):
        (source / f"g{group}" / "copy.png").write_bytes((source / f"g{group}" / "0.png").read_bytes())
    (source / "empty.png").write_bytes(b"")
    served = Served(source, tmp_path / "out", "--mode", "SELECT", new=True)
    assert served.read() == {"type": "hello", "protocol": 1, "mode": "SELECT", "pairs": 0}
    state = served.read()
    prompts = set()
    while state["type"] == "question":
        prompts.add(state["prompt"])
        # The copy is left out, so that no pair is made of two equal images.
        assert len(state["show"]) == 6
        state = served.ask(do="choose", best=2, worst=5)
        assert state["type"] == "continue"
        state = served.ask(do="finish_group")
    assert prompts == {"a red fox 0", "a red fox 1", "a red fox 2"}
    assert state == {"type": "finished", "pairs": 3, "groups_finished": 3, "exported": []}
    faults = served.ask(do="faults")
    assert faults["count"] == 4
    assert {Path(f["path"]).name for f in faults["first"]} >= {"empty.png"}
    assert served.ask(do="quit") == {"type": "bye", "pairs": 3, "groups_finished": 3}
    served.end()
    assert curate.main(["finalize", str(tmp_path / "out"), "--val-percentage", "34"]) == 0
    again = Served(source, tmp_path / "out", "--mode", "SELECT", new=True)
    assert again.read()["pairs"] == 3
    assert again.read()["type"] == "finished"
    again.end()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop(source, tmp_path, stop):
    served = Served(source, tmp_path / "out")
    served.read()
    first = served.read()
    served.ask(do="skip")
    served.process.send_signal(stop)
    assert "Traceback" not in served.end(None)
    assert served.process.returncode == (130 if stop is signal.SIGINT else -signal.SIGTERM)
    again = Served(source, tmp_path / "out")
    again.read()
    # A skip is not an answer, but the skipped question does not come again at once.
    assert again.read()["show"] != first["show"]
    again.end()
