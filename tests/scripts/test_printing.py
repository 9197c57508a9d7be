"""Commands whose output goes to a file or pipe with few characters, as on Windows."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    path.name
    for path in (ROOT / "scripts").glob("*.py")
    if path.name != "bootstrap.py"  # it runs before there is an environment, and prints no names of images
)


def printed(script: str, *arguments: str) -> str:
    """What a command prints to a pipe that takes the characters of Western Europe alone."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), *arguments],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("ascii")


def test_a_name_that_the_output_cannot_hold_ends_no_command(tmp_path):
    Image.new("RGB", (64, 64)).save(tmp_path / "猫.png")
    assert r"\u732b.png" in printed("dataset.py", "stats", str(tmp_path))
    rows = json.loads(printed("curate.py", "scan", str(tmp_path)))
    assert [Path(row["path"]).name for row in rows] == ["猫.png"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_command_whose_output_nobody_reads_ends_quietly(tmp_path, unbuffered):
    (tmp_path / "old.toml").write_text('pretrained_model_name_or_path = "sd"\nlearning_rate = 1e-4\n')
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "import_config.py"), str(tmp_path / "old.toml"), "--diff",
             "--family", "STABLE_DIFFUSION_15"],
            stdout=output, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, timeout=120,
        )  # fmt: skip
    # what it prints at once is lost in the middle of its work
    assert (done.returncode in ({141} if unbuffered else {0, 3}), done.stderr.decode()) == (True, "")


def test_a_command_without_an_output_ends_quietly():
    code = "import sys; sys.stdout = None; from modules.util.display import print_any_text; print_any_text()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr.decode()) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_can_print_any_name(script):
    tree = ast.parse((ROOT / "scripts" / script).read_text(encoding="utf-8"))
    main = next(
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
    )
    assert ast.unparse(main.body[0]) == "print_any_text()"


@pytest.mark.parametrize("script", ["doctor", "import_config", "benchmark"])
def test_a_command_that_is_interrupted_ends_with_one_word(script):
    # the signal comes while the command reads its arguments
    code = (
        f"import argparse, os, signal, runpy, sys; sys.argv = ['{script}.py'];"
        "stop = lambda *a, **k: os.kill(os.getpid(), signal.SIGINT);"
        "argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_known_args = stop;"
        f"runpy.run_path('scripts/{script}.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr.decode()) == (130, "stopped\n")
