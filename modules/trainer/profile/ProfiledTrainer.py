from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.runner.RunDirectory import RunDirectory
from modules.trainer.callbacks import Callback
from modules.trainer.distributed import Processes
from modules.trainer.GenericTrainer import GenericTrainer
from modules.trainer.profile.sections import (
    BACKWARD,
    CLIP,
    FORWARD,
    NOISE,
    OPTIMIZER,
    READING,
    REST,
    SectionRanges,
    Sections,
    SectionTimes,
    table,
)
from modules.util.config.TrainConfig import TrainConfig
from modules.util.owned_files import Owned

WARM_UP = 3
"""Initial steps to skip: they allocate memory, compile and open files for the first time."""
FOLDER = "profile"
TABLE, TRACE, MEMORY = "table.txt", "trace.json.gz", "memory.pickle"
EVENTS_OF_MEMORY = 1_000_000
"""Maximum number of allocations in the memory history; older ones are dropped."""


class ProfiledTrainer(GenericTrainer):
    """A run that also measures where the time of its steps is spent. The weights are those of a plain run.

    Some steps are timed, then as many are traced, because tracing itself takes time. Both begin after the
    warm-up, or earlier in a short run. The results are in the subfolder ``profile`` of the run.

    Args:
        steps: number of steps to time, and to trace.
    """

    def __init__(
        self, config: TrainConfig, run: RunDirectory, callback: Callback, processes: Processes, steps: int
    ) -> None:
        super().__init__(config, run, callback, processes)
        self.results: list[str] = []
        """The table of times, and the location of the files."""
        self._wanted = steps
        self._timed_from = self._traced_from = self._traced_to = 0
        self._sections: Sections | None = None
        self._window, self._step = ExitStack(), ExitStack()
        self._owned = Owned(run.path / FOLDER, local=True)

    def train(self) -> str:
        first, left = self.progress.global_step, self.total_steps - self.progress.global_step
        steps = min(self._wanted, left // 2)
        if not steps:
            self.callback.warning("nothing is profiled: the run has fewer than 2 steps left")
        self._timed_from = first + min(WARM_UP, left - 2 * steps)
        self._traced_from = self._timed_from + steps
        self._traced_to = self._traced_from + steps
        with self._window, self._step:
            return super().train()

    # -- where sections begin and end --------------------------------------------------------------------------

    def _groups(self) -> Generator[AccumulationGroup | None]:
        with closing(super()._groups()) as groups:
            while True:
                self._step_begins(self.progress.global_step)
                with self._within(READING):
                    try:
                        group = next(groups)
                    except StopIteration:
                        return
                yield group

    def _gradients(self, group: AccumulationGroup, step: int) -> None:
        with self._within(NOISE):
            super()._gradients(group, step)

    def _backward(self, loss: torch.Tensor) -> None:
        with self._within(BACKWARD):
            super()._backward(loss)

    def _clip(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        with self._within(CLIP):
            return super()._clip(gradients)

    def _update(self) -> None:
        with self._within(OPTIMIZER):
            super()._update()

    def _do_what_is_due(self, epoch_ended: bool) -> None:
        # samples and backups are not part of a step
        self._step.close()
        super()._do_what_is_due(epoch_ended)

    @contextmanager
    def _within(self, name: str) -> Iterator[None]:
        if self._sections is None:
            yield
            return
        with self._sections.within(name):
            yield

    @contextmanager
    def _watching(self, sections: Sections) -> Iterator[None]:
        """Inside the block, notify ``sections`` of everything."""
        setup: Any = self.parts.setup
        self._sections = sections
        # module hooks would be compiled too
        setup.denoise, setup.encode_text = self._forward(setup.denoise), self._forward(setup.encode_text)
        try:
            yield
        finally:
            del setup.denoise, setup.encode_text
            self._sections = None

    def _forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            # passes of a rollout belong to reading the data, those of a checkpoint to the backward pass
            if self._sections is None or not self._sections.inside(NOISE):
                return function(*args, **kwargs)
            with self._sections.within(FORWARD):
                return function(*args, **kwargs)

        return timed

    # -- the windows -------------------------------------------------------------------------------------------

    def _step_begins(self, step: int) -> None:
        self._step.close()
        if step in (self._traced_from, self._traced_to):
            self._window.close()
        if step == self._timed_from < self._traced_from:
            self._window.enter_context(self._timing())
        elif step == self._traced_from < self._traced_to:
            self._window.enter_context(self._tracing())
        self._step.enter_context(self._within(REST))

    @contextmanager
    def _timing(self) -> Iterator[None]:
        times, first = SectionTimes(self.processes.device), self.progress.global_step
        with self._watching(times):
            yield
        done = self.progress.global_step - first
        if done:
            lines = [self._facts(first), *table(times.milliseconds(), done)]
            self.results += lines
            self._keep(TABLE, lambda path: _write(path, lines))

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        on_gpu, first = self.processes.device.type == "cuda", self.progress.global_step
        activities = [torch.profiler.ProfilerActivity.CPU]
        if on_gpu:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.memory._record_memory_history(max_entries=EVENTS_OF_MEMORY)
        try:
            with torch.profiler.profile(activities=activities) as profiler, self._watching(SectionRanges()):
                yield
            if self.progress.global_step > first:
                self._keep(TRACE, lambda path: _write_trace(path, profiler))
                if on_gpu:
                    self._keep(MEMORY, lambda path: torch.cuda.memory._dump_snapshot(str(path)))
        finally:
            if on_gpu:
                torch.cuda.memory._record_memory_history(enabled=None)

    def _facts(self, first: int) -> str:
        device = self.processes.device
        chip = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
        inside = "" if self.parts.fused is None else "; the optimizer steps inside the backward pass"
        return f"steps {first + 1} to {self.progress.global_step} on {chip}{inside}"

    def _keep(self, name: str, write: Callable[[Path], None]) -> None:
        try:
            with self._owned.write(name) as path:
                write(path)
            self.results.append(str(self._owned.root / name))
        except OSError as error:
            self.callback.warning(f"{self._owned.root / name} cannot be written: {error.strerror or error}")


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def _write_trace(path: Path, profiler: torch.profiler.profile) -> None:
    with tempfile.TemporaryDirectory(prefix="tastemaker-trace-") as folder:
        made = Path(folder) / TRACE
        profiler.export_chrome_trace(str(made))
        with made.open("rb") as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
