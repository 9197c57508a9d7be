"""Small models with random weights, and a denoising loop that counts the blocks it evaluates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch
from diffusers import FluxTransformer2DModel, SD3Transformer2DModel, UNet2DConditionModel
from torch import nn

TOKENS, CHANNELS, TEXT = 16, 4, 8


def flux(seed: int = 0, layers: int = 2) -> FluxTransformer2DModel:
    """A model with ``layers`` blocks of each of its two kinds."""
    torch.manual_seed(seed)
    return FluxTransformer2DModel(
        patch_size=1, in_channels=CHANNELS, num_layers=layers, num_single_layers=layers, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    ).eval()  # fmt: skip


def unet() -> UNet2DConditionModel:
    torch.manual_seed(0)
    return UNet2DConditionModel(
        sample_size=8, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, cross_attention_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=4,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()  # fmt: skip


def sd3() -> SD3Transformer2DModel:
    torch.manual_seed(0)
    return SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=16, caption_projection_dim=16, pooled_projection_dim=16, out_channels=4,
    ).eval()  # fmt: skip


@cache
def conditioning(name: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed({"cond": 1, "uncond": 2}[name])
    return {
        "encoder_hidden_states": torch.randn(1, TEXT, 32, generator=generator),
        "pooled_projections": torch.randn(1, 32, generator=generator),
        "img_ids": torch.stack([torch.arange(TOKENS)] * 3, 1).float(),
        "txt_ids": torch.zeros(TEXT, 3),
    }


def velocity(model: nn.Module, x: torch.Tensor, sigma: float, name: str = "cond") -> torch.Tensor:
    return model(hidden_states=x, timestep=torch.tensor([sigma]), return_dict=False, **conditioning(name))[0]


def noise(seed: int) -> torch.Tensor:
    return torch.randn(1, TOKENS, CHANNELS, generator=torch.Generator().manual_seed(seed))


def denoise(
    model: nn.Module,
    seed: int,
    rollout=None,
    steps: int = 12,
    guidance: float = 0.0,
    distraction: bool = False,
) -> torch.Tensor:
    """Euler steps from noise.

    ``guidance`` adds a second call for the unconditional half; ``distraction`` makes that call and ignores it.
    """
    x = noise(seed)
    branch = rollout.branch if rollout is not None else lambda *_: nullcontext()
    with torch.no_grad() if rollout is None else nullcontext():
        for step in range(steps):
            sigma = 1 - step / steps
            with branch("cond", 1000 * sigma):
                v = velocity(model, x, sigma)
            if guidance or distraction:
                with branch("uncond", 1000 * sigma):
                    other = velocity(model, x, sigma, "uncond")
                v = other + guidance * (v - other) if guidance else v
            x = x - v / steps
            if rollout is not None:
                x = x.detach()
    return x


@contextmanager
def counted(modules) -> Iterator[list[int]]:
    """How often the modules ran: a list of one number."""
    calls = [0]

    def count(*_):
        calls[0] += 1

    handles = [module.register_forward_hook(count) for module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def inner_layers(model: nn.Module) -> list[nn.Module]:
    """One layer inside every attention: it runs only if the block around it does."""
    return [module.to_q for module in model.modules() if hasattr(module, "to_q")]
