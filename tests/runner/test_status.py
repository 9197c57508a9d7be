"""Status from events."""

from __future__ import annotations

import json

from modules.runner.RunDirectory import RunDirectory
from modules.runner.status import StatusFollower, read_status


def test_what_a_status_keeps(tmp_path):
    run = RunDirectory(tmp_path)
    with run.locked(), run.writer() as writer:
        follower = StatusFollower(run)
        assert follower.poll() == []
        assert follower.status.state == "running"
        writer.emit("run_started")
        writer.emit("phase", name="caching", done=1, total=4)
        writer.emit("warning", message="few pairs")
        writer.emit("step", progress={"global_step": 7}, metrics={"loss": 0.5}, total_steps=9, eta=1.5)
        writer.emit("validation", progress={"global_step": 7}, metrics={"loss": 0.4})
        writer.emit("sample", path="samples/7.png")
        writer.emit("backup", path="backup/7")
        assert len(follower.poll()) == 7
        status = follower.status
        assert (status.phase["done"], status.step["eta"], status.warnings) == (1, 1.5, 1)
        assert status.validation["metrics"] == {"loss": 0.4}
        assert status.files == {"sample": "samples/7.png", "backup": "backup/7"}
        assert status.sequence == 7
        assert status.updated >= status.started
        assert follower.poll() == []
        assert json.loads(json.dumps(status.to_dict())) == read_status(run).to_dict()


def test_a_new_start_forgets_errors_and_keeps_files(tmp_path):
    run = RunDirectory(tmp_path)
    with run.writer() as writer:
        for kind, fields in (
            ("run_started", {}), ("save", {"path": "save/1"}), ("warning", {"message": "x"}),
            ("error", {"message": "m", "category": "bug", "hint": ""}), ("run_finished", {"status": "failed"}),
        ):  # fmt: skip
            writer.emit(kind, **fields)
        status = read_status(run)
        assert (status.state, status.error["message"], status.warnings) == ("failed", "m", 1)
        writer.emit("run_started")
        status = read_status(run)
    assert (status.state, status.error, status.warnings) == ("died", None, 0)
    assert status.files == {"save": "save/1"}


def test_pause_is_over_when_the_trainer_is(tmp_path):
    run = RunDirectory(tmp_path)
    with run.locked(), run.writer() as writer:
        writer.emit("run_started")
        writer.emit("command", id="1", command="pause", state="taken")
        assert read_status(run).state == "running"
        writer.emit("command", id="1", command="pause", state="done")
        assert read_status(run).state == "paused"
        writer.emit("command", id="2", command="resume", state="failed")
        assert read_status(run).state == "paused"
    assert read_status(run).state == "died"


def test_foreign_words_in_events_do_no_harm(tmp_path):
    run = RunDirectory(tmp_path).create()
    lines = [
        {"seq": 1, "kind": "run_started", "t": "now"},
        {"seq": 2, "kind": "sample", "path": 7},
        {"seq": 3, "kind": "command", "command": ["pause"], "state": "done"},
        {"seq": 4, "kind": "of a later version"},
        {"seq": 5, "kind": "run_finished", "status": {}},
    ]
    run.events_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    status = read_status(run)
    assert (status.state, status.updated, status.files, status.sequence) == ("failed", None, {}, 5)


def test_a_start_begins_before_it_is_announced(tmp_path):
    """Loading takes minutes: what it tells, and that it may die, belongs to the new start."""
    run = RunDirectory(tmp_path)
    follower = StatusFollower(run)
    with run.locked(), run.writer() as writer:
        writer.emit("run_started")
        writer.emit("error", message="m", category="bug", hint="")
        writer.emit("run_finished", status="failed")
    follower.poll()
    assert (follower.status.state, follower.status.error["message"]) == ("failed", "m")
    with run.locked(), run.writer() as writer:
        for status in (follower, StatusFollower(run)):
            status.poll()
            assert (status.status.state, status.status.error) == ("running", None)
        writer.emit("phase", name="loading", done=0, total=2)
        writer.emit("warning", message="the backups were put aside")
        writer.emit("run_started")
        for status in (follower, StatusFollower(run)):
            status.poll()
            assert (status.status.phase["name"], status.status.warnings) == ("loading", 1)
            assert status.status.started is not None
    for status in (follower, StatusFollower(run)):
        status.poll()
        assert status.status.state == "died"
    with run.locked():
        pass
    assert read_status(run).state == "died"


def test_small_reads_give_the_same_status(tmp_path):
    run = RunDirectory(tmp_path)
    for number in range(3):
        with run.locked(), run.writer() as writer:
            writer.emit("warning", message="x")
            writer.emit("run_started")
            writer.emit("step", progress={"global_step": number}, metrics={}, total_steps=3, eta=None)
            if number != 1:
                writer.emit("run_finished", status="finished")
    follower = StatusFollower(run)
    while not follower.reader.at_end:
        follower.poll(100)
    assert follower.status == read_status(run)
    assert (follower.status.state, follower.status.warnings) == ("finished", 1)
