"""The in-tree pipeline module: the contract of the ``mgds`` package, safe to use from several threads.

A module names its inputs and outputs. For item ``index`` of ``variation``, it requests its inputs from
earlier modules. Items are computed on demand, only as far back as necessary, and the last one is cached per
thread.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from typing import Any, Protocol

from modules.util.rng import python_random

Values = dict[str, Any]


class _Pipeline(Protocol):
    modules: list[Any]


class PipelineModule(ABC):
    """One step of a pipeline.

    ``length``, ``get_inputs`` and ``get_outputs`` describe its inputs and outputs; ``get_item`` comes from
    the access type mixed in.
    """

    pipeline: _Pipeline

    def __init__(self) -> None:
        super().__init__()
        self._base_seed = 0
        self._module_index = 0
        self.clear_item_cache()

    def init(self, pipeline: _Pipeline, base_seed: int, module_index: int) -> None:
        """Called once by the pipeline that contains the module."""
        self.pipeline = pipeline
        self._base_seed = base_seed
        self._module_index = module_index

    def clear_item_cache(self) -> None:
        """Clear the cached item and length."""
        self._local = threading.local()
        self._length: int | None = None
        self._sources: dict[str, list[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()

    def _before(self, name: str) -> list[Any]:
        """Earlier modules that provide ``name``, nearest first."""
        if name not in self._sources:
            earlier = reversed(self.pipeline.modules[: self._module_index])
            self._sources[name] = [module for module in earlier if name in module.get_outputs()]
        return self._sources[name]

    def _get_previous_item(self, variation: int, name: str, index: int) -> Any:
        """The value of ``name`` from an earlier module; ``a.b`` is entry ``b`` of ``a``.

        If a module returns ``None``, the request passes to the previous one.
        """
        head, *path = name.split(".")
        value: Any = None
        for module in self._before(head):
            value = _recall(module, variation, index, head)
            if value is not None:
                break
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        return value

    def _get_previous_length(self, name: str) -> int:
        module = self._before(name.split(".")[0])[0]
        if module._length is None:
            module._length = module.length()
        return int(module._length)

    def _get_previous_meta(self, variation: int, name: str) -> Any:
        return self._before(name)[0].get_meta(variation, name)

    def _get_rand(self, variation: int, index: int = -1) -> random.Random:
        """A random stream of this module for (variation, index)."""
        return python_random("pipeline", self._base_seed, self._module_index, variation, index)

    @abstractmethod
    def length(self) -> int:
        """Number of items of this module."""

    @abstractmethod
    def get_inputs(self) -> list[str]:
        """Names of its inputs."""

    @abstractmethod
    def get_outputs(self) -> list[str]:
        """Names of its outputs."""


class RandomAccessPipelineModule(ABC):
    """Access type of modules that provide any item of any variation at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.started = False

    def start(self, variation: int) -> None:  # noqa: B027
        """Called once before the first item. Most modules do nothing."""

    def get_meta(self, variation: int, name: str) -> Any:
        """Facts about the module as a whole; none by default."""
        return None

    @abstractmethod
    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> Values:
        """An item, or at least its field ``requested_name``."""


def _recall(module: Any, variation: int, index: int, name: str) -> Any:
    local = module._local
    if getattr(local, "at", None) != (variation, index):
        local.at, local.item = (variation, index), {}
    if name not in local.item:
        item = module.get_item(variation, index, name)
        # the call may have passed through this module for another item, so keep only what belongs together
        if local.at == (variation, index):
            local.item.update(item)
        return item[name]
    return local.item[name]
