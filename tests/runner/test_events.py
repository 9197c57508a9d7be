"""Events: torn lines, numbers over several processes, garbage, replaced files."""

from __future__ import annotations

import errno
import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.runner import events
from modules.runner.commands import Command
from modules.runner.events import EventReader, EventWriter, last_sequence
from modules.util.errors import UserError


def test_numbers_continue_over_the_processes_of_a_run(tmp_path):
    path = tmp_path / "events.jsonl"
    for _ in range(3):
        with EventWriter(path) as writer:
            writer.emit("step", loss=0.5)
            writer.emit("warning", message="ü")
            assert writer.sequence == last_sequence(path)
    found = EventReader(path).poll()
    assert [event["seq"] for event in found] == [1, 2, 3, 4, 5, 6]
    assert found[1]["message"] == "ü"


def test_values_become_plain(tmp_path):
    with EventWriter(tmp_path / "e") as writer:
        writer.emit(
            "step",
            metrics={"a": math.nan, "b": [math.inf, -math.inf], "c": np.float32(0.5), 7: np.int64(3)},
            path=Path("samples/1.png"),
            prompt="torn \udcff name",
        )
    (event,) = EventReader(tmp_path / "e").poll()
    assert event["metrics"] == {"a": "nan", "b": ["inf", "-inf"], "c": 0.5, "7": 3}
    assert event["path"] == "samples/1.png"
    assert event["prompt"] == "torn \udcff name"


@pytest.mark.parametrize(
    ("kind", "fields", "error"),
    [
        ("stepp", {}, ValueError),
        ("step", {"seq": 1}, ValueError),
        ("step", {"x": object()}, TypeError),
        ("step", {"x": "y" * events.MAX_LINE}, ValueError),
    ],
)
def test_wrong_events_are_refused_and_use_no_number(tmp_path, kind, fields, error):
    with EventWriter(tmp_path / "e") as writer:
        with pytest.raises(error):
            writer.emit(kind, **fields)
        assert writer.emit("step") == 1
    assert len(EventReader(tmp_path / "e").poll()) == 1


def test_answers_name_the_order(tmp_path):
    with EventWriter(tmp_path / "e") as writer:
        writer.answer(Command("7", "backup"), "failed", "the disk is full")
        with pytest.raises(ValueError, match="maybe"):
            writer.answer(Command("7", "backup"), "maybe")
    (event,) = EventReader(tmp_path / "e").poll()
    assert (event["id"], event["command"], event["state"], event["message"]) == (
        "7", "backup", "failed", "the disk is full",
    )  # fmt: skip


def test_a_torn_last_line_is_no_event_until_it_is_complete(tmp_path):
    path = tmp_path / "e"
    reader = EventReader(path)
    assert reader.poll() == []
    line = json.dumps({"t": 0, "seq": 1, "kind": "step"}).encode()
    for end in range(len(line) + 1):
        path.write_bytes(line[:end])
        assert EventReader(path).poll() == []
    path.write_bytes(line[:10])
    assert reader.poll() == []
    with path.open("ab") as stream:
        stream.write(line[10:] + b"\n")
    assert [event["seq"] for event in reader.poll()] == [1]
    assert reader.damaged == 0


def test_a_writer_after_a_torn_line_keeps_its_own_lines_whole(tmp_path):
    path = tmp_path / "e"
    with EventWriter(path) as writer:
        writer.emit("step")
    with path.open("ab") as stream:
        stream.write(b'{"t": 1, "seq": 2, "ki')
    with EventWriter(path) as writer:
        writer.emit("run_finished", status="finished")
    reader = EventReader(path)
    assert [(event["seq"], event["kind"]) for event in reader.poll()] == [(1, "step"), (2, "run_finished")]
    assert reader.damaged == 1


def test_a_full_disk_is_one_clear_error_and_the_next_line_is_whole(tmp_path):
    class Full:
        """Takes five bytes, then has no more room."""

        def __init__(self, stream):
            self.stream, self.room = stream, 5

        def write(self, data):
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = self.stream.write(bytes(data[: self.room]))
            self.room = 0
            return written

    writer = EventWriter(tmp_path / "e")
    real = writer._stream
    writer._stream = Full(real)
    with pytest.raises(UserError, match="No space left"):
        writer.emit("step")
    writer._stream = real
    assert writer.emit("warning") == 1
    writer.close()
    assert [event["kind"] for event in EventReader(tmp_path / "e").poll()] == ["warning"]


def test_threads_do_not_mix_their_lines(tmp_path):
    with EventWriter(tmp_path / "e") as writer:
        threads = [
            threading.Thread(target=lambda: [writer.emit("step", x="x" * 500) for _ in range(100)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [event["seq"] for event in EventReader(tmp_path / "e").poll()] == list(range(1, 401))


@given(st.lists(st.one_of(st.binary(max_size=60), st.just(b'{"t":1,"seq":7,"kind":"step"}')), max_size=12))
@settings(max_examples=60, deadline=None)
def test_no_garbage_breaks_the_reader(tmp_path_factory, chunks):
    path = tmp_path_factory.mktemp("events") / "e"
    path.write_bytes(b"\n".join(chunks) + b"\n")
    reader = EventReader(path)
    for event in reader.poll():
        assert isinstance(event["kind"], str)
        assert isinstance(event["seq"], int)
    with EventWriter(path) as writer:
        writer.emit("step", mine=True)
    (event,) = reader.poll()
    assert event["mine"]
    assert event["seq"] == (8 if any(b'"seq":7' in chunk for chunk in chunks) else 1)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=20), st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_small_reads_see_the_same_events(tmp_path_factory, sizes, max_bytes):
    path = tmp_path_factory.mktemp("events") / "e"
    with EventWriter(path) as writer:
        for size in sizes:
            writer.emit("step", x="y" * size)
    reader, found = EventReader(path), []
    while not reader.at_end:
        found += reader.poll(max_bytes)
    assert found == EventReader(path).poll()
    assert [len(event["x"]) for event in found] == sizes


def test_a_number_is_found_behind_a_lot_of_garbage(tmp_path):
    path = tmp_path / "e"
    with EventWriter(path) as writer:
        for _ in range(3):
            writer.emit("step")
    with path.open("ab") as stream:
        stream.write(b"x" * (2 * events.MAX_LINE + 17) + b"\n")
    assert last_sequence(path) == 3
    reader = EventReader(path)
    assert [event["seq"] for event in reader.poll()] == [1, 2, 3]
    assert reader.damaged == 1


def test_the_end_of_a_damaged_line_is_no_event(tmp_path):
    """Also where the file is read in pieces and one begins within that line."""
    path = tmp_path / "e"
    good, inner = ({"t": 0, "seq": seq, "kind": "step"} for seq in (3, 99))
    piece = json.dumps(inner).encode().ljust(events.MAX_LINE - 1) + b"\n"
    path.write_bytes(json.dumps(good).encode() + b"\nxxx" + piece)
    assert last_sequence(path) == 3
    assert [event["seq"] for event in EventReader(path).poll()] == [3]


@pytest.mark.parametrize("earlier", [1, 5])
def test_a_replaced_file_is_read_from_its_start(tmp_path, earlier):
    path = tmp_path / "e"
    with EventWriter(path) as writer:
        for _ in range(earlier):
            writer.emit("step")
    reader = EventReader(path)
    assert len(reader.poll()) == earlier
    path.unlink()
    assert reader.poll() == []
    with EventWriter(path) as writer:
        writer.emit("run_started")
    assert [event["kind"] for event in reader.poll()] == ["run_started"]
