"""Measure what a simulated person's first 25 to 200 answers are worth, for each way of learning from them.

Every row is measured on prompts that nobody saw, with the same seeds before and after. Images of the base model are
made once and shared by all rows; rows run in processes of one thread each. A row that is finished is on the disk, so a
measurement that was killed resumes with --resume.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from modules.util.errors import ConfigError, UserError
from modules.util.files.result_file import check_result_file, text_with
from modules.util.jsonio import read_json, write_text
from scripts.benchmarks._measure import Quartiles, in_columns
from scripts.benchmarks._taste_picture import learning_curve
from scripts.benchmarks._taste_spec import (
    FINISHED,
    GRID_IMAGES,
    LEAST_OF_ROUNDS,
    METHODS,
    MOST_ANSWERS,
    Cell,
    load_tastes,
    part_file,
    parts_of,
    row_file,
)
from scripts.demo.plan import threads

CHILD = Path(__file__).with_name("_taste_cell.py")
FIGURES = ("win_rate", "best_of_n", "fidelity_loss", "diversity_ratio", "head_accuracy")


@dataclass(frozen=True)
class Row:
    """A finished cell as the command prints and writes it."""

    data: dict[str, Any]
    within = True

    def to_dict(self) -> dict[str, Any]:
        return dict(self.data)


def names(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def numbers(text: str) -> list[int]:
    return [int(one) for one in names(text)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tastes", type=names, help="names, separated by commas (all)")
    parser.add_argument("--answers", type=numbers, default=[25, 50, 100], help="answers (25,50,100)")
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3], help="seeds (1,2,3)")
    parser.add_argument(
        "--methods",
        type=names,
        default=["supervised", "dpo", "rounds"],
        help=f"of {', '.join(METHODS)} (supervised,dpo,rounds)",
    )
    parser.add_argument(
        "--taste-file", help="Python file with more tastes, TASTES = (Taste(...), ...); its code is run"
    )
    parser.add_argument("--work", type=Path, help="folder for images and finished rows (next to --json)")
    parser.add_argument("--resume", action="store_true", help="continue in that folder")
    parser.add_argument("--jobs", type=int, default=0, help="processes at once (one for each core)")
    parser.add_argument("--svg", type=Path, help="write the learning curve as a picture")


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """The requested rows, in the order in which they are measured.

    Raises:
        ConfigError: an unknown name, or a number that is not possible.
    """
    tastes = load_tastes(options.taste_file)
    wanted = options.tastes or list(tastes)
    for name, known, given in (("--tastes", tastes, wanted), ("--methods", METHODS, options.methods)):
        for one in given:
            if one not in known:
                raise ConfigError(f"there is no {one!r}", name, f"known: {', '.join(known)}")
    for number in options.answers:
        if not 2 <= number <= MOST_ANSWERS:
            raise ConfigError(f"{number} is not between 2 and {MOST_ANSWERS}", "--answers")
        if number * GRID_IMAGES > MOST_ANSWERS and any(
            METHODS[one].order == "grid" for one in options.methods
        ):
            raise ConfigError(
                f"{number} likes and dislikes need more images than there are prompts for",
                "--answers",
                f"a grid has up to {MOST_ANSWERS // GRID_IMAGES}",
            )
        if number < LEAST_OF_ROUNDS and any(METHODS[one].rounds for one in options.methods):
            raise ConfigError(
                f"{number} answers are too few for rounds of a project",
                "--answers",
                f"{LEAST_OF_ROUNDS} or more",
            )
    if not (options.answers and options.seeds and options.methods):
        raise ConfigError("there is nothing to measure", "--answers, --seeds, --methods")
    if options.jobs < 0:
        raise ConfigError(f"{options.jobs} is not at least 0", "--jobs")
    return list(
        dict.fromkeys(
            Cell(taste, method, answers, seed)
            for seed in options.seeds
            for answers in options.answers
            for taste in wanted
            for method in options.methods
        )
    )


def work_folder(options: argparse.Namespace) -> Path:
    """Folder of the images and rows.

    Raises:
        ConfigError: there is nothing to resume, or the folder has results that would get mixed up with new
            rows.
    """
    if options.work is None and options.json is None:
        if options.resume:
            raise ConfigError("there is nothing to resume", "--resume", "add --work or --json as before")
        return Path(tempfile.mkdtemp(prefix="tastemaker-taste-"))
    folder: Path = (options.work or options.json.with_suffix(".work")).resolve()
    if folder.exists() and any(folder.iterdir()) and not options.resume:
        raise ConfigError(f"{folder} is not empty", "--work", "add --resume, or choose another folder")
    return folder


def run(options: argparse.Namespace) -> list[Row]:
    """Measure what is not on the disk yet; return all requested rows."""
    if options.svg is not None:
        check_svg(options.svg)
    cells = cells_of(options)
    work = work_folder(options)
    file = None if options.taste_file is None else str(Path(options.taste_file).resolve())
    jobs = options.jobs or threads()
    images = [
        {"what": "images", "work": str(work), "seed": seed, "kind": kind, "part": part}
        for seed, kind in dict.fromkeys((cell.seed, kind) for cell in cells for kind in cell.images)
        for part in range(parts_of(kind, max(cell.asked for cell in cells)))
        if not part_file(work, seed, kind, part).is_file()
    ]
    _all(images, jobs, lambda one: f"images of seed {one['seed']}")
    rows = [row_file(work, cell, file) for cell in cells]
    missing = [cell for cell, row in zip(cells, rows, strict=True) if not row.is_file()]
    told = [
        {"what": "rows", "work": str(work), "cells": [asdict(one) for one in same], "taste_file": file}
        for same in together(missing)
    ]
    _all(told, jobs, lambda one: ", ".join(Cell(**cell).key for cell in one["cells"]))
    found = [Row(read_json(row, "row")) for row in rows]
    if options.svg is not None:
        check_svg(options.svg)
        write_text(options.svg, learning_curve([row.data for row in found]))
    return found


def check_svg(path: Path) -> None:
    """Check that the picture may be written there."""
    check_result_file(path, "--svg", text_with("band: worst to best taste"))


def together(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Group the rows that one project gives one after another, round by round; all others are alone."""
    groups: dict[object, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.chain, []).append(cell)
    return list(groups.values())


def _all(work: Sequence[dict[str, Any]], jobs: int, name: Callable[[dict[str, Any]], str]) -> None:
    """Distribute the work over children, each of which loads its libraries once; the first failure is raised
    at the end.
    """
    begin, done = time.monotonic(), 0
    shares = [share for n in range(jobs) if (share := work[n::jobs])]

    def tell(place: int, share: Sequence[dict[str, Any]]) -> None:
        nonlocal done
        done += 1
        seconds = time.monotonic() - begin
        print(f"[{seconds:6.0f} s] {done}/{len(work)} {name(share[place])}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(max(1, len(shares))) as pool:
        for future in [pool.submit(_child, share, tell) for share in shares]:
            future.result()


def _child(share: Sequence[dict[str, Any]], tell: Callable[[int, Sequence[dict[str, Any]]], None]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as faults:
        child = subprocess.Popen(
            [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=faults, text=True,
            env=environment,
        )  # fmt: skip
        assert child.stdin is not None and child.stdout is not None
        with child.stdin as stream:
            json.dump(list(share), stream)
        for line in child.stdout:
            if line.startswith(FINISHED):
                tell(int(line.removeprefix(FINISHED)), share)
        if child.wait():
            faults.seek(0)
            raise UserError(f"a part of the measurement failed:\n{faults.read().strip()[-3000:]}")


def table(rows: Sequence[Row]) -> str:
    """Every row, then mean, worst taste and quartiles for each method and number of answers."""
    head = ["taste", "method", "answers", "seed", *FIGURES, "images_made", "train_cpu_seconds"]
    lines = [[_text(row.data.get(name)) for name in head] for row in rows]
    summary = [["method", "answers", "rows", "figure", "mean", "worst taste", "quartiles"]]
    groups = dict.fromkeys((row.data["method"], row.data["answers"]) for row in rows)
    for method, answers in groups:
        own = [row.data for row in rows if (row.data["method"], row.data["answers"]) == (method, answers)]
        summary += [
            [method, str(answers), str(len(own)), figure, *told]
            for figure in FIGURES
            if (told := summarise(own, figure)) is not None
        ]
    return f"{in_columns([head, *lines])}\n\n{in_columns(summary)}"


def summarise(rows: Sequence[dict[str, Any]], figure: str) -> tuple[str, str, str] | None:
    """Mean over tastes, the worst taste (each the mean of its seeds), and quartiles of all rows."""
    known = [row for row in rows if row[figure] is not None]
    if not known:
        return None
    tastes: dict[str, list[float]] = {}
    for row in known:
        tastes.setdefault(row["taste"], []).append(row[figure])
    means = {name: sum(values) / len(values) for name, values in tastes.items()}
    worst = (max if figure == "fidelity_loss" else min)(means, key=lambda name: means[name])
    spread = Quartiles.of([row[figure] for row in known])
    mean = sum(means.values()) / len(means)
    return (
        f"{mean:.3f}",
        f"{worst} {means[worst]:.3f}",
        f"{spread.low:.3f} {spread.middle:.3f} {spread.high:.3f}",
    )


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
