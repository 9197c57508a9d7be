"""Prompts of the run's samples, encoded before the denoiser is moved to the device."""

from __future__ import annotations

from collections.abc import Sequence

from modules.dataLoader.progress import Progress, report
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.sample_images import borrowed_encoders, sample_texts
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import TimeUnit


def are_samples_due(config: TrainConfig) -> bool:
    """Whether a run makes samples without a command."""
    return config.sample_before_training or config.sample_after_unit is not TimeUnit.NEVER


def keep_sample_texts(
    setup: BaseModelSetup, model: Model, samples: Sequence[SampleConfig], progress: Progress
) -> None:
    """Encode the prompts of the samples that are enabled, so that making them needs no text encoder; those of a text
    encoder that is trained change, and are encoded again each time.

    Raises:
        LoadingCancelled: ``progress`` said so.
    """
    if model.trains_text:
        return
    published = model.published
    filled = [sample.filled(model.spec, published) for sample in samples if sample.enabled]
    texts = {sample_texts(model, [one.prompt], [one.negative_prompt], one.cfg_scale): None for one in filled}
    missing = [one for one in texts if one not in model.kept_texts]
    if not missing:
        return
    report(progress, "encoding prompts of samples", 0, len(missing))
    with borrowed_encoders(model):
        for done, one in enumerate(missing, 1):
            model.kept_texts[one] = setup.encode_text(model, one).to("cpu")
            report(progress, "encoding prompts of samples", done, len(missing))
