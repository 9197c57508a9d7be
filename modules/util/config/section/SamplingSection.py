from functools import partial
from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.setting import PathText, setting
from modules.util.enum.choices import ImageFormat, TimeUnit

_samples = partial(setting, group="Samples", free=True)
_when = partial(setting, group="When", free=True)
_files = partial(setting, group="Files", free=True)


class SamplingSection(BaseConfig):
    """Images made during training, to follow its progress."""

    SECTION: ClassVar[str] = "Sampling"

    sample_definition_file_name: PathText = _samples(
        "training_samples/samples.json",
        widget="file",
        title="Sample file",
        tip="The list of samples to make. Not read if the config itself contains the samples.",
    )
    samples: list[SampleConfig] | None = _samples(
        None,
        hidden=True,
        tip="The samples themselves; null reads them from the sample file.",
    )
    sample_model_name: PathText = _samples(
        "",
        widget="model",
        visible="training_method=LORA|EMBEDDING",
        title="Sampling model",
        tip="Make the samples with another denoiser, usually the distilled version of the base model: a folder, a file "
        "or a Hugging Face name. The trained adapter or embedding is applied to it while a sample is made. "
        "Samples without their own steps and CFG use the defaults of this model. Empty: the base model.",
    )
    sample_after: int = _when(
        0,
        within=(0, 1_000_000_000),
        visible="!sample_after_unit=NEVER|ALWAYS",
        title="Sample every",
        tip="Interval between samplings, in the unit next to it.",
    )
    sample_after_unit: TimeUnit = _when(
        TimeUnit.NEVER,
        title="Sampling unit",
        tip="Unit of the sampling interval. NEVER: no samples. ALWAYS: after each step.",
    )
    sample_skip_first: int = _when(
        0,
        within=(0, 1_000_000_000),
        visible="!sample_after_unit=NEVER",
        title="Skipped samplings",
        tip="Skip this many samplings at the start, when images change little. Samples before training are still made.",
    )
    sample_before_training: bool = _when(
        False,
        tip="Make the samples once before the first step, for comparison.",
    )
    sample_image_format: ImageFormat = _files(
        ImageFormat.JPG, title="Image format", tip="PNG is exact, JPG is small."
    )
    non_ema_sampling: bool = _files(
        False,
        visible="!ema=OFF",
        title="Samples without EMA",
        tip="Make each sample a second time with the trained weights instead of their average.",
    )
