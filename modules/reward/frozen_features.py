"""Features from which a head learns a taste: from a CLIP model, a VAE, the denoiser itself, or the picture alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from modules.model.libraries import prepare_diffusers
from modules.reward.clip import ClipFeatures
from modules.reward.denoiser_features import BLOCK, FAMILY, TIMESTEP, DenoiserFeatures
from modules.reward.picture_features import VERSION, PictureFeatures
from modules.util.errors import ConfigError, DataError
from modules.util.rng import generator

FeatureKind = Literal["clip", "vae", "denoiser", "picture"]


@dataclass(frozen=True)
class FeatureOptions:
    """Options of features.

    Args:
        kind: ``clip`` (a CLIP folder or repository name), ``vae`` (a diffusers folder, or one of a VAE),
            ``denoiser`` (a model that can be trained) or ``picture`` (no model).
        size: all but ``clip``: images are first scaled to this square; 0 means the model's native size.
        grid: ``vae``: cells per side; every cell gives the mean and the standard deviation of each latent
            channel.
        family, block, timestep, noise: ``denoiser``: model type, block to read, noise level (0 to 1000), and
            seed of the noise.
        version: ``denoiser`` and ``picture``: version of the picture statistics (``describe_picture``).
    """

    kind: FeatureKind
    source: str
    size: int = 0
    grid: int = 8
    family: str = FAMILY
    block: str = BLOCK
    timestep: int = TIMESTEP
    noise: int = 0
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.kind not in get_args(FeatureKind):
            raise ConfigError(f"{self.kind!r} is not one of {', '.join(get_args(FeatureKind))}", "features")
        if self.size < 0 or self.size % 8:
            raise ConfigError(f"{self.size} is not a multiple of 8", "size")
        if not 1 <= self.grid <= 16:
            raise ConfigError(f"{self.grid} is not between 1 and 16", "grid")
        if not 0 <= self.timestep < 1000:
            raise ConfigError(f"{self.timestep} is not between 0 and 999", "timestep")
        if not 1 <= self.version <= VERSION:
            raise ConfigError(
                f"{self.version} is not between 1 and {VERSION}",
                "version",
                "this version of Tastemaker does not know these features: update it, or train the head again",
            )


class FrozenFeatures:
    """Features of images, (B, D) float32 on the CPU."""

    def __init__(self, options: FeatureOptions, batch_size: int = 8) -> None:
        self.options = options
        self.batch_size = batch_size
        self._clip = ClipFeatures(options.source, batch_size=batch_size) if options.kind == "clip" else None
        self._vae: Any = None
        self._probe: Tensor | None = None
        self._picture = PictureFeatures(options.size, options.version) if options.kind == "picture" else None
        self._denoiser: DenoiserFeatures | None = None
        if options.kind == "denoiser":
            self._denoiser = DenoiserFeatures(
                options.source, options.family, options.block, options.timestep, options.noise, options.size,
                options.version,
            )  # fmt: skip

    @property
    def parts(self) -> dict[str, int]:
        """Names and widths of the parts of a row of ``denoiser`` and ``picture``; known after the first image."""
        described = self._denoiser or self._picture
        return {} if described is None else described.parts

    @property
    def width(self) -> int:
        """D."""
        return len(self.probe())

    def fingerprint(self) -> bytes:
        """Distinguishes this model from others: the features of one fixed image."""
        return self.probe().numpy().tobytes()

    def load(self, device: torch.device | str = "cpu") -> None:
        """Read the model, once."""
        if self._picture is not None:
            return
        for model in (self._clip, self._denoiser):
            if model is not None:
                model.load(device)
                return
        if self._vae is None:
            self._vae = _load_vae(self.options.source)
        self._vae.to(device)

    def unload(self) -> None:
        self._probe = None
        self._vae = None
        for model in (self._clip, self._denoiser):
            if model is not None:
                model.unload()

    def to(self, device: torch.device | str) -> None:
        for model in (self._vae, self._clip, self._denoiser):
            if model is not None:
                model.to(device)

    def __call__(self, images_BCHW: Tensor, prompts: Sequence[str] | None = None) -> Tensor:
        """Args: prompts: prompts of the images; needed by ``denoiser``, ignored by the others."""
        if self._denoiser is not None:
            if prompts is None or len(prompts) != len(images_BCHW):
                raise ValueError("the features of a denoiser need the prompt of every image")
            return self._in_batches(self._denoiser, images_BCHW, prompts)
        if self._picture is not None:
            return torch.cat([self._picture(part) for part in images_BCHW.split(self.batch_size)])
        if self._clip is not None:
            return self._clip.embed_images(images_BCHW)
        if self._vae is None:
            raise RuntimeError(f"{self.options.source}: load() first")
        return torch.cat([self._latent_features(part) for part in images_BCHW.split(self.batch_size)])

    def prompt_fit(self, images_BCHW: Tensor, prompts: Sequence[str]) -> Tensor:
        """Measure how well images match their prompts, (B,). Only ``denoiser`` provides it, see
        ``DenoiserFeatures.prompt_fit``.
        """
        if self._denoiser is None:
            raise ValueError(f"the features {self.options.kind!r} know nothing of prompts")
        return self._in_batches(self._denoiser.prompt_fit, images_BCHW, prompts)

    def _in_batches(
        self, function: Callable[[Tensor, Sequence[str]], Tensor], images_BCHW: Tensor, prompts: Sequence[str]
    ) -> Tensor:
        size = self.batch_size
        places = range(0, len(images_BCHW), size)
        return torch.cat([function(images_BCHW[at : at + size], prompts[at : at + size]) for at in places])

    def _latent_features(self, images_BCHW: Tensor) -> Tensor:
        size = self.options.size or int(self._vae.config.sample_size)
        scaled_BCHW = interpolate(
            images_BCHW, (size, size), mode="bilinear", antialias=True, align_corners=False
        )
        with torch.no_grad():
            pixels = (scaled_BCHW * 2 - 1).to(self._vae.device, self._vae.dtype)
            latents_BChw = self._vae.encode(pixels).latent_dist.mode().float().cpu()
        grid = min(self.options.grid, *latents_BChw.shape[2:])
        mean = adaptive_avg_pool2d(latents_BChw, grid)
        square = adaptive_avg_pool2d(latents_BChw.square(), grid)
        return torch.cat([mean, (square - mean.square()).clamp(min=0).sqrt()], dim=1).flatten(1)

    def probe(self) -> Tensor:
        """Features of one fixed image of soft noise, (D,)."""
        if self._probe is not None:
            return self._probe
        noise = torch.rand(1, 3, 8, 8, generator=generator("preference-head-probe", 0))
        soft = interpolate(noise, (64, 64), mode="bilinear", align_corners=False)
        self._probe = self(soft, [""])[0]
        return self._probe


def _load_vae(source: str) -> Any:
    prepare_diffusers()
    from diffusers import AutoencoderKL

    folder = Path(source) / "vae" if (Path(source) / "vae").is_dir() else Path(source)
    try:
        vae = AutoencoderKL.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(
            f"the VAE {str(folder)!r} cannot be loaded: {str(error).strip().splitlines()[0]}",
            "source",
            "give a diffusers folder of a model whose VAE is an AutoencoderKL",
        ) from error
    return vae.requires_grad_(False).eval()
