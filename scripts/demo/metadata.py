"""Writing images the way the usual programs do: the prompt in PNG text chunks or in EXIF, in their own words.

The pair tool then has to find the prompt as it would in a folder of somebody's real images.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.util.jsonio import atomic_path
from scripts.demo.world import Pixels

_MAKE, _MODEL, _EXIF_IFD, _USER_COMMENT = 0x010F, 0x0110, 0x8769, 0x9286
MODEL_NAME = "tastemaker-demo"


@dataclass(frozen=True)
class Made:
    """The facts a program knows about an image it made."""

    prompt: str
    seed: int
    steps: int
    cfg: float
    width: int
    height: int


def a1111_text(made: Made) -> str:
    """The ``parameters`` text of A1111 and Forge."""
    return (
        f"{made.prompt}\nSteps: {made.steps}, Sampler: DDIM, Schedule type: Automatic, CFG scale: {made.cfg}, "
        f"Seed: {made.seed}, Size: {made.width}x{made.height}, Model: {MODEL_NAME}, Version: v1.10.1"
    )


def swarm_text(made: Made) -> str:
    """The ``sui_image_params`` JSON of SwarmUI."""
    params = {
        "prompt": made.prompt,
        "negativeprompt": "",
        "model": MODEL_NAME,
        "images": 1,
        "seed": made.seed,
        "steps": made.steps,
        "cfgscale": made.cfg,
        "aspectratio": "1:1",
        "width": made.width,
        "height": made.height,
        "sampler": "ddim",
        "swarm_version": "0.9.7.2",
    }
    return json.dumps(
        {"sui_image_params": params, "sui_extra_data": {"generation_time": "0.41 sec"}}, indent=2
    )


def comfy_graph(made: Made) -> dict[str, Any]:
    """The ``prompt`` graph of a plain ComfyUI text-to-image workflow."""
    return {
        "3": {
            "inputs": {
                "seed": made.seed,
                "steps": made.steps,
                "cfg": made.cfg,
                "sampler_name": "ddim",
                "scheduler": "normal",
                "denoise": 1.0,
                "model": ["4", 0],
                "positive": ["6", 0],
                "negative": ["7", 0],
                "latent_image": ["5", 0],
            },
            "class_type": "KSampler",
        },
        "4": {"inputs": {"ckpt_name": f"{MODEL_NAME}.safetensors"}, "class_type": "CheckpointLoaderSimple"},
        "5": {
            "inputs": {"width": made.width, "height": made.height, "batch_size": 1},
            "class_type": "EmptyLatentImage",
        },
        "6": {"inputs": {"text": made.prompt, "clip": ["4", 1]}, "class_type": "CLIPTextEncode"},
        "7": {"inputs": {"text": "", "clip": ["4", 1]}, "class_type": "CLIPTextEncode"},
        "8": {"inputs": {"samples": ["3", 0], "vae": ["4", 2]}, "class_type": "VAEDecode"},
        "9": {"inputs": {"filename_prefix": "ComfyUI", "images": ["8", 0]}, "class_type": "SaveImage"},
    }


def comfy_workflow(made: Made) -> dict[str, Any]:
    """Return what the ComfyUI window saves besides the graph, as far as it concerns the image."""
    nodes = [
        {"id": 3, "type": "KSampler", "widgets_values": [made.seed, "fixed", made.steps, made.cfg, "ddim"]},
        {"id": 6, "type": "CLIPTextEncode", "widgets_values": [made.prompt]},
        {"id": 7, "type": "CLIPTextEncode", "widgets_values": [""]},
    ]
    return {"last_node_id": 9, "last_link_id": 9, "nodes": nodes, "links": [], "version": 0.4}


def _png(path: Path, image: Image.Image, texts: dict[str, str]) -> None:
    info = PngInfo()
    for key, text in texts.items():
        info.add_text(key, text)
    image.save(path, format="PNG", pnginfo=info)


def _webp(path: Path, image: Image.Image, tags: dict[int, str], comment: bytes | None = None) -> None:
    exif = Image.Exif()
    for tag, text in tags.items():
        exif[tag] = text
    if comment is not None:
        exif.get_ifd(_EXIF_IFD)[_USER_COMMENT] = comment
    image.save(path, format="WEBP", lossless=True, exif=exif)


def _text_png(text: Callable[[Made], str], path: Path, image: Image.Image, made: Made) -> None:
    _png(path, image, {"parameters": text(made)})


def _text_webp(
    text: Callable[[Made], str], encoding: str, path: Path, image: Image.Image, made: Made
) -> None:
    _webp(path, image, {}, b"UNICODE\0" + text(made).encode(encoding))


def _comfy_png(path: Path, image: Image.Image, made: Made) -> None:
    texts = {"prompt": json.dumps(comfy_graph(made)), "workflow": json.dumps(comfy_workflow(made))}
    _png(path, image, texts)


def _comfy_webp(path: Path, image: Image.Image, made: Made) -> None:
    tags = {
        _MODEL: f"prompt:{json.dumps(comfy_graph(made))}",
        _MAKE: f"workflow:{json.dumps(comfy_workflow(made))}",
    }
    _webp(path, image, tags)


STYLES: dict[str, tuple[str, Callable[[Path, Image.Image, Made], None]]] = {
    "swarmui-png": (".png", partial(_text_png, swarm_text)),
    "comfyui-png": (".png", _comfy_png),
    "a1111-png": (".png", partial(_text_png, a1111_text)),
    "swarmui-webp": (".webp", partial(_text_webp, swarm_text, "utf-16-le")),
    "comfyui-webp": (".webp", _comfy_webp),
    "a1111-webp": (".webp", partial(_text_webp, a1111_text, "utf-16-be")),
}
"""Program and format -> (extension, writer)."""


def write_image(folder: Path, stem: str, pixels: Pixels, made: Made, style: str) -> Path:
    """Write ``pixels`` (H, W, 3) as that program would, atomically; return the file."""
    extension, write = STYLES[style]
    path = folder / f"{stem}{extension}"
    with atomic_path(path) as temporary:
        write(temporary, Image.fromarray(pixels), made)
    return path
