"""Graphs as ComfyUI writes them into the images that it edits."""

from __future__ import annotations

from typing import Any

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
