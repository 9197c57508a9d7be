"""Everything that training and sampling do with a model's images and latents, and that all families share.

Loading and prompts are in ``ModelFamily``; loading from a config, adapters and saving in ``training``; scores
of pairs in ``ModelPairScorer``; whole samples in ``sample_images``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from modules.model.batch import (
    Conditioning,
    ImageBatch,
    NoiseDraw,
    PairBatch,
    to_device,
)
from modules.model.dtypes import wide_dtype
from modules.model.memory import give_back, in_tiles_if_large
from modules.model.Model import Model
from modules.model.noising import noise as noise_module
from modules.model.noising.noise import NoiseOptions
from modules.model.noising.sampling import dynamic_shift, initial_noise, make_sampler
from modules.model.noising.schedule import DiscreteSchedule, Prediction
from modules.modelSetup.ModelFamily import ModelFamily
from modules.objective.supervised import (
    LossOptions,
    combined_loss,
    mask_weight,
    mean_per_sample,
    mse_per_sample,
    noise_level_weight,
)
from modules.objective.variational import variational_bits
from modules.util.errors import ConfigError, DataError, UnsupportedError
from modules.util.rng import Key


class BaseModelSetup(ModelFamily):
    """The operations on one model family. It holds no state: everything is in the ``Model``."""

    # -- latents and images -------------------------------------------------------------------------------

    def _encode_image(self, model: Model, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        """Encode [-1, 1] images, on the VAE's device and in its type, to raw latents (distribution mean)."""
        return model.vae.encode(rgb_BCHW).latent_dist.mode()  # type: ignore[operator, no-any-return]

    def _decode(self, model: Model, z_BChw: torch.Tensor) -> torch.Tensor:
        """Decode raw latents, on the VAE's device and in its type, to [-1, 1] images."""
        return model.vae.decode(z_BChw).sample  # type: ignore[operator, no-any-return]

    @torch.no_grad()
    def encode_image(self, model: Model, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        """Encode [0, 1] images (B, 3, H, W) to latents (B, C, h, w), float32, scaled for the denoiser.

        The mean of the VAE's distribution is used, so that the result is deterministic.
        """
        height, width = rgb_BCHW.shape[-2:]
        if height % model.latent_factor or width % model.latent_factor:
            raise DataError(
                f"an image of {width}x{height} cannot be encoded: its sides must be multiples of "
                f"{model.latent_factor}"
            )
        weight = next(model.vae.parameters())
        pixels = (rgb_BCHW.to(weight.device, torch.float32) * 2.0 - 1.0).to(weight.dtype)
        with in_tiles_if_large(model.vae, (height, width)):
            z_BChw = self._encode_image(model, pixels).float()
        return (z_BChw - model.latent_shift) * model.latent_scale

    @torch.no_grad()
    def decode_latents(self, model: Model, latents_BChw: torch.Tensor) -> torch.Tensor:
        """Decode latents, scaled as for the denoiser, to [0, 1] images (B, 3, H, W), float32."""
        weight = next(model.vae.parameters())
        z_BChw = latents_BChw.to(weight.device).float() / model.latent_scale + model.latent_shift
        height, width = (side * model.latent_factor for side in z_BChw.shape[-2:])
        with in_tiles_if_large(model.vae, (height, width)):
            rgb_BCHW = self._decode(model, z_BChw.to(weight.dtype))
        return (rgb_BCHW.float() / 2.0 + 0.5).clamp(0.0, 1.0)

    def decode_to_cpu(self, model: Model, latents_BChw: torch.Tensor) -> torch.Tensor:
        """As ``decode_latents``, with the result on the CPU. A batch that does not fit into the device's
        memory is halved.

        Raises:
            torch.OutOfMemoryError: one image alone does not fit.
        """
        try:
            return self.decode_latents(model, latents_BChw).cpu()
        except torch.OutOfMemoryError:
            if len(latents_BChw) == 1:
                raise
        # only now is the memory held by the error released
        give_back(model.device)
        half = len(latents_BChw) // 2
        return torch.cat(
            [self.decode_to_cpu(model, part) for part in (latents_BChw[:half], latents_BChw[half:])]
        )

    # -- conditions ---------------------------------------------------------------------------------------

    def condition(self, model: Model, batch: ImageBatch, draw: NoiseDraw | None = None) -> Conditioning:
        """The conditioning of a batch: the cached one or, if the text encoder is trained, the newly encoded
        prompts. Samples marked in the draw get the empty prompt.
        """
        text = self.text_condition(model, batch, None if draw is None else draw.drop_caption_B)
        return self.with_images(model, text, batch)

    def with_images(self, model: Model, cond: Conditioning, batch: ImageBatch) -> Conditioning:
        """Add what the denoiser is given about the images of a batch besides their prompts."""
        told = {
            "geometry_B6": batch.geometry_B6 if self.spec.size_conditioning else None,
            "inpaint_BChw": batch.inpaint_BChw if self.spec.inpainting else None,
        }
        cond = cond.plus(
            **{name: to_device(value, model.device) for name, value in told.items() if value is not None}
        )
        return cond.editing(batch.sources.to(model.device)) if self.spec.sources else cond

    def text_condition(
        self, model: Model, batch: ImageBatch, drop_B: torch.Tensor | None = None
    ) -> Conditioning:
        """The part of ``condition`` that depends on the prompts, with the images shown to their encoder."""
        if model.trains_text or batch.cond is None:
            prompts = list(batch.prompts)
            if drop_B is not None:
                prompts = ["" if drop else p for p, drop in zip(prompts, drop_B.tolist(), strict=True)]
            return self.encode_text(model, prompts, train=model.trains_text, seen=batch.seen)
        cond = batch.cond.to(model.device)
        if drop_B is None or not bool(drop_B.any()):
            return cond
        rows, dropped = cond.unbind(), drop_B.tolist()
        blanks = self._blanks(model, batch)
        return Conditioning.stack(
            [blank if drop else row for row, blank, drop in zip(rows, blanks, dropped, strict=True)]
        )

    def _blanks(self, model: Model, batch: ImageBatch) -> list[dict[str, torch.Tensor]]:
        """The conditioning of the empty prompt for each sample of a batch."""
        if not self.spec.sees_sources:
            return self.empty_prompt(model).unbind() * len(batch)
        if batch.blank is None:
            raise RuntimeError("captions are dropped, and the batch has no states of the empty prompt")
        return batch.blank.to(model.device).unbind()

    # -- noise --------------------------------------------------------------------------------------------

    def draw_noise(
        self,
        model: Model,
        batch: ImageBatch,
        options: NoiseOptions,
        seed: int,
        stream: str = "noise",
        key: Sequence[Key] = (),
        stratum: int | None = None,
    ) -> NoiseDraw:
        """Timesteps and noise for a batch, keyed by (seed, stream, item, visit, key): the same in any batch,
        process or device. See ``modules.model.noising.noise.draw_noise``.
        """
        shape = batch.latents_BChw.shape[1:]
        draw = noise_module.draw_noise(
            model.schedule,
            shape,
            batch.ids,
            batch.visits,
            options,
            seed,
            stream,
            key,
            stratum,
            self.level_shift(model, shape, options),
        )
        return draw.to(model.device)

    def draw_pair_noise(
        self,
        model: Model,
        pair: PairBatch,
        options: NoiseOptions,
        seed: int,
        shared: bool = True,
        stream: str = "pair",
        key: Sequence[Key] = (),
        stratum: int | None = None,
    ) -> tuple[NoiseDraw, NoiseDraw]:
        """Draws for the chosen and the rejected side, keyed by pair. Captions are never dropped.

        Args:
            shared: whether both sides get the same timestep and noise; otherwise the rejected side has its
                own stream.

        Raises:
            RuntimeError: the rejected side is missing. DataError: shared noise is requested for latents of
                different shapes.
        """
        chosen, rejected = pair.both_sides()
        options = replace(options, caption_dropout=0.0)
        names = (pair.pair_ids, chosen.visits, options, seed)
        shape, other = chosen.latents_BChw.shape[1:], rejected.latents_BChw.shape[1:]
        shift = self.level_shift(model, shape, options)
        draw = noise_module.draw_noise(model.schedule, shape, *names, stream, key, stratum, shift)
        draw = draw.to(model.device)
        if not shared:
            shift = self.level_shift(model, other, options)
            second = noise_module.draw_noise(
                model.schedule, other, *names, f"{stream}/rejected", key, stratum, shift
            )
            return draw, second.to(model.device)
        if shape != other:
            raise DataError(
                f"pair {pair.pair_ids[0]}: shared noise needs latents of one shape, not {tuple(shape)} and "
                f"{tuple(other)}"
            )
        return draw, draw

    def level_shift(self, model: Model, shape: Sequence[int], options: NoiseOptions) -> float | None:
        """The shift of noise levels for latents of ``shape`` (C, h, w), if it depends on their size."""
        if not options.shifts_by_size:
            return None
        size = (shape[-2] * model.latent_factor, shape[-1] * model.latent_factor)
        return math.exp(dynamic_shift(self.image_tokens(model, size), self.shift_config(model)))

    def sample_levels(self, model: Model, shape: Sequence[int]) -> tuple[NoiseOptions, float | None]:
        """Options and a shift of draws distributed as the noise levels of a sample with latents of ``shape``."""
        config = model.sample_config if self.spec.flow_matching else {}
        shift = float(config.get("shift") or config.get("flow_shift") or 1.0)
        options = NoiseOptions(shift=shift, shifts_by_size=bool(config.get("use_dynamic_shifting")))
        return options, self.level_shift(model, shape, options)

    def shift_config(self, model: Model) -> Mapping[str, Any]:
        """The scheduler config that says how far noise levels are shifted by the size of an image."""
        config: Mapping[str, Any] = model.parts.get("scheduler") or {}
        return config

    # -- predictions, scores, losses ----------------------------------------------------------------------

    @abstractmethod
    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        """The denoiser's output, (B, C, h, w).

        Args:
            x_BChw: noisy latents, already in the type of the denoiser.
            t_B: timesteps.
            cond: the result of ``_encode``, with ``guidance_B`` if used (the embedded guidance scale) and
                ``geometry_B6`` (height, width, crop top, crop left, target height, target width in pixels).
            size: (height, width) in pixels.
        """

    def predict(
        self,
        model: Model,
        latents_BChw: torch.Tensor,
        cond: Conditioning,
        draw: NoiseDraw,
        size: tuple[int, int],
    ) -> Prediction:
        """Add the drawn noise, denoise, and set the target, both float32 (float64 is kept).

        Args:
            latents_BChw: clean latents as ``encode_image`` gives them.
        """
        latents_BChw = latents_BChw.to(model.device, wide_dtype(latents_BChw.dtype))
        noise_BChw = draw.noise_BChw
        if draw.perturbation_BChw is not None:
            noise_BChw = noise_BChw + draw.perturbation_BChw
        noisy_BChw = model.schedule.add_noise(latents_BChw, noise_BChw, draw.timestep_B)
        with model.autocast():
            predicted_BChw, variance_BChw = self.denoise_with_variance(
                model, noisy_BChw.to(model.input_dtype()), draw.timestep_B, cond, size
            )
        target_BChw = model.schedule.target(latents_BChw, draw.noise_BChw, draw.timestep_B)
        wide = wide_dtype(predicted_BChw.dtype)
        variance_BChw = None if variance_BChw is None else variance_BChw.to(wide)
        return Prediction(predicted_BChw.to(wide), target_BChw, variance_BChw)

    def denoise_with_variance(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``denoise``, and what the model says about the variance, -1 to 1, if it predicts one."""
        return self.denoise(model, x_BChw, t_B, cond, size), None

    def score(
        self,
        model: Model,
        latents_BChw: torch.Tensor,
        cond: Conditioning,
        draw: NoiseDraw,
        size: tuple[int, int],
    ) -> torch.Tensor:
        """Minus the plain mean squared error of each sample, (B,) float32. Higher means likelier."""
        prediction = self.predict(model, latents_BChw, cond, draw, size)
        return -mse_per_sample(prediction.predicted, prediction.target)

    def supervised_loss(
        self,
        model: Model,
        prediction: Prediction,
        draw: NoiseDraw,
        batch: ImageBatch,
        options: LossOptions,
        outside: bool = False,
    ) -> torch.Tensor:
        """The training loss of existing predictions, weighted by noise level and sample, (B,).

        Args:
            outside: compute the loss outside the masks instead of inside.
        """
        weight_B1hw = None
        if batch.loss_mask_B1hw is not None:
            mask_B1hw = to_device(batch.loss_mask_B1hw, prediction.predicted.device)
            weight_B1hw = mask_weight(mask_B1hw, options.masks, outside)
        loss_B = combined_loss(
            prediction.predicted, prediction.target, options.distances, weight_B1hw, options.masks.normalize
        )
        if options.variational_strength and prediction.variance is not None and not outside:
            bits_BChw = self._variational_bits(model, prediction, draw, batch)
            bits_B = mean_per_sample(bits_BChw, weight_B1hw, options.masks.normalize)
            if batch.prior_B is not None:
                # prior preservation keeps what the model says; the bits would teach the image
                bits_B = bits_B.masked_fill(to_device(batch.prior_B, bits_B.device), 0.0)
            loss_B = loss_B + options.variational_strength * bits_B
        weight = noise_level_weight(
            options.weight_function,
            model.schedule.snr(draw.timestep_B).to(loss_B.device),
            model.schedule.prediction,
            options.weight_strength,
            model.schedule.coefficients(draw.timestep_B)[1].float().to(loss_B.device),
        )
        return loss_B * weight * to_device(batch.loss_weight_B, loss_B.device, loss_B.dtype)

    @staticmethod
    def _variational_bits(
        model: Model, prediction: Prediction, draw: NoiseDraw, batch: ImageBatch
    ) -> torch.Tensor:
        assert prediction.variance is not None
        assert isinstance(model.schedule, DiscreteSchedule)
        device = prediction.predicted.device
        latents_BChw = to_device(batch.latents_BChw, device)
        clean_BChw = latents_BChw.to(wide_dtype(latents_BChw.dtype))
        noise_BChw = (
            draw.noise_BChw if draw.perturbation_BChw is None else draw.noise_BChw + draw.perturbation_BChw
        )
        noisy_BChw = model.schedule.add_noise(clean_BChw, noise_BChw.to(device), draw.timestep_B)
        guess_BChw = model.schedule.noise_of(prediction.predicted, noisy_BChw, draw.timestep_B)
        return variational_bits(
            clean_BChw, noisy_BChw, guess_BChw, prediction.variance, model.schedule.alphas_cumprod_T,
            draw.timestep_B,
        )  # fmt: skip

    def calculate_loss(
        self, model: Model, batch: ImageBatch, draw: NoiseDraw, options: LossOptions | None = None
    ) -> torch.Tensor:
        """The supervised loss of each sample, (B,) float32. The caller reduces and backpropagates it."""
        cond = self.condition(model, batch, draw)
        prediction = self.predict(model, batch.latents_BChw, cond, draw, batch.size)
        return self.supervised_loss(model, prediction, draw, batch, options or LossOptions())

    # -- sampling -----------------------------------------------------------------------------------------

    def check_size(self, model: Model, size: tuple[int, int]) -> None:
        """Raise ``ConfigError`` if images of ``size`` (height, width) cannot be made."""
        step = max(self.spec.size_multiple, model.latent_factor)
        if any(side < step or side % step for side in size):
            raise ConfigError(
                f"{size[1]}x{size[0]} is not possible: width and height must be multiples of {step}",
                field="resolution",
            )

    def make_sampler(self, model: Model, name: object, steps: int, size: tuple[int, int]) -> Any:
        """A sampler with its timesteps set, for images of ``size`` (height, width); see ``sampling.make_sampler``."""
        tokens = self.image_tokens(model, size)
        return make_sampler(model.schedule, name, steps, model.sample_config, tokens, self.spec.even_steps)

    def guide(self, wanted_BChw: torch.Tensor, unwanted_BChw: torch.Tensor, cfg: float) -> torch.Tensor:
        """The guided prediction, from those for the prompt and for the negative prompt; ``cfg`` 1 gives the first."""
        return unwanted_BChw + cfg * (wanted_BChw - unwanted_BChw)

    def costliest_size(self, model: Model, size: tuple[int, int], step: int) -> tuple[int, int]:
        """The size with the highest memory use among those with about the area of a square.

        Args:
            size: size of the square, (height, width) in pixels.
            step: number of pixels that sides are multiples of.
        """
        return size

    def guidance_scales(self, cfg: float, steps: int) -> list[float]:
        """The guidance scale of each step of a sample with scale ``cfg``, noisiest first."""
        return [cfg] * steps

    def unprompted(self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor) -> torch.Tensor:
        """The output of the second denoiser, which sees no prompt, (B, C, h, w). Arguments as for
        ``denoise``.

        Raises:
            UnsupportedError: the family has no second denoiser.
        """
        raise UnsupportedError(f"{self.spec.label} has no denoiser that sees no prompt")

    def start_noise(
        self, model: Model, seeds: Sequence[int], size: tuple[int, int]
    ) -> tuple[torch.Tensor, list[torch.Generator]]:
        """The initial noise of samples of ``size`` (height, width), in the layout of latents; see
        ``initial_noise``.
        """
        shape = (model.latent_channels, *(side // model.latent_factor for side in size))
        return initial_noise(seeds, shape)

    def image_tokens(self, model: Model, size: tuple[int, int]) -> int:
        """Number of tokens of the denoiser for an image of ``size`` (height, width): one for each patch of 2
        x 2 latents.
        """
        return (size[0] // model.latent_factor // 2) * (size[1] // model.latent_factor // 2)
