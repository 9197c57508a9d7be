"""A picking session killed at random moments: it resumes exactly where it was, and no file is incomplete.

The same requests go to a session in this process that is never killed. After every kill the real one must stand
where that one stands, with or without the request whose answer never came.
"""

from __future__ import annotations

import io
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.curation.CurationMode import CurationMode
from modules.curation.GroupsAhead import search_folder
from modules.curation.GroupWalk import GroupWalk
from modules.curation.intake.groups import ScanOptions
from modules.curation.PairServer import PairServer
from modules.curation.session import CurationSession, SessionSettings
from modules.curation.store import CurationStore
from modules.util.dpo_curation_util import load_manifest
from tests.scripts.test_curate_pairs import Reply, Served, generated

IMAGES = 24
PROMPT = "a quiet harbour"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for i in range(IMAGES):
        generated(tmp_path / "in" / f"{i}.png", PROMPT, i)
    return tmp_path / "in"


@pytest.fixture
def mirror(source: Path, tmp_path: Path) -> Iterator[PairServer]:
    search = search_folder(source, tmp_path / "mirror", ScanOptions(), lambda key, names: False)
    with CurationStore(tmp_path / "mirror") as store, search as ahead:
        session = CurationSession(store, SessionSettings(CurationMode.ELO, pairs_per_group=2))
        yield PairServer(GroupWalk(session, ahead), io.BytesIO(), io.StringIO())


def plan(now: Reply, rng: random.Random) -> bytes:
    """What a restless person does next."""
    if now["type"] == "finished":
        request = {"do": "undo"}
    elif now["type"] == "continue":
        request = {"do": rng.choice(["go_on", "go_on", "go_on", "undo", "finish_group"])}
    else:
        verb = rng.choice(["answer"] * 4 + ["pick"] * 3 + ["undo"] * 2 + ["skip", "tie"])
        request = {"do": verb, "best": rng.randrange(2)} if verb == "answer" else {"do": verb}
    return json.dumps(request).encode() + b"\n"


def place(reply: Reply) -> Reply:
    """Where a reply says the session is, without what the request before it did."""
    return {key: value for key, value in reply.items() if key not in ("exported", "undone")}


def steps_of(store: CurationStore) -> list[tuple[str, Reply]]:
    """What was done; that a group of fewer than two images is done follows by itself and need not be noted."""
    return [
        (e.kind, e.payload) for e in store.events() if not (e.kind == "done" and e.payload.get("automatic"))
    ]


class Killed:
    """A session in a folder that is killed again and again."""

    def __init__(self, source: Path, output: Path, mirror: PairServer) -> None:
        self.source = source
        self.output = output
        self.mirror = mirror
        self.rng = random.Random(11)
        self.unanswered: bytes | None = None
        self.answered = 0
        self.in_flight = 0

    def start(self) -> tuple[Served, Reply | None]:
        served = Served(self.source, self.output, "--mode", "ELO", "--pairs-per-group", "2")
        return served, served.read() and served.read()

    def work_until_killed(self) -> None:
        served, now = self.start()
        if now is not None:
            self.settle(now)
        # A few requests in peace, so that a busy machine gets somewhere too, then a kill at any moment.
        peaceful = self.rng.randrange(12)
        timer = threading.Timer(self.rng.uniform(0.0, 0.03), served.process.kill)
        while now is not None:
            if peaceful == 0:
                timer.start()
            peaceful -= 1
            request = plan(now, self.rng)
            self.unanswered = request
            now = served.ask(**json.loads(request))
            if now is not None:
                assert now == self.mirror.reply(request)
                self.unanswered = None
                self.answered += 1
                if now["type"] == "error":
                    now = place(self.mirror.where())
        if timer.ident is None:
            served.process.kill()
        else:
            timer.join()
        served.end(-9)
        self.check_files()

    def killed_while_starting(self) -> None:
        served = Served(self.source, self.output, "--mode", "ELO", "--pairs-per-group", "2", new=True)
        threading.Timer(self.rng.uniform(0.05, 0.6), served.process.kill).start()
        served.process.wait()
        served.end(-9)
        self.check_files()

    def settle(self, now: Reply) -> None:
        """After a start: nothing acknowledged is gone, and of the last request all or nothing is there."""
        before = place(self.mirror.where())
        if now != before:
            assert self.unanswered is not None, "something acknowledged was lost"
            self.mirror.reply(self.unanswered)
            assert now == place(self.mirror.where())
            self.in_flight += 1
        self.unanswered = None

    def check_files(self) -> None:
        """Whatever has a final name is whole, before anything has cleaned up."""
        images = {path.read_bytes() for path in self.source.iterdir()}
        for side in ("chosen", "rejected"):
            for path in (self.output / side).glob("[!.]*"):
                if path.suffix == ".txt":
                    assert path.read_text() == f"{PROMPT}\n"
                else:
                    assert path.read_bytes() in images
        load_manifest(self.output)

    def check_end(self) -> None:
        """After a last start: the folder holds the files of its pairs and no others."""
        served, now = self.start()
        assert now is not None
        self.settle(now)
        served.end()
        with CurationStore(self.output) as store:
            pairs = store.pairs()
            steps = steps_of(store)
        mirrored = self.mirror.walk.session.store
        assert steps == steps_of(mirrored)
        assert pairs == load_manifest(self.output)["pairs"] == mirrored.pairs()
        for side in ("chosen", "rejected"):
            names = {f"{pair['pair_id']}.{end}" for pair in pairs for end in ("png", "txt")}
            folder = self.output / side
            assert {p.name for p in folder.iterdir()} == names if folder.is_dir() else not names
            for pair in pairs:
                copied = (self.output / pair[f"{side}_file"]).read_bytes()
                assert copied == Path(pair["sources"][side]).read_bytes()


def kill(killed: Killed, times: int) -> None:
    for i in range(times):
        if i % 10 == 7:
            killed.killed_while_starting()
        else:
            killed.work_until_killed()
    killed.check_end()


def test_fifteen_kills(source, tmp_path, mirror):
    killed = Killed(source, tmp_path / "out", mirror)
    kill(killed, 15)
    assert killed.answered > 15


@pytest.mark.slow
def test_two_hundred_kills(source, tmp_path, mirror):
    killed = Killed(source, tmp_path / "out", mirror)
    kill(killed, 200)
    assert killed.answered > 200
    assert killed.in_flight > 0


def test_marks_that_were_acknowledged_survive_a_kill(source, tmp_path):
    def page(reply: Reply | None) -> dict[str, str]:
        assert reply is not None
        return {image["file"]: image["mark"] for image in reply["page"][0]["images"]}

    served = Served(source, tmp_path / "out", "--mode", "GRID")
    assert served.read() is not None
    served.read()
    served.ask(do="like", file="3.png")
    served.ask(do="seen", files=["5.png"])
    before = page(served.ask(do="dislike", file="8.png"))
    served.process.kill()
    served.end(-9)
    again = Served(source, tmp_path / "out", "--mode", "GRID")
    assert again.read() is not None
    assert page(again.read()) == before
    assert (before["3.png"], before["5.png"], before["8.png"]) == ("like", "seen", "dislike")
    assert page(again.ask(do="undo"))["8.png"] == "new"
    again.end()
