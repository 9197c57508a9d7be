from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.long_prompts import told_of_cut_prompts
from modules.dataLoader.mixin.DataLoaderMgdsMixin import DataLoaderMgdsMixin
from modules.dataLoader.mixin.DataLoaderText2ImageMixin import DataLoaderText2ImageMixin, EncodeTask
from modules.dataLoader.progress import in_threads

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Text2ImageDataLoader(DataLoaderText2ImageMixin, DataLoaderMgdsMixin, BaseDataLoader):
    """Images or pairs with their prompts, encoded once and kept on disk."""

    def _make_dataset(self) -> Any:
        modules = [self.first_module(self.units), *self.modules()]
        return self.create_dataset(modules, self.outputs(), self.config.seed)

    def prepare(self) -> None:
        if self.latents is not None:
            self.latents_of = self.latent_identity()
            self._prepare_latents()
        if self.texts is not None:
            self.texts_of = self.text_identity()
            self._prepare_texts()
        if self.rank == 0:
            told = told_of_cut_prompts(self.setup, self.model, list(self.all_prompts()))
            if told:
                _log.warning("%s", told)

    def _prepare_latents(self) -> None:
        assert self.latents is not None
        self._digest_files()
        tasks: list[EncodeTask] = []
        total = len(self.units) * len(self.sides)
        for done, task in enumerate(self.encode_tasks(), 1):
            if task is not None:
                tasks.append(task)
            if done % 256 == 0:
                self._report("looking through the cache", min(done, total), total)
        # equal sizes together
        tasks.sort(key=lambda task: (task.size, task.unit, task.visit, task.side))
        missing = set(self.latents.missing(task.key for task in tasks))
        chunks = _chunks(tasks, self.config.cache_batch_size)
        try:
            self._encode_latents(self._share(chunks, lambda task: task.key in missing))
            self.latents.compact()
        finally:
            self.latents.close()
        self._wait_for_others()
        self.latents.rescan()

    def _share(self, chunks: list[list[T]], is_missing: Callable[[T], bool]) -> list[list[T]]:
        """The batches this process encodes: every W-th one, if anything in it is missing.

        Batches are made from everything, cached or not. So it does not matter what other processes have written
        in the meantime, and an image is always encoded in the same company: to the last bit, interrupted or not.
        """
        mine = [chunk for n, chunk in enumerate(chunks) if n % self.world_size == self.rank]
        return [chunk for chunk in mine if any(map(is_missing, chunk))]

    def _digest_files(self) -> None:
        paths = list(dict.fromkeys(item.path for item in self.units.items()))
        for done, _ in enumerate(in_threads(self.files.digest, paths, self.threads, 256), 1):
            if done % 64 == 0 or done == len(paths):
                self._report("reading images", done, len(paths))
        self.files.flush()

    def _encode_latents(self, chunks: list[list[EncodeTask]]) -> None:
        assert self.latents is not None
        total = sum(len(chunk) for chunk in chunks)
        if not total:
            return
        done = 0
        self._report("encoding images", done, total)
        every = (task for chunk in chunks for task in chunk)
        pixels = in_threads(self.pixels, every, self.threads, self.config.cache_batch_size + 2 * self.threads)
        with self.on_device(self.setup.spec.vae):
            for chunk in chunks:
                latents_BChw = self.encode_images([next(pixels) for _ in chunk])
                for task, latents_Chw in zip(chunk, latents_BChw, strict=True):
                    self.latents.put(task.key, {"latents": latents_Chw})
                done += len(chunk)
                self._report("encoding images", done, total)

    def _prepare_texts(self) -> None:
        assert self.texts is not None
        prompts = {self.text_key(prompt): prompt for prompt in self.all_prompts()}
        keys, size = list(prompts), self.config.cache_batch_size
        chunks = [keys[start : start + size] for start in range(0, len(keys), size)]
        missing = set(self.texts.missing(keys))
        try:
            self._encode_texts(prompts, self._share(chunks, missing.__contains__))
            self.texts.compact()
        finally:
            self.texts.close()
        self._wait_for_others()
        self.texts.rescan()

    def _encode_texts(self, prompts: dict[str, str], chunks: list[list[str]]) -> None:
        assert self.texts is not None
        total, done = sum(len(chunk) for chunk in chunks), 0
        if not total:
            return
        self._report("encoding prompts", done, total)
        with self.on_device(*self.model.text_encoders):
            for chunk in chunks:
                cond = self.setup.text_states(self.model, [prompts[key] for key in chunk])
                for row, key in zip(cond.unbind(), chunk, strict=True):
                    self.texts.put(key, {name: kept_exactly(tensor) for name, tensor in row.items()})
                done += len(chunk)
                self._report("encoding prompts", done, total)


def kept_exactly(tensor: torch.Tensor) -> torch.Tensor:
    """A text state as it is kept: 16 bits stay what they are, all other floating numbers are float32."""
    whole = not tensor.is_floating_point() or tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor if whole else tensor.float()


def _chunks(tasks: list[EncodeTask], size: int) -> list[list[EncodeTask]]:
    """Consecutive tasks of one image size, at most ``size`` together."""
    chunks: list[list[EncodeTask]] = []
    for task in tasks:
        if not chunks or len(chunks[-1]) == size or chunks[-1][0].size != task.size:
            chunks.append([])
        chunks[-1].append(task)
    return chunks
