"""Training the demo's UNet and text encoder from scratch on drawn, captioned images."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import nn

from modules.model.batch import Conditioning, ImageBatch, NoiseDraw
from modules.model.Model import Model
from modules.modelSetup.registry import create_model_setup
from modules.modelSetup.sample_images import SampleRequest, sample
from modules.util.jsonio import atomic_path, read_json, write_json
from modules.util.owned_files import Owned
from modules.util.rng import generator, python_random
from scripts.demo.judge import fidelity, read_image
from scripts.demo.sampling import CFG_SCALE, FAMILY, STEPS, Report, to_pixels
from scripts.demo.text import make_text_encoder, train_tokenizer
from scripts.demo.vae import encode_mean, images_to_tensor
from scripts.demo.world import draw_wish, make_example


@dataclass(frozen=True)
class DenoiserRecipe:
    """The settings that reached the figures in docs/demo.md."""

    legs: tuple[tuple[int, float], ...] = ((120_000, 1e-3), (96_000, 6e-4))
    """(samples, highest learning rate) of each leg, with a warm-up and a cosine decay to zero."""
    batch: int = 16
    warmup: int = 200
    ema: float = 0.999
    caption_dropout: float = 0.1
    images: int = 24_000
    snr_limit: float = 5.0
    least_weight: float = 0.15
    compute: torch.dtype = torch.bfloat16
    report_every: int = 750


def make_unet() -> UNet2DConditionModel:
    """About 7 M parameters; attention only below the full 16x16 resolution."""
    made: UNet2DConditionModel = UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(48, 96, 144),
        layers_per_block=1,
        cross_attention_dim=128,
        attention_head_dim=3,
        norm_num_groups=16,
    )
    return made


SCHEDULER = {
    "_class_name": "DDIMScheduler",
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": True,
    "timestep_spacing": "trailing",
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
}
"""Velocity with zero terminal SNR (Lin et al. 2023, arXiv 2305.08891): large flat areas need it."""


def write_pipeline(folder: Path, vae: Any, unet: nn.Module, text_encoder: nn.Module, half: bool) -> None:
    """Write all parts but the tokenizer as a folder that diffusers loads."""
    for name, part in (("unet", unet), ("text_encoder", text_encoder), ("vae", vae)):
        written = copy.deepcopy(part).half() if half else part
        written.save_pretrained(folder / name, safe_serialization=True)  # type: ignore[operator]
        config = read_json(folder / name / "config.json")
        # the path it was loaded from is private
        write_json(folder / name / "config.json", {k: v for k, v in config.items() if k != "_name_or_path"})
    (folder / "scheduler").mkdir(parents=True, exist_ok=True)
    write_json(folder / "scheduler" / "scheduler_config.json", SCHEDULER)
    write_json(
        folder / "model_index.json",
        {
            "_class_name": "StableDiffusionPipeline",
            "feature_extractor": [None, None],
            "image_encoder": [None, None],
            "requires_safety_checker": False,
            "safety_checker": [None, None],
            "scheduler": ["diffusers", "DDIMScheduler"],
            "text_encoder": ["transformers", "CLIPTextModel"],
            "tokenizer": ["transformers", "CLIPTokenizer"],
            "unet": ["diffusers", "UNet2DConditionModel"],
            "vae": ["diffusers", "AutoencoderKL"],
        },
    )


def write_untrained(folder: Path, vae: AutoencoderKL, seed: int) -> None:
    """A pipeline with a trained autoencoder and tokenizer and a random UNet and text encoder."""
    tokenizer = train_tokenizer(seed, folder / "tokenizer")
    torch.manual_seed(generator("demo-denoiser-init", seed).initial_seed())
    write_pipeline(folder, vae, make_unet(), make_text_encoder(tokenizer), half=False)


def measure(model: Model, seed: int, count: int, held_out: bool = True) -> dict[str, float]:
    """Fidelity of samples to prompts that say shape, colour and background only."""
    rng = python_random("demo-measure", seed, held_out)
    wishes = [draw_wish(rng, held_out, open_attributes=True) for _ in range(count)]
    captions = [wish.caption() for wish in wishes]
    request = SampleRequest(captions, steps=STEPS, cfg=CFG_SCALE, size=(64, 64), batch_size=32)
    rgb_BCHW = sample(create_model_setup(FAMILY), model, request)
    return fidelity([read_image(i) for i in to_pixels(rgb_BCHW)], wishes)


def train_denoiser(folder: Path, seed: int, recipe: DenoiserRecipe, report: Report) -> Model:
    """Train the UNet and text encoder of the pipeline in ``folder``; the averaged weights are returned in it.

    The loss is the project's own supervised loss for the family, weighted by min-SNR (Hang et al. 2023, arXiv
    2303.09556) with a floor: without it the noisiest timesteps, which alone decide flat areas, would count nothing.
    """
    setup = create_model_setup(FAMILY)
    model = setup.load(str(folder))
    model.compute_dtype = recipe.compute
    examples = [make_example(seed, i) for i in range(recipe.images)]
    captions = [scene.wish.caption() for _, scene in examples]
    latents = torch.cat(
        [
            encode_mean(model.vae, images_to_tensor([p for p, _ in examples[i : i + 512]]))
            for i in range(0, recipe.images, 512)
        ]
    )
    latents *= model.latent_scale
    trained = {name: model.module(name) for name in ("unet", "text_encoder")}
    for module in trained.values():
        module.requires_grad_(True)
        module.train()
    parameters = [p for module in trained.values() for p in module.parameters()]
    averages = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=recipe.legs[0][1], weight_decay=1e-2)
    steps = sum(samples // recipe.batch for samples, _ in recipe.legs)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _factor(step, recipe))
    draws = generator("demo-denoiser", seed)
    kept = _Leg(folder / "training_state.pt", parameters, averages, optimizer, schedule, draws)
    running = 0.0
    for step in range(kept.load(), steps):
        loss = _loss(setup, model, latents, captions, recipe, draws)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        decay = min(recipe.ema, (1 + step) / (10 + step))
        torch._foreach_lerp_(averages, [p.detach() for p in parameters], 1.0 - decay)
        running += loss.item()
        if (step + 1) % recipe.report_every == 0 or step + 1 == steps:
            text = f"denoiser step {step + 1}/{steps}: loss {running / recipe.report_every:.4f}"
            running = 0.0
            with _swapped(parameters, averages):
                scores = measure(model, seed, 64)
                write_pipeline(folder, model.vae, trained["unet"], trained["text_encoder"], half=False)
            kept.save(step + 1)
            report(f"{text}, held-out {', '.join(f'{k} {v:.2f}' for k, v in scores.items())}")
            for module in trained.values():
                module.train()
    for parameter, average in zip(parameters, averages, strict=True):
        parameter.data = average
    model.compute_dtype = torch.float32
    Owned(kept.path.parent, local=True).remove(kept.path.name)
    return model


@dataclass
class _Leg:
    """The state of an interrupted training that its next step depends on, in one file next to the weights."""

    path: Path
    parameters: list[nn.Parameter]
    averages: list[torch.Tensor]
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR
    draws: torch.Generator

    def save(self, step: int) -> None:
        """Write the state after ``step`` steps atomically."""
        state = {
            "step": step,
            "parameters": [p.detach() for p in self.parameters],
            "averages": self.averages,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "draws": self.draws.get_state(),
        }
        with atomic_path(self.path) as part:
            torch.save(state, part)

    def load(self) -> int:
        """Load the state from its file if there is one; return the number of completed steps."""
        if not self.path.exists():
            return 0
        state = torch.load(self.path, weights_only=True)
        for live, saved in zip(self.parameters, state["parameters"], strict=True):
            live.data.copy_(saved)
        for average, saved in zip(self.averages, state["averages"], strict=True):
            average.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.draws.set_state(state["draws"])
        return int(state["step"])


def _loss(
    setup: object,
    model: Model,
    latents: torch.Tensor,
    captions: list[str],
    recipe: DenoiserRecipe,
    draws: torch.Generator,
) -> torch.Tensor:
    picked = torch.randint(0, len(captions), (recipe.batch,), generator=draws)
    dropped = torch.rand(recipe.batch, generator=draws) < recipe.caption_dropout
    prompts = ["" if d else captions[i] for i, d in zip(picked.tolist(), dropped.tolist(), strict=True)]
    cond = setup.encode_text(model, prompts, train=True)  # type: ignore[attr-defined]
    # one timestep from each of B strata: the loss of a batch varies less
    level = (torch.arange(recipe.batch) + torch.rand(recipe.batch, generator=draws)) / recipe.batch
    level = level[torch.randperm(recipe.batch, generator=draws)]
    x_BChw = latents[picked]
    draw = NoiseDraw(model.schedule.timestep(level), torch.randn(x_BChw.shape, generator=draws))
    batch = ImageBatch(
        latents_BChw=x_BChw,
        cond=Conditioning(cond.tensors),
        prompts=prompts,
        ids=[str(i) for i in picked.tolist()],
        visits=[0] * recipe.batch,
        size=(64, 64),
        loss_weight_B=torch.ones(recipe.batch),
    )
    snr_B = model.schedule.snr(draw.timestep_B).float()
    weight_B = (snr_B.clamp(max=recipe.snr_limit) / (snr_B + 1.0)).clamp(min=recipe.least_weight)
    loss_B = setup.calculate_loss(model, batch, draw)  # type: ignore[attr-defined]
    return (weight_B * loss_B).mean()  # type: ignore[no-any-return]


def _factor(step: int, recipe: DenoiserRecipe) -> float:
    """Learning rate of a step as a fraction of the first leg's highest."""
    legs = [(samples // recipe.batch, highest / recipe.legs[0][1]) for samples, highest in recipe.legs]
    while len(legs) > 1 and step >= legs[0][0]:
        step -= legs.pop(0)[0]
    length, part = legs[0]
    if step < recipe.warmup:
        return part * (step + 1) / recipe.warmup
    share = min(1.0, (step - recipe.warmup) / max(1, length - recipe.warmup))
    return part * (0.5 * (1.0 + math.cos(math.pi * share)) + 1e-3)


@contextmanager
def _swapped(parameters: list[nn.Parameter], averages: list[torch.Tensor]) -> Iterator[None]:
    """Swap in the averaged weights for the trained ones within a block."""
    live = [p.data for p in parameters]
    for p, average in zip(parameters, averages, strict=True):
        p.data = average
    try:
        yield
    finally:
        for p, trained in zip(parameters, live, strict=True):
            p.data = trained
