"""Chooses the base classes of the pipeline modules.

With ``mgds`` installed (``requirements-mgds.txt``), our modules are mgds modules that can be used in its
pipelines, and its modules in ours. Without it, they use the in-tree base classes with the same contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.pipeline.base import PipelineModule, RandomAccessPipelineModule

    SOURCE: str
else:
    try:
        from mgds.PipelineModule import PipelineModule
        from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule

        SOURCE = "mgds"
    except ImportError:
        from modules.pipeline.base import PipelineModule, RandomAccessPipelineModule

        SOURCE = "in-tree"

THREAD_SAFE = SOURCE == "in-tree"
"""mgds caches the last item per module, not per thread."""

__all__ = ["SOURCE", "THREAD_SAFE", "Node", "PipelineModule", "RandomAccessPipelineModule"]


class Node(PipelineModule, RandomAccessPipelineModule):
    """A random-access module with as many items as its first input.

    Args:
        inputs, outputs: their names.
    """

    def __init__(self, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> None:
        super().__init__()
        self.started = False
        self._inputs, self._outputs = list(inputs), list(outputs)

    def length(self) -> int:
        return self._get_previous_length(self.get_inputs()[0])

    def get_inputs(self) -> list[str]:
        return self._inputs

    def get_outputs(self) -> list[str]:
        return self._outputs
