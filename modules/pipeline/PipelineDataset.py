"""A pipeline as an ordinary torch dataset."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from modules.pipeline.Pipeline import Pipeline


class PipelineDataset(Dataset[dict[str, Any]]):
    """Items by index, or by (index, variation), as used by the samplers here.

    ``DataLoader(dataset, batch_sampler=...)`` works with both.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        pipeline.start()

    def __len__(self) -> int:
        return self.pipeline.length()

    def __getitem__(self, index: int | tuple[int, int]) -> dict[str, Any]:
        position, variation = index if isinstance(index, tuple) else (index, 0)
        if not -len(self) <= position < len(self):
            raise IndexError(f"item {position} of {len(self)}")
        return self.pipeline.get_item(variation, position % len(self))
