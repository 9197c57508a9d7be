"""A picture of the densities of noise levels, for documents."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from modules.trainer.curves import Curve

ACROSS, WIDTH, HEIGHT = 4, 200, 130
LEFT, RIGHT, TOP, BOTTOM = 30, 10, 24, 22
MOST = 4.0
"""Higher densities are cut, so that the others can be told apart."""
COLOUR, GRID, TEXT = "#2f6fb0", "#cccccc", "#777777"


def density_picture(densities: Mapping[str, Curve]) -> str:
    """SVG: a small diagram for each density, all with the same axes, the vertical one from 0.

    Args:
        densities: by the title of their diagram.
    """
    high = min(MOST, max(max(curve.y) for curve in densities.values()))
    down = -(-len(densities) // ACROSS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {ACROSS * WIDTH} {down * HEIGHT}" '
        f'font-family="sans-serif" font-size="11" fill="{TEXT}">'
    ]
    for place, (title, curve) in enumerate(densities.items()):
        row, column = divmod(place, ACROSS)
        parts.append(f'<g transform="translate({column * WIDTH} {row * HEIGHT})">')
        parts += _diagram(title, curve, high)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _diagram(title: str, curve: Curve, high: float) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(level: float) -> float:
        return LEFT + level * (right - LEFT)

    def y(density: float) -> float:
        return bottom - min(density, high) / high * (bottom - TOP)

    lines = []
    for value in range(int(high) + 1):
        lines.append(
            f'<line x1="{LEFT}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="{GRID}"/>'
        )
        lines.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(curve.x, curve.y, strict=True))
    return [
        f'<text x="{LEFT}" y="14">{escape(title)}</text>',
        *lines,
        f'<text x="{LEFT}" y="{bottom + 15}">clean</text>',
        f'<text x="{right}" y="{bottom + 15}" text-anchor="end">noise</text>',
        f'<polyline points="{points}" fill="none" stroke="{COLOUR}" stroke-width="1.5"/>',
    ]
