"""Makes sample images during training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from modules.dataLoader.create import sides_multiple
from modules.dataLoader.long_prompts import told_of
from modules.model.memory import give_back
from modules.model.Model import Model
from modules.model.noising.sampling import SamplingCancelled
from modules.modelSetup import sample_images
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.sample_images import SampleRequest, check_sample, reading_as, unguided
from modules.runner.events import SAMPLING
from modules.trainer.evaluate.image_files import parameters_text, sample_folder, save_image
from modules.trainer.evaluate.sample_painting import check_painting, painting
from modules.trainer.evaluate.sample_sources import check_sample_sources, sample_sources
from modules.util.config.SampleConfig import FilledSample, SampleConfig
from modules.util.enum.choices import ImageFormat
from modules.util.errors import UserError, refused_as
from modules.util.TrainProgress import TrainProgress

_log = logging.getLogger(__name__)
Tell = Callable[[str, int, int], bool | None]
"""Called with (name of the work, done, total); returning ``False`` cancels."""


class Sampler:
    """Makes the run's samples.

    Args:
        samples: samples to make; disabled ones are skipped.
        folder: parent of the samples' folders.
    """

    def __init__(
        self,
        setup: BaseModelSetup,
        model: Model,
        samples: Sequence[SampleConfig],
        folder: Path,
        kind: ImageFormat,
        source_resolution: int | None = None,
    ) -> None:
        self._source_resolution = source_resolution
        self._setup, self._model = setup, model
        with model.as_sampled():
            published = model.published
        self._samples = [
            (n, sample.filled(model.spec, published)) for n, sample in enumerate(samples) if sample.enabled
        ]
        self._folder, self._ending = folder, kind.value.lower()

    def __len__(self) -> int:
        return len(self._samples)

    def check(self) -> None:
        """Raise ``UserError`` if a sample has a size, a sampler or a source that this model cannot use.
        Settings without effect give a warning.
        """
        wanted = [sample.config for _, sample in self._samples]
        check_sample_sources(self._model.spec, wanted)
        check_painting(self._model.spec, wanted)
        with self._model.as_sampled():
            for _, sample in self._samples:
                check_sample(self._setup, self._model, sample)
        if told := self._told_of_cut_prompts():
            _log.warning("%s", told)
        spec = self._model.spec
        if told := unguided(self._model, max((s.cfg_scale for _, s in self._samples), default=1.0)):
            _log.warning("%s", told)
        idle = [
            s
            for _, s in self._samples
            if s.negative_prompt and (not spec.reads_negatives or s.cfg_scale <= 1)
        ]
        if idle:
            _log.warning(
                "the negative prompts of %d of %d samples have no effect: %s; the first is %.80r",
                len(idle),
                len(self._samples),
                spec.unread_negatives or "a CFG scale of 1 or less does not use them",
                idle[0].negative_prompt,
            )

    def _told_of_cut_prompts(self) -> str:
        """A warning about prompts that are longer than is read of them; empty if there are none."""
        cut: list[str] = []
        for _, sample in self._samples:
            with reading_as(self._model, sample.config.reading()):
                cut += self._setup.cut_prompts(self._model, [sample.prompt, sample.negative_prompt])
        return told_of(cut, 2 * len(self._samples), "prompts and negative prompts of samples")

    def run(self, progress: TrainProgress, suffix: str, tell: Tell) -> Iterator[tuple[int, str, Path]]:
        """Make all samples with the current weights, yielding (number, prompt, file) of each.

        If cancelled, it ends after the finished samples.

        Args:
            suffix: appended to folder names (`` - no-ema``).

        Raises:
            UserError: a sample cannot be written or, raised after all others are made, some did not fit into
                memory.
        """
        too_large: list[FilledSample] = []
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        name = f"{stamp}-training-sample-{progress.label()}.{self._ending}"
        count = len(self._samples)
        for place, (number, sample) in enumerate(self._samples, 1):
            what = f"{SAMPLING} {place} of {count}, denoising step"
            report = partial(tell, what)
            seed = sample.config.seed_at(progress.global_step)
            try:
                rgb_BCHW = self._image(sample, seed, report)
            except SamplingCancelled:
                break
            if rgb_BCHW is None:
                too_large.append(sample)
                continue
            path = sample_folder(self._folder, number, sample.prompt, suffix) / name
            text = parameters_text(sample, seed, self._model.sampled_name)
            with refused_as(
                f"the sample {path} cannot be written", hint="make room on the disk of the workspace"
            ):
                save_image(rgb_BCHW[0], path, text)
            yield number, sample.prompt, path
        if too_large:
            sizes = sorted({f"{width}x{height}" for height, width in (sample.size for sample in too_large)})
            raise UserError(
                f"{len(too_large)} of {len(self._samples)} samples were not made: the device's memory is too small "
                f"for {', '.join(sizes)} during training",
                field="samples",
                hint=(
                    "make the samples smaller, choose a weight_dtype with fewer bits for the frozen parts, or "
                    "keep ema on the CPU"
                ),
            )

    def _image(
        self, sample: FilledSample, seed: int, report: Callable[[int, int], object]
    ) -> torch.Tensor | None:
        """(1, 3, H, W); ``None`` if the device has too little memory for it."""
        try:
            multiple = sides_multiple(self._setup, self._model)
            sources = sample_sources(sample, multiple, self._source_resolution)
            painted = painting(sample, self._model.latent_factor)
            request = SampleRequest.of(sample, seed, sources, painted)
            return sample_images.sample(self._setup, self._model, request, report)
        except torch.OutOfMemoryError as error:
            _log.warning("a sample of %dx%d was not made: %s", *reversed(sample.size), error)
        # only now is the memory held by the error released
        give_back(self._model.device)
        return None
