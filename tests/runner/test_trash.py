"""Deleting runs: only what this program made, and never for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.runner.run_list import list_runs, summary_of
from modules.runner.RunDirectory import RunDirectory
from modules.runner.trash import (
    TRASH,
    check_only_own,
    delete_run,
    empty_trash,
    restore_run,
    trashed_runs,
)
from modules.util.errors import UserError
from modules.util.files.user_folder import FOLDER_VARIABLE
from tests.runner.test_pace import run_with, started, step


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "settings"))


def made(tmp_path: Path, name: str = "run") -> RunDirectory:
    run = run_with(
        tmp_path / "work" / name, [started(0), step(1, 1)], {"rlhf_enabled": True, "rlhf_mode": "GRPO"}
    )
    run.samples_dir.mkdir()
    (run.samples_dir / "a.png").write_bytes(b"x")
    return run


def test_a_deleted_run_is_in_the_trash_and_comes_back_whole(tmp_path: Path) -> None:
    run = made(tmp_path)
    trashed = delete_run(run.path)
    assert not run.path.exists() and trashed.parent == tmp_path / "work" / TRASH
    assert (trashed / "samples" / "a.png").read_bytes() == b"x"
    assert list_runs(tmp_path / "work" / "run") == []
    restore_run(trashed, run.path)
    assert (run.samples_dir / "a.png").read_bytes() == b"x"


def test_of_the_same_name_both_stay_in_the_trash(tmp_path: Path) -> None:
    first = delete_run(made(tmp_path).path)
    second = delete_run(made(tmp_path).path)
    assert first != second and first.is_dir() and second.is_dir()
    again = made(tmp_path)
    with pytest.raises(UserError, match="already exists"):
        restore_run(first, again.path)
    assert first.is_dir()


def test_a_folder_with_anything_else_in_it_stays(tmp_path: Path) -> None:
    run = made(tmp_path)
    (run.path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="thesis.txt"):
        delete_run(run.path)
    assert (run.path / "thesis.txt").is_file() and run.events_path.is_file()


def test_files_that_desktops_write_are_in_nobodys_way(tmp_path: Path) -> None:
    run = made(tmp_path)
    for name in (".DS_Store", "._events.jsonl", ".directory", "desktop.ini", "Thumbs.db"):
        (run.path / name).write_bytes(b"x")
    check_only_own(run.path)
    delete_run(run.path)
    other = made(tmp_path)
    (other.path / "._notes").mkdir()
    with pytest.raises(UserError, match="._notes"):
        delete_run(other.path)


def test_former_settings_of_a_person_go_to_the_trash_but_are_never_deleted(tmp_path: Path) -> None:
    run, other = made(tmp_path), made(tmp_path, "other")
    mine = run.path / "config.before-20260102-030405-abcd.json"
    mine.write_text('{"learning_rate": 0.1}')
    with pytest.raises(UserError, match=mine.name) as refused:
        check_only_own(run.path)
    assert refused.value.hint is not None and f"{mine.name} holds settings of yours" in refused.value.hint
    trashed = delete_run(run.path)
    restore_run(trashed, run.path)
    trashed, gone = delete_run(run.path), delete_run(other.path)
    with pytest.raises(UserError, match=mine.name):
        empty_trash([trashed, gone])
    assert (trashed / mine.name).is_file() and trashed_runs([tmp_path / "work"]) == [trashed]
    (trashed / mine.name).rename(tmp_path / mine.name)
    empty_trash([trashed])
    assert trashed_runs([tmp_path / "work"]) == []


def test_what_is_no_run_and_what_a_project_needs_stays(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    with pytest.raises(UserError, match="is not the folder of a run"):
        delete_run(tmp_path / "pictures")
    run = run_with(tmp_path / "taste" / "round-1" / "run", [started(0)])
    (tmp_path / "taste" / "project.json").write_text("{}")
    with pytest.raises(UserError, match="belongs to a round"):
        delete_run(run.path)
    link = tmp_path / "link"
    link.symlink_to(made(tmp_path).path, target_is_directory=True)
    with pytest.raises(UserError, match="is not the folder of a run"):
        delete_run(link)


def test_a_run_that_is_live_stays(tmp_path: Path) -> None:
    run = made(tmp_path)
    with run.locked(), pytest.raises(UserError, match="training is running"):
        delete_run(run.path)
    assert run.path.is_dir()


def test_a_summary_says_mode_steps_state_and_adapter(tmp_path: Path) -> None:
    adapter = tmp_path / "taste.safetensors"
    adapter.write_bytes(b"x")
    config = {"rlhf_enabled": True, "rlhf_mode": "GRPO", "output_model_destination": str(adapter)}
    events = [started(0), {**step(1, 7), "total_steps": 20}]
    found = summary_of(run_with(tmp_path / "a", events, config).path)
    assert found is not None
    assert (found.mode, found.steps, found.total_steps, found.state) == ("GRPO", 7, 20, "died")
    assert found.adapter == adapter
    ended = [*events, {"t": 2, "kind": "run_finished", "status": "finished"}]
    done = summary_of(run_with(tmp_path / "b", ended).path)
    assert done is not None and (done.mode, done.state, done.adapter) == ("Images", "finished", None)
    assert summary_of(tmp_path) is None
