"""Small models with real architectures and random weights to measure on; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from modules.model.batch import Conditioning, ImageBatch, PairBatch
from modules.model.dtypes import PartDtypes
from modules.model.Model import Model
from modules.model.noising.schedule import DiscreteSchedule, FlowSchedule
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.families.StableDiffusionSetup import StableDiffusionSetup
from modules.modelSetup.ModelFamily import LoadOptions
from modules.spec.FamilySpec import FamilySpec, PartSpec

LATENT = 32
PIXELS_PER_LATENT = 8
TOKENS = 77
WIDTH = 256
SCHEDULER = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


class SmallFluxSetup(BaseModelSetup):
    """FLUX.1 as a training step sees it: packed latents, position ids, velocity."""

    spec = FamilySpec(
        key="BENCHMARK_FLUX",
        label="small Flux",
        parts=(
            PartSpec("transformer", "denoiser", ("FluxTransformer2DModel",), "lora_transformer"),
            PartSpec("vae", "vae", ("AutoencoderKL",)),
        ),
        pipeline_class="FluxPipeline",
        prediction="flow",
        model_architecture="flux-1-dev",
        prompt_tokens=TOKENS,
        layer_presets={"attn-mlp": ("transformer_blocks",)},
        size_multiple=16,
    )

    def load(
        self,
        source: str,
        dtypes: PartDtypes | None = None,
        parts: Collection[str] | None = None,
        options: LoadOptions | None = None,
        part_sources: Mapping[str, str] | None = None,
    ) -> Model:
        raise NotImplementedError("this family exists in memory only")

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        raise NotImplementedError("conditioning is random here")

    def _encode_image(self, model: Model, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("latents are random here")

    def _decode(self, model: Model, z_BChw: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("latents are random here")

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        batch, channels, height, width = x_BChw.shape
        rows, columns = height // 2, width // 2
        patches = x_BChw.view(batch, channels, rows, 2, columns, 2).permute(0, 2, 4, 1, 3, 5)
        hidden_BLE = cond["hidden_BLE"]
        image_ids = torch.zeros(rows, columns, 3, device=x_BChw.device)
        image_ids[..., 1] = torch.arange(rows, device=x_BChw.device)[:, None]
        image_ids[..., 2] = torch.arange(columns, device=x_BChw.device)[None]
        out: torch.Tensor = model.denoiser(
            hidden_states=patches.reshape(batch, rows * columns, channels * 4),
            timestep=t_B / 1000,
            encoder_hidden_states=hidden_BLE,
            pooled_projections=cond["pooled_BE"],
            img_ids=image_ids.view(-1, 3),
            txt_ids=torch.zeros(hidden_BLE.shape[1], 3, device=x_BChw.device),
            return_dict=False,
        )[0]
        out = out.view(batch, rows, columns, channels, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return out.reshape(batch, channels, height, width)


def small_unet() -> tuple[BaseModelSetup, Model]:
    """The UNet of Stable Diffusion 1.5 at a fifth of its width, 35 M parameters."""
    from diffusers import UNet2DConditionModel

    unet = UNet2DConditionModel(
        sample_size=LATENT,
        block_out_channels=(64, 128, 256, 256),
        layers_per_block=2,
        cross_attention_dim=WIDTH,
        attention_head_dim=8,
    )
    setup = StableDiffusionSetup()
    parts = {"unet": unet, "scheduler": dict(SCHEDULER)}
    return setup, Model(setup.spec, "benchmark", parts, DiscreteSchedule.from_config(SCHEDULER))


def small_unet_checkpointing() -> tuple[BaseModelSetup, Model]:
    """The same with gradient checkpointing."""
    setup, model = small_unet()
    model.set_gradient_checkpointing("unet", True)
    return setup, model


def small_flux() -> tuple[BaseModelSetup, Model]:
    """The transformer of FLUX.1 with 2 + 4 blocks of width 512, 36 M parameters."""
    from diffusers import FluxTransformer2DModel

    transformer = FluxTransformer2DModel(
        in_channels=64,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=64,
        num_attention_heads=8,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=(8, 28, 28),
    )
    setup = SmallFluxSetup()
    model = Model(setup.spec, "benchmark", {"transformer": transformer}, FlowSchedule())
    model.latent_channels = 16
    return setup, model


MODELS: dict[str, Callable[[], tuple[BaseModelSetup, Model]]] = {
    "unet": small_unet,
    "unet-checkpointing": small_unet_checkpointing,
    "flux": small_flux,
}


def random_pair(model: Model, device: torch.device, count: int = 1) -> PairBatch:
    """Pairs of random latents under random prompts."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(count, *shape, generator=generator).to(device)

    cond = Conditioning({"hidden_BLE": normal(TOKENS, WIDTH), "pooled_BE": normal(WIDTH)})
    names = [f"pair-{index}" for index in range(count)]

    def side() -> ImageBatch:
        return ImageBatch(
            latents_BChw=normal(model.latent_channels, LATENT, LATENT),
            cond=cond,
            prompts=["a picture"] * count,
            ids=names,
            visits=[0] * count,
            size=(LATENT * PIXELS_PER_LATENT, LATENT * PIXELS_PER_LATENT),
            loss_weight_B=torch.ones(count, device=device),
        )

    return PairBatch(names, side(), side())
