"""The pair tool: seconds from a key to the next two images on the screen, and from the start to the first two.

Images of 1024 x 1024 pixels with a prompt each, on a virtual screen where there is no other, keys as quick as a
quick person's. Processor time is in the JSON file next to wall time, because other work on the machine disturbs
it less.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, PngImagePlugin

from scripts.benchmarks._measure import Quartiles, Result, run_child
from scripts.benchmarks.startup import screen

KEY_SECONDS = 0.05
FIRST_SECONDS = 1.0
WINDOW_SECONDS = 1.0
PER_PROMPT = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=64, help="images in the folder (64)")
    parser.add_argument("--size", type=int, default=1024, help="their width and height (1024)")
    parser.add_argument("--keys", type=int, default=60, help="measured answers (60)")


def make_images(folder: Path, count: int, size: int) -> None:
    """Write pictures with photographic detail, so that they decode as slowly as photographs."""
    rng = np.random.default_rng(5)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8))
        pixels = np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC)).astype(np.int16)
        pixels += rng.integers(-6, 7, pixels.shape, np.int16)
        info = PngImagePlugin.PngInfo()
        info.add_text("parameters", f"a fox number {number // PER_PROMPT}\nSteps: 20, Seed: {number}")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(
            folder / f"{number:04d}.png", pnginfo=info, compress_level=4
        )


def run(arguments: argparse.Namespace) -> list[Result]:
    """Run one session in a separate process."""
    with tempfile.TemporaryDirectory() as name, screen() as env:
        source = Path(name) / "images"
        source.mkdir()
        make_images(source, arguments.images, arguments.size)
        found = run_child("_picking_child.py", str(source), name, str(arguments.keys), env=env)
    model = f"{arguments.images} x {arguments.size}^2"
    wall, cpu = Quartiles.of(found["wall"]), Quartiles.of(found["cpu"])
    key = {
        "seconds": wall.middle,
        "quartiles": [wall.low, wall.high],
        "slowest": max(found["wall"]),
        "cpu_seconds": cpu.middle,
        "keys": len(found["wall"]),
    }
    seconds, processor = found["window"]
    return [
        Result(model, f"key to next pair, as share of {KEY_SECONDS:g} s", wall.middle / KEY_SECONDS, 1.0, extra=key),
        Result(
            model, f"start to first pair, as share of {FIRST_SECONDS:g} s", found["first"] / FIRST_SECONDS, 1.0,
            extra={"seconds": found["first"]},
        ),
        Result(
            model, f"window, as share of {WINDOW_SECONDS:g} s", seconds / WINDOW_SECONDS, 1.0,
            extra={"seconds": seconds, "cpu_seconds": processor},
        ),
    ]  # fmt: skip
