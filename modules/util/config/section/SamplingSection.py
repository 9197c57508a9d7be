from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.setting import PathText, setting
from modules.util.enum.choices import ImageFormat, TimeUnit


class SamplingSection(BaseConfig):
    """Images made during training, to follow its progress."""

    SECTION: ClassVar[str] = "Sampling"

    sample_definition_file_name: PathText = setting(
        "training_samples/samples.json",
        widget="file",
        free=True,
        title="Sample file",
        group="Samples",
        tip="The list of samples to make. Not read if the config itself contains the samples.",
    )
    samples: list[SampleConfig] | None = setting(
        None,
        hidden=True,
        free=True,
        title="Samples",
        group="Samples",
        tip="The samples themselves; null reads them from the sample file.",
    )
    sample_model_name: PathText = setting(
        "",
        widget="model",
        visible="training_method=LORA|EMBEDDING",
        free=True,
        title="Sampling model",
        group="Samples",
        tip="Make the samples with another denoiser, usually the distilled version of the base model: a folder, a file "
        "or a Hugging Face name. The trained adapter or embedding is applied to it while a sample is made. "
        "Samples without their own steps and CFG use the defaults of this model. Empty: the base model.",
    )
    sample_after: int = setting(
        0,
        ge=0,
        le=1_000_000_000,
        visible="!sample_after_unit=NEVER|ALWAYS",
        free=True,
        title="Sample every",
        group="When",
        tip="Interval between samplings, in the unit next to it.",
    )
    sample_after_unit: TimeUnit = setting(
        TimeUnit.NEVER,
        free=True,
        title="Sampling unit",
        group="When",
        tip="Unit of the sampling interval. NEVER: no samples. ALWAYS: after each step.",
    )
    sample_skip_first: int = setting(
        0,
        ge=0,
        le=1_000_000_000,
        visible="!sample_after_unit=NEVER",
        free=True,
        title="Skipped samplings",
        group="When",
        tip="Skip this many samplings at the start, when images change little. Samples before training are still made.",
    )
    sample_before_training: bool = setting(
        False,
        free=True,
        title="Sample before training",
        group="When",
        tip="Make the samples once before the first step, for comparison.",
    )
    sample_image_format: ImageFormat = setting(
        ImageFormat.JPG, free=True, title="Image format", group="Files", tip="PNG is exact, JPG is small."
    )
    non_ema_sampling: bool = setting(
        False,
        visible="!ema=OFF",
        free=True,
        title="Samples without EMA",
        group="Files",
        tip="Make each sample a second time with the trained weights instead of their average.",
    )
