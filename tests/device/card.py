"""A pytest plugin (``-p tests.device.card``, before ``tests.device.plugin``): the product takes the test device for a
CUDA device.

PyTorch refuses the name ``cuda`` without a GPU, so what the product asks about it is asked about the test device
instead: ``device.type == "cuda"``, ``tensor.is_cuda``, ``torch.cuda`` and ``f"cuda:{index}"`` in its source. All lines
that only a run on a card reaches are executed that way. What a card computes is not what is tried here.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import sys
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import torch

from tests.device.second_device import NAME, SecondDevice, build, register

ROOMS = ("modules", "scripts")
TOTAL = 1 << 33
"""Bytes of memory that the device says it has."""


class AskedOfTheTestDevice(ast.NodeTransformer):
    """Lets a source ask about the test device what it asks about CUDA devices."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.left, ast.Attribute) and node.left.attr == "type":
            node.comparators = [self._named(one) for one in node.comparators]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        of_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
        if (node.attr == "cuda" and of_torch) or node.attr == "is_cuda":
            node.attr = node.attr.replace("cuda", NAME)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and first.value == "cuda:":
            first.value = f"{NAME}:"
        return node

    def _named(self, node: ast.expr) -> ast.expr:
        cuda = isinstance(node, ast.Constant) and node.value == "cuda"
        return ast.copy_location(ast.Constant(NAME), node) if cuda else node


class Changed(importlib.machinery.SourceFileLoader):
    """Loads a module of the product from its changed source, and keeps no bytecode of it."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        return compile(AskedOfTheTestDevice().visit(tree), path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Finds the product's modules as Python does, with another loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] not in ROOMS:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is not None and found.origin is not None and b"cuda" in Path(found.origin).read_bytes():
            found.loader = Changed(fullname, found.origin)
        return found


class Event:
    """A moment on the test device, which has done everything when it is asked."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._timing, self._at = enable_timing, 0.0

    def record(self, stream: object = None) -> None:
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        assert self._at, "waits for an event that was not recorded"

    def elapsed_time(self, end: Event) -> float:
        assert self._timing and end._timing
        return 1e3 * (end._at - self._at)


class History:
    """The record of allocations of ``torch.cuda.memory``."""

    def __init__(self) -> None:
        self._on = False

    def _record_memory_history(self, enabled: str | None = "all", max_entries: int = 0) -> None:
        self._on = enabled is not None

    def _dump_snapshot(self, filename: str) -> None:
        assert self._on, "nothing was recorded"
        Path(filename).write_bytes(b"snapshot")


def device_index(device: Any) -> int:
    """The index of ``"second"``, ``"second:0"`` or a device; as with a card, there is no index beyond the last."""
    index = torch.device("cpu" if device is None else device).index or 0
    assert index == 0, f"there is no device {device}"
    return index


class Card(SecondDevice):
    """What the product asks of ``torch.cuda``, answered by the test device. A question that is missing is an error."""

    Event = Event
    memory = History()

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        device_index(device)
        return TOTAL - self.live(), TOTAL

    def memory_allocated(self, device: Any = None) -> int:
        return self.live() + device_index(device)

    def max_memory_allocated(self, device: Any = None) -> int:
        return self.peak() + device_index(device)

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        device_index(device)
        self.reset_peak()

    def set_device(self, device: Any) -> None:
        device_index(device)

    def synchronize(self, device: Any = None) -> None:
        device_index(device)

    def current_stream(self, device: Any = None) -> object:
        return SimpleNamespace(device=device_index(device))

    def get_device_name(self, device: Any = None) -> str:
        return f"test card {device_index(device)}"

    def empty_cache(self) -> None:
        """It keeps no memory that is free."""


early = [name for name in sys.modules if name.split(".")[0] in ROOMS]
assert not early, f"imported before their source could be changed: {early}"
sys.meta_path.insert(0, Finder())
register(build(Path(os.environ["SECOND_DEVICE_FOLDER"])), Card)
