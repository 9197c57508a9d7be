"""Edits of ComfyUI: which images they were made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.util.image_metadata_util import read_metadata
from tests.util.image_metadata import files as f
from tests.util.image_metadata.edit_graphs import PLAIN, Graph, kontext, qwen
from tests.util.image_metadata.hazards import node


def put(path: Path, graph: Graph) -> Path:
    path.write_bytes(f.png(f.text("prompt", json.dumps(graph))))
    return path


@pytest.mark.parametrize(
    ("graph", "sources"),
    [
        (kontext("cat.png"), ("cat.png",)),
        (kontext("sub/cat.png [input]", "hat.png"), ("sub/cat.png [input]", "hat.png")),
        (qwen("cat.png"), ("cat.png",)),
        (qwen("cat.png", "hat.png", "street.png"), ("cat.png", "hat.png", "street.png")),
        (PLAIN, ()),
        ({**kontext("cat.png"), "300": node("LoadImage", image=["9", 0])}, ()),
    ],
)
def test_the_images_that_were_edited(graph: Graph, sources: tuple[str, ...], tmp_path: Path) -> None:
    about = read_metadata(put(tmp_path / "a.png", graph))
    assert about.prompt == "make it night"
    assert about.sources == sources
