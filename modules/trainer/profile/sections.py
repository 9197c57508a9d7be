"""Measures which part of an optimizer step is running, and for how long."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

READING, FORWARD, BACKWARD, OPTIMIZER, CLIP, NOISE, REST = SECTIONS = (
    "reading the data",
    "forward",
    "backward",
    "optimizer",
    "clip",
    "loss, noise, target",
    "rest",
)
WIDTH = max(map(len, SECTIONS))


class Sections:
    """Notified when sections begin and end. Sections are nested; the time of an inner one does not count for
    the outer one.
    """

    def __init__(self) -> None:
        self._stack: list[str] = []

    def inside(self, name: str) -> bool:
        """Return whether the innermost section is this one."""
        return bool(self._stack) and self._stack[-1] == name

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """A section that lasts as long as its block."""
        self._stack.append(name)
        try:
            yield
        finally:
            self._stack.pop()


class SectionTimes(Sections):
    """Adds up the durations of sections.

    On a GPU, the marks are events in its stream, so that nothing waits for it and a section lasts as long as
    the GPU works on it. Elsewhere it is wall time.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._marks: list[tuple[Any, str | None]] = []

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        try:
            with super().within(name):
                self._mark()
                yield
        finally:
            self._mark()

    def _mark(self) -> None:
        now: Any
        if self._device.type == "cuda":
            now = torch.cuda.Event(enable_timing=True)
            now.record(torch.cuda.current_stream(self._device))
        else:
            now = time.perf_counter()
        self._marks.append((now, self._stack[-1] if self._stack else None))

    def milliseconds(self) -> dict[str, float]:
        """Total of each section. Time between two outermost sections is not counted."""
        found = dict.fromkeys(SECTIONS, 0.0)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for (begun, name), (ended, _) in zip(self._marks, self._marks[1:], strict=False):
            if name is not None:
                found[name] += (
                    begun.elapsed_time(ended) if self._device.type == "cuda" else 1e3 * (ended - begun)
                )
        return found


class SectionRanges(Sections):
    """Names sections in the trace of PyTorch's profiler."""

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        with super().within(name), torch.profiler.record_function(name):
            yield


def table(milliseconds: Mapping[str, float], steps: int) -> list[str]:
    """Lines: each section with its time per step and its share.

    Args:
        milliseconds: totals over all steps.
    """
    total = sum(milliseconds.values())
    lines = [f"{'part of a step':<{WIDTH}}  {'ms':>10}  {'share':>7}"]
    for name, spent in (*milliseconds.items(), ("whole step", total)):
        lines.append(f"{name:<{WIDTH}}  {spent / steps:>10.3f}  {spent / total if total else 0.0:>7.1%}")
    return lines
