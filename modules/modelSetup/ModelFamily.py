"""A model family: its spec, how its parts are loaded, and how prompts become conditionings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from modules.model.batch import NO_SOURCES, Conditioning
from modules.model.batch import Sources as PictureSources
from modules.model.dtypes import PartDtypes
from modules.model.Model import Model
from modules.model.noising.schedule import DiscreteSchedule, FlowSchedule, Schedule
from modules.model.noising.scheduler_config import check_scheduler_config
from modules.model.text.emphasis import read_emphasis
from modules.model.text.encoding import cut_prompts, t5_states, tokenize
from modules.model.text.LearnedWords import PLACES, AddedRows
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
    """The part of a family that handles no images made by it; ``BaseModelSetup`` handles these. A family must
    define ``spec``, ``_encode`` and ``denoise``; the rest has defaults that most families share.
    """

    spec: ClassVar[FamilySpec]

    # -- loading ------------------------------------------------------------------------------------------

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

    # -- prompts ------------------------------------------------------------------------------------------

    @abstractmethod
    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        """Encode prompts to a conditioning on the text encoder's device, in the current gradient mode."""

    def _encode_seeing(self, model: Model, prompts: Sequence[str], seen: PictureSources) -> Conditioning:
        """As ``_encode``, with images (B, 3, H, W) uint8 each that the text encoder sees."""
        return self._encode(model, prompts)

    def _words(self, prompt: str) -> str:
        """A prompt as passed to the tokenizers, before any template."""
        return prompt

    def encode_text(
        self, model: Model, prompts: Sequence[str], train: bool = False, seen: PictureSources = NO_SOURCES
    ) -> Conditioning:
        """Encode prompts to a conditioning on ``model.device``.

        Args:
            train: keep the graph and compute like the denoiser (autocast). Otherwise there is no graph,
                the encoder computes in its own type and the result is float32.
            seen: the images that the text encoder is shown with the prompts, (B, 3, H, W) uint8 each, in
                families whose text encoder sees them.
        """
        if train:
            with model.autocast():
                return self._encode_seeing(model, self._texts(model, prompts), seen).to(model.device)
        return self.text_states(model, prompts, seen).to(model.device, torch.float32)

    @torch.no_grad()
    def text_states(
        self, model: Model, prompts: Sequence[str], seen: PictureSources = NO_SOURCES
    ) -> Conditioning:
        """As ``encode_text``, but with the encoders' own types and devices instead of float32."""
        return self._encode_seeing(model, self._texts(model, prompts), seen)

    def _texts(self, model: Model, prompts: Sequence[str]) -> list[str]:
        """The texts to encode for prompts: without emphasis brackets, formatted by the family, with tokens of
        learned words.
        """
        texts = [
            read_emphasis(prompt) if model.prompt_weighting else self._words(prompt) for prompt in prompts
        ]
        return texts if model.words is None else [model.words.expanded(text) for text in texts]

    @staticmethod
    def _tokenizer_of(model: Model, encoder: str) -> tuple[Any, AddedRows | None]:
        """The tokenizer of a text encoder, and the rows added to the encoder's table."""
        if model.words is None:
            return model.parts[encoder.replace("text_encoder", "tokenizer")], None
        return model.words.tokenizer(encoder), model.words.rows(encoder)

    def _t5_states(
        self, model: Model, encoder: str, prompts: Sequence[str], masked: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``t5_states`` of a text encoder of the model, for prompts of its length."""
        tokenizer, added = self._tokenizer_of(model, encoder)
        return t5_states(model.module(encoder), tokenizer, prompts, self.prompt_length(model), masked, added)

    def _placed(
        self, model: Model, cond: Conditioning, texts: Sequence[str], limit: int, cut: int = 0, **how: Any
    ) -> Conditioning:
        """States of texts, with where the output vectors of words belong, if there are such words.

        Args:
            limit, how: as the texts were tokenised, see ``tokenize``.
            cut: tokens at the beginning whose states were left out.
        """
        name = self.spec.length_of
        tokenizer, added = self._tokenizer_of(model, name)
        if added is None or not added.puts_out:
            return cond
        ids_BL, _ = tokenize(tokenizer, texts, model.module(name), limit, **how)
        return cond.plus(**{PLACES: added.placed(ids_BL)[:, cut:]})

    @staticmethod
    def hidden_states(model: Model, cond: Conditioning) -> torch.Tensor:
        """The states (B, L, E) of prompts for the denoiser, with the output vectors of words as they are now."""
        hidden_BLE, places_BL = cond["hidden_BLE"], cond.tensors.get(PLACES)
        if places_BL is None or model.words is None or not model.words.puts_out:
            return hidden_BLE
        return model.words.put_in(hidden_BLE, places_BL, model.spec.output_groups)

    def cut_prompts(self, model: Model, prompts: Sequence[str]) -> list[str]:
        """The prompts whose end no text encoder reads."""
        known = model.text_encoders if model.words is not None else ()
        read = {
            encoder: self._tokenizer_of(model, encoder)[0] if encoder in known else model.parts[part.name]
            for part, encoder in zip(self.spec.of_kind("tokenizer"), self.spec.text_encoders, strict=True)
            # an encoder that the model lacks reads nothing
            if part.name in model.parts and (encoder in model.parts or not part.optional)
        }
        own = self.prompt_length(model) - self.spec.template_tokens
        fixed = set(self.spec.trained_encoders) - {self.spec.length_of}
        limits = [self.spec.prompt_tokens if encoder in fixed else own for encoder in read]
        cut = cut_prompts(list(read.values()), self._texts(model, prompts), limits)
        return [prompt for prompt, is_cut in zip(prompts, cut, strict=True) if is_cut]

    def prompt_length(self, model: Model) -> int:
        """Number of tokens read of a text, including the template."""
        return model.prompt_length or self.spec.prompt_length

    def chunk_count(self, model: Model, prompt: str) -> int:
        """Number of chunks in which a prompt is read; 0 if it is read without chunks."""
        return 0

    def empty_prompt(self, model: Model) -> Conditioning:
        """The conditioning of the empty prompt, (1, ...); encoded once unless the text encoder is trained."""
        if model.trains_text:
            return self.encode_text(model, [""], train=True)
        if model._empty_prompt is None:
            with model.borrowed_encoders():
                model._empty_prompt = self.encode_text(model, [""])
        return model._empty_prompt.to(model.device)
