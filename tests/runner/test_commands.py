"""Orders: each is taken once, and files that are none do no harm."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from modules.runner.commands import COMMANDS, MAX_BYTES, post_command, take_commands
from modules.util.errors import UserError


def test_orders_come_in_their_order_with_their_arguments(tmp_path):
    posted = [post_command(tmp_path, kind, n=number, text="ü") for number, kind in enumerate(COMMANDS)]
    taken, refused = take_commands(tmp_path)
    assert [command.id for command in taken] == posted
    assert [(command.kind, command.arguments) for command in taken] == [
        (kind, {"n": number, "text": "ü"}) for number, kind in enumerate(COMMANDS)
    ]
    assert refused == []
    assert take_commands(tmp_path) == ([], [])
    assert list(tmp_path.iterdir()) == []


def _post(folder: Path, count: int) -> None:
    for _ in range(count):
        post_command(folder, "sample")


def _take(folder: Path, seconds: float, found) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for command in take_commands(folder)[0]:
            found.put(command.id)


@pytest.mark.child
def test_orders_of_many_are_taken_once_even_by_two_takers(tmp_path):
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    posters = [context.Process(target=_post, args=(tmp_path, 30)) for _ in range(2)]
    taker = context.Process(target=_take, args=(tmp_path, 30.0, found), daemon=True)
    for process in [taker, *posters]:
        process.start()
    seen: list[str] = []
    until = time.monotonic() + 30
    while len(seen) < 60 and time.monotonic() < until:
        commands, refused = take_commands(tmp_path)
        assert refused == []
        seen += [command.id for command in commands]
        while not found.empty():
            seen.append(found.get())
    for poster in posters:
        poster.join()
    taker.terminate()
    taker.join()
    assert len(seen) == len(set(seen)) == 60


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", '{"kind": "rm", "id": "1"}', '{"kind": "stop"}', "[" * 100_000,
        '{"kind": "stop", "id": 5}', '{"kind": ["stop"], "id": "1"}',
        '{"kind": "stop", "id": "1", "arguments": []}', '{"kind": "stop", "id": "1"}' + " " * MAX_BYTES,
    ],
)  # fmt: skip
def test_files_that_are_no_orders_are_refused_and_removed(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    identity = post_command(tmp_path, "stop")
    taken, refused = take_commands(tmp_path)
    assert refused == ["x.json"]
    assert [command.id for command in taken] == [identity]
    assert list(tmp_path.iterdir()) == []


def test_only_orders_are_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / ".half.json").write_text("{")
    assert take_commands(tmp_path) == ([], [])
    assert len(list(tmp_path.iterdir())) == 3


def test_unknown_and_huge_orders_are_refused(tmp_path):
    with pytest.raises(UserError, match="selfdestruct"):
        post_command(tmp_path, "selfdestruct")
    with pytest.raises(UserError, match="longer than"):
        post_command(tmp_path, "sample", prompt="x" * MAX_BYTES)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_holds_no_orders(tmp_path):
    assert take_commands(tmp_path / "nowhere") == ([], [])
