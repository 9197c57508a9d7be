from __future__ import annotations

import collections
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from modules.dataLoader.progress import Progress, report
from modules.dataLoader.samplers import BucketBatchSampler, MicroBatch, Step
from modules.dataLoader.source import (
    FILE_INDEX,
    BucketTable,
    DataSource,
    UnitSet,
    check_crops,
    check_files,
    epoch_faults,
    file_faults,
    raise_faults,
)
from modules.model.batch import ImageBatch, PairBatch
from modules.pipeline.cache.ContentCache import ContentCache
from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.loss_masks.finding import CONDITION, mask_faults
from modules.pipeline.Node import THREAD_SAFE
from modules.pipeline.nodes.prompts import special_tags
from modules.util.errors import DataError
from modules.util.TrainProgress import TrainProgress

if TYPE_CHECKING:
    from modules.model.Model import Model
    from modules.modelSetup.BaseModelSetup import BaseModelSetup
    from modules.util.config.TrainConfig import TrainConfig

Batch = ImageBatch | PairBatch


class AccumulationGroup(list["Batch | None"]):
    """The micro-batches of one optimizer step in this process; ``None`` if this process has no items.

    Every process gets groups of the same length, so that they can synchronise after each micro-batch.

    Attributes:
        epoch, step: its position; ``step`` counts optimizer steps within the epoch.
        total: items (images or pairs) of the step over all processes.
        last: whether it is the last of the epoch.
    """

    def __init__(self, batches: Sequence[Batch | None], step: Step) -> None:
        super().__init__(batches)
        self.epoch, self.step, self.total, self.last = step.epoch, step.step, step.total, step.last

    @property
    def samples(self) -> int:
        """Number of items of the step in this process."""
        return sum(len(batch) for batch in self if batch is not None)


class BaseDataLoader(ABC):
    """Delivers a run's batches deterministically, from any position on.

    Args:
        model, setup: encode images and prompts during ``prepare``.
        units: the units of ``source`` to deliver.
        source: the run's data; shared by the loaders of training and validation.
        files: index of the image files.
        validation: whether to deliver every item once, in a fixed order.
        device: device of the batches.
        progress: called with the progress of ``prepare``; may cancel it.
        rank, world_size: index of this process, and number of processes.
        barrier: waits for the other processes.

    Raises:
        DataError: there are unreadable images, or pairs of different shapes (all are listed).
    """

    def __init__(
        self,
        config: TrainConfig,
        model: Model,
        setup: BaseModelSetup,
        units: UnitSet,
        source: DataSource,
        files: FileIndex,
        *,
        validation: bool = False,
        device: torch.device | str = "cpu",
        progress: Progress | None = None,
        rank: int = 0,
        world_size: int = 1,
        barrier: Callable[[], None] | None = None,
    ) -> None:
        self.config, self.model, self.setup = config, model, setup
        self.units, self.source, self.files = units, source, files
        self.rules = source.rules
        self.validation = validation
        self.device = torch.device(device)
        self.progress = progress
        self.rank, self.world_size = rank, world_size
        self._barrier = barrier
        self._pool: ThreadPoolExecutor | None = None
        self._pair_digest = ""
        self._special_tags = [special_tags(rules.text) for rules, _ in units.groups if rules.lists_tags]
        self.threads = int(config.dataloader_threads) if THREAD_SAFE else 0
        raise_faults(file_faults(check_files(source, files.size, self.threads, progress)))
        files.flush()
        raise_faults(check_crops(source, files))
        raise_faults(mask_faults(source.masks, files))
        raise_faults(mask_faults(source.conditions, files, noun=CONDITION))
        table = BucketTable.of(units, files, once=validation)
        raise_faults(epoch_faults(table))
        self.sizes = table.sizes
        self._table = table
        self.sampler = self._sampler(table)
        self.trains_text = config.trains_text() or model.trains_text
        caching = bool(config.latent_caching)
        self.latents = ContentCache(Path(config.cache_dir) / "latents") if caching else None
        self.texts = self.text_cache() if caching and not self.trains_text else None
        self.dataset = self._make_dataset()

    def _sampler(self, table: BucketTable, batch_size: int | None = None) -> BucketBatchSampler:
        return BucketBatchSampler(
            table.groups,
            batch_size or self.config.batch_size,
            1 if self.validation else self.config.gradient_accumulation_steps,
            self.config.seed,
            rank=self.rank,
            world_size=self.world_size,
            shuffle=not self.validation,
        )

    @abstractmethod
    def _make_dataset(self) -> Any:
        """The dataset whose items ``collate`` turns into batches."""

    @abstractmethod
    def prepare(self) -> None:
        """Encode everything that is not in the cache yet. Batched, cancellable and resumable.

        Raises:
            LoadingCancelled: the progress callback cancelled it. Finished work is kept.
            DataError: an image is damaged, or the cache is not writable.
        """

    @abstractmethod
    def keep_texts(self, encoders: str) -> None:
        """Cache text states from the next position on, of text encoders that were trained until now.

        Args:
            encoders: digest of the trained encoders.
        """

    @abstractmethod
    def collate(self, items: Sequence[dict[str, Any]], micro: MicroBatch, size: tuple[int, int]) -> Batch:
        """The items of a micro-batch as a batch."""

    # -- how much there is -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of images or pairs, not counting repeats."""
        return len(self.units)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of the first epoch. With fractional balancing, later ones may differ by a few."""
        return self.sampler.steps_in_epoch(0)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.config.max_steps or self.sampler.steps_in_epochs(self.config.epochs)

    # -- batches ---------------------------------------------------------------------------------------------

    def accumulation_groups(self, progress: Any) -> Iterator[AccumulationGroup]:
        """The optimizer steps of the run from a position on, to the end of the last epoch.

        With ``max_steps`` set, the number of epochs is unlimited.

        Args:
            progress: ``epoch`` and ``epoch_step`` give the starting position.
        """
        epoch, start = progress.epoch, progress.epoch_step
        yield from self._deliver(self._steps(epoch, start))

    def _steps(self, epoch: int, start: int) -> Iterator[Step]:
        if self.sampler.idle:
            raise DataError("the balancing of every concept is 0", field="concepts", hint="raise it")
        while epoch < self.config.epochs or self.config.max_steps:
            yield from self.sampler.steps(epoch, start)
            epoch, start = epoch + 1, 0

    def batches(self, batch_size: int | None = None) -> Iterator[Batch]:
        """This process's share of all images or pairs, each once, in a fixed order.

        Args:
            batch_size: batch size in this process; by default that of the run.
        """
        table = self._table if self.validation else BucketTable.of(self.units, self.files, once=True)
        sampler = BucketBatchSampler(
            table.groups,
            batch_size or self.config.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            shuffle=False,
        )
        for group in self._deliver(sampler.steps(0), table.sizes):
            yield from (batch for batch in group if batch is not None)

    def _deliver(
        self, steps: Iterator[Step], sizes: Sequence[tuple[int, int]] | None = None
    ) -> Iterator[AccumulationGroup]:
        """Yield groups in order, loading their items ahead in the loader's threads."""
        sizes = self.sizes if sizes is None else sizes
        waiting: collections.deque[tuple[Step, list[Any]]] = collections.deque()
        try:
            for step in steps:
                waiting.append((step, [self._load_soon(micro) for micro in step.micro_batches]))
                if sum(len(loads) for _, loads in waiting) > 2 * self.threads or not self.threads:
                    yield self._finish(*waiting.popleft(), sizes)
            while waiting:
                yield self._finish(*waiting.popleft(), sizes)
        finally:
            for _, loads in waiting:
                for load in loads:
                    if isinstance(load, Future):
                        load.cancel()

    def _load_soon(self, micro: MicroBatch) -> Any:
        if not self.threads:
            return self._load(micro)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="loader")
        return self._pool.submit(self._load, micro)

    def _load(self, micro: MicroBatch) -> list[dict[str, Any]]:
        return [self.dataset[visit] for visit in micro.visits]

    def _finish(self, step: Step, loads: list[Any], sizes: Sequence[tuple[int, int]]) -> AccumulationGroup:
        batches: list[Batch | None] = []
        for micro, load in zip(step.micro_batches, loads, strict=True):
            items = load.result() if isinstance(load, Future) else load
            batch = self.collate(items, micro, sizes[micro.bucket]) if items else None
            batches.append(None if batch is None else batch.to(self.device))
        return AccumulationGroup(batches, step)

    def text_cache(self) -> ContentCache:
        """The cache of text states, on disk."""
        return ContentCache(Path(self.config.cache_dir) / "texts")

    # -- for prepare -----------------------------------------------------------------------------------------

    def _report(self, what: str, done: int, total: int) -> None:
        report(self.progress, what, done, total)

    def _wait_for_others(self) -> None:
        if self._barrier is not None:
            self._barrier()

    def data_digest(self) -> str:
        """Digest of the images, captions and concepts, and of the person's certainties if these count."""
        data = hashlib.blake2b(digest_size=16)
        for rules, count in self.units.groups:
            data.update(f"{rules.name}:{count}\n".encode())
        for item in self.units.items():
            line = [item.id, *(self.files.digest(path) for path in item.paths), *item.prompts]
            if (found := self.source.masks.get(item.id)) is not None:
                line.append(f"mask {self.files.digest(found.mask)}")
            if (found := self.source.conditions.get(item.id)) is not None:
                line.append(f"condition {self.files.digest(found.mask)}")
            data.update(("\0".join(line) + "\n").encode(errors="surrogatepass"))
        for pair in self.units.entries if self.units.dpo else ():
            if pair.certainty is not None:
                data.update(f"{pair.id}\0{pair.certainty!r}\n".encode(errors="surrogatepass"))
            if pair.only:
                data.update(f"{pair.id}\0{pair.only}\n".encode(errors="surrogatepass"))
        return data.hexdigest()

    def tags_digest(self) -> str:
        """Digest of the special tags when the run began, which may be in files; empty if none act."""
        if not self._special_tags:
            return ""
        return hashlib.blake2b(repr(self._special_tags).encode(errors="surrogatepass"), digest_size=16).hexdigest()

    def pair_digest(self) -> str:
        """Digest of the pairs, independent of where their images are stored and of the order of the concepts.

        A hash of their ids, the contents of both images and the captions, as hex; empty where there are none.
        """
        if not self.units.dpo:
            return ""
        if not self._pair_digest:
            lines = [
                [
                    pair.id,
                    *([pair.only] if pair.only else []),
                    *(self.files.digest(side.path) for side in pair.items),
                    *(self.files.digest(path) for path in pair.chosen.sources),
                    *pair.chosen.prompts,
                ]
                for pair in self.units.entries
            ]
            pairs = hashlib.blake2b(digest_size=16)
            for line in sorted(lines):
                pairs.update((json.dumps(line) + "\n").encode())
            self._pair_digest = pairs.hexdigest()
        return self._pair_digest

    # -- for the training loop ------------------------------------------------------------------------------

    def facts(self) -> dict[str, object]:
        """The record of its data in a saved model. Adapters with equal records learned from the same pairs."""
        if not self.units.dpo:
            return {}
        alone = sum(bool(pair.only) for pair in self.units.entries)
        facts = {"pairs": len(self) - alone, "pairs_hash": self.pair_digest()}
        return {**facts, "single_images": alone} if alone else facts

    def warnings(self) -> list[str]:
        """Findings since the last call: none, because images on disk were checked before."""
        return []

    def ready(self, weights: Callable[[int], Any]) -> None:
        """Do nothing, because no images are made during training."""
        return

    def snapshot(self, progress: TrainProgress) -> None:
        """Return nothing: a backup needs only the position."""
        return

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any] | None) -> None:
        """Do nothing: only the position needs to be restored."""
        return

    def close(self) -> None:
        """Release threads and open files."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self.files.flush()


def open_file_index(config: TrainConfig) -> FileIndex:
    """The index of the run's image files, in its cache folder."""
    return FileIndex(Path(config.cache_dir) / FILE_INDEX)
