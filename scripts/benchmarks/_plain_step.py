"""A supervised LoRA step as trainers of this kind are usually written, next to the step that trains here.

The restated step has the same arithmetic: a wrapper module for each layer, a collating ``DataLoader``, a learning rate
scheduler, and a loss that is read in every step. It imports no other program and is not one: what it takes says nothing
about the speed of another program.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from modules.model.batch import ImageBatch
from modules.modelSetup.training import noise_options
from modules.runner.RunDirectory import RunDirectory
from modules.trainer.callbacks import Callback
from modules.trainer.distributed import Processes
from modules.trainer.GenericTrainer import GenericTrainer
from modules.trainer.memory.SavedBytes import SavedBytes
from modules.util.config.load import read_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.jsonio import read_json, write_json
from scripts.benchmarks._measure import Quartiles, Result, Work

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "resources" / "demo_model"
SIDE, FACTOR, IMAGES, BATCH, EPOCHS = 32, 4, 16, 2, 100_000
CHANNELS = (32, 64, 128, 128)
RATE, LIMIT, TIMESTEPS = 1e-4, 1.0, 1000
TOLERANCE = 1e-4
OURS, PLAIN = "trained here", "onetrainer-like"


def write_model(folder: Path, channels: Sequence[int]) -> Path:
    """The demo's model with another UNet: that of Stable Diffusion 1.5 with one layer in each block and random weights,
    which predicts noise.
    """
    from diffusers import UNet2DConditionModel
    from transformers import CLIPTextConfig

    for path in DEMO.rglob("*"):
        place = folder / path.relative_to(DEMO)
        if path.is_file() and path.parent.name != "unet":
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    width = CLIPTextConfig.from_pretrained(DEMO / "text_encoder").hidden_size
    with torch.random.fork_rng():
        torch.manual_seed(0)
        unet: Any = UNet2DConditionModel(
            sample_size=SIDE,
            block_out_channels=tuple(channels),
            layers_per_block=1,
            cross_attention_dim=width,
            attention_head_dim=8,
        )
    unet.save_pretrained(folder / "unet")
    schedule = folder / "scheduler" / "scheduler_config.json"
    known = read_json(schedule, "scheduler config")
    write_json(schedule, {**known, "prediction_type": "epsilon", "rescale_betas_zero_snr": False})
    return folder


def write_images(folder: Path, side: int) -> Path:
    """Noise with captions."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    for number in range(IMAGES):
        Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(folder / f"{number:02d}.png")
        (folder / f"{number:02d}.txt").write_text(f"a small red circle {number}", encoding="utf-8")
    return folder


def settings(folder: Path, rank: int, side: int = SIDE) -> dict[str, Any]:
    """A supervised run on these images that never ends, saves nothing in between and has one thread."""
    concept = {"path": str(folder / "images"), "name": "images", "type": "STANDARD"}
    never = {f"{what}_unit": "NEVER" for what in ("backup_after", "sample_after", "save_every")}
    return {
        "__version": 1, "base_model_name": str(folder / "model"), "concepts": [concept], "rlhf_enabled": False,
        "cache_dir": str(folder / "cache"), "workspace_dir": str(folder / "run"),
        "output_model_destination": str(folder / "out.safetensors"), "resolution": str(side * FACTOR),
        "batch_size": BATCH, "epochs": EPOCHS, "learning_rate": RATE, "clip_grad_norm": LIMIT, "lora_rank": rank,
        "lora_alpha": float(rank), "layer_filter_preset": "full", "train_device": "cpu", "train_dtype": "FLOAT_32",
        "unet": {"gradient_checkpointing": False}, "cpu_threads": 1, "dataloader_threads": 0, "tensorboard": False,
        **never,
    }  # fmt: skip


class PlainLora(nn.Module):
    """A layer with its low-rank addition: ``inner(x) + up(dropout(down(x))) * alpha / rank``."""

    alpha: torch.Tensor

    def __init__(self, inner: nn.Linear | nn.Conv2d, rank: int, alpha: float) -> None:
        super().__init__()
        self.inner, self.rank = inner, rank
        self.register_buffer("alpha", torch.tensor(alpha))
        if isinstance(inner, nn.Linear):
            self.down: nn.Module = nn.Linear(inner.in_features, rank, bias=False)
            self.up: nn.Module = nn.Linear(rank, inner.out_features, bias=False)
        else:
            shape: dict[str, Any] = {
                n: getattr(inner, n) for n in ("kernel_size", "stride", "padding", "dilation")
            }
            self.down = nn.Conv2d(inner.in_channels, rank, **shape, bias=False)
            self.up = nn.Conv2d(rank, inner.out_channels, 1, bias=False)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x) + self.up(self.dropout(self.down(x))) * (self.alpha / self.rank)
        return made


def twin_of(unet: Any) -> Any:
    """Another UNet of the same architecture on the same weights, without what was attached to the layers."""
    twin = type(unet).from_config(unet.config)
    for name, parameter in unet.named_parameters():
        if ".lora_" not in name:
            above, _, leaf = name.replace(".base_layer.", ".").rpartition(".")
            setattr(twin.get_submodule(above), leaf, parameter)
    return twin


class PlainTrainer:
    """The restated step on the model, the images and the adapter weights of a trainer.

    Args:
        trainer: started; its adapters' weights are copied, those of its base model are shared.
    """

    def __init__(self, trainer: GenericTrainer) -> None:
        parts, rank = trainer.parts, trainer.config.lora_rank
        assert parts.handle is not None
        self.unet = twin_of(parts.model.denoiser)
        self.parameters: list[nn.Parameter] = []
        for place, layer in parts.handle.layers.items():
            above, _, leaf = place.partition(".")[2].rpartition(".")
            inner = self.unet.get_submodule(above)
            wrapped = PlainLora(getattr(inner, leaf), rank, trainer.config.lora_alpha)
            for own, theirs in (
                (wrapped.down, layer.lora_A["default"]),
                (wrapped.up, layer.lora_B["default"]),
            ):
                own.weight.data.copy_(theirs.weight.data)  # type: ignore[operator]
                self.parameters.append(own.weight)  # type: ignore[arg-type]
            setattr(inner, leaf, wrapped)
        signal_T, _ = parts.model.schedule.coefficients(torch.arange(TIMESTEPS))
        self.alphas_cumprod = signal_T.square().float()
        self.optimizer = torch.optim.AdamW(self.parameters, lr=RATE, foreach=False, fused=False)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda _step: 1.0)
        self.generator = torch.Generator().manual_seed(5)
        self.smooth = 0.0
        loader: Any = parts.loader
        self.batches = self._forever([row for batch in loader.batches(BATCH) for row in self._rows(batch)])

    def _rows(self, batch: Any) -> Iterator[dict[str, Any]]:
        for number, name in enumerate(batch.ids):
            rows = (batch.latents_BChw, batch.cond["hidden_BLE"], batch.loss_weight_B)
            latents, states, weight = (tensor[number].clone() for tensor in rows)
            yield {"latents": latents, "states": states, "weight": weight, "name": name}

    def _forever(self, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        loader: Any = torch.utils.data.DataLoader(
            rows,  # type: ignore[arg-type]
            batch_size=BATCH,
            shuffle=True,
            generator=self.generator,
        )
        while True:
            yield from loader

    def loss(self, batch: dict[str, Any], timestep_B: torch.Tensor, noise_BChw: torch.Tensor) -> torch.Tensor:
        """Mean squared error of the predicted noise."""
        share = self.alphas_cumprod[timestep_B].view(-1, 1, 1, 1)
        noisy = share.sqrt() * batch["latents"] + (1 - share).sqrt() * noise_BChw
        predicted = self.unet(noisy, timestep_B, encoder_hidden_states=batch["states"]).sample
        errors = nn.functional.mse_loss(predicted.float(), noise_BChw, reduction="none").mean(dim=(1, 2, 3))
        weighted: torch.Tensor = (errors * batch["weight"]).mean()
        return weighted

    def step(self) -> None:
        """One optimizer step, from the batch to the loss that is shown."""
        batch = next(self.batches)
        shape = batch["latents"].shape
        noise = torch.randn(shape, generator=self.generator)
        timestep_B = torch.randint(0, TIMESTEPS, (shape[0],), generator=self.generator)
        loss = self.loss(batch, timestep_B, noise)
        loss.backward()
        value = loss.item()
        nn.utils.clip_grad_norm_(self.parameters, LIMIT)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.smooth = 0.99 * self.smooth + 0.01 * value


def check_gradients(trainer: GenericTrainer, plain: PlainTrainer) -> float:
    """Relative distance of both gradients on the same images with the same noise.

    Raises:
        RuntimeError: the two steps compute something else.
    """
    parts = trainer.parts
    group = next(iter(parts.loader.accumulation_groups(trainer.progress)))
    (batch,) = group
    assert isinstance(batch, ImageBatch) and batch.cond is not None
    parts.step.forward_backward(group, 0, lambda loss: loss.backward())
    draw = parts.setup.draw_noise(parts.model, batch, noise_options(trainer.config), trainer.config.seed)
    same = {"latents": batch.latents_BChw, "states": batch.cond["hidden_BLE"], "weight": batch.loss_weight_B}
    plain.loss(same, draw.timestep_B.long(), draw.noise_BChw).backward()
    gradients = []
    for parameters in (parts.parameters, plain.parameters):
        gradients.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
        for parameter in parameters:
            parameter.grad = None
    ours, theirs = gradients
    distance = float((ours - theirs).norm() / theirs.norm()) if ours.shape == theirs.shape else float("inf")
    if not distance < TOLERANCE:
        raise RuntimeError(f"the gradient of {PLAIN} differs by {distance:.2e}")
    return distance


def verdict(own: Sequence[float], other: Sequence[float]) -> str:
    """``parity`` where the ranges of two measurements overlap, else which way they lie apart."""
    if min(own) <= max(other) and min(other) <= max(own):
        return "parity"
    return "less" if max(own) < min(other) else "more"


def timed(cases: dict[str, Work], rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of the processor and of the clock of each case by round, in an order that is shuffled in each."""
    processor: dict[str, list[float]] = {name: [] for name in cases}
    wall: dict[str, list[float]] = {name: [] for name in cases}
    for index in range(-2, rounds):
        names = list(cases)
        random.Random(index).shuffle(names)
        for name in names:
            begun, worked = time.perf_counter(), time.process_time()
            cases[name]()
            if index >= 0:
                processor[name].append(time.process_time() - worked)
                wall[name].append(time.perf_counter() - begun)
    return processor, wall


def described(
    name: str, own: Sequence[float], other: Sequence[float], who: str = "restated", unit: str = "s"
) -> str:
    """A figure of both with its ranges, and whether they are apart."""

    def shown(values: Sequence[float]) -> str:
        return f"{median(values):.3f} {unit} ({min(values):.3f}-{max(values):.3f})"

    ratio = median(own) / median(other)
    return f"{name}: {shown(own)} here, {shown(other)} {who}; {ratio:.3f}, {verdict(own, other)}"


def started(folder: Path, rank: int, channels: Sequence[int], side: int) -> GenericTrainer:
    """A trainer of this program before its first step, with adapters that are not zero."""
    write_model(folder / "model", channels)
    write_images(folder / "images", side * FACTOR)
    config: TrainConfig = read_config(settings(folder, rank, side))
    run = RunDirectory(config.workspace_dir).create()
    trainer = GenericTrainer(config, run, Callback(), Processes(0, 1, 0, torch.device("cpu")))
    if trainer.start() is not None:
        raise RuntimeError("the run ended before its first step")
    generator = torch.Generator().manual_seed(2)
    for parameter in trainer.parts.parameters:
        parameter.data += 0.01 * torch.randn(parameter.shape, generator=generator)
    return trainer


def here(trainer: GenericTrainer) -> Callable[[], None]:
    """The step that trains, with everything around it."""
    groups = trainer._groups()

    def step() -> None:
        group = next(groups)
        assert group is not None
        trainer._advance(group, trainer._take_step(group))

    return step


def measure(
    options: argparse.Namespace, channels: Sequence[int] = CHANNELS, side: int = SIDE
) -> list[Result]:
    """Both steps on one model."""
    with tempfile.TemporaryDirectory() as name:
        trainer = started(Path(name), options.rank, channels, side)
        try:
            plain = PlainTrainer(trainer)
            distance = check_gradients(trainer, plain)
            cases: dict[str, Work] = {OURS: here(trainer), PLAIN: plain.step}
            processor, wall = timed(cases, options.rounds)
            held = {}
            weights = list(trainer.parts.model.denoiser.parameters())
            for case, work in cases.items():
                with SavedBytes(ignore=[*weights, *plain.parameters]) as saved:
                    work()
                held[case] = saved.peak
            layers = len(trainer.parts.handle.layers) if trainer.parts.handle is not None else 0
        finally:
            trainer.close()
    size = sum(p.numel() for p in plain.unet.parameters()) - sum(p.numel() for p in plain.parameters)
    model = f"SD 1.5 UNet, {size / 1e6:.1f} M, LoRA {options.rank} on {layers} layers"
    return rows(model, distance, processor, wall, held)


def rows(
    model: str,
    distance: float,
    processor: dict[str, list[float]],
    wall: dict[str, list[float]],
    held: dict[str, int],
) -> list[Result]:
    """A line for each case; the restated step is 1."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "diffusers", "peft"))
    said = [
        described("processor time of a step", processor[OURS], processor[PLAIN]),
        described("wall time", wall[OURS], wall[PLAIN]),
        f"{PLAIN} restates the arithmetic in this repository and is not another program; {versions}; gradients equal "
        f"to {distance:.0e}",
    ]
    found = []
    for case in (PLAIN, OURS):
        ratios = [own / other for own, other in zip(processor[case], processor[PLAIN], strict=True)]
        quartiles = Quartiles.of(ratios)
        found.append(
            Result(
                model, case, median(processor[case]) / median(processor[PLAIN]),
                memory_ratio=held[case] / held[PLAIN],
                extra={
                    "quartiles": [quartiles.low, quartiles.high], "cpu_seconds": processor[case],
                    "seconds": wall[case], "saved_bytes": held[case], "gradient_error": distance,
                    "verdict": verdict(processor[case], processor[PLAIN]), "said": said if case == OURS else [],
                },
            )
        )  # fmt: skip
    return found
