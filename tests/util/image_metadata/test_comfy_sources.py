"""Edits of ComfyUI: which images they were made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake.groups import ScanOptions, scan_groups
from modules.util.image_metadata_util import read_metadata
from tests.util.image_metadata import files as f
from tests.util.image_metadata.hazards import node

Graph = dict[str, Any]
END = {
    "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
    "9": node("SaveImage", filename_prefix="x", images=["8", 0]),
}


def kontext(*names: str) -> Graph:
    """References one after the other, the first one next to the text."""
    graph = {
        **END,
        "3": node("KSampler", seed=5, positive=["20", 0], negative=["7", 0], latent_image=["50", 0]),
        "6": node("CLIPTextEncode", text="make it night", clip=["4", 1]),
        "7": node("ConditioningZeroOut", conditioning=["6", 0]),
    }
    last = "6"
    for number, name in enumerate(names):
        load, scale, encode, reference = (f"{step}{number}" for step in (30, 40, 5, 60))
        graph[load] = node("LoadImage", image=name)
        graph[scale] = node("FluxKontextImageScale", image=[load, 0])
        graph[encode] = node("VAEEncode", pixels=[scale, 0], vae=["4", 2])
        graph[reference] = node("ReferenceLatent", conditioning=[last, 0], latent=[encode, 0])
        last = reference
    graph["20"] = node("FluxGuidance", guidance=2.5, conditioning=[last, 0])
    return graph


def qwen(*names: str) -> Graph:
    given = {f"image{number}": [f"3{number}", 0] for number in range(1, len(names) + 1)}
    # in the file the last input may stand first
    given = dict(reversed(given.items()))
    return {
        **END,
        "3": node("KSampler", seed=5, positive=["10", 0], negative=["11", 0], latent_image=["12", 0]),
        "10": node(
            "TextEncodeQwenImageEditPlus", prompt="make it night", clip=["1", 0], vae=["2", 0], **given
        ),
        "11": node("TextEncodeQwenImageEditPlus", prompt="", clip=["1", 0], vae=["2", 0], **given),
        "12": node("EmptySD3LatentImage", width=8, height=8),
        **{f"3{number}": node("LoadImage", image=name) for number, name in enumerate(names, 1)},
    }


PLAIN = {
    **END,
    "3": node("KSampler", seed=5, positive=["6", 0], negative=["7", 0], latent_image=["5", 0]),
    "5": node("VAEEncode", pixels=["30", 0], vae=["4", 2]),
    "6": node("CLIPTextEncode", text="make it night", clip=["4", 1]),
    "7": node("CLIPTextEncode", text="bad", clip=["4", 1]),
    "30": node("LoadImage", image="begin.png"),
}
"""From image to image, without an edit."""


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


def test_edits_of_different_images_are_never_compared(tmp_path: Path) -> None:
    for number, name in enumerate(("cat.png", "dog.png", "cat.png", "dog.png", "dog.png")):
        put(tmp_path / f"{number}.png", kontext(name))
    put(tmp_path / "5.png", PLAIN)
    put(tmp_path / "6.png", PLAIN)
    options = ScanOptions(near_duplicates=None)
    found = [one for one in scan_groups(tmp_path, tmp_path / "out", options) if isinstance(one, ImageGroup)]
    assert {group.prompt for group in found} == {"make it night"}
    assert sorted(group.files for group in found) == [
        ("0.png", "2.png"),
        ("1.png", "3.png", "4.png"),
        ("5.png", "6.png"),
    ]
