"""The learning curve of the benchmark ``taste`` as a picture: answers against what they are worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 170, 30, 50
COLOURS = (
    "#1f6fb4",
    "#c2521c",
    "#2f8f4e",
    "#7c4fa3",
    "#8a6d1f",
    "#a0344f",
    "#4f7f8f",
    "#666666",
    "#b07fd0",
    "#203040",
)


STEPS = {"best_of_n": (1.0, 2.0, 4.0, 8.0, 16.0), "head_accuracy": (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)}
"""Marks of the upright axis by figure. Each doubling of N is as high as any other: the gain grows about with log N."""


def learning_curve(rows: Sequence[dict[str, Any]]) -> str:
    """SVG: a line for each method, the mean over tastes, in a band from the worst taste to the best.

    Rows with an adapter are drawn by ``best_of_n``; if there are none, heads by ``head_accuracy``.
    """
    figure = "best_of_n" if any(row["best_of_n"] is not None for row in rows) else "head_accuracy"
    known = [row for row in rows if row[figure] is not None]
    answers: list[int] = sorted({row["answers"] for row in known})
    steps = STEPS[figure]
    scale = math.log2 if figure == "best_of_n" else float
    low, high = scale(steps[0]), scale(steps[-1])
    span: int = max(answers) - min(answers) or 1

    def x(value: float) -> float:
        return LEFT + (value - min(answers)) / span * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (scale(max(value, steps[0])) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    title = "best of N" if figure == "best_of_n" else "share of unseen pairs ordered correctly"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18">{title}; band: worst to best taste</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">answers of the person</text>',
    ]
    for value in steps:
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#dddddd"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts += [
        f'<text x="{x(one):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{one}</text>'
        for one in answers
    ]
    for place, method in enumerate(dict.fromkeys(row["method"] for row in known)):
        colour = COLOURS[place % len(COLOURS)]
        points = [(one, *_spread(known, method, one, figure)) for one in answers if _has(known, method, one)]
        band = [(x(a), y(worst)) for a, worst, _, _ in points] + [
            (x(a), y(best)) for a, _, _, best in reversed(points)
        ]
        line = [(x(a), y(mean)) for a, _, mean, _ in points]
        parts.append(f'<polygon points="{_path(band)}" fill="{colour}" opacity="0.12"/>')
        parts.append(f'<polyline points="{_path(line)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{colour}"/>' for px, py in line]
        top = TOP + 16 + 18 * place
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{top}" fill="{colour}">{escape(method)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _has(rows: Sequence[dict[str, Any]], method: str, answers: int) -> bool:
    return any((row["method"], row["answers"]) == (method, answers) for row in rows)


def _spread(
    rows: Sequence[dict[str, Any]], method: str, answers: int, figure: str
) -> tuple[float, float, float]:
    """Worst taste, mean over tastes, best taste."""
    tastes: dict[str, list[float]] = {}
    for row in rows:
        if (row["method"], row["answers"]) == (method, answers):
            tastes.setdefault(row["taste"], []).append(row[figure])
    means = [sum(values) / len(values) for values in tastes.values()]
    return min(means), sum(means) / len(means), max(means)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
