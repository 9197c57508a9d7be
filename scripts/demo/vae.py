"""Training the demo's autoencoder from scratch: 64x64 RGB to 16x16 latents of 4 channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from torch.nn import functional

from modules.util.rng import generator
from scripts.demo.judge import fidelity, read_image
from scripts.demo.sampling import Report, to_pixels
from scripts.demo.world import SIZE, make_example


@dataclass(frozen=True)
class VaeRecipe:
    """The settings that reached the figures in docs/demo.md."""

    phases: tuple[tuple[int, float, float], ...] = ((7000, 2e-3, 2e-3), (3000, 1.2e-3, 2e-4))
    """(steps, learning rate, KL weight) of each phase: first a regular latent space, then sharpness."""
    batch: int = 8
    images: int = 12000


def make_vae(scaling_factor: float = 1.0) -> AutoencoderKL:
    """The architecture: factor 4, about 0.17 M parameters."""
    made: AutoencoderKL = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(8, 16, 32),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=SIZE,
        scaling_factor=scaling_factor,
    )
    return made


def images_to_tensor(images: list[np.ndarray]) -> torch.Tensor:
    """uint8 (64, 64, 3) images to (B, 3, 64, 64) in [-1, 1]."""
    rgb_BHWC = torch.from_numpy(np.stack(images)).float()
    return rgb_BHWC.permute(0, 3, 1, 2) / 127.5 - 1.0


def train_vae(seed: int, recipe: VaeRecipe, report: Report) -> AutoencoderKL:
    """Train from scratch: L1 + MSE + KL, AdamW with a cosine schedule in each phase."""
    torch.manual_seed(generator("demo-vae-init", seed).initial_seed())
    vae = make_vae()
    data_NCHW = images_to_tensor([make_example(seed, i)[0] for i in range(recipe.images)])
    vae.train()
    for number, (steps, rate, kl_weight) in enumerate(recipe.phases):
        run_phase(vae, data_NCHW, seed, number, steps, rate, kl_weight, recipe.batch, report)
    vae.eval()
    vae.register_to_config(scaling_factor=1.0 / float(encode_mean(vae, data_NCHW[:1024]).std()))
    return vae


def run_phase(
    vae: AutoencoderKL,
    data_NCHW: torch.Tensor,
    seed: int,
    number: int,
    steps: int,
    rate: float,
    kl_weight: float,
    batch: int,
    report: Report,
) -> None:
    """Train one phase in place."""
    optimizer = torch.optim.AdamW(vae.parameters(), lr=rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draws = generator("demo-vae", seed, number)
    for step in range(steps):
        rgb_BCHW = data_NCHW[torch.randint(0, len(data_NCHW), (batch,), generator=draws)]
        posterior = vae.encode(rgb_BCHW).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=draws)
        decoded_BCHW = vae.decode(posterior.mean + posterior.std * noise).sample
        kl = posterior.kl().mean() / posterior.mean[0].numel()
        loss = functional.l1_loss(decoded_BCHW, rgb_BCHW) + functional.mse_loss(decoded_BCHW, rgb_BCHW)
        optimizer.zero_grad()
        (loss + kl_weight * kl).backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 500 == 0 or step == steps - 1:
            report(f"autoencoder step {step + 1}/{steps}: loss {loss.item():.4f}, kl {kl.item():.3f}")


@torch.no_grad()
def encode_mean(vae: Any, rgb_BCHW: torch.Tensor, batch: int = 64) -> torch.Tensor:
    """Unscaled latents (B, 4, 16, 16) of an ``AutoencoderKL``."""
    return torch.cat([vae.encode(chunk).latent_dist.mode() for chunk in rgb_BCHW.split(batch)])


@torch.no_grad()
def round_trip(vae: AutoencoderKL, seed: int, count: int) -> dict[str, float]:
    """PSNR in dB and judge agreement of ``count`` fresh examples after encoding and decoding."""
    made = [make_example(seed, 10_000_000 + i) for i in range(count)]
    rgb_BCHW = images_to_tensor([pixels for pixels, _ in made])
    decoded = torch.cat([vae.decode(z).sample for z in encode_mean(vae, rgb_BCHW).split(64)])
    mse = functional.mse_loss(decoded.clamp(-1, 1) / 2, rgb_BCHW / 2).item()
    scores = fidelity([read_image(i) for i in to_pixels((decoded + 1.0) / 2.0)], [s.wish for _, s in made])
    return {"psnr": -10 * float(np.log10(mse)), **scores}
