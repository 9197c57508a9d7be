"""What is remembered between starts survives damage, newer programs and folders that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.ui.state.SessionStore import Session, SessionStore, WindowMemory
from modules.util.config.load import find_problems
from modules.util.config.TrainConfig import TrainConfig
from modules.util.files.user_folder import settings_folder


def saved(folder: Path, **changes: object) -> SessionStore:
    store = SessionStore(folder / "new" / "folder")
    config = TrainConfig(epochs=7)
    store.save_session(Session(config.to_dict(), "/x/a.json", False, {"batch_size": "many"}, "/runs/1"))
    data = json.loads(store.session_path.read_text())
    data.update(changes)
    store.session_path.write_text(json.dumps(data))
    return store


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    config, session, trouble = saved(tmp_path).load_session()
    assert trouble == ""
    assert config is not None and session is not None
    assert config.epochs == 7
    assert (session.path, session.saved, session.typed, session.run) == (
        "/x/a.json", False, {"batch_size": "many"}, "/runs/1"
    )  # fmt: skip


def test_a_window_sweeps_what_a_killed_program_left_half_written(tmp_path: Path) -> None:
    for name in (".tastemaker-0123456789abcdef.tmp", ".mine.tmp"):
        (tmp_path / name).write_text("half")
    store = SessionStore(tmp_path)
    assert store.claim() == 1
    store.release()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.tmp", "session.lock"]


def test_nothing_saved_is_no_trouble(tmp_path: Path) -> None:
    assert SessionStore(tmp_path).load_session() == (None, None, "")
    assert SessionStore(tmp_path).load_window() == (WindowMemory(), "")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a saved session"),
        ('{"version": 1}', "not a saved session"),
        ('{"version": 1, "config": {"__version": 1, "epochs": "ten"}}', "epochs"),
        ('{"version": 1, "config": {"__version": 1, "nonsense": 1}}', "nonsense"),
    ],
)
def test_a_damaged_session_is_kept_aside_and_told(tmp_path: Path, content: str, said: str) -> None:
    store = SessionStore(tmp_path)
    store.session_path.write_text(content)
    config, session, trouble = store.load_session()
    assert config is None and session is None
    assert said in trouble
    kept = list(tmp_path.glob("session.unreadable-*.json"))
    assert [path.read_text() for path in kept] == [content]
    assert str(kept[0]) in trouble
    assert not store.session_path.exists()


def test_a_session_of_a_newer_program_is_told_and_kept(tmp_path: Path) -> None:
    store = saved(tmp_path, version=99)
    _, _, trouble = store.load_session()
    assert "format 99" in trouble
    assert len(list(store.folder.glob("session.unreadable-*"))) == 1
    newer = TrainConfig().to_dict() | {"__version": 99}
    store = saved(tmp_path, config=newer)
    _, _, trouble = store.load_session()
    assert "format 99" in trouble


def test_values_that_contradict_each_other_come_back_as_they_were(tmp_path: Path) -> None:
    config = TrainConfig(rlhf_enabled=True, training_method="FINE_TUNE").to_dict()
    made, _, trouble = saved(tmp_path, config=config).load_session()
    assert trouble == ""
    assert made is not None and find_problems(made).errors


def test_a_damaged_window_file_costs_only_what_is_damaged(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.window_path.write_text('{"scale": 9000, "appearance": 5, "page": "rlhf", "recent": ["a", 7, "b"]}')
    memory, trouble = store.load_window()
    assert trouble == ""
    assert (memory.scale, memory.appearance, memory.page, memory.recent) == (
        200,
        "System",
        "rlhf",
        ["a", "b"],
    )
    store.window_path.write_text("\x00")
    memory, trouble = store.load_window()
    assert memory == WindowMemory()
    assert "not valid JSON" in trouble


def test_recent_files_are_unique_and_newest_first() -> None:
    memory = WindowMemory()
    for name in ("/a", "/b", "/a"):
        memory.remember(Path(name))
    assert memory.recent == [str(Path("/a").absolute()), str(Path("/b").absolute())]


def test_two_windows_keep_the_files_and_projects_that_the_other_opened(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    first, second = store.load_window()[0], store.load_window()[0]
    for memory, name in ((first, "first"), (second, "second")):
        memory.remember(tmp_path / f"{name}.json")
        memory.remember_project(tmp_path / name)
        store.save_window(memory)
    store.save_window(first)
    found, _ = store.load_window()
    assert {Path(path).name for path in found.recent} == {"first.json", "second.json"}
    assert {Path(path).name for path in found.projects} == {"first", "second"}


def test_a_crash_while_saving_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SessionStore(tmp_path)
    store.save_session(Session({"epochs": 1}))
    before = store.session_path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        store.save_session(Session({"epochs": 2}))
    monkeypatch.undo()
    assert store.session_path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["session.json"]


def test_the_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path))
    assert settings_folder() == tmp_path
    monkeypatch.delenv("TASTEMAKER_SETTINGS")
    assert settings_folder().is_absolute()


def test_two_windows_do_not_overwrite_each_other(tmp_path: Path) -> None:
    first, second = SessionStore(tmp_path), SessionStore(tmp_path)
    first.save_session(Session(TrainConfig(epochs=3).to_dict()))
    assert first.claim() == 1
    assert second.claim() == 2
    config, _, _ = second.load_session()
    assert config is not None and config.epochs == 3
    second.save_session(Session(TrainConfig(epochs=4).to_dict()))
    config, _, _ = first.load_session()
    assert config is not None and config.epochs == 3
    first.release()
    second.release()
    third = SessionStore(tmp_path)
    assert third.claim() == 1
    third.release()
    again = SessionStore(tmp_path)
    again.claim()
    other = SessionStore(tmp_path)
    assert other.claim() == 2
    config, _, _ = other.load_session()
    assert config is not None and config.epochs == 4
    again.release()
    other.release()
