"""``taste.py compare`` as a program, killed at any moment too."""

from __future__ import annotations

import contextlib
import io
import json
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.arena.VoteStore import Vote, VoteStore
from scripts import taste
from tests.children.warm import start_picking
from tests.scripts.test_curate_pairs import ROOT, generated

Reply = dict[str, Any]


@pytest.fixture
def folders(tmp_path: Path) -> str:
    for number, name in enumerate(("before", "after")):
        for prompt in range(4):
            for seed in range(12):
                # the seed of the pixels differs, the one in the metadata is the same
                generated(tmp_path / name / f"{prompt}-{seed}.png", f"prompt {prompt}", seed)
                if number:
                    generated(tmp_path / name / f"{prompt}-{seed}.png", f"prompt {prompt}", seed, (64, 32))
    return f"{tmp_path / 'before'},new={tmp_path / 'after'}"


def test_the_terminal_asks_and_says(folders, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n=\nhuh\nu\ns\n2\n"))
    assert taste.main(["compare", str(tmp_path / "p"), "--between", folders, "--json"]) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert (result["votes"], result["contestants"]) == (2, ["before", "new"])
    assert "unknown answer 'huh'" in said.err and "4-left" not in said.err
    assert taste.main(["compare", str(tmp_path / "p"), "--between", folders, "--result"]) == 0
    assert capsys.readouterr().out == f"{result['sentence']}\n"


def test_images_that_were_replaced_begin_without_votes(folders, tmp_path, capsys, monkeypatch):
    def votes(answers: str = "") -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(answers + "q\n"))
        assert taste.main(["compare", str(tmp_path / "p"), "--between", folders, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["votes"]

    assert votes("1\n2\n") == 2
    generated(tmp_path / "after" / "more.png", "prompt 0", 99)
    generated(tmp_path / "before" / "more.png", "prompt 0", 99, (32, 32))
    assert votes() == 2, "further images do not change those that were seen"
    with Image.open(tmp_path / "after" / "1-1.png") as image:
        kept = PngInfo()
        kept.add_text("parameters", image.info["parameters"])
        kept.add_text("Software", "a viewer that writes into the files it shows")
        image.save(tmp_path / "after" / "1-1.png", pnginfo=kept)
    assert votes() == 2, "what is shown is the same"
    seen = (tmp_path / "after" / "0-0.png").read_bytes()
    generated(tmp_path / "after" / "0-0.png", "prompt 0", 0, (96, 64))
    monkeypatch.setattr("sys.stdin", io.StringIO("q\n"))
    assert taste.main(["compare", str(tmp_path / "p"), "--between", folders]) == 0
    assert "the images of new were replaced" in capsys.readouterr().err
    assert votes("1\n") == 1
    (tmp_path / "after" / "0-0.png").write_bytes(seen)
    assert votes() == 2, "with the earlier images, the earlier votes count"


@pytest.mark.parametrize(
    ("between", "message"),
    [
        ("{}", "two different"),
        ("{},{}", "two different"),
        ("{},=x", "NAME=FOLDER"),
        ("{},nowhere", "no folder"),
    ],
)
def test_mistakes_end_with_status_2(folders, tmp_path, capsys, between, message):
    text = between.format(*[folders.split(",")[0]] * 2)
    assert taste.main(["compare", str(tmp_path / "p"), "--between", text]) == 2
    said = capsys.readouterr()
    assert message in said.err and not said.out
    assert not (tmp_path / "p").exists(), "nothing is made for votes that cannot be given"


class Served:
    """A running ``compare --headless``."""

    def __init__(self, folder: Path, between: str) -> None:
        words = ("compare", folder, "--between", between, "--headless", "--votes", "10000")
        self.process = start_picking(ROOT / "scripts" / "taste.py", *words, folder=ROOT)

    def read(self) -> Reply | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def ask(self, request: Reply) -> Reply | None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        return self.read()


def votes_in(folder: Path) -> list[Vote]:
    with VoteStore(folder / "arena") as store:
        return list(store.votes())


def plan(rng: random.Random) -> Reply:
    verb = rng.choice(["answer", "answer", "answer", "tie", "skip", "undo"])
    return {"do": verb, "best": rng.randrange(2)} if verb == "answer" else {"do": verb}


@pytest.mark.child
def test_no_vote_is_lost_when_killed(folders, tmp_path):
    """Of what was acknowledged everything is there; of the request in flight all or nothing."""
    rng = random.Random(4)
    folder = tmp_path / "p"
    known = 0
    # a busy machine may answer nothing in 50 ms, so it goes on until something was voted
    for turn in range(40):
        if turn >= 8 and known > 3:
            break
        served = Served(folder, folders)
        assert served.read() is not None
        now = served.read()
        killer = threading.Timer(rng.uniform(0.0, 0.05), served.process.kill)
        killer.start()
        counts = [known]
        while now is not None:
            request = plan(rng)
            change = -1 if request["do"] == "undo" else 1
            now = served.ask(request)
            if now is None or now["type"] != "error":
                counts.append(max(0, counts[-1] + change))
        killer.join()
        served.process.communicate()
        known = len(votes_in(folder))
        assert known in counts[-2:], "acknowledged votes are all there"
        assert not list((folder / "arena").glob("shown/*"))
    assert known > 3
