"""A run is watched over connections that end, and controlled."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import subprocess
import sys
import threading

import pytest

from modules.remote import Following as following
from modules.remote import again, records, starting
from modules.remote.again import persistently
from modules.remote.Connection import Lost, Refused, Unreachable
from modules.remote.Following import Following
from modules.runner.run_list import summary_of
from modules.runner.RunDirectory import RunDirectory
from modules.runner.status import read_status
from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from modules.util.files.user_folder import settings_folder
from scripts.train_remote import main
from tests.remote.support import begin, newest, write_light
from tests.runner.support import ROOT, wait_until

pytestmark = pytest.mark.child


@pytest.fixture
def run(server, remote, program, tmp_path):
    """A run there, as its own computer sees it."""
    begin(write_light(tmp_path / "job", remote))
    found = RunDirectory(server.home / "tastemaker" / "runs" / "run-1")
    wait_until(lambda: read_status(found).step)
    return found


class Watching:
    """Follows in a thread, as a terminal of its own would."""

    def __init__(self) -> None:
        self.events: list[dict] = []
        self.lines: list[str] = []
        self.state = ""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        one = Following(newest(), self.events.append, self.lines.append)
        self.state = asyncio.run(one.run(lambda _: None))

    def end(self) -> str:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.state


def steps(events) -> list[int]:
    return [event["progress"]["global_step"] for event in events if event["kind"] == "step"]


def test_a_run_outlives_its_connection_and_is_followed_from_the_same_byte(server, run, capsys):
    pid = run.trainer().pid
    watcher = Watching()
    wait_until(lambda: steps(watcher.events) == [1, 2, 3])
    server.cut()
    wait_until(lambda: any("trying again" in line for line in watcher.lines))
    assert run.trainer().pid == pid
    mirror = newest().mirror
    assert read_status(mirror).state == summary_of(mirror.path).state == "remote"
    assert main(["send", "sample", "--wait"]) == 0
    assert capsys.readouterr().out == "sample: done\n"
    assert main(["send", "stop", "--wait"]) == 0
    assert watcher.end() == "stopped"
    assert mirror.events_path.read_bytes() == run.events_path.read_bytes()
    assert steps(watcher.events) == [1, 2, 3] and len(watcher.events) == len(mirror.reader().poll())
    assert read_status(mirror).state == summary_of(mirror.path).state == "stopped"
    assert main(["send", "stop"]) == 2
    assert "no training is running" in capsys.readouterr().out


def test_the_terminal_stops_looking_and_the_run_continues(run):
    command = [sys.executable, str(ROOT / "scripts" / "train_remote.py"), "follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "run_started" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "stopped looking; the run continues\n")
    assert run.trainer() is not None


def test_the_state_of_a_run_is_told(run, capsys):
    assert main(["status"]) == 0
    said = capsys.readouterr().out
    assert "run-1 on me@127.0.0.1" in said and "running" in said and "step 3/99" in said
    assert main(["status", "run-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"]["progress"]["global_step"] == 3
    run.trainer().end(0.0)
    assert main(["status"]) == 0
    assert "failed" in capsys.readouterr().out
    assert main(["follow", "--all"]) == 2


def test_events_of_a_run_that_was_replaced_are_not_mixed_with_those_here(run, capsys):
    mirror = newest().mirror
    mirror.events_path.write_bytes(b'{"t": 1, "seq": 1, "kind": "warning", "message": "old"}\n')
    main(["send", "stop", "--wait"])
    assert main(["follow"]) == 0
    assert "are not those fetched before" in capsys.readouterr().out
    assert mirror.events_path.read_bytes() == run.events_path.read_bytes()
    assert b"old" in next(mirror.path.glob("events-before-*.jsonl")).read_bytes()


def test_events_that_begin_anew_again_and_again_have_a_limit_together(monkeypatch, tmp_path):
    numbers = itertools.count()
    monkeypatch.setattr(following, "MAX_EVENTS", 1000)
    monkeypatch.setattr(following.time, "strftime", lambda _: str(next(numbers)))

    class Hostile:
        taken = 0

        async def ask(self, kind, verb, note, **fields):
            for _ in range(100):
                await note({"from": 0}, b"")
                await note({}, b"x" * 99 + b"\n")
                self.taken += 1
            return {}

    record, hostile = records.Record("run-1", RemoteConfig(host="gpu"), tmp_path, 0.0), Hostile()
    for kept in (10, 10):
        with pytest.raises(UserError, match="more than 1000 bytes of events"):
            asyncio.run(Following(record, print, print).work(hostile))
        assert hostile.taken == kept
    assert sum(one.stat().st_size for one in tmp_path.glob("*.jsonl")) <= 1000


def test_a_first_connection_that_fails_is_not_tried_again(server, run, capsys):
    server.stop()
    assert main(["follow"]) == 2
    assert "cannot be reached" in capsys.readouterr().err


def test_waits_grow_and_end(monkeypatch):
    waits, worked = [], []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    class Opened:
        async def __aenter__(self):
            if worked:
                raise Lost("gone")
            worked.append(1)

        async def __aexit__(self, *_):
            return None

    async def work(far):
        raise Lost("gone")

    monkeypatch.setattr(again, "far_side", lambda remote, ask: Opened())
    monkeypatch.setattr(again.asyncio, "sleep", sleep)
    with pytest.raises(Lost):
        asyncio.run(persistently(None, None, lambda _: None, work, 9))
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_letters_that_control_a_terminal_are_not_printed(run, capsys):
    with run.events_path.open("ab") as stream:
        event = {"t": 1, "seq": 9, "kind": "warning", "message": "\x1b]0;owned\x07 ok"}
        stream.write(json.dumps(event).encode() + b"\n")
    main(["send", "stop", "--wait"])
    assert main(["follow"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\x07" not in said and "?]0;owned? ok" in said


def test_the_newest_run_is_known_though_its_workspace_has_the_name_of_an_older_one(home, tmp_path):
    older, newer = "taste-20261124-101500-3f2a", "taste-20261124-101500-3f2a-20261126-090000-aaaa"
    for run in (newer, "taste-20261125-080000-0b0b", older):
        records.keep(records.Record(run, RemoteConfig(host="gpu"), tmp_path / run, 0.0))
    assert records.known() == [older, "taste-20261125-080000-0b0b", newer] and newest().run == newer
    name = starting.new_name(TrainConfig(workspace_dir=str(tmp_path / newer)))
    assert len(re.findall(r"\d{8}-\d{6}", name)) == 1 and name.startswith("taste-2")


class Answers:
    """Connections that end one after the other as given, then one that holds."""

    def __init__(self, *errors: Exception) -> None:
        self.left = list(errors)

    async def __aenter__(self) -> None:
        if self.left:
            raise self.left.pop(0)

    async def __aexit__(self, *_: object) -> None:
        return None


@pytest.mark.parametrize("patient", [True, False])
def test_only_who_is_patient_waits_for_a_first_connection(patient, monkeypatch):
    answers, waits, lines = Answers(Unreachable("no answer"), Unreachable("no answer")), [], []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def work(_far):
        return "worked"

    monkeypatch.setattr(again, "far_side", lambda remote, ask: answers)
    monkeypatch.setattr(again.asyncio, "sleep", sleep)
    following = persistently(None, None, lines.append, work, patient=patient)
    if patient:
        assert asyncio.run(following) == "worked" and waits == [1, 2]
        assert lines == ["no answer; trying again in 1 s", "no answer; trying again in 2 s"]
    else:
        with pytest.raises(Unreachable):
            asyncio.run(following)
        assert waits == []


def test_who_is_refused_does_not_ask_again_however_patient(monkeypatch):
    answers = Answers(Refused("the key is unknown"))

    async def work(_far):
        return "worked"

    monkeypatch.setattr(again, "far_side", lambda remote, ask: answers)
    with pytest.raises(Refused):
        asyncio.run(persistently(None, None, lambda _: None, work, patient=True))


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"folder": 5}', '{"folder": "x", "remote": {"port": "ssh"}}', "\x00"]
)
def test_a_damaged_record_hides_no_older_one(text, home, tmp_path):
    good = records.Record("taste-20261124-101500-3f2a", RemoteConfig(host="gpu"), tmp_path / "run", 1.0)
    records.keep(good)
    damaged = settings_folder() / records.FOLDER / "taste-20261125-101500-3f2a.json"
    damaged.write_text(text)
    assert records.of_folder(tmp_path / "run") == (good, [damaged])
    assert records.of_folder(tmp_path / "other") == (None, [damaged])
    damaged.unlink()
    assert records.of_folder(tmp_path / "run") == (good, [])
