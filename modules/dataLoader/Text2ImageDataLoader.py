from __future__ import annotations

import logging
import math
from collections.abc import Container, Iterator, Sequence
from typing import Any, TypeVar

import psutil

from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.collector import no_search_for_cycles
from modules.dataLoader.long_prompts import told_of
from modules.dataLoader.mixin.DataLoaderMgdsMixin import DataLoaderMgdsMixin
from modules.dataLoader.mixin.DataLoaderText2ImageMixin import DataLoaderText2ImageMixin, EncodeTask
from modules.dataLoader.mixin.DataLoaderTextsMixin import TextTask
from modules.dataLoader.progress import in_threads, reported
from modules.dataLoader.source import TOGETHER
from modules.dataLoader.unused_words import check_words_are_used
from modules.pipeline.cache.CompleteSets import CompleteSets
from modules.pipeline.cache.ContentCache import ContentCache
from modules.pipeline.nodes.CachedTensors import content_key

_log = logging.getLogger(__name__)
T = TypeVar("T")
MOST_AHEAD = 8
"""Maximum number of images waiting to be encoded; more would not be faster."""
BYTES_OF_A_PIXEL = 15
"""Memory of a pixel as decoded, and as floating-point numbers."""
SAMPLE = 64
"""Maximum number of entries that are looked for before a set is believed to be complete."""


class Text2ImageDataLoader(DataLoaderText2ImageMixin, DataLoaderMgdsMixin, BaseDataLoader):
    """Images or pairs with their prompts, encoded once and cached on disk."""

    def _make_dataset(self) -> Any:
        modules = [self.first_module(self.units), *self.modules()]
        return self.create_dataset(modules, self.outputs(), self.config.seed)

    def prepare(self) -> None:
        self.check_pair_masks()
        prompts = list(self.all_prompts())
        if not self.validation:
            check_words_are_used(self.model, prompts)
        if self.latents is not None:
            self.latents_of = self.latent_identity()
            self._prepare_latents()
        if self.texts is not None:
            self.texts_of = self.text_identity()
            self._prepare_texts(prompts)
        if self.rank == 0:
            if told := told_of(self.cut_prompts(prompts), len(prompts)):
                _log.warning("%s", told)
            self.prompts.flush()

    def keep_texts(self, encoders: str) -> None:
        self.trains_text = False
        self.texts = self.text_cache()
        self.dataset = self._make_dataset()
        self.texts_of = content_key(self.text_identity(), encoders)
        self._prepare_texts(list(self.all_prompts()))

    def _prepare_latents(self) -> None:
        assert self.latents is not None
        self._digest_files()
        self.keep_outlines()
        complete, whole = CompleteSets(self.latents), self.latent_set()
        known = whole is not None and whole in complete and not self.latents.missing(self._sample_of_images())
        # each process decides before another one adds entries
        self._wait_for_others()
        tasks = [] if known else self._latent_tasks()
        missing = set(self.latents.missing(task.key for task in tasks))
        try:
            self.fill([task for task in self._share(tasks) if task.key in missing])
            self.keep_masks(slice(self.rank, None, self.world_size))
            self.latents.compact()
        finally:
            self.latents.close()
        self._wait_for_others()
        self.latents.rescan()
        if whole and not known and self.rank == 0 and not self.latents.missing(task.key for task in tasks):
            complete.add(whole)

    def _sample_of_images(self) -> Iterator[str]:
        """Keys of some images as they are now, so that a wrong note of a complete set is noticed."""
        for unit in _spread(range(len(self.units)), SAMPLE // len(self.sides)):
            entry = self.units.entries[unit]
            for side in self.sides:
                item = getattr(entry, side[:-1]) if side else entry
                yield self.latent_key(item, self._plans[side].plan(item, entry.id, 0)[1])

    @no_search_for_cycles()
    def _latent_tasks(self) -> list[EncodeTask]:
        """Images to encode, grouped by size."""
        assert self.latents is not None
        tasks: list[EncodeTask] = []
        total = len(self.units) * len(self.sides)
        for done, task in enumerate(self.encode_tasks(self._needs_no_task(self.latents)), 1):
            if task is not None:
                tasks.append(task)
            if done % 256 == 0:
                self._report("looking through the cache", min(done, total), total)
        return sorted(tasks, key=lambda task: (task.size, task.unit, task.visit, task.side))

    def _needs_no_task(self, cache: ContentCache) -> Container[str]:
        """Keys to skip immediately. Several processes divide all tasks, so that their shares do not depend on
        what another one has written in the meantime.
        """
        return cache if self.world_size == 1 else ()

    def _share(self, everything: Sequence[T]) -> Sequence[T]:
        """The share that this process encodes: every W-th task, cached or not, so that it does not depend on
        what other processes have written in the meantime.
        """
        return everything[self.rank :: self.world_size]

    def _digest_files(self) -> None:
        paths = self.files.without_digest(path for item in self.units.items() for path in item.paths)
        digests = in_threads(self.files.digest, paths, self.threads, 256, TOGETHER)
        for _ in reported(digests, self.progress, "reading images", len(paths)):
            pass
        self.files.flush()

    def fill(self, tasks: Sequence[EncodeTask]) -> None:
        """Encode images and add them to the cache."""
        assert self.latents is not None
        if not tasks:
            return
        self._report("encoding images", 0, len(tasks))
        ahead = self._images_ahead(tasks) + 2 * self.threads
        pixels = in_threads(self.pixels, tasks, self.threads, ahead)
        with self.on_device(self.setup.spec.vae):
            for done, (task, image) in enumerate(zip(tasks, pixels, strict=True), 1):
                self.latents.put(task.key, {"latents": self.encode_images([image])[0]})
                self._report("encoding images", done, len(tasks))

    def _images_ahead(self, tasks: Sequence[EncodeTask]) -> int:
        """The number of decoded images that may wait: the configured number, or as many as fit into a tenth of
        the free memory.
        """
        if self.config.cache_batch_size is not None:
            return self.config.cache_batch_size
        largest = max(task.size[0] * task.size[1] * BYTES_OF_A_PIXEL for task in tasks)
        return int(max(1, min(MOST_AHEAD, psutil.virtual_memory().available // (10 * largest))))

    def _prepare_texts(self, prompts: Sequence[str]) -> None:
        assert self.texts is not None
        complete, whole = CompleteSets(self.texts), self.text_set(prompts)
        sample = (self.text_key(prompt) for prompt in _spread(prompts, SAMPLE))
        known = whole is not None and whole in complete and not self.texts.missing(sample)
        # each process decides before another one adds entries
        self._wait_for_others()
        tasks = {} if known else self.text_tasks(prompts, self._needs_no_task(self.texts))
        missing = set(self.texts.missing(tasks))
        try:
            self._encode_texts({key: tasks[key] for key in self._share(list(tasks)) if key in missing})
            self.texts.compact()
        finally:
            self.texts.close()
        self._wait_for_others()
        self.texts.rescan()
        if whole and not known and self.rank == 0 and not self.texts.missing(tasks):
            complete.add(whole)

    def _encode_texts(self, tasks: dict[str, TextTask]) -> None:
        assert self.texts is not None
        if not tasks:
            return
        self._report("encoding prompts", 0, len(tasks))
        with self.on_device(*self.model.text_encoders):
            for done, (key, task) in enumerate(tasks.items(), 1):
                self.texts.put(key, self.encode_task(task))
                self._report("encoding prompts", done, len(tasks))


def _spread(many: Sequence[T], most: int) -> Sequence[T]:
    """Up to ``most`` elements at equal distances."""
    return many[:: max(1, math.ceil(len(many) / most))]
