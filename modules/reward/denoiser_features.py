"""Features of images from the denoiser that will be trained: there is nothing to download, and it sees what
it can make.

Every image passes once through the denoiser with its own prompt, at a low noise level and always with the
same noise. A late block then tells tones and textures (quantiles of its channels) and where they are (their
means on a coarse grid). Statistics of the picture are added: colours, and the size and position of what
stands out from the rest of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from modules.modelSetup.registry import create_model_setup
from modules.reward.picture_features import channel_quantiles, describe_picture
from modules.util.errors import ConfigError, DataError, UserError
from modules.util.rng import generator

GRID = 2
TIMESTEP = 50
BLOCK = "up_blocks"
"""The last block of this list is used. Other denoisers have no such list; other blocks must be tried and measured."""
FAMILY = "STABLE_DIFFUSION_15"
FIT_LEVEL = 0.6
"""Noise level (0 to 1) at which prompt fit is measured; ``docs/few-picks.md`` lists the levels that were tried."""
FIT_DRAWS = 4
"""Number of noise draws averaged."""


class DenoiserFeatures:
    """Features (B, D) float32 on the CPU of images and their prompts.

    Args:
        family: its model type.
        block: name of the block in the denoiser; a list of blocks means its last one.
        timestep: noise level of the pass, 0 to 1000.
        noise: seed of the noise that all images get.
        size: side to which images are scaled first; 0 means the denoiser's native size.
        version: version of the picture statistics; see ``describe_picture``.

    Attributes:
        parts: name and width of the parts of a row, in their order; known after the first image.
    """

    def __init__(
        self, source: str, family: str, block: str, timestep: int, noise: int, size: int, version: int
    ) -> None:
        self.source, self.family, self.block = source, family, block
        self.timestep, self.noise, self.size, self.version = timestep, noise, size, version
        self.parts: dict[str, int] = {}
        self._setup: Any = None
        self._model: Any = None

    def load(self, device: torch.device | str = "cpu") -> None:
        """Read the model, once.

        Raises:
            DataError: the model has no such block. UserError: it cannot be loaded.
        """
        if self._model is None:
            self._setup = create_model_setup(self.family)
            try:
                model = self._setup.load(self.source, parts=self._setup.spec.parts_of_a_run)
            except UserError as error:
                raise DataError(
                    f"the model {self.source!r} cannot be loaded: {error.message}", "source"
                ) from error
            self._find_block(model)
            self._model = model
        self._model.place(device)

    def unload(self) -> None:
        self._model = None

    def to(self, device: torch.device | str) -> None:
        if self._model is not None:
            self._model.place(device)

    def _find_block(self, model: Any) -> torch.nn.Module:
        try:
            found = model.denoiser.get_submodule(self.block)
        except AttributeError:
            raise DataError(
                f"the denoiser of {self.source!r} has no {self.block!r}",
                "block",
                "name one of its late blocks, or use the features 'vae' or 'clip'",
            ) from None
        return found[-1] if isinstance(found, torch.nn.ModuleList) else found

    @torch.no_grad()
    def __call__(self, images_BCHW: Tensor, prompts: Sequence[str]) -> Tensor:
        model, setup = self._loaded()
        rgb_BCHW = self._scaled(images_BCHW)
        size = (rgb_BCHW.shape[2], rgb_BCHW.shape[3])
        with model.in_mode("eval"):
            clean_BChw = setup.encode_image(model, rgb_BCHW.clamp(0, 1)).to(model.device)
            noise_BChw = _noise_for(clean_BChw, "taste-features", self.noise)
            timestep_B = _timestep(model, self.timestep / 1000, len(clean_BChw))
            noised_BChw = model.schedule.add_noise(clean_BChw, noise_BChw, timestep_B)
            cond = setup.encode_text(model, list(prompts))
            with _output_of(self._find_block(model)) as seen, model.autocast():
                setup.denoise(model, noised_BChw.to(model.input_dtype()), timestep_B, cond, size)
        made_BChw = seen[0]
        if made_BChw.ndim != 4:
            raise ConfigError(
                f"{self.block!r} gives {made_BChw.ndim} axes, not batch, channels, height and width", "block"
            )
        rows = _describe(made_BChw.float().cpu(), rgb_BCHW.float().cpu(), self.version)
        self.parts = {name: row_BD.shape[1] for name, row_BD in rows.items()}
        return torch.cat(list(rows.values()), dim=1)

    @torch.no_grad()
    def prompt_fit(self, images_BCHW: Tensor, prompts: Sequence[str]) -> Tensor:
        """Measure how much the prompt helps the model to predict each image, (B,) float32 on the CPU.

        The mean squared error of the prediction with an empty prompt minus that with the image's own, at
        ``FIT_LEVEL``, the mean of ``FIT_DRAWS`` draws of noise, which all images share. This is the integrand of the
        mutual information of image and prompt (Kong et al. 2023, arXiv 2310.07972) at one noise level, and
        what classifies images in Li et al. 2023 (arXiv 2303.16203).
        """
        model, setup = self._loaded()
        rgb_BCHW = self._scaled(images_BCHW)
        size = (rgb_BCHW.shape[2], rgb_BCHW.shape[3])
        with model.in_mode("eval"):
            clean_BChw = setup.encode_image(model, rgb_BCHW.clamp(0, 1)).to(model.device)
            timestep_B = _timestep(model, FIT_LEVEL, len(clean_BChw))
            conds = [setup.encode_text(model, texts) for texts in (list(prompts), [""] * len(prompts))]
            fit_B = torch.zeros(len(clean_BChw), dtype=torch.float64)
            for draw in range(FIT_DRAWS):
                noise_BChw = _noise_for(clean_BChw, "prompt-fit", draw)
                noised_BChw = model.schedule.add_noise(clean_BChw, noise_BChw, timestep_B)
                target_BChw = model.schedule.target(clean_BChw, noise_BChw, timestep_B)
                errors = []
                for cond in conds:
                    with model.autocast():
                        said_BChw = setup.denoise(
                            model, noised_BChw.to(model.input_dtype()), timestep_B, cond, size
                        )
                    errors.append((said_BChw.float() - target_BChw).square().flatten(1).mean(dim=1))
                fit_B += (errors[1] - errors[0]).double().cpu() / FIT_DRAWS
        return fit_B.float()

    def _loaded(self) -> tuple[Any, Any]:
        if self._model is None:
            raise RuntimeError(f"{self.source}: load() first")
        return self._model, self._setup

    def _scaled(self, images_BCHW: Tensor) -> Tensor:
        """Images scaled to the model's input size, (B, 3, side, side)."""
        model = self._loaded()[0]
        side = self.size or int(model.denoiser.config.sample_size) * model.latent_factor
        return interpolate(images_BCHW, (side, side), mode="bilinear", antialias=True, align_corners=False)


def _noise_for(clean_BChw: Tensor, purpose: str, seed: int) -> Tensor:
    """The same noise for every image."""
    noise_Chw = torch.randn(clean_BChw.shape[1:], generator=generator(purpose, seed))
    return noise_Chw.to(clean_BChw.device).expand_as(clean_BChw)


def _timestep(model: Any, level: float, count: int) -> Tensor:
    timestep_B: Tensor = model.schedule.timestep(torch.full((count,), level))
    return timestep_B.to(model.device)


@contextmanager
def _output_of(block: torch.nn.Module) -> Any:
    """Collects the output of a block while it is open."""
    seen: list[Tensor] = []

    def keep(_: object, __: object, out: Any) -> None:
        seen.append(out[0] if isinstance(out, tuple) else out)

    handle = block.register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


def _describe(block_BChw: Tensor, rgb_BCHW: Tensor, version: int) -> dict[str, Tensor]:
    return {
        "tones": channel_quantiles(block_BChw),
        "grid": adaptive_avg_pool2d(block_BChw, GRID).flatten(1),
        **describe_picture(rgb_BCHW, version),
    }
