from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modules.dataLoader.pipelineModules.PairByFilename import PairByFilename
from modules.dataLoader.source import UnitSet, pair_concepts
from modules.pipeline.Node import Node
from modules.pipeline.nodes.SourceItems import SourceItems
from modules.pipeline.Pipeline import Pipeline
from modules.pipeline.PipelineDataset import PipelineDataset


class DataLoaderMgdsMixin:
    """Turns concepts into a pipeline."""

    @staticmethod
    def pair_concepts(concepts: Sequence[Any], validation: bool = False) -> list[tuple[Any, Any]]:
        """Pair enabled chosen and rejected concepts in config order; see ``source.pair_concepts``."""
        return pair_concepts(concepts, validation)

    @staticmethod
    def first_module(units: UnitSet) -> Node:
        """The first module of a pipeline for these units."""
        return PairByFilename(units.entries) if units.dpo else SourceItems(units.entries)

    @staticmethod
    def create_dataset(modules: Sequence[Any], outputs: Sequence[str], seed: int) -> PipelineDataset:
        """Chain modules and deliver their items as a torch dataset."""
        return PipelineDataset(Pipeline(modules, outputs, seed))
