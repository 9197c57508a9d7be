"""Rows of the benchmark ``taste`` whose answers are given in rounds of a real project."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.project.rounds import new_round
from modules.runner.events import EventReader
from scripts.benchmarks._taste_spec import Cell
from scripts.demo.loop import Loop, new_project, one_round
from scripts.demo.pairs import prompt_split
from scripts.demo.plan import LOOP, Journey
from scripts.demo.taste import Person
from scripts.demo.training import images_of_training, seconds_of_children


@dataclass(frozen=True)
class Reached:
    """A project after as many rounds as a row needs.

    Args:
        cell: the row.
        adapter: adapter of the last round.
        taste: the head that trained it.
        given: number of answers given, ties among them. A round ends early if nothing is left to ask.
        images: images made to choose from, and while training.
        cpu_seconds: processor time of everything that was started in the rounds.
    """

    cell: Cell
    adapter: Path
    taste: Path
    given: int
    images: int
    cpu_seconds: float


def play(cells: Sequence[Cell], person: Person, folder: Path) -> Iterator[Reached]:
    """Play the rounds of a project; yield it whenever the answers of a cell are reached.

    Args:
        cells: rows that differ in their number of answers only; all but the largest number are whole rounds.
    """
    cells = sorted(cells, key=lambda one: one.answers)
    loop = Loop(Journey(folder, cells[0].seed, LOOP))
    project = new_project(loop, prompt_split(cells[0].seed)[0])
    asked = given = images = 0
    begin = seconds_of_children()
    for cell in cells:
        while asked < cell.answers:
            if asked:
                new_round(project, surplus=1)
            loop = replace(loop, answers=min(cell.method_spec.rounds or cell.answers, cell.answers - asked))
            made = one_round(loop, project, person, print)
            asked, given = asked + loop.answers, given + made["answers"]
            images += made["candidates"] + images_of_training(
                EventReader(project.round.run.events_path).poll()
            )
        one = project.round
        yield Reached(cell, one.adapter_path, one.taste_path, given, images, seconds_of_children() - begin)


def as_row(reached: Reached) -> dict[str, Any]:
    """Return the facts about the project in a row."""
    return {
        "answers_given": reached.given,
        "images_made": reached.images,
        "train_cpu_seconds": round(reached.cpu_seconds, 1),
    }
