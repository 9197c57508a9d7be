"""A chain of modules, checked when it is built."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from modules.pipeline.Node import Node, PipelineModule


class PipelineError(RuntimeError):
    """A pipeline whose modules do not fit together. This is a bug, found when the pipeline is built."""


class Output(Node):
    """The end of a pipeline: an item holds all of ``names``."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names, names)

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        names = self._outputs if requested_name is None else [requested_name]
        return {name: self._get_previous_item(variation, name, index) for name in names}


class Pipeline:
    """Modules in order. The items of the last one are the items of the pipeline.

    Args:
        modules: in order, nested lists allowed; ``None`` entries are skipped.
        outputs: names of the fields of an item.
        seed: base of the modules' own random streams.

    Raises:
        PipelineError: a module needs an input that no earlier module provides. The message names both.
    """

    def __init__(self, modules: Iterable[Any], outputs: Sequence[str], seed: int = 0) -> None:
        self._output = Output(outputs)
        self.modules: list[Any] = [*_flatten(modules), self._output]
        self._check()
        self._given = {name for module in self.modules for name in module.get_outputs()}
        for index, module in enumerate(self.modules):
            _init(module, self, seed, index)

    def _check(self) -> None:
        known: set[str] = set()
        for index, module in enumerate(self.modules):
            missing = [name for name in module.get_inputs() if name.split(".")[0] not in known]
            if missing:
                raise PipelineError(
                    f"{type(module).__name__} (module {index}) needs {', '.join(map(repr, missing))}, which "
                    f"no module before it gives; known here: {', '.join(sorted(known)) or 'nothing'}"
                )
            known.update(module.get_outputs())

    def start(self, variation: int = 0) -> None:
        """Start the modules that are not started yet, in order."""
        for module in self.modules:
            if not module.started:
                module.start(variation)
                module.started = True

    def length(self) -> int:
        return self._output.length()

    def get_item(self, variation: int, index: int) -> dict[str, Any]:
        """All outputs of item ``index``. The pipeline must have been started."""
        return self._output.get_item(variation, index)

    def get(self, name: str, variation: int, index: int) -> Any:
        """A single value, even if it is not among the outputs.

        Raises:
            PipelineError: no module provides ``name``.
        """
        if name.split(".")[0] not in self._given:
            raise PipelineError(f"no module gives {name!r}")
        return self._output._get_previous_item(variation, name, index)


def _flatten(modules: Iterable[Any]) -> Iterator[PipelineModule]:
    for module in modules:
        if isinstance(module, list | tuple):
            yield from _flatten(module)
        elif module is not None:
            yield module


def _init(module: Any, pipeline: Pipeline, seed: int, index: int) -> None:
    """Initialise a module. Some releases of mgds expect a fourth argument, the shared state of a run, which
    does not exist here.
    """
    arguments: list[Any] = [pipeline, seed, index]
    if len(inspect.signature(module.init).parameters) > len(arguments):
        arguments.append(None)
    module.init(*arguments)
