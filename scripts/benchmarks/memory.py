"""Memory of a preference step: the estimate divided by what the step takes, which must be within 15 %.

On the CPU the bytes saved for the backward pass and the bytes alive are counted in a real step of the demo's model,
on CUDA the allocator is asked. Models of real size are only estimated.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modules.adapter.reference import create_reference
from modules.model.batch import ImageBatch, PairBatch
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup import training
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from modules.modelSetup.registry import create_model_setup
from modules.objective import execution
from modules.objective.preference import ObjectiveOptions, get_preference_loss
from modules.trainer.memory.live_bytes import LiveBytes
from modules.trainer.memory.memory_step import PROMPT, ShapeDryRun, StepBytes
from modules.trainer.memory.SavedBytes import SavedBytes
from modules.trainer.memory.shape_only import shape_only_model
from modules.util.config.load import read_config
from modules.util.config.TrainConfig import TrainConfig
from scripts.benchmarks._measure import Result
from scripts.benchmarks._real_models import MODELS, real_dry_run

MODEL = Path(__file__).resolve().parents[2] / "resources" / "demo_model"
LIMIT = 1.15
CASES: dict[str, dict[str, Any]] = {
    "together": {"unet": {"gradient_checkpointing": False}},
    "one after the other": {
        "unet": {"gradient_checkpointing": False},
        "rlhf_dpo_execution_mode": "SEQUENTIAL",
    },
    "bfloat16, checkpointing": {"unet": {"weight_dtype": "BFLOAT_16"}, "train_dtype": "BFLOAT_16"},
}
REAL_SIDES = {"sd15": 512, "sdxl": 1024}
"""Side length in pixels of the images each model is trained with."""


@dataclass(frozen=True)
class Taken:
    """Bytes of one step.

    Args:
        peak: most bytes alive beyond those before the step.
        saved: most bytes saved for the backward pass; ``None`` on CUDA, where the allocator does not report
            them.
    """

    peak: int
    saved: int | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--pairs", type=int, default=1, help="pairs in the step (default 1)")
    parser.add_argument("--side", type=int, default=32, help="pixels along a side of an image (default 32)")
    parser.add_argument(
        "--folder", type=Path, default=MODEL, help="a Stable Diffusion 1.5 folder to measure with"
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="what to measure")
    parser.add_argument(
        "--real", nargs="*", choices=REAL_SIDES, default=list(REAL_SIDES), help="real sizes to estimate"
    )
    parser.add_argument(
        "--card",
        type=float,
        default=0.0,
        metavar="GIB",
        help="limit CUDA's memory to that of a card of this size",
    )


def run(options: argparse.Namespace) -> list[Result]:
    device = torch.device(options.device)
    if options.card and device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.card * 2**30 / whole), device)
    results = []
    for name in options.cases:
        values = {"__version": 1, "rlhf_enabled": True, "train_dtype": "FLOAT_32", **CASES[name]}
        config: TrainConfig = read_config({**values, "base_model_name": str(options.folder)})
        predicted = _predicted(config, options.pairs, options.side, device.type == "cuda")
        measured = _measured(config, options.pairs, options.side, device)
        results += _compared(options.folder.name, name, predicted, measured)
    return results + _real(options.real)


def _compared(model: str, case: str, predicted: StepBytes, measured: Taken) -> list[Result]:
    """One line for each kind of bytes; an estimate that is too low is as wrong as one that is too high."""
    kinds = [("alive", predicted.peak, measured.peak)]
    if measured.saved is not None:
        kinds.append(("saved", predicted.saved, measured.saved))
    return [
        Result(
            model,
            f"{case}: {kind}",
            max(said / found, found / said),
            LIMIT,
            extra={"predicted_bytes": said, "measured_bytes": found},
        )
        for kind, said, found in kinds
    ]


def _real(names: Sequence[str]) -> list[Result]:
    """Steps of real size, as multiples of the first."""
    steps = {}
    for name in names:
        values = {
            "__version": 1,
            "rlhf_enabled": True,
            "model_type": MODELS[name][0],
            "train_dtype": "BFLOAT_16",
            "unet": {"weight_dtype": "BFLOAT_16"},
        }
        side = REAL_SIDES[name]
        steps[name] = real_dry_run(name, read_config(values)).step(1, (side, side))
    return [
        Result(
            name,
            f"a pair at {REAL_SIDES[name]}, checkpointing: alive",
            step.peak / steps[names[0]].peak,
            extra={"predicted_bytes": step.peak},
        )
        for name, step in steps.items()
    ]


def _predicted(config: TrainConfig, pairs: int, side: int, cuda: bool) -> StepBytes:
    setup = create_model_setup(config.model_type)
    dry_run = ShapeDryRun(setup, shape_only_model(setup, config), config, cuda)
    return dry_run.step(pairs, (side, side), config.rlhf_dpo_execution_mode.value)


def _measured(config: TrainConfig, pairs: int, side: int, device: torch.device) -> Taken:
    """Measure a real step."""
    setup = create_model_setup(config.model_type)
    model = training.load_model(setup, config)
    training.prepare(setup, model, config)
    model.place(device)
    trained = [p for _, _, named in training.trainable_parameters(model, config) for _, p in named]
    cond = setup.encode_text(model, [PROMPT] * pairs)
    names = [str(number) for number in range(pairs)]

    def batch() -> ImageBatch:
        shape = (pairs, model.latent_channels, side // model.latent_factor, side // model.latent_factor)
        latents = torch.randn(shape).to(device)
        ones = torch.ones(pairs, device=device)
        return ImageBatch(latents, cond, [PROMPT] * pairs, names, [0] * pairs, (side, side), ones)

    pair = PairBatch(names, batch(), batch())
    draw = setup.draw_noise(model, pair.chosen, NoiseOptions(), seed=1)
    reference = create_reference(config.training_method, config.effective_dpo_ref_mode(), model.adapter)

    def step() -> None:
        model.set_mode("no_dropout")
        execution.run(
            config.rlhf_dpo_execution_mode.value, "AUTO", ModelPairScorer(setup, model, pair, (draw, draw)), reference,
            get_preference_loss("SIGMOID"), ObjectiveOptions(beta=100.0), parameters=trained,
        )  # fmt: skip

    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return Taken(torch.cuda.max_memory_allocated(device) - before, None)
    tensors = [t for m in model.modules().values() for t in (*m.parameters(), *m.buffers())]
    with LiveBytes(tensors) as live, SavedBytes(tensors) as saved:
        step()
    return Taken(live.peak, saved.peak)
