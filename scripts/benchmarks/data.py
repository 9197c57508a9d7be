"""Filling the cache against its VAE alone, reading images against Pillow alone, batches of pairs against their tensors.

All in one process, in an order that is shuffled in each round. The VAE has the architecture of Stable Diffusion's at
half its width and random weights. A ratio is the time of what the program does over that of the bare work, so 0.9 of a
rate is a ratio of 1.11. On the CPU the VAE takes nearly all of the time, so its ratio has a limit on a GPU only.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

from modules.dataLoader.create import create_data_loader
from modules.dataLoader.progress import in_threads
from modules.dataLoader.Text2ImageDataLoader import Text2ImageDataLoader
from modules.modelSetup import training
from modules.modelSetup.registry import create_model_setup
from modules.pipeline.cache.ContentCache import ContentCache
from modules.util.config.load import read_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from scripts.benchmarks._measure import Quartiles, Result, Work, interleave, ratios

MODEL = Path(__file__).resolve().parents[2] / "resources" / "demo_model"
LIMIT = 1 / 0.9
WIDTHS = (64, 128, 256, 256)
BATCH = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=8, help="pairs of images (default 8)")
    parser.add_argument("--side", type=int, default=256, help="pixels along a side of an image (default 256)")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    parser.add_argument("--threads", type=int, default=2, help="threads that read images (default 2)")
    parser.add_argument("--device", default="cpu", help="cpu (processor time) or cuda (wall time)")


def make_pairs(folder: Path, count: int, side: int) -> None:
    """Write photograph-like JPEG files, a quarter larger than the training size, with a caption each."""
    rng = np.random.default_rng(7)
    for name, number in itertools.product(("chosen", "rejected"), range(count)):
        place = folder / name
        place.mkdir(exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8))
        size = side * 5 // 4
        pixels = np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC)).astype(np.int16)
        pixels += rng.integers(-6, 7, pixels.shape, np.int16)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{number:04d}.jpg", quality=92)
        (place / f"{number:04d}.txt").write_text(f"fox {number}", encoding="utf-8")


def make_loader(folder: Path, options: argparse.Namespace) -> Text2ImageDataLoader:
    """A loader of the pairs that encodes everything with the VAE that is measured."""
    from diffusers import AutoencoderKL

    concepts = [
        {"path": str(folder / name), "name": name, "type": f"DPO_{name.upper()}"}
        for name in ("chosen", "rejected")
    ]
    values = {
        "__version": 1, "base_model_name": str(MODEL), "concepts": concepts, "rlhf_enabled": True,
        "cache_dir": str(folder / "cache"), "workspace_dir": str(folder / "workspace"),
        "output_model_destination": str(folder / "model.safetensors"), "resolution": str(options.side),
        "batch_size": BATCH, "dataloader_threads": options.threads,
    }  # fmt: skip
    config: TrainConfig = read_config(values)
    setup = create_model_setup(config.model_type)
    model = training.load_model(setup, config)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        vae: Any = AutoencoderKL(
            block_out_channels=WIDTHS,
            down_block_types=("DownEncoderBlock2D",) * len(WIDTHS),
            up_block_types=("UpDecoderBlock2D",) * len(WIDTHS),
            latent_channels=model.latent_channels,
            layers_per_block=2,
        )
    model.parts["vae"], model.latent_factor = vae.eval().requires_grad_(False), 2 ** (len(WIDTHS) - 1)
    model.place(options.device)
    loader = create_data_loader(config, model, setup, device=options.device)
    loader.prepare()
    assert isinstance(loader, Text2ImageDataLoader)
    return loader


def encoding(loader: Text2ImageDataLoader, folder: Path) -> dict[str, Work]:
    """Encoding into an empty cache, and by the VAE alone with its pixels already in memory."""
    tasks = [task for task in loader.encode_tasks(()) if task is not None]
    vae: Any = loader.model.vae
    pixels = [
        torch.from_numpy(loader.pixels(task)).permute(2, 0, 1)[None].float() / 127.5 - 1.0 for task in tasks
    ]
    assert loader.latents is not None
    kept, numbers = loader.latents, itertools.count()

    def bare() -> None:
        with torch.no_grad():
            for one in pixels:
                vae.encode(one.to(loader.model.device)).latent_dist.mean.cpu()

    def cached() -> None:
        loader.latents = ContentCache(folder / f"filled-{next(numbers)}")
        loader.fill(tasks)
        loader.latents.close()
        if len(loader.latents) != len(tasks):
            raise RuntimeError("not every image was encoded")
        loader.latents = kept

    return {"VAE alone": bare, "filling the cache": cached}


def reading(loader: Text2ImageDataLoader, threads: int, side: int) -> dict[str, Work]:
    """Decoding, cropping and scaling images, by the loader and by Pillow alone."""
    tasks = [task for task in loader.encode_tasks(()) if task is not None]
    paths = [path for item in loader.units.items() for path in item.paths]

    def pillow(path: str) -> None:
        with Image.open(path) as image:
            np.array(image.convert("RGB").resize((side, side), Image.Resampling.LANCZOS))

    def alone() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(pillow, paths))

    return {"Pillow alone": alone, "reading images": lambda: list(in_threads(loader.pixels, tasks, threads))}


def batching(loader: Text2ImageDataLoader) -> dict[str, Work]:
    """Batches of an epoch as the step receives them, and merely stacking their cached tensors."""
    assert loader.latents is not None and loader.texts is not None
    latents = [[loader.latent_key(item, plan) for item, plan in side] for side in _plans(loader)]
    texts = [loader.text_key(pair.chosen.prompts[0]) for pair in loader.units.entries]
    kept, words = loader.latents, loader.texts

    def alone() -> None:
        for start in range(0, len(texts), BATCH):
            for side in latents:
                torch.stack([kept.get(key)["latents"] for key in side[start : start + BATCH]])
                torch.stack([words.get(key)["hidden_BLE"] for key in texts[start : start + BATCH]])

    def whole() -> None:
        for group in loader.accumulation_groups(SimpleNamespace(epoch=0, epoch_step=0)):
            if group.last:
                break

    return {"tensors alone": alone, "batches of pairs": whole}


def _plans(loader: Text2ImageDataLoader) -> list[list[tuple[Any, Any]]]:
    get = loader.dataset.pipeline.get
    return [
        [(get(f"{side}item", 0, n), get(f"{side}transform", 0, n)) for n in range(len(loader.units))]
        for side in loader.sides
    ]


def run(options: argparse.Namespace) -> list[Result]:
    if min(options.pairs, options.rounds, options.threads) < 1 or options.side < 64:
        raise UserError("needs at least 1 pair, 1 round, 1 thread and a side of 64", hint="raise them")
    cpu = torch.device(options.device).type == "cpu"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_pairs(folder, options.pairs, options.side)
        loader = make_loader(folder, options)
        found = [
            _compared(encoding(loader, folder), options, 2 * options.pairs, None if cpu else LIMIT),
            _compared(reading(loader, options.threads, options.side), options, 2 * options.pairs, LIMIT),
            _compared(batching(loader), options, options.pairs, None),
        ]
        loader.close()
    return [result for rows in found for result in rows]


def _compared(
    cases: dict[str, Work], options: argparse.Namespace, count: int, limit: float | None
) -> Sequence[Result]:
    cuda = torch.device(options.device).type == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    seconds = interleave(cases, options.rounds, clock=clock)
    baseline = next(iter(cases))
    made = []
    for case, times in ratios(seconds, baseline).items():
        own = Quartiles.of(seconds[case]).middle
        made.append(
            Result(
                f"{options.side} px, {options.device}", case, times.middle, None if case == baseline else limit,
                extra={"quartiles": [times.low, times.high], "seconds": own, "per_second": count / own},
            )
        )  # fmt: skip
    return made
