"""A model family: its spec, and how its parts are loaded and called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from modules.model.batch import Conditioning
from modules.model.batch import Sources as PictureSources
from modules.model.dtypes import PartDtypes
from modules.model.Model import Model
from modules.model.noising.sampling import initial_noise, make_sampler
from modules.model.noising.schedule import DiscreteSchedule, FlowSchedule, Schedule
from modules.model.noising.scheduler_config import check_scheduler_config
from modules.spec.FamilySpec import FamilySpec
from modules.util.errors import ConfigError, UnsupportedError, UserError
from modules.util.files.hub_names import repository
from modules.weights.loading import FIELD, check_folder, config_errors, is_hub_name
from modules.weights.part_sources import (
    Sources,
    check_tokenizers,
    find_sources,
    load_from,
    load_overrides,
    scheduler_from_denoiser,
    shift_of_samples,
)


@dataclass(frozen=True)
class LoadOptions:
    """Overrides of a model's own scheduler config.

    Args:
        prediction: ``epsilon`` or ``v_prediction``; ``None`` keeps the model's.
        zero_terminal_snr: rescale the noise schedule so that it ends in pure noise.
    """

    prediction: str | None = None
    zero_terminal_snr: bool = False


def widen_vae(model: Model) -> None:
    """Convert an SDXL autoencoder that would be in float16 to full precision. Its decoder overflows float16
    and gives black images, unless its config marks a fixed one.
    """
    vae: Any = model.vae
    if vae.config.force_upcast and next(vae.parameters()).dtype == torch.float16:
        vae.float()


class ModelFamily(ABC):
    """A family of models. It must define ``spec``, ``_encode`` and ``denoise``; the rest has defaults that
    most families share.
    """

    spec: ClassVar[FamilySpec]

    # -- the family's own ---------------------------------------------------------------------------------

    @abstractmethod
    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        """Encode prompts to a conditioning on the text encoder's device, in the current gradient mode."""

    def _encode_seeing(self, model: Model, prompts: Sequence[str], seen: PictureSources) -> Conditioning:
        """As ``_encode``, with images (B, 3, H, W) uint8 each that the text encoder sees."""
        return self._encode(model, prompts)

    def _words(self, prompt: str) -> str:
        """A prompt as passed to the tokenizers, before any template."""
        return prompt

    def _encode_image(self, model: Model, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        """Encode [-1, 1] images, on the VAE's device and in its type, to raw latents (distribution mean)."""
        return model.vae.encode(rgb_BCHW).latent_dist.mode()  # type: ignore[operator, no-any-return]

    def _decode(self, model: Model, z_BChw: torch.Tensor) -> torch.Tensor:
        """Decode raw latents, on the VAE's device and in its type, to [-1, 1] images."""
        return model.vae.decode(z_BChw).sample  # type: ignore[operator, no-any-return]

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

    def _schedule(self, scheduler: Mapping[str, Any], options: LoadOptions) -> Schedule:
        """The noise schedule of a scheduler config."""
        if self.spec.prediction == "flow":
            if options.prediction or options.zero_terminal_snr:
                raise UnsupportedError(
                    f"{self.spec.label} is a flow-matching model: its prediction and noise schedule are fixed",
                    field="force_v_prediction",
                    hint="switch off the prediction overrides and zero terminal SNR",
                )
            return FlowSchedule()
        says = scheduler.get("prediction_type", "epsilon")
        if self.spec.other_prediction and not options.prediction and says != self.spec.prediction:
            raise ConfigError(
                f"the model's scheduler config says {says}, but {self.spec.label} has {self.spec.prediction}",
                field="model_type",
                hint=f"set it to {self.spec.other_prediction}; if this one is right, force its prediction with "
                "force_v_prediction or force_epsilon_prediction",
            )
        return DiscreteSchedule.from_config(
            scheduler,
            options.prediction,  # type: ignore[arg-type]
            options.zero_terminal_snr,
        )

    def _set_latents(self, model: Model) -> None:
        """Set scale and size of latents from the VAE's config."""
        config: Any = model.vae.config
        model.latent_scale = float(config.scaling_factor)
        model.latent_shift = float(config.get("shift_factor") or 0.0)
        model.latent_factor = 2 ** (len(config.block_out_channels) - 1)
        model.latent_channels = int(config.latent_channels)

    def _load_rest(self, sources: Sources, dtypes: PartDtypes, wanted: Sequence[str]) -> dict[str, Any]:
        """Load the wanted parts from the folder or file of the whole model."""
        return load_from(sources, self.spec, wanted, dtypes)

    # -- loading ------------------------------------------------------------------------------------------

    def load(
        self,
        source: str,
        dtypes: PartDtypes | None = None,
        parts: Collection[str] | None = None,
        options: LoadOptions | None = None,
        part_sources: Mapping[str, str] | None = None,
    ) -> Model:
        """Load a model on the CPU, frozen and in eval mode.

        Args:
            source: diffusers folder, file of weights or hub name.
            parts: parts to load; all by default.
            part_sources: part name -> another source: a file, a folder or a hub name.

        Raises:
            UserError: the model does not exist, or is not of this family.
        """
        dtypes, options = dtypes or PartDtypes(), options or LoadOptions()
        wanted = [part.name for part in self.spec.parts if parts is None or part.name in parts]
        # every model has the noise schedule
        wanted += [part.name for part in self.spec.of_kind("scheduler") if part.name not in wanted]
        sources = find_sources(source, part_sources or {}, self.spec, wanted, dtypes.variant)
        path = sources.base
        rest = [name for name in wanted if name not in sources.parts]
        if path.is_dir():
            check_folder(path, self.spec, rest, weights=not dtypes.configs_only)
        # a wrong file for one part is refused before the others, which may be large, are read
        loaded = load_overrides(sources, self.spec, dtypes)
        loaded |= self._load_rest(sources, dtypes, rest)
        loaded = {name: loaded[name] for name in wanted if name in loaded}
        self._check_channels(path, loaded)
        check_tokenizers(self.spec, path, loaded)
        noise = self.spec.of_kind("scheduler")[0].name
        scheduler = loaded[noise] = scheduler_from_denoiser(sources, self.spec, loaded[noise])
        check_scheduler_config(scheduler, self.spec.prediction == "flow", self.spec.label, path)
        model = Model(
            spec=self.spec,
            source=str(path),
            denoiser_source=str(sources.parts.get(self.spec.denoiser, path)),
            hub_name=repository(source) if is_hub_name(source) else "",
            shift=shift_of_samples(sources, self.spec),
            parts=loaded,
            weight_files={n: part.read_from for n, part in loaded.items() if hasattr(part, "read_from")},
            schedule=self._schedule(scheduler, options),
            compute_dtype=dtypes.compute,
        )
        if self.spec.vae in loaded:
            try:
                self._set_latents(model)
            except config_errors() as error:
                raise UserError(
                    f"the config of the {self.spec.vae} of {path} cannot be used: {error}",
                    field=FIELD,
                    hint="copy or download its config.json again",
                ) from error
        return model

    def _check_channels(self, path: Path, loaded: Mapping[str, Any]) -> None:
        """Distinguish inpainting models from others."""
        wanted, denoiser = self.spec.denoiser_channels, loaded.get(self.spec.denoiser)
        if not wanted or denoiser is None or denoiser.config.in_channels == wanted:
            return
        raise UserError(
            f"{path} is not a {self.spec.label} model: its {self.spec.denoiser} takes "
            f"{denoiser.config.in_channels} channels instead of {wanted}",
            field=FIELD,
            hint="models with 9 channels are inpainting models, those with 4 ordinary ones; choose the model type "
            "that fits",
        )

    # -- sampling -----------------------------------------------------------------------------------------

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
