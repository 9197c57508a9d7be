from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Strict

from modules.spec.FamilySpec import FamilySpec
from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.config_list import load_list
from modules.util.config.setting import Float, PathText, setting
from modules.util.enum.choices import NoiseScheduler, PaddingMask
from modules.util.published_models import PublishedModel
from modules.util.rng import digest64

MAX_SEED = 2**32 - 1
READING: Mapping[str, tuple[str, str]] = {
    "text_encoder_1_layer_skip": ("text_encoder", "layer_skip"),
    "text_encoder_2_layer_skip": ("text_encoder_2", "layer_skip"),
    "text_encoder_1_sequence_length": ("text_encoder", "sequence_length"),
    "text_encoder_2_sequence_length": ("text_encoder_2", "sequence_length"),
    "text_encoder_3_sequence_length": ("text_encoder_3", "sequence_length"),
    "text_encoder_4_sequence_length": ("text_encoder_4", "sequence_length"),
    "transformer_attention_mask": ("transformer", "attention_mask"),
}
"""Settings for reading a sample's prompts: the setting of the run that each of its own stands in for."""
_READING = "How prompts are read"


@dataclass(frozen=True)
class FilledSample:
    """A sample with all values filled in; ``config`` is the one it was made from."""

    prompt: str
    negative_prompt: str
    width: int
    height: int
    diffusion_steps: int
    cfg_scale: float
    noise_scheduler: NoiseScheduler
    config: SampleConfig

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.height, self.width


def _side() -> Any:
    return setting(
        None,
        within=(64, 8192),
        multiple_of=8,
        tip="In pixels, a multiple of 8. Empty: the usual size of the model family.",
    )


def _skip(number: int) -> Any:
    return setting(
        None,
        within=(0, 100),
        widget="inherited",
        group=_READING,
        title=f"Layer skip {number}",
        tip=(
            f"Take the states of text encoder {number} (a CLIP model) this many layers earlier than usual. A clip "
            "skip of n in other programs is n - 1 here. Empty: as in the run."
        ),
    )


def _length(number: int) -> Any:
    return setting(
        None,
        within=(1, 2048),
        widget="inherited",
        group=_READING,
        title=f"Tokens per prompt {number}",
        tip=(
            f"Maximum number of tokens that text encoder {number} reads of a prompt, including those of the family's "
            "template. Empty: as in the run."
        ),
    )


def reading_in(sample: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of ``READING`` that the values of a sample contain: part -> settings, named as in
    ``TrainConfig``.
    """
    made: dict[str, dict[str, Any]] = {}
    for name, (part, own) in READING.items():
        if sample.get(name) is not None:
            made.setdefault(part, {})[own] = sample[name]
    return made


def reading_of(family: FamilySpec) -> frozenset[str]:
    """The settings of ``READING`` that a family has."""
    parts: dict[str, tuple[str, ...]] = {
        "layer_skip": family.skips_layers_of,
        "sequence_length": (family.length_of,),
        "attention_mask": () if family.padding == "none" else (family.denoiser,),
    }
    return frozenset(name for name, (part, own) in READING.items() if part in parts[own])


class SampleConfig(BaseConfig):
    """An image to be made during training, or on demand."""

    VERSION: ClassVar[int] = 1
    WHAT: ClassVar[str] = "sample"

    enabled: bool = setting(True, tip="Make this sample.")
    prompt: str = setting("", widget="multiline", tip="What the image should show.")
    negative_prompt: str = setting(
        "", widget="multiline", tip="What the image should not show."
    )
    source_path: PathText = setting(
        "",
        widget="file",
        title="Source image",
        tip=(
            "For models that edit images: the image to edit; the prompt is the instruction. A second and a third "
            "source are next to it, with .2 and .3 before the extension of their names."
        ),
    )
    base_image_path: PathText = setting(
        "",
        widget="file",
        title="Image to paint into",
        tip="For inpainting models: the image to paint into, where its mask is white. It is cropped to the size of the "
        "sample. Empty: the whole image is painted.",
    )
    mask_image_path: PathText = setting(
        "",
        widget="file",
        title="Mask",
        tip="Mask of the image to paint into, of the same shape: white is painted, black is kept.",
    )
    width: int | None = _side()
    height: int | None = _side()
    seed: int = setting(
        42,
        within=(0, MAX_SEED),
        visible="!.random_seed",
        tip="The same seed gives the same noise, so samples of one run can be compared.",
    )
    random_seed: bool = setting(
        False,
        title="New seed each time",
        tip="Use a different seed at each sampling. It is derived from the seed and the step.",
    )
    diffusion_steps: int | None = setting(
        None, within=(1, 1000), title="Steps", tip="Denoising steps. Empty: the model's usual number."
    )
    cfg_scale: Float | None = setting(
        None,
        within=(0, 100),
        title="CFG scale",
        tip="Strength of the prompt. 1: no guidance. Empty: the model's usual scale.",
    )
    noise_scheduler: NoiseScheduler = setting(
        NoiseScheduler.AUTO,
        title="Sampler",
        tip="The method that turns noise into an image. AUTO: the usual sampler of the family.",
    )
    force_last_timestep: bool = setting(
        False,
        title="Start at the last timestep",
        tip="Start at the noisiest timestep, which some samplers skip. Use it if the model was trained on pure "
        "noise (zero terminal SNR) and its files do not say so. Flow-matching models always start there.",
    )
    text_encoder_1_layer_skip: int | None = _skip(1)
    text_encoder_2_layer_skip: int | None = _skip(2)
    text_encoder_1_sequence_length: int | None = _length(1)
    text_encoder_2_sequence_length: int | None = _length(2)
    text_encoder_3_sequence_length: int | None = _length(3)
    text_encoder_4_sequence_length: int | None = _length(4)
    transformer_attention_mask: Annotated[PaddingMask, Strict(False)] | None = setting(
        None,
        widget="inherited",
        group=_READING,
        title="Padding of prompts",
        tip=(
            "Whether the denoiser sees the padding after a prompt. MASKED hides it, SEEN shows it, FAMILY follows "
            "the published model. Empty: as in the run."
        ),
    )

    def filled(self, family: FamilySpec, published: PublishedModel | None = None) -> FilledSample:
        """Fill in open values with the model's usual ones, or else those of its family."""
        usual = (family.default_steps, family.default_cfg)
        steps, cfg = usual if published is None else (published.steps, published.cfg)
        auto = self.noise_scheduler is NoiseScheduler.AUTO
        return FilledSample(
            prompt=self.prompt,
            negative_prompt=self.negative_prompt,
            width=self.width or family.default_resolution,
            height=self.height or family.default_resolution,
            diffusion_steps=self.diffusion_steps or steps,
            cfg_scale=cfg if self.cfg_scale is None else self.cfg_scale,
            noise_scheduler=NoiseScheduler(family.default_sampler) if auto else self.noise_scheduler,
            config=self,
        )

    def reading(self) -> dict[str, dict[str, Any]]:
        """Return how its prompts are read where that differs from the run: part -> settings, named as in
        ``TrainConfig``.
        """
        return reading_in({name: getattr(self, name) for name in READING})

    def seed_at(self, step: int) -> int:
        """The seed at a step of the run: ``seed``, or with ``random_seed`` one derived from seed and step."""
        return digest64("sample", self.seed, step) % (MAX_SEED + 1) if self.random_seed else self.seed

    @classmethod
    def load_all(
        cls, source: str | os.PathLike[str] | Sequence[Any], base_dir: str | os.PathLike[str] | None = None
    ) -> list[SampleConfig]:
        """Read a list of samples from a JSON file or plain data; see ``ConceptConfig.load_all``."""
        return load_list(cls, source, base_dir, "samples", "sample list")
