"""Editing, undo and problems without a window."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.ui.state import ConfigState as module
from modules.ui.state.ConfigState import ConfigState
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import TrainingMethod
from modules.util.errors import ConfigError


def test_a_good_text_becomes_a_value_and_undo_brings_the_old_one_back() -> None:
    state = ConfigState()
    heard: list[frozenset[str]] = []
    state.listen(heard.append)
    assert state.set_text("learning_rate", "3e-5") is None
    assert state.config.learning_rate == 3e-5
    assert not state.is_default("learning_rate")
    assert heard == [frozenset({"learning_rate"})]
    assert state.undo() == "Learning rate"
    assert state.config.learning_rate == 1e-4
    assert state.is_default("learning_rate")
    assert state.redo() == "Learning rate"
    assert state.config.learning_rate == 3e-5


def test_a_bad_text_keeps_the_last_good_value_and_is_a_problem() -> None:
    state = ConfigState()
    state.set_text("batch_size", "4")
    fault = state.set_text("batch_size", "0")
    assert fault is not None
    assert "at least 1" in fault.message
    assert state.config.batch_size == 4
    assert state.text("batch_size") == "0"
    assert state.typed() == {"batch_size": "0"}
    assert [p.path for p in state.problems() if not p.warning] == ["batch_size"]
    state.set_text("batch_size", "2")
    assert state.problems() == []
    assert state.fault("batch_size") is None


def test_typing_is_one_step_of_undo_until_the_field_is_left() -> None:
    state = ConfigState()
    for text in ("1", "12", "123"):
        state.set_text("epochs", text)
    state.seal()
    state.set_text("epochs", "1234")
    assert state.undo() == "Epochs"
    assert state.config.epochs == 123
    state.undo()
    assert state.config.epochs == TrainConfig().epochs
    assert state.undo() is None


def test_a_pause_in_typing_begins_a_new_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    state = ConfigState()
    state.set_text("epochs", "1")
    now[0] += module.TYPING_SECONDS + 0.1
    state.set_text("epochs", "12")
    state.undo()
    assert state.config.epochs == 1


def test_undo_brings_back_bad_texts_with_their_faults() -> None:
    state = ConfigState()
    state.set_text("epochs", "many")
    state.seal()
    state.set_text("epochs", "5")
    state.undo()
    assert state.text("epochs") == "many"
    assert state.fault("epochs") is not None
    state.undo()
    assert state.fault("epochs") is None


def test_contradictions_are_problems_with_their_field() -> None:
    state = ConfigState()
    state.set_values({"rlhf_enabled": True, "training_method": "FINE_TUNE"}, "method")
    assert state.config.training_method is TrainingMethod.FINE_TUNE
    assert any(p.path == "training_method" and p.message for p in state.problems())
    state.undo()
    assert state.problems() == []


def test_a_value_a_field_cannot_have_is_refused_and_changes_nothing() -> None:
    state = ConfigState()
    with pytest.raises(ConfigError):
        state.set_value("training_method", "HOPE")
    assert not state.can_undo()
    assert not state.is_modified()


def test_replacing_everything_is_one_step() -> None:
    state = ConfigState()
    other = TrainConfig(epochs=3, lora_rank=64)
    other.unet.learning_rate = 2e-5
    other.concepts = [ConceptConfig(path="a")]
    state.replace(other, "open x.json", saved=True)
    assert state.config.to_dict() == other.to_dict()
    assert not state.is_modified()
    assert state.undo() == "open x.json"
    assert state.config.to_dict() == TrainConfig().to_dict()
    assert state.is_modified()
    state.redo()
    assert state.value("concepts")[0].path == "a"


def test_reset_of_a_nested_field() -> None:
    state = ConfigState()
    state.set_text("optimizer.weight_decay", "0.1")
    assert state.value("optimizer.weight_decay") == 0.1
    state.reset(["optimizer.weight_decay"])
    assert state.value("optimizer.weight_decay") is None
    assert state.text("optimizer.weight_decay") == ""


def test_visibility_follows_values() -> None:
    state = ConfigState()
    assert not state.is_visible("rlhf_dpo_beta")
    state.set_value("rlhf_enabled", True)
    assert state.is_visible("rlhf_dpo_beta")
    assert not state.is_visible("rlhf_dpo_ipo_tau")
    state.set_value("rlhf_dpo_objective", "IPO")
    assert state.is_visible("rlhf_dpo_ipo_tau")
    assert not state.is_visible("rlhf_dpo_beta"), "IPO does not use beta"
    assert not state.is_visible("rlhf_dpo_ref_mode")


def test_a_bad_text_in_a_hidden_row_is_no_problem_until_the_row_is_shown() -> None:
    state = ConfigState()
    state.set_value("rolling_backup", True)
    state.set_text("rolling_backup_count", "x")
    assert [p.path for p in state.problems()] == ["rolling_backup_count"]
    state.set_value("rolling_backup", False)
    assert state.problems() == [] and state.typed() == {"rolling_backup_count": "x"}
    state.set_value("rolling_backup", True)
    assert [p.path for p in state.problems()] == ["rolling_backup_count"]


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("rolling_backup_count", "Newest backups only is on"),
        ("learning_rate_cycles", "Schedule is Cosine with restarts or Cosine with hard restarts"),
        ("backup_after", "Backup unit is not Never or Always"),
    ],
)
def test_the_condition_for_a_row_is_told_with_titles(path: str, rule: str) -> None:
    assert ConfigState().shown_when(path) == rule


def test_every_condition_can_be_told() -> None:
    state = ConfigState()
    told = {path: state.shown_when(path) for path, setting in state.settings.items() if setting.visible}
    assert told and all(" is " in said and "_" not in said for said in told.values())


def test_problems_are_listed_in_the_order_of_the_form_however_they_came() -> None:
    state = ConfigState()
    for path, text in (("epochs", "0"), ("learning_rate", "x"), ("epochs", "1")):
        state.set_text(path, text)
        state.seal()
    state.undo()
    other = ConfigState()
    other.set_text("epochs", "0")
    other.set_text("learning_rate", "x")
    assert [p.path for p in state.problems()] == [p.path for p in other.problems()]
    assert {p.path for p in state.problems()} == {"epochs", "learning_rate"}


TEXTS = {
    "epochs": st.one_of(st.integers(-2, 50).map(str), st.text(max_size=4)),
    "learning_rate": st.one_of(st.floats(0, 1).map(repr), st.just("x")),
    "workspace_dir": st.text(max_size=6),
    "unet.learning_rate": st.sampled_from(["", "1e-5", "-1", "nan"]),
}
EDITS = st.lists(
    st.one_of(
        *(st.tuples(st.just(path), texts) for path, texts in TEXTS.items()),
        st.tuples(st.just("undo"), st.none()),
        st.tuples(st.just("redo"), st.none()),
        st.tuples(st.just("rlhf_enabled"), st.booleans()),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(EDITS)
def test_undoing_everything_ends_where_it_began_and_redoing_where_it_ended(
    edits: list[tuple[str, Any]],
) -> None:
    state = ConfigState()
    for path, value in edits:
        if path == "undo":
            state.undo()
        elif path == "redo":
            state.redo()
        elif isinstance(value, bool):
            state.set_value(path, value)
        else:
            state.set_text(path, value)
            state.seal()

    def picture() -> tuple[Any, ...]:
        return state.config.to_dict(), state.typed(), [p.path for p in state.problems()]

    end = picture()
    steps = 0
    while state.undo() is not None:
        steps += 1
    assert state.config.to_dict() == TrainConfig().to_dict()
    assert state.typed() == {}
    for _ in range(steps):
        assert state.redo() is not None
    while state.redo() is not None:
        pass
    for _ in range(len(edits)):
        if picture() == end:
            break
        state.undo()
    assert picture() == end
