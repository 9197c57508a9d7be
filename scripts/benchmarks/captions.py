"""The caption editor: seconds until a large folder is on the screen, from a key to the redrawn grid, and from a
movement of the brush over an image of 2048 pixels to the redrawn mask.

Small images with a caption each, on a virtual screen where there is no other. Opening ends when the images in sight and
their captions are drawn. Finding is measured in processor time, because other work on the machine disturbs it less; the
JSON file has both for the rest too.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from scripts.benchmarks._measure import Quartiles, Result, run_child
from scripts.benchmarks.startup import screen

OPEN_SECONDS = 2.0
KEY_SECONDS = 0.05
BRUSH_SECONDS = 0.016
DIFFERENT = 50
TAGS = (
    "fox",
    "snow",
    "forest",
    "night sky",
    "red fur",
    "sitting",
    "looking at viewer",
    "painting",
    "close-up",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=10_000, help="images in the folder (10000)")
    parser.add_argument("--size", type=int, default=64, help="their width and height (64)")
    parser.add_argument("--keys", type=int, default=100, help="measured keys (100)")


def make_images(folder: Path, count: int, size: int) -> None:
    """Write noise images with captions of five tags, one of which is unique to the image."""
    rng = np.random.default_rng(3)
    files = []
    for number in range(min(count, DIFFERENT)):
        path = folder / f"{number:05d}.png"
        Image.fromarray(rng.integers(0, 256, (size, size, 3), np.uint8)).save(path)
        files.append(path.read_bytes())
    for number in range(count):
        (folder / f"{number:05d}.png").write_bytes(files[number % len(files)])
        tags = [TAGS[(number + step) % len(TAGS)] for step in range(0, 8, 2)]
        (folder / f"{number:05d}.txt").write_text(", ".join([*tags, f"number {number}"]))


def run(arguments: argparse.Namespace) -> list[Result]:
    """Run one session in a separate process."""
    with tempfile.TemporaryDirectory() as name, screen() as env:
        source = Path(name) / "images"
        source.mkdir()
        make_images(source, arguments.images, arguments.size)
        found = run_child("_captions_child.py", str(source), str(arguments.keys), env=env)
    model = f"{arguments.images} images"
    wall, cpu = Quartiles.of(found["keys"]), Quartiles.of(found["keys_cpu"])
    key = {
        "seconds": wall.middle, "quartiles": [wall.low, wall.high], "slowest": max(found["keys"]),
        "cpu_seconds": cpu.middle,
    }  # fmt: skip
    brush = Quartiles.of(found["brush"])
    seconds, processor = found["open"]
    opened = {"seconds": seconds, "cpu_seconds": processor, "all_read_seconds": found["read"]}
    return [
        Result(
            model, f"open to images and captions, as share of {OPEN_SECONDS:g} s", seconds / OPEN_SECONDS, 1.0,
            extra=opened,
        ),
        Result(model, f"key to redraw, as share of {KEY_SECONDS:g} s", wall.middle / KEY_SECONDS, 1.0, extra=key),
        Result(
            model, f"find to redraw, processor time as share of {KEY_SECONDS:g} s", found["find_cpu"] / KEY_SECONDS,
            1.0,
            extra={"seconds": found["find"], "cpu_seconds": found["find_cpu"]},
        ),
        Result(
            model, f"find to redraw, wall time as share of {KEY_SECONDS:g} s", found["find"] / KEY_SECONDS,
            extra={"seconds": found["find"]},
        ),
        Result(
            "2048 px", f"brush to redraw, as share of {BRUSH_SECONDS * 1000:g} ms", brush.middle / BRUSH_SECONDS, 1.0,
            extra={"seconds": brush.middle, "quartiles": [brush.low, brush.high], "slowest": max(found["brush"])},
        ),
    ]  # fmt: skip
