"""docs/runs.md names every event with its fields, every category, state and command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from modules.runner.commands import COMMANDS, Command
from modules.runner.events import (
    COMMAND_STATES,
    ERROR_CATEGORIES,
    FINISH_STATUSES,
    KINDS,
    EventReader,
    EventWriter,
)
from modules.runner.RunDirectory import RunDirectory
from modules.runner.status import STATES
from modules.trainer.callbacks import EventLog
from modules.trainer.memory.memory_plan import MemoryPlan, Phase
from modules.util.TrainProgress import TrainProgress
from tests.runner.support import PAGE, page_rows


@pytest.fixture
def written(tmp_path) -> list[dict]:
    """One event of each kind, as the trainer's event log writes it."""
    log = EventLog(EventWriter(tmp_path / "e"), tmp_path)
    progress = TrainProgress()
    log.phase("loading", 0, 1)
    log.step(progress, {"loss": 1.0}, 9, None)
    log.validation(progress, {"loss": 1.0})
    log.sample(progress, Path("a.png"), "a prompt", 0)
    log.backup(progress, Path("backup/1"))
    log.saved(progress, Path("save/1"))
    log.command(Command("1", "stop"), "done")
    log.votes_wanted("0123456789abcdef", "a prompt", tmp_path / "votes" / "1-0", 4, 1)
    log.votes_counted(0, "person", (1, 0), True)
    plan = MemoryPlan((Phase("step", {"weights": 3}),), "SEQUENTIAL", (512, 768), ("without rewards",))
    log.memory_plan({**plan.to_dict(), "free_bytes": 4})
    log.memory_plan({"unknown": "the model is not on this machine"})
    log.warning("few pairs")
    log.error("m", "bug", "h", "t")
    log.finished("failed", progress)
    log.close()
    return EventReader(tmp_path / "e").poll()


def test_every_field_is_described_with_its_event(written):
    events = page_rows("Events")
    assert {event["kind"] for event in written} | {"run_started"} == set(KINDS)
    for event in written:
        row = events[event["kind"]]
        missing = [name for name in event if name not in ("t", "seq", "kind") and f"`{name}`" not in row]
        assert not missing, f"{event['kind']}: {missing}"


@pytest.mark.parametrize(
    ("heading", "names"),
    [("Events", (*KINDS, *ERROR_CATEGORIES, "t", "seq", "kind")), ("Commands", COMMANDS), ("States", STATES)],
)
def test_every_name_has_its_row_and_no_row_is_stale(heading, names):
    assert set(page_rows(heading)) == set(names)


def test_states_of_commands_and_ends_are_named():
    events = page_rows("Events")
    assert all(f"`{state}`" in events["command"] for state in COMMAND_STATES)
    assert all(f"`{status}`" in events["run_finished"] for status in FINISH_STATUSES)


def test_every_file_of_a_run_is_described(tmp_path):
    run = RunDirectory(tmp_path)
    names = {path.name for key, path in vars(run).items() if isinstance(path, Path) and key != "path"}
    described = set(re.findall(r"^\| `([\w.]+)/?` \|", PAGE, re.M))
    assert names <= described
