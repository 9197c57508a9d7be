"""Images as ComfyUI leaves them when it edits, with their sources in a folder of inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.util.image_metadata.edit_graphs import Graph, kontext


def picture(seed: int, size: tuple[int, int] = (64, 64)) -> Image.Image:
    """A picture unlike those of other seeds."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.NEAREST)


def save(path: Path, seed: int, graph: Graph | None = None, size: tuple[int, int] = (64, 64)) -> Path:
    """A picture in a file, with the graph that made it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    info = PngInfo()
    if graph is not None:
        info.add_text("prompt", json.dumps(graph))
    picture(seed, size).save(path, pnginfo=info)
    return path


def instructed(graph: Graph, instruction: str) -> Graph:
    """The graph with another instruction."""
    return json.loads(json.dumps(graph).replace("make it night", instruction))


def edit_folder(
    base: Path,
    instructions: int = 2,
    per_group: int = 3,
    graph: Callable[..., Graph] = kontext,
    size: tuple[int, int] = (64, 64),
) -> tuple[Path, Path]:
    """(images, inputs) below ``base``: for each instruction a source of its own, and results of it."""
    images, inputs = base / "images", base / "input"
    for number in range(instructions):
        save(inputs / "sub" / f"source{number}.png", 1000 + number, size=size)
        made = instructed(graph(f"sub/source{number}.png [input]"), f"make it night {number}")
        for image in range(per_group):
            save(images / f"g{number:03d}_i{image:02d}.png", 10 * number + image, made, size)
    return images, inputs
