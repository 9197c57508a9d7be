"""Files come from a computer that may send anything, and never harm what is here."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from modules.remote import fetching, records
from modules.remote.Connection import Lost
from modules.remote.Far import Far
from modules.remote.fetching import Fetch
from modules.remote.growing import append_at
from modules.remote.records import Record
from modules.remote.there import runs as there_runs
from modules.remote.there.digest import digest_of
from modules.remote.there.serving import FarSide
from modules.runner.ProcessId import ProcessId
from modules.runner.RunDirectory import RunDirectory
from modules.util.config.load import load_config
from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.errors import UserError
from modules.util.files.user_folder import FOLDER_VARIABLE
from modules.util.jsonio import write_json
from modules.util.owned_files import Owned
from scripts import train_remote
from scripts.train_remote import main
from tests.remote.support import begin, newest, write_light
from tests.runner.support import wait_until

REMOTE = RemoteConfig(host="gpu.example.org")


class Other(Far):
    """Another computer with files in memory, which can lie about each of them."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.remote, self.files = REMOTE, files
        self.listed: list[Any] = [(name, len(data)) for name, data in files.items()]
        self.asked: list[tuple[str, int]] = []
        self.lost_after = -1
        self.compared: list[str] = []

    async def ask(self, kind: Any, verb: str, *, note: Any = None, data: bytes = b"", **fields: Any) -> Any:
        if verb == "contents":
            return list(self.listed)
        if verb == "digests":
            self.compared += fields["files"]
            return {
                name: hashlib.sha256(self.files[name][:size]).hexdigest()
                for name, size in fields["files"].items()
                if name in self.files
            }
        if self.lost_after == 0:
            raise Lost("the connection ended")
        self.lost_after -= 1
        begin, size = fields["offset"], fields["size"]
        self.asked.append((fields["file"], begin))
        await note({"note": {}}, self.files[fields["file"]][begin : begin + size])
        return None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "mirror"
    made.mkdir()
    return made


def fetch(other: Other, folder: Path, **options: Any) -> fetching.Report:
    record = Record("run-1", REMOTE, folder, 0.0)
    task = Fetch(record, options.pop("backups", False), lambda _: None, **options)
    return asyncio.run(task.work(other))


HOSTILE = [
    "../out.png", "samples/../../out.png", "/etc/out.png", "a\\..\\..\\out.png", "C:out.png", "samples/", "", ".",
    "samples/nul", "samples/a\0b", "samples/a\nb", "s/./x", "link/out.png", "x" * 300, "\ud800", "samples/end.",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_in_the_folder(folder, tmp_path, name):
    (folder / "link").symlink_to(tmp_path)
    before = sorted(tmp_path.iterdir())
    report = fetch(Other({name: b"x", "samples/good.png": b"good"}), folder)
    assert len(report.refused) == 1 and report.fetched == ["samples/good.png"]
    assert sorted(tmp_path.iterdir()) == before
    assert all(c.isprintable() for c in report.refused[0])


@pytest.mark.parametrize(
    "name", ["config.json", "Commands/x.json", ".tastemaker-remote/fetched.json", "run.lock"]
)
def test_files_of_the_mirror_itself_are_not_replaced(folder, name):
    (folder / "config.json").write_bytes(b"mine")
    report = fetch(Other({name: b"theirs"}), folder)
    assert report.fetched == [] and (folder / "config.json").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "listed",
    [[("a", -1)], [("a", 1 << 60)], [("a", "1")], [["a"]], [(1, 1)], [("a", True)], [("a", 1.5)],
     [("a", 1)] * (fetching.MAX_FILES + 1)],
)  # fmt: skip
def test_lists_that_are_none_are_refused(folder, listed):
    other = Other({"a": b"x"})
    other.listed = listed
    with pytest.raises(UserError, match=r"gpu\.example\.org lists"):
        fetch(other, folder)


def test_more_than_the_disk_holds_is_refused(folder):
    other = Other({"a": b"x"})
    other.listed = [("a", 1 << 39)]
    with pytest.raises(UserError, match="is too full"):
        fetch(other, folder)
    assert not (folder / "a").exists()


def test_a_folder_that_cannot_be_written_is_one_clear_error(folder, monkeypatch, capsys):
    (folder / "file").write_bytes(b"mine")
    other = Other({"samples/a.png": b"x"})
    real = other.ask

    async def ask(kind: Any, verb: str, **fields: Any) -> Any:
        return {"state": "finished"} if verb == "status" else await real(kind, verb, **fields)

    other.ask = ask  # type: ignore[method-assign]
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder / "settings"))
    records.keep(Record("run-1", REMOTE, folder / "file" / "run-1", 0.0))
    monkeypatch.setattr(train_remote, "persistently", lambda remote, ask, tell, work: work(other))
    assert main(["fetch", "run-1"]) == 2
    said = capsys.readouterr().err
    assert str(folder / "file") in said and "Traceback" not in said
    assert (folder / "file").read_bytes() == b"mine"


@pytest.mark.parametrize("sent", [b"other", b"", b"longer than was said"])
def test_another_content_than_announced_is_not_kept(folder, sent):
    other = Other({"save/a": b"right"})
    real = other.ask

    async def lying(kind: Any, verb: str, **fields: Any) -> Any:
        if verb == "piece":
            await fields["note"]({}, sent)
            return None
        return await real(kind, verb, **fields)

    other.ask = lying  # type: ignore[method-assign]
    with pytest.raises(UserError):
        fetch(other, folder)
    assert not (folder / "save").exists()


def test_a_file_is_fetched_once_and_resumes_where_it_ended(folder, monkeypatch):
    monkeypatch.setattr(fetching, "MAX_PIECE", 4)
    other = Other({"save/model": b"0123456789", "samples/a.png": b""})
    other.lost_after = 2
    with pytest.raises(Lost):
        fetch(other, folder)
    assert not (folder / "save" / "model").exists()
    other.lost_after = -1
    assert sorted(fetch(other, folder).fetched) == ["samples/a.png", "save/model"]
    assert [at for name, at in other.asked if name == "save/model"] == [0, 4, 8]
    assert (folder / "save" / "model").read_bytes() == b"0123456789"
    other.asked = []
    assert (fetch(other, folder).same, other.asked) == (2, [])


def test_a_file_that_was_changed_here_stays(folder):
    other = Other({"save/a": b"first", "save/b": b"first"})
    fetch(other, folder)
    (folder / "save" / "a").write_bytes(b"mine")
    other.files = {"save/a": b"second", "save/b": b"second"}
    other.listed = [("save/a", 6), ("save/b", 6)]
    report = fetch(other, folder)
    assert (report.differ, report.fetched) == (["save/a"], ["save/b"])
    assert (folder / "save" / "a").read_bytes() == b"mine"
    assert fetch(other, folder, overwrite=True).fetched == ["save/a"]
    assert (folder / "save" / "a").read_bytes() == b"second"


def test_a_file_that_was_here_before_stays(folder):
    (folder / "save").mkdir()
    (folder / "save" / "a").write_bytes(b"mine")
    assert fetch(Other({"save/a": b"theirs"}), folder).differ == ["save/a"]
    assert (folder / "save" / "a").read_bytes() == b"mine"


def test_logs_grow(folder):
    other = Other({"log.txt": b"one\n", "events.jsonl": b"{}\n"})
    fetch(other, folder)
    other.files["log.txt"] += b"two\n"
    other.listed = [("log.txt", 8), ("events.jsonl", 3)]
    other.asked = []
    assert fetch(other, folder).fetched == ["log.txt"]
    assert other.asked == [("log.txt", 4)] and (folder / "log.txt").read_bytes() == b"one\ntwo\n"
    # one that was followed further in the meantime
    (folder / "log.txt").write_bytes(b"one\ntwo\nthree\n")
    assert fetch(other, folder).fetched == []
    owned = Owned(folder)
    assert append_at(owned, "log.txt", 8, b"three\nfour\n") == 19
    assert (folder / "log.txt").read_bytes() == b"one\ntwo\nthree\nfour\n"
    with pytest.raises(UserError, match="became shorter"):
        append_at(owned, "log.txt", 99, b"x")


@pytest.mark.parametrize("here", [b"mine\n", b"mine, and longer than what is there\n"])
def test_a_log_that_differs_is_replaced_as_a_whole_or_stays(folder, here):
    other = Other({"log.txt": b"one\ntwo\nthree\n"})
    (folder / "log.txt").write_bytes(here)
    assert fetch(other, folder).differ == ["log.txt"]
    assert (folder / "log.txt").read_bytes() == here
    assert fetch(other, folder, overwrite=True).fetched == ["log.txt"]
    assert (folder / "log.txt").read_bytes() == other.files["log.txt"]


def test_a_log_that_was_begun_anew_there_is_fetched_anew(folder):
    other = Other({"log.txt": b"one\n"})
    fetch(other, folder)
    other.files["log.txt"] = b"another one\n"
    other.listed = [("log.txt", 12)]
    assert fetch(other, folder).fetched == ["log.txt"]
    assert (folder / "log.txt").read_bytes() == other.files["log.txt"]


def test_a_quick_look_compares_nothing_that_is_here_and_brings_only_what_is_new(folder):
    events = "tensorboard/events.out.tfevents.1"
    other = Other({"samples/a.png": b"a", "log.txt": b"one\n", events: b"first"})
    fetch(other, folder, quick=True)
    other.files |= {"samples/b.png": b"b", events: b"first and second"}
    other.listed = [(name, len(data)) for name, data in other.files.items()]
    other.asked, other.compared = [], []
    report = fetch(other, folder, quick=True)
    assert (report.fetched, report.same) == ([events, "samples/b.png"], 2)
    assert other.compared == [events, "samples/b.png"]
    assert other.asked == [(events, len(b"first")), ("samples/b.png", 0)]
    assert (folder / events).read_bytes() == b"first and second"
    other.files["samples/a.png"] = b"x"  # the same size
    assert fetch(other, folder, quick=True).fetched == []
    assert fetch(other, folder).fetched == ["samples/a.png"]


def test_a_quick_look_leaves_what_is_here_from_elsewhere(folder):
    (folder / "samples").mkdir()
    (folder / "samples" / "a.png").write_bytes(b"mine")
    assert fetch(Other({"samples/a.png": b"them"}), folder, quick=True).differ == ["samples/a.png"]


def test_a_folder_of_another_run_is_not_used_for_the_files_of_a_new_one(tmp_path, capsys):
    config, own = write_light(tmp_path / "job", REMOTE), tmp_path / "own"
    run = RunDirectory(own).create()
    run.write_config({"seed": 1})
    run.events_path.write_text("{}\n")
    theirs = records.begin_mirror("run-1", REMOTE, load_config(config), tmp_path / "theirs").folder
    files = {path: path.read_bytes() for place in (own, theirs) for path in place.rglob("*") if path.is_file()}
    for place, whose in ((own, "a run of this computer"), (theirs, "the run run-1")):
        assert main(["start", "--config-path", str(config), "--run", "run-2", "--to", str(place)]) == 2
        assert f"holds the files of {whose}" in capsys.readouterr().err
    assert all(path.read_bytes() == data for path, data in files.items())
    records.check_mirror("run-1", theirs)


def test_backups_come_when_they_are_asked_for(folder):
    other = Other({"backup/1/state": b"b", "backup-before-x/1/state": b"c", "save/a": b"a"})
    assert fetch(other, folder).fetched == ["save/a"]
    assert len(fetch(other, folder, backups=True).fetched) == 2


def test_a_run_that_starts_while_it_is_compared_keeps_its_data(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path / "runs" / "run-1").create()
    saved, data = run.path / "save" / "a", tmp_path / "inputs" / "run-1" / "b"
    for path in (saved, data):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"a")
    whole = {"save/a": hashlib.sha256(b"a").hexdigest()}

    def compared(path, *size):
        write_json(run.launch_path, {"process": ProcessId.own().to_dict()})
        return digest_of(path, *size)

    with monkeypatch.context() as patched:
        patched.setattr(there_runs, "digest_of", compared)
        with pytest.raises(UserError, match="the run run-1 is running"):
            there_runs.clean(tmp_path, "run-1", whole)
    assert saved.exists() and data.exists()
    run.launch_path.unlink()
    assert there_runs.clean(tmp_path, "run-1", whole) == []
    assert not run.path.exists() and not data.exists()


@pytest.mark.parametrize("removed", ["inputs/run-1", "runs/run-1"])
def test_no_trainer_begins_while_a_run_is_removed(tmp_path, monkeypatch, removed):
    run = RunDirectory(tmp_path / "runs" / "run-1").create()
    free, remove = [], Owned.remove_tree

    def watched(owned, name):
        if name == removed:
            with run.undisturbed() as alone:
                free.append(alone)
        return remove(owned, name)

    monkeypatch.setattr(Owned, "remove_tree", watched)
    there_runs.clean(tmp_path, "run-1", {})
    assert free == [False] and not run.path.exists()


class Sent:
    """The end of a connection from which one file comes."""

    def exactly(self, size: int) -> bytes:
        return b"x" * size

    def send(self, message: object, data: bytes = b"") -> None:
        pass


def test_what_another_start_has_copied_stays(tmp_path):
    """It belongs to no run before the trainer is started."""
    RunDirectory(tmp_path / "runs" / "run-1").create()
    file = [hashlib.sha256(b"x").hexdigest(), 1]
    starting, cleaning = FarSide(tmp_path, Sent()), FarSide(tmp_path, Sent())
    starting.small({"files": [file]})
    starting.plant({"root": "programs/new", "files": {"train.py": file}})
    starting.small({"files": [[hashlib.sha256(b"xx").hexdigest(), 2]]})
    assert cleaning.clean({"run": "run-1", "fetched": {}}) == {"stays": [], "freed": 0, "copying": True}
    assert not (tmp_path / "runs" / "run-1").exists() and (tmp_path / "programs" / "new" / "train.py").exists()
    assert starting.plant({"root": "inputs/run-2", "files": {"a": [hashlib.sha256(b"xx").hexdigest(), 2]}}) == []
    starting.starts.end()
    RunDirectory(tmp_path / "runs" / "run-1").create()
    assert cleaning.clean({"run": "run-1", "fetched": {}})["freed"] == 1
    assert not (tmp_path / "programs" / "new").exists() and (tmp_path / "inputs" / "run-2" / "a").exists()


def test_a_folder_of_inputs_that_is_a_link_to_files_of_a_person_is_left_alone(tmp_path):
    mine, program = tmp_path / "mine", tmp_path / "tastemaker"
    (mine / "sub").mkdir(parents=True)
    (mine / "sub" / "photo.png").write_bytes(b"x")
    (program / "inputs").mkdir(parents=True)
    (program / "inputs" / "run-1").symlink_to(mine)
    with pytest.raises(UserError):
        FarSide(program, Sent()).plant({"root": "inputs/run-1", "files": {}, "alone": True})
    inside = program / "inputs" / "run-2"
    inside.mkdir()
    (inside / "a.png").write_bytes(b"y")
    (program / "inputs" / "run-3").symlink_to(inside)
    with pytest.raises(UserError, match="is a link"):
        FarSide(program, Sent()).plant({"root": "inputs/run-3", "files": {}, "alone": True})
    assert (mine / "sub" / "photo.png").exists() and (inside / "a.png").exists()


# -- with a real connection ------------------------------------------------------------------------------------------


@pytest.mark.child
def test_what_was_not_fetched_stays_there(server, remote, program, tmp_path, capsys):
    begin(write_light(tmp_path / "job", remote))
    there = server.home / "tastemaker"
    run = there / "runs" / "run-1"
    wait_until(lambda: (run / "process.json").exists())
    assert main(["clean", "--yes"]) == 2
    assert "is running" in capsys.readouterr().err
    main(["send", "stop", "--wait"])
    for name in ("save/a", "backup/1/state"):
        (run / name).parent.mkdir(parents=True)
        (run / name).write_bytes(name.encode())
    (run / "samples").symlink_to(server.home)
    assert main(["fetch"]) == 0
    assert (newest().folder / "save" / "a").read_bytes() == b"save/a" and not (
        newest().folder / "backup"
    ).exists()
    assert main(["clean"]) == 2  # nobody can answer
    assert (run / "save" / "a").exists()
    assert main(["clean", "--yes"]) == 0
    assert "backup/1/state" in capsys.readouterr().out
    assert (run / "backup" / "1" / "state").exists() and not (run / "save" / "a").exists()
    assert not (there / "inputs" / "run-1").exists()
    assert main(["fetch", "--backups"]) == 0
    assert main(["clean", "--yes"]) == 0
    assert not run.exists() and not list((there / "programs").iterdir())
    assert main(["status"]) == 2
    assert "there is no run run-1" in capsys.readouterr().err
