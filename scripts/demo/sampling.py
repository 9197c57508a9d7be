"""Images from the demo model, as pixels, with or without an adapter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import read_adapter
from modules.adapter.PeftAdapter import attach
from modules.model.Model import Model
from modules.modelSetup.registry import create_model_setup
from modules.modelSetup.sample_images import SampleRequest, sample
from modules.util.errors import UserError
from scripts.demo.world import SIZE, Pixels

FAMILY = "STABLE_DIFFUSION_15"
DEMO_MODEL = Path(__file__).resolve().parents[2] / "resources" / "demo_model"
STEPS = 20
CFG_SCALE = 2.5
SAMPLER = "DDIM"
BATCH = 16

Report = Callable[[str], None]


def load_model(folder: Path = DEMO_MODEL, adapter: Path | None = None) -> Model:
    """Load the demo model on the CPU, frozen, with an adapter file if one is given."""
    if not (folder / "model_index.json").is_file():
        raise UserError(
            f"there is no model in {folder}", hint="scripts/make_demo.py model --out DIR trains one"
        )
    model = create_model_setup(FAMILY).load(str(folder))
    if adapter is not None:
        attach(model, AdapterOptions(), read_adapter(adapter, model))
    return model


def to_pixels(rgb_BCHW: torch.Tensor) -> list[Pixels]:
    """Convert images (B, 3, H, W) in [0, 1] to uint8 arrays (H, W, 3)."""
    array = (rgb_BCHW.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8)
    return list(array.permute(0, 2, 3, 1).cpu().numpy())


def sample_pixels(
    model: Model,
    prompts: Sequence[str],
    seeds: Sequence[int],
    report: Report | None = None,
    what: str = "sampling",
    steps: int = STEPS,
) -> list[Pixels]:
    """Sample one image (64, 64, 3) for each prompt and seed; call ``report`` every few seconds."""
    setup = create_model_setup(FAMILY)
    made: list[Pixels] = []
    heard = time.monotonic()
    for start in range(0, len(prompts), BATCH):
        part = slice(start, start + BATCH)
        request = SampleRequest(
            prompts[part],
            seeds=seeds[part],
            steps=steps,
            cfg=CFG_SCALE,
            size=(SIZE, SIZE),
            scheduler=SAMPLER,
            batch_size=BATCH,
        )
        rgb_BCHW = sample(setup, model, request)
        made += to_pixels(rgb_BCHW)
        if report is not None and (time.monotonic() - heard > 5.0 or len(made) == len(prompts)):
            heard = time.monotonic()
            report(f"{what}: {len(made)}/{len(prompts)} images")
    return made
