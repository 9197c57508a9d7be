"""Prompts of the run's samples, encoded before the denoiser is moved to the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.dataLoader.create import sides_multiple
from modules.dataLoader.progress import Progress, report
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.sample_images import (
    kept_name,
    reading_as,
    sample_texts,
    seen_sources,
)
from modules.trainer.evaluate.sample_sources import sample_sources
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import TimeUnit


def are_samples_due(config: TrainConfig) -> bool:
    """Return whether a run makes samples without a command."""
    return config.sample_before_training or config.sample_after_unit is not TimeUnit.NEVER


def keep_sample_texts(
    setup: BaseModelSetup,
    model: Model,
    samples: Sequence[SampleConfig],
    progress: Progress,
    source_resolution: int | None = None,
) -> None:
    """Encode the prompts of enabled samples, so that making them needs no text encoder. With a trained text
    encoder, they change and are encoded again each time.

    Args:
        source_resolution: side of a square of the area of images that are edited; ``None`` for that of the sample.

    Raises:
        LoadingCancelled: ``progress`` cancelled it.
    """
    if model.trains_text:
        return
    with model.as_sampled():
        published = model.published
    filled = [sample.filled(model.spec, published) for sample in samples if sample.enabled]
    missing: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[torch.Tensor, ...], SampleConfig]] = {}
    for one in filled:
        texts = sample_texts(model, [one.prompt], [one.negative_prompt], one.cfg_scale)
        shown: tuple[torch.Tensor, ...] = ()
        if model.spec.sees_sources:
            shown = sample_sources(one, sides_multiple(setup, model), source_resolution)
        with reading_as(model, one.config.reading()):
            name = kept_name(model, texts, shown)
        if name not in model.kept_texts:
            missing[name] = (texts, shown, one.config)
    if not missing:
        return
    report(progress, "encoding prompts of samples", 0, len(missing))
    with model.borrowed_encoders():
        for done, (name, (texts, shown, sample)) in enumerate(missing.items(), 1):
            seen = seen_sources(model, shown, len(texts))
            with reading_as(model, sample.reading()):
                model.kept_texts[name] = setup.encode_text(model, texts, seen=seen).to("cpu")
            report(progress, "encoding prompts of samples", done, len(missing))
