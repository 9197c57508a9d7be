from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.config_list import load_list
from modules.util.config.setting import Float, setting
from modules.util.enum.NoiseScheduler import NoiseScheduler
from modules.util.rng import digest64

MAX_SEED = 2**32 - 1


class SampleConfig(BaseConfig):
    """An image to be made during training, or by hand."""

    VERSION: ClassVar[int] = 1
    WHAT: ClassVar[str] = "sample"

    enabled: bool = setting(True, title="Enabled", tip="Make this sample.")
    prompt: str = setting("", widget="multiline", title="Prompt", tip="What to draw.")
    negative_prompt: str = setting(
        "", widget="multiline", title="Negative prompt", tip="What to stay away from."
    )
    width: int = setting(512, ge=64, le=8192, multiple_of=8, title="Width", tip="In pixels, a multiple of 8.")
    height: int = setting(
        512, ge=64, le=8192, multiple_of=8, title="Height", tip="In pixels, a multiple of 8."
    )
    seed: int = setting(
        42,
        ge=0,
        le=MAX_SEED,
        visible="!.random_seed",
        title="Seed",
        tip="The same seed gives the same noise, so samples of one run can be compared.",
    )
    random_seed: bool = setting(
        False,
        title="Other seed each time",
        tip="Take another seed at each sampling; which one follows from the step.",
    )
    diffusion_steps: int = setting(20, ge=1, le=1000, title="Steps", tip="Denoising steps.")
    cfg_scale: Float = setting(
        7.0, ge=0, le=100, title="CFG scale", tip="Strength of the prompt; 1 is without guidance."
    )
    noise_scheduler: NoiseScheduler = setting(
        NoiseScheduler.DDIM, title="Sampler", tip="The method that turns noise into an image."
    )

    def seed_at(self, step: int) -> int:
        """The seed at a step of the run: ``seed``, or with ``random_seed`` one that follows from both."""
        return digest64("sample", self.seed, step) % (MAX_SEED + 1) if self.random_seed else self.seed

    @classmethod
    def load_all(
        cls, source: str | os.PathLike[str] | Sequence[Any], base_dir: str | os.PathLike[str] | None = None
    ) -> list[SampleConfig]:
        """Read a list of samples from a JSON file or plain data; see ``ConceptConfig.load_all``."""
        return load_list(
            cls, source, Path(base_dir) if base_dir is not None else None, "samples", "sample list"
        )
