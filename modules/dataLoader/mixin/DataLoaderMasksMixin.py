from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from modules.dataLoader.progress import Progress, in_threads, reported
from modules.dataLoader.source import DataSource, UnitSet
from modules.pipeline.cache.ContentCache import ContentCache
from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.loss_masks.MaskCells import MaskCells
from modules.pipeline.loss_masks.MaskOutlines import MaskOutlines
from modules.pipeline.loss_masks.PairMask import PairMask
from modules.pipeline.nodes.masks import HALF, CellMask
from modules.pipeline.nodes.transforms import Transform
from modules.pipeline.Rules import Rules
from modules.util.display import counted
from modules.util.enum.choices import MaskSource, PairMasks
from modules.util.errors import DataError, list_offenders

if TYPE_CHECKING:
    from modules.model.Model import Model
    from modules.util.config.TrainConfig import TrainConfig


_log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")
LEAST_SHARE, MOST_SHARE = 0.005, 0.9
"""Masks of pairs that cover a smaller or larger share of the image are probably not intended."""


class DataLoaderMasksMixin:
    """The part of each image that is learned. Uses the attributes of ``BaseDataLoader``."""

    config: TrainConfig
    model: Model
    units: UnitSet
    source: DataSource
    rules: list[Rules]
    files: FileIndex
    validation: bool
    rank: int
    threads: int
    latents: ContentCache | None
    dataset: Any
    progress: Progress | None

    @property
    def masked(self) -> bool:
        """True if images have masks."""
        return self.config.masked_training and not self.units.dpo

    def mask_modules(self) -> list[Any]:
        """The module that reads masks, if there are any. Latents of masked images have cache entries of their own."""
        if not self.masked:
            return []
        # validation measures the same every time
        ignored = 0.0 if self.validation else self.config.unmasked_probability
        self._mask_cells = self._new_cells(self.latents, ignored)
        return [self._mask_cells]

    def _new_cells(self, cache: ContentCache | None, ignored: float) -> MaskCells:
        alpha = self.config.mask_source is MaskSource.ALPHA
        return MaskCells(
            self.source.masks, self.files, self.model.latent_factor, alpha=alpha, cache=cache, ignored=ignored,
            seed=self.config.seed,
        )  # fmt: skip

    _mask_cells: MaskCells
    _outlines: MaskOutlines | None

    def outlines(self) -> MaskOutlines | None:
        """White areas of masks, for concepts that crop or shrink with them. Created again with each dataset."""
        aims = self.masked and not self.validation and any(rules.aims_at_masks for rules in self.rules)
        alpha = self.config.mask_source is MaskSource.ALPHA
        self._outlines = MaskOutlines(self.source.masks, self.files, alpha, self.latents) if aims else None
        return self._outlines

    def keep_outlines(self) -> None:
        """Read the white areas of masks, and store them in the first process."""
        if self._outlines is None:
            return
        items = [item for item in self.units.entries if self.rules[item.concept].aims_at_masks]
        look = self._outlines.keep if self.rank == 0 else self._outlines.of
        for _ in self._read(look, items):
            pass

    def _read(self, function: Callable[[T], R], values: Sequence[T]) -> Iterator[R]:
        """Call a function that reads a mask for each value, in threads."""
        return reported(
            in_threads(function, values, self.threads, 64), self.progress, "reading masks", len(values)
        )

    @property
    def pairs_masked(self) -> bool:
        """True if pairs are masked."""
        return self.units.dpo and self.config.rlhf_dpo_mask is not PairMasks.OFF

    def pair_mask_modules(self) -> list[Any]:
        """The module that makes the masks of pairs, if there are any."""
        if not self.pairs_masked:
            return []
        of_files = self._new_cells(None, 0.0) if self.config.rlhf_dpo_mask is PairMasks.FILE else None
        dilate = self.config.rlhf_dpo_mask_dilate
        return [PairMask(of_files, self.files, self.model.latent_factor, dilate, self.latents)]

    def pair_masks(self, items: Sequence[dict[str, Any]]) -> torch.Tensor | None:
        """The weight of each cell, (B, 1, h, w); ``None`` without masks."""
        if not self.pairs_masked:
            return None
        return torch.from_numpy(np.stack([item["pair_mask"] for item in items]))[:, None]

    def check_pair_masks(self) -> None:
        """Check the mask of every pair, which also caches it. Masks that cover almost nothing or almost
        everything are logged.

        Raises:
            DataError: there are masks without any white.
        """
        if not self.pairs_masked:
            return
        visits = [(n, v) for n, pair in enumerate(self.units.entries) for v in range(self._looks(pair))]
        shares: dict[int, float] = {}

        def share(one: tuple[int, int]) -> tuple[int, float]:
            number, visit = one
            return number, float(self.dataset.pipeline.get("pair_mask", visit, number).mean())

        for number, found in self._read(share, visits):
            shares[number] = min(found, shares.get(number, 1.0))
        names = [pair.id for pair in self.units.entries]
        empty = [names[n] for n, found in shares.items() if found == 0]
        if empty:
            raise DataError(
                f"the mask of {counted(len(empty), 'pair')} is empty:\n{list_offenders(empty)}",
                field="rlhf_dpo_mask",
                hint="take the pairs out, or paint their masks",
            )
        small = [names[n] for n, found in shares.items() if found < LEAST_SHARE]
        large = [names[n] for n, found in shares.items() if found > MOST_SHARE]
        said = "the masks of %d of %d pairs cover %s of the image:\n%s"
        for what, odd in ((f"less than {LEAST_SHARE:.1%}", small), (f"more than {MOST_SHARE:.0%}", large)):
            if odd and self.rank == 0:
                _log.warning(said, len(odd), len(self.units), what, list_offenders(odd))

    def _looks(self, pair: Any) -> int:
        """Number of visits after which a pair looks the same again."""
        visits: int = max(self.rules[side.concept].variations for side in (pair.chosen, pair.rejected))
        return visits

    def loss_masks(self, items: Sequence[dict[str, Any]]) -> torch.Tensor | None:
        """Return how much of each cell is learned, (B, 1, h, w); ``None`` without masks."""
        if not self.masked:
            return None
        return torch.from_numpy(np.stack([item["cells"] for item in items]))[:, None]

    def both_masks(self, item: Item, transform: Transform) -> tuple[CellMask, CellMask]:
        """The areas of an image that an inpainting model may have to paint: its mask, and everything."""
        white = np.ones([side // self.model.latent_factor for side in transform.size], dtype=np.float32)
        cells = self._mask_cells.kept(item, transform)
        cells = white if cells is None else cells
        return CellMask(cells >= HALF), CellMask(white >= HALF)

    def keep_masks(self, share: slice) -> None:
        """Add the cells of masks to the cache.

        Args:
            share: the visits that this process handles.
        """
        if not self.masked:
            return
        visits = [
            (item, self._transform(number, visit))
            for number, item in enumerate(self.units.entries)
            for visit in range(self.rules[item.concept].variations)
        ][share]

        for _ in self._read(lambda one: self._mask_cells.keep(*one), visits):
            pass

    def _transform(self, number: int, visit: int) -> Transform:
        made: Transform = self.dataset.pipeline.get("transform", visit, number)
        return made
