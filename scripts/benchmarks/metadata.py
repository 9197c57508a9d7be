"""Prompts out of image files by generator and container, and the first group of a large folder.

Reading is given as a share of the 50 microseconds a file may take (20,000 files a second), the first group as a
share of the second it may take; both are processor time, the wall time of the group is in the JSON file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy
from PIL import Image

from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake.groups import ScanOptions, scan_groups
from modules.util.image_metadata_util import read_metadata
from modules.util.owned_files import Owned
from scripts.benchmarks._measure import Quartiles, Result, Work, interleave
from scripts.demo.metadata import STYLES, Made, write_image

MAY_TAKE_S = 50e-6
FIRST_GROUP_S = 1.0
PROMPT = "a red cat on a mat in a garden, " + "finely detailed, soft morning light, " * 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--files", type=int, default=300, help="files of each kind that are read (default 300)"
    )
    parser.add_argument("--rounds", type=int, default=11, help="measured rounds (default 11)")
    parser.add_argument(
        "--folder", type=int, default=100_000, help="files in the large folder (default 100000)"
    )


def run(options: argparse.Namespace) -> list[Result]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        return [
            *_reading(folder, options.files, options.rounds),
            _first_group(folder, options.folder),
        ]


def _reading(folder: Path, count: int, rounds: int) -> Iterator[Result]:
    cases: dict[str, Work] = {}
    pixels = numpy.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=numpy.uint8)
    for style in STYLES:
        made = [Made(f"{i} {PROMPT}", i, 20, 7.0, 64, 64) for i in range(count)]
        paths = [str(write_image(folder, f"{style}-{m.seed}", pixels, m, style)) for m in made]
        cases[style] = _read_all(paths)
        if style == "comfyui-png":
            cases["comfyui-png by Pillow"] = _pillow(paths)
    for name, seconds in interleave(cases, rounds).items():
        share = Quartiles.of([value / count / MAY_TAKE_S for value in seconds])
        yield Result(
            "read",
            name,
            share.middle,
            limit=None if "Pillow" in name else 1.0,
            extra={
                "quartiles": [share.low, share.high],
                "files_per_second": round(1 / (share.middle * MAY_TAKE_S)),
            },
        )


def _read_all(paths: Sequence[str]) -> Work:
    def work() -> None:
        for path in paths:
            if read_metadata(path, known_regular=True).prompt is None:
                raise RuntimeError(f"no prompt in {path}")

    return work


def _pillow(paths: Sequence[str]) -> Work:
    """Read the texts the usual way, without any parsing."""

    def work() -> None:
        for path in paths:
            with Image.open(path) as image:
                image.getexif()

    return work


def _first_group(folder: Path, count: int) -> Result:
    large = folder / "large"
    files = sorted(path for path in folder.iterdir() if path.is_file())
    owned = Owned(large, local=True)
    for i in range(count):
        source = files[i // 4 % len(files)]
        owned.take(source, f"{i}{source.suffix}")
    start, wall = time.process_time(), time.perf_counter()
    found = scan_groups(large, folder / "out", ScanOptions(near_duplicates=None))
    first = next(entry for entry in found if isinstance(entry, ImageGroup))
    seconds, wall = time.process_time() - start, time.perf_counter() - wall
    rest = sum(isinstance(entry, ImageGroup) for entry in found)
    whole = time.process_time() - start
    return Result(
        f"folder of {count}",
        "first group",
        seconds / FIRST_GROUP_S,
        limit=1.0,
        extra={
            "wall_seconds": wall,
            "images": len(first.files),
            "groups": rest + 1,
            "files_per_second": round(count / whole),
        },
    )
