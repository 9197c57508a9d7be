"""Reports of a run: its event log, TensorBoard, a terminal, and the caller."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from modules.runner.commands import Command
from modules.runner.events import EventWriter
from modules.util.display import duration
from modules.util.TrainProgress import TrainProgress

STEP_EVENTS_PER_SECOND = 5.0
CONSOLE_SECONDS = {True: 0.2, False: 10.0}
"""Interval between progress lines on a terminal, and in a file."""


class Callback:
    """Base of callbacks. Override the methods you need. They are called in the first process, between
    optimizer steps.
    """

    def started(self, facts: Mapping[str, Any]) -> None:
        """The run is about to take its first step."""

    def memory_plan(self, plan: Mapping[str, Any]) -> None:
        """The estimated memory on the device, before the run starts."""

    def phase(self, name: str, done: int, total: int) -> None:
        """Work that is not a step: loading, caching, reference scores, sampling."""

    def step(
        self, progress: TrainProgress, metrics: Mapping[str, float], total: int, eta: float | None
    ) -> None:
        """An optimizer step is done. ``total`` is the number of steps of the run, ``eta`` the seconds left."""

    def validation(self, progress: TrainProgress, metrics: Mapping[str, float]) -> None:
        """A validation is done."""

    def sample(self, progress: TrainProgress, path: Path, prompt: str, number: int) -> None:
        """A sample image was written."""

    def backup(self, progress: TrainProgress, path: Path) -> None:
        """A backup was written."""

    def saved(self, progress: TrainProgress, path: Path) -> None:
        """The trained model was written."""

    def command(self, command: Command, state: str, message: str = "") -> None:
        """A command was ``taken``, is ``done`` or has ``failed``."""

    def votes_wanted(
        self,
        question: str,
        prompt: str,
        folder: Path,
        images: int,
        open_questions: int,
        sources: Sequence[tuple[str, Path]] = (),
    ) -> None:
        """A person is asked about images of a prompt.

        Args:
            open_questions: number of unanswered questions, including this one.
            sources: name and copy of each image that the prompt edits.
        """

    def votes_counted(self, group: int, by: str, levels: Sequence[int], teaches: bool) -> None:
        """Votes of a ``person`` or a ``head`` were counted, or there were none (``nobody``).

        Args:
            levels: one level per image: 2 best, 1 liked, 0 seen, -1 disliked.
            teaches: whether the levels differ, so that there is something to learn.
        """

    def warning(self, message: str) -> None:
        """Something the user should know."""

    def error(self, message: str, category: str, hint: str = "", traceback: str = "") -> None:
        """The run ends with an error; ``category`` is one of ``events.ERROR_CATEGORIES``."""

    def finished(self, status: str, progress: TrainProgress) -> None:
        """The run ended: ``finished``, ``stopped`` or ``failed``."""

    def close(self) -> None:
        """Close files."""


class Callbacks(Callback):
    """Calls several callbacks, in order."""

    def __init__(self, members: Sequence[Callback]) -> None:
        self.members = list(members)


def _calling_all(name: str) -> Callable[..., None]:
    def call(self: Callbacks, *args: Any, **named: Any) -> None:
        for member in self.members:
            getattr(member, name)(*args, **named)

    return call


for _name in vars(Callback):
    if not _name.startswith("_"):
        setattr(Callbacks, _name, _calling_all(_name))


class EventLog(Callback):
    """Writes ``events.jsonl``. Steps are limited to a few per second; the last one before any other event is
    kept.

    Args:
        writer: writer of the run's event file.
        root: the run's folder; paths inside it are written relative to it.
    """

    def __init__(self, writer: EventWriter, root: Path) -> None:
        self._writer, self._root = writer, root
        self._last_step = -math.inf
        self._held: dict[str, Any] | None = None

    def _path(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else str(path)

    def _flush(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._writer.emit("step", **held)

    def _emit(self, kind: str, **fields: Any) -> None:
        self._flush()
        self._writer.emit(kind, **fields)

    def started(self, facts: Mapping[str, Any]) -> None:
        self._emit("run_started", **facts)

    def memory_plan(self, plan: Mapping[str, Any]) -> None:
        self._emit("memory_plan", **plan)

    def phase(self, name: str, done: int, total: int) -> None:
        self._emit("phase", name=name, done=done, total=total)

    def step(
        self, progress: TrainProgress, metrics: Mapping[str, float], total: int, eta: float | None
    ) -> None:
        fields = {
            "progress": progress.to_dict(), "metrics": dict(metrics), "total_steps": total, "eta": eta
        }  # fmt: skip
        if time.monotonic() - self._last_step < 1.0 / STEP_EVENTS_PER_SECOND:
            self._held = fields
            return
        self._held, self._last_step = None, time.monotonic()
        self._writer.emit("step", **fields)

    def validation(self, progress: TrainProgress, metrics: Mapping[str, float]) -> None:
        self._emit("validation", progress=progress.to_dict(), metrics=dict(metrics))

    def sample(self, progress: TrainProgress, path: Path, prompt: str, number: int) -> None:
        self._emit("sample", progress=progress.to_dict(), path=self._path(path), prompt=prompt, number=number)

    def backup(self, progress: TrainProgress, path: Path) -> None:
        self._emit("backup", progress=progress.to_dict(), path=self._path(path))

    def saved(self, progress: TrainProgress, path: Path) -> None:
        self._emit("save", progress=progress.to_dict(), path=self._path(path))

    def command(self, command: Command, state: str, message: str = "") -> None:
        self._flush()
        self._writer.answer(command, state, message)

    def votes_wanted(
        self,
        question: str,
        prompt: str,
        folder: Path,
        images: int,
        open_questions: int,
        sources: Sequence[tuple[str, Path]] = (),
    ) -> None:
        self._emit(
            "votes_wanted", question=question, prompt=prompt, path=self._path(folder), images=images,
            open=open_questions, sources=[{"name": name, "path": self._path(path)} for name, path in sources],
        )  # fmt: skip

    def votes_counted(self, group: int, by: str, levels: Sequence[int], teaches: bool) -> None:
        self._emit("votes_counted", group=group, by=by, levels=list(levels), teaches=teaches)

    def warning(self, message: str) -> None:
        self._emit("warning", message=message)

    def error(self, message: str, category: str, hint: str = "", traceback: str = "") -> None:
        self._emit("error", message=message, category=category, hint=hint, traceback=traceback)

    def finished(self, status: str, progress: TrainProgress) -> None:
        self._emit("run_finished", status=status, progress=progress.to_dict())

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._writer.close()


class TensorBoardLog(Callback):
    """Curves and samples for TensorBoard, through its own writer."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2, summary_pb2
        self._writer = EventFileWriter(str(folder))

    def started(self, facts: Mapping[str, Any]) -> None:
        step = int(facts["progress"]["global_step"])
        if step:
            # logs after the backup this run resumes from do not belong to it
            session = self._event.SessionLog(status=self._event.SessionLog.START)
            self._writer.add_event(
                self._event.Event(wall_time=time.time(), step=step + 1, session_log=session)
            )

    def _add(self, step: int, values: list[Any]) -> None:
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, summary=summary))

    def _scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        value = self._summary.Summary.Value
        self._add(step, [value(tag=tag, simple_value=number) for tag, number in metrics.items()])

    def step(
        self, progress: TrainProgress, metrics: Mapping[str, float], total: int, eta: float | None
    ) -> None:
        self._scalars(progress.global_step, metrics)

    def validation(self, progress: TrainProgress, metrics: Mapping[str, float]) -> None:
        self._scalars(progress.global_step, metrics)

    def sample(self, progress: TrainProgress, path: Path, prompt: str, number: int) -> None:
        from PIL import Image

        with Image.open(path) as image:
            width, height = image.size
        kind = self._summary.Summary
        shown = kind.Image(height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes())
        self._add(progress.global_step, [kind.Value(tag=f"samples/{path.parent.name}", image=shown)])

    def backup(self, progress: TrainProgress, path: Path) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Console(Callback):
    """Prints progress: one overwritten line on a terminal, occasional lines in a file."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stdout
        self._tty = self._stream.isatty()
        self._last = -math.inf
        self._open = False

    def _line(self, text: str) -> None:
        self._stream.write(("\r\x1b[K" if self._open else "") + text + "\n")
        self._stream.flush()
        self._open = False

    def _passing(self, text: str, last: bool) -> None:
        if not last and time.monotonic() - self._last < CONSOLE_SECONDS[self._tty]:
            return
        self._last = time.monotonic()
        if self._tty:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
            self._open = True
        else:
            self._line(text)

    def started(self, facts: Mapping[str, Any]) -> None:
        where = f" from step {facts['progress']['global_step']}" if facts["resumed_from"] else ""
        self._line(
            f"training {facts['trained_parameters']:,} parameters on {facts['device']}, "
            f"{facts['total_steps']} steps{where}"
        )

    def phase(self, name: str, done: int, total: int) -> None:
        self._passing(f"{name} {done}/{total}" if total else name, done == total)

    def step(
        self, progress: TrainProgress, metrics: Mapping[str, float], total: int, eta: float | None
    ) -> None:
        parts = [f"epoch {progress.epoch + 1}", f"step {progress.global_step}/{total}"]
        parts.append(f"loss {metrics['loss/train_step']:.4g}")
        if "dpo/accuracy" in metrics:
            parts.append(f"accuracy {metrics['dpo/accuracy']:.2f}")
        if "rl/reward_mean" in metrics:
            parts.append(f"reward {metrics['rl/reward_mean']:.4g}")
        if eta is not None:
            parts.append(f"{duration(eta)} left")
        self._passing("  ".join(parts), progress.global_step == total)

    def validation(self, progress: TrainProgress, metrics: Mapping[str, float]) -> None:
        values = "  ".join(f"{tag.rpartition('/')[2]} {value:.5g}" for tag, value in metrics.items())
        self._line(f"validation at step {progress.global_step}: {values}")

    def backup(self, progress: TrainProgress, path: Path) -> None:
        self._line(f"backup {path}")

    def saved(self, progress: TrainProgress, path: Path) -> None:
        self._line(f"saved {path}")

    def votes_wanted(
        self,
        question: str,
        prompt: str,
        folder: Path,
        images: int,
        open_questions: int,
        sources: Sequence[tuple[str, Path]] = (),
    ) -> None:
        edited = f", edited from {', '.join(name for name, _ in sources)}" if sources else ""
        self._line(f"question {question}: {images} images of {prompt!r}{edited} in {folder}")

    def warning(self, message: str) -> None:
        self._line(f"warning: {message}")

    def finished(self, status: str, progress: TrainProgress) -> None:
        self._line(f"{status} after {progress.global_step} steps")

    def close(self) -> None:
        if self._open:
            self._line("")
