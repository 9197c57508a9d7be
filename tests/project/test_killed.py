"""``taste.py`` killed at random moments while it makes, asks, trains and compares: the project stays whole."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from scripts import taste
from tests.changes import in_small_process
from tests.children.warm import start_picking
from tests.generator.servers import A1111Server
from tests.project import killed_child
from tests.project.killed_creation import a_killed_creation_is_repeated_or_says_what_to_remove
from tests.project.simulated import told

VERBS = {"generate": ("generate", "--per-prompt", "4"), "pick": ("pick", "--headless"), "train": ("train",),
         "compare": ("compare", "--headless", "--images", "6"), "new-round": ("next",)}  # fmt: skip
LONGEST_SECONDS = 2.0


class Killed:
    """Runs a step, and kills it or lets it end.

    Args:
        folder: of the project.
        seed: of the moments.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.answered = 0

    def run(self, step: str, kill: bool) -> None:
        verb, *more = VERBS[step]
        child = start_picking(
            Path(killed_child.__file__), verb, self.folder, *more, folder=Path.cwd(), text=True
        )
        talks = "--headless" in more
        # after some answers, or at some moment of a step that asks nothing
        answers = self.rng.randrange(0, 12) if kill else 10**6
        if talks:
            self._talk(child, answers)
        elif kill:
            time.sleep(self.rng.uniform(0.0, LONGEST_SECONDS))
        if kill:
            child.kill()
        out, err = child.communicate()
        status = child.returncode
        assert status in ((0, -9) if kill else (0,)), f"{step}: {status}\n{out}\n{err}"

    def _talk(self, child: Any, answers: int) -> None:
        watchdog = threading.Timer(120.0, child.kill)
        watchdog.start()
        given = 0
        try:
            for line in child.stdout:
                reply: dict[str, Any] = json.loads(line)
                if reply["type"] == "continue":
                    request = {"do": "finish_group"}
                elif reply["type"] == "question":
                    if given >= answers:
                        return
                    given += 1
                    request = {"do": "answer", "best": 0}
                elif reply["type"] == "finished":
                    request = {"do": "quit"}
                else:
                    continue
                child.stdin.write(json.dumps(request) + "\n")
                child.stdin.flush()
        finally:
            watchdog.cancel()


def images(folder: Path) -> dict[str, bytes]:
    places = [*folder.glob("round-*/candidates/*.png"), *folder.glob("arena/images/*/*.png")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in places}


def counts(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, Any]:
    return told(capsys, "status", folder)


def grown(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether nothing that was there is gone."""
    for old, new in zip(before["rounds"], after["rounds"], strict=False):
        if any(new[name] < old[name] for name in ("candidates", "answers", "pairs")):
            return False
        if old["adapter"] and not new["adapter"]:
            return False
        if old["arena"] and (not new["arena"] or new["arena"]["votes"] < old["arena"]["votes"]):
            return False
    return len(after["rounds"]) >= len(before["rounds"])


@pytest.mark.child
def test_a_project_whose_creation_was_killed_can_be_created(tmp_path):
    in_small_process(a_killed_creation_is_repeated_or_says_what_to_remove, tmp_path)


@pytest.mark.child
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_a_project_survives_being_killed(tmp_path, capsys, kills):
    """After every kill it is valid, nothing of before is lost or changed, and the next call continues."""
    (tmp_path / "prompts.txt").write_text("\n".join(f"a fox {number}" for number in range(6)))
    (tmp_path / "loras").mkdir()
    server = A1111Server(tmp_path / "loras")
    folder = tmp_path / "taste"
    with server.running() as url:
        new = ["new", str(folder), "--base-model", "a/model", "--prompts", str(tmp_path / "prompts.txt")]
        new += ["--generator", "a1111", "--url", url, "--checkpoint", "sd15", "--near-duplicates", "-1"]
        assert taste.main([*new, "--lora-folder", str(tmp_path / "loras")]) == 0
        killed = Killed(folder, kills)
        seen: set[str] = set()
        for turn in range(kills):
            before, made = counts(capsys, folder), images(folder)
            # with few kills every step has one and is finished then, if it was not already
            killed.run(before["next"], kill=True)
            after = counts(capsys, folder)
            assert grown(before, after), (before, after)
            assert images(folder).items() >= made.items(), "an image was lost or made again"
            seen.add(before["next"])
            if turn % 5 == 4 or (kills < 10 and after["next"] == before["next"]):
                killed.run(after["next"], kill=False)
        for _ in range(8):
            step = counts(capsys, folder)["next"]
            if step == "new-round":
                break
            killed.run(step, kill=False)
        last = counts(capsys, folder)["rounds"][-1]
    assert {"generate", "pick", "train", "compare"} <= seen
    assert last["candidates"] == last["planned"] > 0 and last["adapter"] and last["arena"]["votes"] > 0
