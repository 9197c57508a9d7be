"""Runs shown elsewhere: what arrives there, and that the run notices nothing."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from modules.runner.events import EventWriter
from modules.runner.RunDirectory import MIRROR, RunDirectory
from modules.runner.trackers.Tracker import follow_run
from modules.runner.trackers.Webhook import Webhook
from scripts import track


def progress(step: int) -> dict[str, int]:
    return {"epoch": 0, "epoch_step": step, "epoch_sample": step, "global_step": step}


@pytest.fixture
def run(tmp_path) -> Path:
    """A finished run."""
    folder = tmp_path / "secret folder" / "my run"
    folder.mkdir(parents=True)
    with EventWriter(folder / "events.jsonl") as writer:
        writer.emit("phase", name="loading", done=0, total=0)
        for step in (1, 2):
            writer.emit("step", progress=progress(step), metrics={"loss": 0.5 / step, "odd": float("nan")})
        writer.emit("validation", progress=progress(2), metrics={"dpo/val_accuracy": 0.75})
        writer.emit("run_finished", status="finished", progress=progress(2))
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextmanager
def receiving(status: int = 200, long: bool = False):
    """A webhook; the bodies it got. A long answer is sent slowly, and cut after a while."""
    got: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments):
            """Silent."""

        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Content-Length", "1000000" if long else "0")
            self.end_headers()
            with suppress(OSError):
                for _ in range(100 if long else 0):
                    self.wfile.write(b"x")
                    if ended.wait(0.03):
                        break

    ended = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook-token", got
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_webhook_hears_of_the_end(run, capsys):
    before = files_of(run)
    with receiving() as (url, got):
        assert track.main([str(run), "--to", "webhook", "--url", url]) == 0
    text = "my run: finished after 2 steps"
    assert got == [{"run": "my run", "status": "finished", "step": 2, "text": text, "content": text}]
    assert files_of(run) == before and "secret folder" not in json.dumps(got)


def test_a_webhook_that_never_finishes_its_answer_is_not_waited_for(run):
    with receiving(long=True) as (url, got):
        assert track.main([str(run), "--to", "webhook", "--url", url]) == 0
    assert [one["status"] for one in got] == ["finished"]


def test_a_failed_run_says_why(run):
    with EventWriter(run / "events.jsonl") as writer:
        writer.emit("error", message="/secret/place", category="disk", hint="")
        writer.emit("run_finished", status="failed", progress=progress(3))
    with receiving() as (url, got):
        follow_run(run, Webhook(url, "a run"))
    assert got[-1]["text"] == "a run: failed (disk) after 3 steps" and "secret" not in got[-1]["text"]


def test_of_a_run_that_was_resumed_the_last_end_counts(run, monkeypatch):
    with EventWriter(run / "events.jsonl") as writer:
        writer.emit("run_finished", status="failed", progress=progress(2))
        writer.emit("run_started", total_steps=4, progress=progress(2))
        writer.emit("step", progress=progress(4), metrics={})
        writer.emit("run_finished", status="finished", progress=progress(4))
    with receiving() as (url, got):
        follow_run(run, Webhook(url, "a run"))
    assert [one["text"] for one in got] == ["a run: finished after 4 steps"]
    ended: list[int] = []
    service = SimpleNamespace(log=lambda *a, **k: None, finish=lambda exit_code: ended.append(exit_code))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: service))
    assert track.main([str(run), "--to", "wandb"]) == 0
    assert ended == [0]


def test_a_run_that_is_trained_again_is_followed_to_its_new_end(run, monkeypatch):
    alive = iter([True, True, True, False])
    monkeypatch.setattr(RunDirectory, "trainer", lambda self: object() if next(alive) else None)
    with receiving() as (url, got), EventWriter(run / "events.jsonl") as writer:
        waited: list[None] = []

        def wait() -> None:
            waited.append(None)
            if len(waited) == 2:
                writer.emit("run_started", total_steps=9, progress=progress(2))
                writer.emit("run_finished", status="stopped", progress=progress(9))

        follow_run(run, Webhook(url, "a run"), wait)
    assert [one["status"] for one in got] == ["stopped"]


def test_the_last_events_of_a_run_that_ends_meanwhile_are_not_missed(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    with EventWriter(folder / "events.jsonl") as writer:
        writer.emit("phase", name="loading", done=0, total=0)
        asked: list[None] = []

        def trainer(self: RunDirectory) -> None:
            asked.append(None)
            if len(asked) == 1:
                writer.emit("run_finished", status="finished", progress=progress(1))

        monkeypatch.setattr(RunDirectory, "trainer", trainer)
        seen: list[str] = []
        tracker = SimpleNamespace(take=lambda event: seen.append(event["kind"]), finish=lambda: None)
        follow_run(folder, tracker, lambda: None)
    assert seen == ["phase", "run_finished"]


def test_the_end_of_a_killed_run_is_waited_for_until_a_watcher_has_recorded_it(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with receiving() as (url, got), EventWriter(folder / "events.jsonl") as writer:
        writer.emit("run_started", total_steps=9, progress=progress(0))
        waited: list[None] = []

        def wait() -> None:
            waited.append(None)
            if len(waited) == 3:
                writer.emit("error", message="killed", hint="", category="killed")
                writer.emit("run_finished", status="failed")

        follow_run(folder, Webhook(url, "a run"), wait)
    assert [one["text"] for one in got] == ["a run: failed (killed) after 0 steps"]


def test_a_killed_run_that_nobody_watches_is_reported(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with receiving() as (url, got), EventWriter(folder / "events.jsonl") as writer:
        writer.emit("run_started", total_steps=9, progress=progress(0))
        writer.emit("step", progress=progress(3), metrics={})
        assert follow_run(folder, Webhook(url, "a run"), lambda: None) == 2
    assert [one["text"] for one in got] == ["a run: failed (died) after 3 steps"]


def test_a_run_on_another_computer_is_followed_to_its_end(tmp_path):
    folder = tmp_path / "run"
    (folder / MIRROR).mkdir(parents=True)
    with receiving() as (url, got), EventWriter(folder / "events.jsonl") as writer:
        writer.emit("run_started", total_steps=9, progress=progress(0))
        waited: list[None] = []

        def wait() -> None:
            waited.append(None)
            if len(waited) == 20:
                writer.emit("run_finished", status="finished", progress=progress(9))

        follow_run(folder, Webhook(url, "a run"), wait)
    assert [one["text"] for one in got] == ["a run: finished after 9 steps"]


@pytest.mark.parametrize(("status", "tries"), [(500, 3), (404, 1)])
def test_a_webhook_that_refuses_is_one_message_and_no_change(run, capsys, status, tries):
    before = files_of(run)
    with receiving(status) as (url, got):
        assert track.main([str(run), "--to", "webhook", "--url", url]) == 2
    said = capsys.readouterr().err
    assert f"status {status}" in said and "hook-token" not in said and "Traceback" not in said
    assert len(got) == tries and files_of(run) == before


@pytest.mark.parametrize("url", ["hooks.example.org/hook-token", "https://example.org:x/hook-token"])
def test_the_secret_of_an_address_with_a_slip_is_not_repeated(run, capsys, url):
    assert track.main([str(run), "--to", "webhook", "--url", url]) == 2
    said = capsys.readouterr().err
    assert "address" in said and "hook-token" not in said


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_services_get_the_numbers_of_each_step(run, monkeypatch, name):
    logged, ended, began = [], [], []

    class Service(SimpleNamespace):
        def log(self, numbers, step):
            logged.append((step, numbers))

        def finish(self, **more):
            ended.append(more)

    service = Service()
    service.init = lambda **settings: began.append(settings) or service
    monkeypatch.setitem(sys.modules, name, service)
    assert track.main([str(run), "--to", name, "--project", "p", "--name", "n"]) == 0
    assert (began[0]["project"], began[0]["name"], len(ended)) == ("p", "n", 1)
    assert logged == [(1, {"loss": 0.5}), (2, {"loss": 0.25}), (2, {"dpo/val_accuracy": 0.75})]
    assert "secret" not in json.dumps([began, logged])


def test_a_run_of_a_project_has_the_name_of_its_project_and_round(run, tmp_path, monkeypatch):
    round_2 = tmp_path / "my taste" / "round-2"
    round_2.mkdir(parents=True)
    (tmp_path / "my taste" / "project.json").write_text("{}")
    project_run = run.rename(round_2 / "run")
    began = []
    service = SimpleNamespace(log=lambda *_, **__: None, finish=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **told: began.append(told) or service))
    assert track.main([str(project_run), "--to", "wandb"]) == 0
    assert began[0]["name"] == "my taste round-2"


def test_a_service_that_is_not_installed(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert track.main([str(run), "--to", "wandb"]) == 2
    assert "pip install wandb" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--url", "nothing"), "not an address"), ((), "not an address"), (("--url", "http://[::1"), "not an address")],
)
def test_an_address_that_is_none(run, capsys, arguments, message):
    assert track.main([str(run), "--to", "webhook", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_a_run(tmp_path, capsys):
    assert track.main([str(tmp_path), "--to", "webhook", "--url", "http://127.0.0.1:1"]) == 2
    assert "no run" in capsys.readouterr().err


def test_events_are_followed_as_they_come(tmp_path, monkeypatch):
    """A live run is waited for; one that died without a last event ends it, too."""
    folder = tmp_path / "run"
    folder.mkdir()
    seen: list[str] = []
    tracker = SimpleNamespace(
        take=lambda event: seen.append(event["kind"]), finish=lambda: seen.append("end")
    )
    alive = iter([True, True, False])
    monkeypatch.setattr(RunDirectory, "trainer", lambda self: object() if next(alive) else None)
    with EventWriter(folder / "events.jsonl") as writer:
        writer.emit("phase", name="loading", done=0, total=0)

        def wait() -> None:
            if len(seen) == 1:
                writer.emit("step", progress=progress(1), metrics={})

        assert follow_run(folder, tracker, wait) == 2
    assert seen == ["phase", "step", "end"]
