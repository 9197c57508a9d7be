from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from modules.dataLoader.progress import Progress, in_threads, report
from modules.dataLoader.source import DataSource, UnitSet
from modules.pipeline.cache.ContentCache import ContentCache
from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.loss_masks.MaskCells import MaskCells
from modules.pipeline.nodes.masks import HALF, CellMask
from modules.pipeline.nodes.transforms import Transform
from modules.pipeline.Rules import Rules
from modules.util.enum.choices import MaskSource

if TYPE_CHECKING:
    from modules.model.Model import Model
    from modules.util.config.TrainConfig import TrainConfig


class DataLoaderMasksMixin:
    """Which part of each image is learned. Uses the attributes of ``BaseDataLoader``."""

    config: TrainConfig
    model: Model
    units: UnitSet
    source: DataSource
    rules: list[Rules]
    files: FileIndex
    validation: bool
    threads: int
    latents: ContentCache | None
    dataset: Any
    progress: Progress | None

    @property
    def masked(self) -> bool:
        """Whether images have masks."""
        return self.config.masked_training and not self.units.dpo

    def mask_modules(self) -> list[Any]:
        """The module that reads masks, where there are any; masks have entries of their own among the latents."""
        if not self.masked:
            return []
        self._mask_cells = MaskCells(
            self.source.masks,
            self.files,
            self.model.latent_factor,
            alpha=self.config.mask_source is MaskSource.ALPHA,
            cache=self.latents,
            # validation measures the same every time
            ignored=0.0 if self.validation else self.config.unmasked_probability,
            seed=self.config.seed,
        )
        return [self._mask_cells]

    _mask_cells: MaskCells

    def loss_masks(self, items: Sequence[dict[str, Any]]) -> torch.Tensor | None:
        """How much of each cell is learned, (B, 1, h, w); ``None`` without masks."""
        if not self.masked:
            return None
        return torch.from_numpy(np.stack([item["cells"] for item in items]))[:, None]

    def both_masks(self, item: Item, transform: Transform) -> tuple[CellMask, CellMask]:
        """What a model that paints into images may have to paint of an image: what its mask says, and everything."""
        white = np.ones([side // self.model.latent_factor for side in transform.size], dtype=np.float32)
        cells = (
            white if self._mask_cells.key(item, transform) is None else self._mask_cells.make(item, transform)
        )
        return CellMask(cells >= HALF), CellMask(white >= HALF)

    def keep_masks(self, share: slice) -> None:
        """Put what masks come to into the cache.

        Args:
            share: which of the visits this process does.
        """
        if not self.masked:
            return
        visits = [
            (item, self._transform(number, visit))
            for number, item in enumerate(self.units.entries)
            for visit in range(self.rules[item.concept].variations)
        ][share]

        def keep(one: tuple[Item, Transform]) -> None:
            self._mask_cells.keep(*one)

        for done, _ in enumerate(in_threads(keep, visits, self.threads, 64), 1):
            if done % 64 == 0 or done == len(visits):
                report(self.progress, "reading masks", done, len(visits))

    def _transform(self, number: int, visit: int) -> Transform:
        made: Transform = self.dataset.pipeline.get("transform", visit, number)
        return made
