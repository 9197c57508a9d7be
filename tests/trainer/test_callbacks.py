"""Who is told what: the event file, TensorBoard and a terminal, each read back."""

from __future__ import annotations

import inspect
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from modules.runner.commands import Command
from modules.runner.events import EventReader, EventWriter
from modules.trainer import callbacks
from modules.trainer.callbacks import Callback, Callbacks, Console, EventLog, TensorBoardLog
from modules.util.display import duration
from modules.util.TrainProgress import TrainProgress

FACTS = {
    "trained_parameters": 12345,
    "device": "cpu",
    "total_steps": 40,
    "progress": {"epoch": 0, "epoch_step": 0, "epoch_sample": 0, "global_step": 0},
    "resumed_from": None,
}


def at(step: int) -> TrainProgress:
    return TrainProgress(step // 10, step % 10, 0, step)


class Clock:
    """Stands in for the time module; only ``monotonic`` is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.7e9 + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(callbacks, "time", made)
    return made


def tell_everything(callback: Callback, root: Path) -> None:
    """One call of each method, in the order of a run."""
    command = Command("id-1", "backup")
    callback.started(FACTS)
    callback.phase("loading", 1, 2)
    callback.step(at(1), {"loss/train_step": 0.5}, 40, 12.0)
    callback.command(command, "taken")
    callback.backup(at(1), root / "backup" / "b1")
    callback.command(command, "done", "b1")
    callback.validation(at(1), {"dpo/val_loss": 0.25})
    callback.sample(at(1), root / "samples" / "0 - a cat" / "x.png", "a cat", 0)
    callback.saved(at(1), Path("/elsewhere/model.safetensors"))
    callback.warning("look out")
    callback.error("it broke", "user", "fix it", "lines")
    callback.finished("failed", at(1))


# -- several -------------------------------------------------------------------------------------------------


METHODS = [name for name, _ in inspect.getmembers(Callback, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_every_message_goes_to_every_member_in_order(name: str) -> None:
    heard: list[tuple[int, tuple[Any, ...]]] = []

    class Listener(Callback):
        def __init__(self, number: int) -> None:
            def note(*arguments: Any) -> None:
                heard.append((number, arguments))

            setattr(self, name, note)

    count = len(inspect.signature(getattr(Callback, name)).parameters) - 1
    arguments = tuple(object() for _ in range(count))
    getattr(Callbacks([Listener(0), Listener(1)]), name)(*arguments)
    assert heard == [(0, arguments), (1, arguments)]


def test_nobody_has_to_listen(tmp_path: Path) -> None:
    for callback in (Callback(), Callbacks([])):
        tell_everything(callback, tmp_path)
        callback.close()


# -- the event file ------------------------------------------------------------------------------------------


def test_events_are_in_the_file_with_their_fields(tmp_path: Path) -> None:
    log = EventLog(EventWriter(tmp_path / "events.jsonl"), tmp_path)
    tell_everything(log, tmp_path)
    log.close()
    found = EventReader(tmp_path / "events.jsonl").poll()
    assert [event["kind"] for event in found] == [
        "run_started", "phase", "step", "command", "backup", "command", "validation", "sample", "save", "warning",
        "error", "run_finished",
    ]  # fmt: skip
    assert [event["seq"] for event in found] == list(range(1, 13))
    by_kind = {event["kind"]: event for event in found}
    expected: dict[str, dict[str, Any]] = {
        "run_started": FACTS,
        "phase": {"name": "loading", "done": 1, "total": 2},
        "step": {
            "progress": at(1).to_dict(),
            "metrics": {"loss/train_step": 0.5},
            "total_steps": 40,
            "eta": 12.0,
        },
        "command": {"id": "id-1", "command": "backup", "state": "done", "message": "b1"},
        "backup": {"progress": at(1).to_dict(), "path": "backup/b1"},
        "validation": {"progress": at(1).to_dict(), "metrics": {"dpo/val_loss": 0.25}},
        "sample": {"path": "samples/0 - a cat/x.png", "prompt": "a cat", "number": 0},
        "save": {"path": "/elsewhere/model.safetensors"},
        "warning": {"message": "look out"},
        "error": {"message": "it broke", "category": "user", "hint": "fix it", "traceback": "lines"},
        "run_finished": {"status": "failed", "progress": at(1).to_dict()},
    }
    for kind, fields in expected.items():
        assert fields.items() <= by_kind[kind].items(), kind


def logged_steps(path: Path) -> list[int | str]:
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return [e["progress"]["global_step"] if e["kind"] == "step" else e["kind"] for e in events]


def test_steps_are_thinned_and_the_last_before_anything_else_is_kept(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(EventWriter(path), tmp_path)
    for step in range(1, 101):
        clock.now += 0.05
        log.step(at(step), {"loss/train_step": 1.0}, 200, None)
        if step == 50:
            log.validation(at(step), {})
    log.finished("finished", at(100))
    log.close()
    seen = logged_steps(path)
    where = seen.index("validation")
    assert seen[where - 1] == 50
    assert seen[-2:] == [100, "run_finished"]
    steps = [step for step in seen if isinstance(step, int)]
    assert steps[0] == 1
    assert steps == sorted(set(steps))
    assert len(steps) <= 5 * callbacks.STEP_EVENTS_PER_SECOND + 3
    assert len(steps) >= 20


def test_slow_steps_are_all_written_at_once(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(EventWriter(path), tmp_path)
    for step in (1, 2, 3):
        clock.now += 1.0
        log.step(at(step), {"loss/train_step": 1.0}, 3, None)
        assert logged_steps(path)[-1] == step
    log.close()


def test_the_last_step_is_kept_when_the_run_ends_without_a_word(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(EventWriter(path), tmp_path)
    for step in (1, 2):
        log.step(at(step), {"loss/train_step": 1.0}, 3, None)
    log.close()
    assert logged_steps(path) == [1, 2]


# -- TensorBoard ---------------------------------------------------------------------------------------------


def read_back(folder: Path) -> EventAccumulator:
    made = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0})
    made.Reload()
    return made


def scalars(found: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in found.Scalars(tag)]


def test_curves_are_read_back_by_tensorboard(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    log.started(FACTS)
    for step in (1, 2, 3):
        log.step(at(step), {"loss/train_step": step / 4, "dpo/accuracy": 0.5}, 3, None)
    log.validation(at(3), {"dpo/val_loss": 0.125, "dpo/val_accuracy": math.nan})
    log.close()
    found = read_back(tmp_path)
    assert set(found.Tags()["scalars"]) == {
        "loss/train_step", "dpo/accuracy", "dpo/val_loss", "dpo/val_accuracy"
    }  # fmt: skip
    assert scalars(found, "loss/train_step") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert scalars(found, "dpo/val_loss") == [(3, 0.125)]
    assert math.isnan(scalars(found, "dpo/val_accuracy")[0][1])


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_samples_are_read_back_by_tensorboard(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "samples" / "0 - a cat" / f"x.{ending}"
    path.parent.mkdir(parents=True)
    Image.new("RGB", (24, 16), (200, 10, 10)).save(path)
    log = TensorBoardLog(tmp_path / "log")
    log.sample(at(7), path, "a cat", 0)
    log.close()
    (image,) = read_back(tmp_path / "log").Images("samples/0 - a cat")
    assert (image.step, image.width, image.height) == (7, 24, 16)
    with Image.open(io.BytesIO(image.encoded_image_string)) as shown:
        assert shown.size == (24, 16)


def test_what_came_after_the_backup_is_dropped_when_the_run_resumes(tmp_path: Path) -> None:
    first = TensorBoardLog(tmp_path)
    first.started(FACTS)
    for step in range(1, 6):
        first.step(at(step), {"loss/train_step": 1.0}, 9, None)
    first.close()
    second = TensorBoardLog(tmp_path)
    second.started({**FACTS, "progress": at(3).to_dict(), "resumed_from": "b3"})
    for step in range(4, 8):
        second.step(at(step), {"loss/train_step": 2.0}, 9, None)
    second.close()
    assert scalars(read_back(tmp_path), "loss/train_step") == [
        (1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0), (6, 2.0), (7, 2.0)
    ]  # fmt: skip


def test_a_backup_brings_the_curves_to_the_disk(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    log.step(at(1), {"loss/train_step": 1.0}, 9, None)
    log.backup(at(1), tmp_path / "b")
    assert scalars(read_back(tmp_path), "loss/train_step") == [(1, 1.0)]
    log.close()


# -- the terminal --------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_in_a_file_are_plain_and_say_what_happened(tmp_path: Path, clock: Clock) -> None:
    stream = io.StringIO()
    console = Console(stream)
    tell_everything(console, tmp_path)
    console.close()
    assert stream.getvalue().splitlines() == [
        "training 12,345 parameters on cpu, 40 steps",
        "loading 1/2",
        f"backup {tmp_path / 'backup' / 'b1'}",
        "validation at step 1: val_loss 0.25",
        "saved /elsewhere/model.safetensors",
        "warning: look out",
        "failed after 1 steps",
    ]
    assert "\x1b" not in stream.getvalue()


def test_a_file_gets_a_progress_line_now_and_then_and_always_the_last(clock: Clock) -> None:
    stream = io.StringIO()
    console = Console(stream)
    for step in range(1, 26):
        console.step(at(step), {"loss/train_step": 0.125, "dpo/accuracy": 0.5}, 25, 3725.0)
        clock.now += 1.0
    assert stream.getvalue().splitlines() == [
        "epoch 1  step 1/25  loss 0.125  accuracy 0.50  1:02:05 left",
        "epoch 2  step 11/25  loss 0.125  accuracy 0.50  1:02:05 left",
        "epoch 3  step 21/25  loss 0.125  accuracy 0.50  1:02:05 left",
        "epoch 3  step 25/25  loss 0.125  accuracy 0.50  1:02:05 left",
    ]


def test_a_terminal_has_one_line_that_is_written_over(clock: Clock) -> None:
    stream = Terminal()
    console = Console(stream)
    for step in (1, 2):
        console.step(at(step), {"loss/train_step": 0.125}, 25, None)
        clock.now += 1.0
    console.warning("look out")
    console.close()
    line = "\r\x1b[K"
    assert stream.getvalue() == (
        f"{line}epoch 1  step 1/25  loss 0.125{line}epoch 1  step 2/25  loss 0.125{line}warning: look out\n"
    )


def test_a_terminal_is_left_on_a_new_line(clock: Clock) -> None:
    stream = Terminal()
    console = Console(stream)
    console.phase("loading", 0, 0)
    console.close()
    assert stream.getvalue().endswith("\n")


def test_a_run_that_resumes_says_where(clock: Clock) -> None:
    stream = io.StringIO()
    Console(stream).started({**FACTS, "progress": at(12).to_dict(), "resumed_from": "b12"})
    assert stream.getvalue().rstrip().endswith("40 steps from step 12")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (360_000, "100:00:00")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
