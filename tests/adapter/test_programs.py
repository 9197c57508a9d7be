"""The table of docs/converting.md: which program reads which layout, by family.

What diffusers reads is tried with small models. For ComfyUI the rules of its reader (``comfy/lora.py``) are applied to
the names that are written; they were read, and tried with a real one for Stable Diffusion 1.5 alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from modules.adapter.formats import COMFY, DIFFUSERS, KOHYA, LAYOUTS, save_adapter
from modules.adapter.PeftAdapter import AdapterHandle
from tests.adapter.families import naming_families, trained_family
from tests.source_tree import ROOT
from tests.tiny import pipeline_class, pipeline_parts, tiny_folder, tiny_setup
from tests.usual import usual

FAMILIES = {
    "Stable Diffusion 1.5": "STABLE_DIFFUSION_15",
    "Stable Diffusion 2.x": "STABLE_DIFFUSION_20",
    "Stable Diffusion XL": "STABLE_DIFFUSION_XL_10_BASE",
    "Stable Diffusion 3 and 3.5": "STABLE_DIFFUSION_3",
    "FLUX.1, also Kontext": "FLUX_DEV_1",
    "FLUX.2 klein": "FLUX_2",
    "FLUX.2 dev": "FLUX_2_DEV",
    "Chroma": "CHROMA_1",
    "Z-Image": "Z_IMAGE",
    "Qwen-Image, also Edit": "QWEN",
    "Krea 2": "KREA_2",
    "Lumina 2": "LUMINA_2",
    "ERNIE-Image": "ERNIE",
    "LongCat-Image, also Edit": "LONGCAT_IMAGE",
    "Qwen-Image 2.1": "QWEN_21",
    "Anima": "ANIMA",
    "HiDream-I1": "HI_DREAM_FULL",
    "Ideogram 4": "IDEOGRAM_4",
    "Sana": "SANA",
    "PixArt": "PIXART_ALPHA",
}
"""Rows of the table."""
OF_PUBLISHED_SIZE = {
    ("STABLE_DIFFUSION_XL_10_BASE", KOHYA),
    ("FLUX_DEV_1", KOHYA),
    ("CHROMA_1", KOHYA),
    ("LUMINA_2", COMFY),
}
"""The reader of diffusers knows the published size, so a small model's file is tried elsewhere (``test_layouts``,
``test_lumina_2``).
"""
DIFFUSERS_NAMES = {"STABLE_DIFFUSION_3", "PIXART_ALPHA", "FLUX_DEV_1", "Z_IMAGE", "QWEN", "HI_DREAM_FULL"}
"""Families for which ComfyUI also takes ``transformer.`` and the names of diffusers."""
JOINED_NAMES = {"STABLE_DIFFUSION_3", "FLUX_DEV_1"}
"""Families for which it also takes ``lora_transformer_`` and those names joined by ``_``."""
UNETS = {"STABLE_DIFFUSION_15", "STABLE_DIFFUSION_20", "STABLE_DIFFUSION_XL_10_BASE"}
UNKNOWN = {"SANA"}
"""ComfyUI has no model of its own for these."""


def table() -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Family -> what diffusers reads of each layout, and what ComfyUI reads."""
    page = (ROOT / "docs" / "converting.md").read_text(encoding="utf-8")
    found = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] in FAMILIES:
            found[FAMILIES[cells[0]]] = (answers(cells[1]), answers(cells[2]))
    return found


def answers(cell: str) -> dict[str, str]:
    """Layout -> "all", "part" or "blocks"; layouts that are not named are not read."""
    meaning = {"": "all", " in part": "part", " with blocks only": "blocks"}
    names = re.findall(r"`(\w+)`( in part| with blocks only)?", cell)
    return {f"{name}_LORA": meaning[how] for name, how in names}


def test_the_table_has_every_family() -> None:
    assert sorted(table()) == naming_families()


@pytest.mark.parametrize("key", usual(naming_families(), "FLUX_2", "QWEN"))
def test_diffusers_reads_what_the_table_says(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tiny_setup(key).spec
    handle = trained_family(key, parts=(spec.denoiser,))
    said = table()[key][0]
    for layout in LAYOUTS:
        if (key, layout) not in OF_PUBLISHED_SIZE:
            path = save_adapter(handle, tmp_path / f"{layout}.safetensors", layout)
            wanted = said.get(layout, "none").replace("blocks", "none")
            assert read_by_diffusers(key, handle, path, monkeypatch) == wanted, layout
    for layout in (name for name, how in said.items() if how == "blocks"):
        inside = trained_family(key, parts=(spec.denoiser,), patterns=spec.layer_presets["blocks"])
        path = save_adapter(inside, tmp_path / f"{layout}_blocks.safetensors", layout)
        assert read_by_diffusers(key, inside, path, monkeypatch) == "all", layout


def read_by_diffusers(key: str, handle: AdapterHandle, path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether its pipeline has the same change of all, some or none of the layers."""
    spec, folder = tiny_setup(key).spec, tiny_folder(key)
    parts = pipeline_parts(key, folder, monkeypatch)
    pipeline = pipeline_class(key).from_pretrained(str(folder), **dict.fromkeys(parts))
    # what stands for a pipeline keeps the pipeline itself
    pipeline = getattr(pipeline, "made", pipeline)
    try:
        pipeline.load_lora_weights(str(path), adapter_name="read")
    except (AttributeError, KeyError, NotImplementedError, ValueError):
        return "none"
    theirs = dict(getattr(pipeline, spec.denoiser).named_modules())
    ours = dict(handle.model.module(spec.denoiser).named_modules())
    same = 0
    for name in handle.layers:
        path_inside = name.split(".", 1)[1]
        layer, own = theirs[path_inside], ours[path_inside]
        if hasattr(layer, "lora_A") and "read" in layer.lora_A:
            changes = layer.get_delta_weight("read"), own.get_delta_weight(own.active_adapters[0])
            assert torch.allclose(*changes, atol=1e-5), name
            same += 1
    return "none" if not same else "all" if same == len(handle.layers) else "part"


@pytest.mark.parametrize("key", naming_families())
def test_comfyui_reads_what_the_table_says_by_its_rules(key: str) -> None:
    golden = json.loads((Path(__file__).parent / "golden" / f"{key}.json").read_text(encoding="utf-8"))
    published = {name for name in golden[COMFY] if name.startswith("diffusion_model.")}
    joined = {"lora_unet_" + name.removeprefix("diffusion_model.").replace(".", "_") for name in published}
    ours = {name for name in golden[DIFFUSERS] if name.startswith(("unet.", "transformer."))}
    known = published | joined
    if key in UNETS:
        known |= {"lora_unet_" + name.removeprefix("unet.").replace(".", "_") for name in ours}
    if key in DIFFUSERS_NAMES:
        known |= ours
    if key in JOINED_NAMES:
        known |= {"lora_" + name.replace(".", "_") for name in ours}
    said = table()[key][1]
    for layout in LAYOUTS:
        written = {name for name in golden[layout] if not name.startswith(("lora_te", "text_encoder"))}
        read = "none" if not written & known or key in UNKNOWN else "all" if written <= known else "part"
        assert read == said.get(layout, "none"), layout
