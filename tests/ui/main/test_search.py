"""Search over the settings."""

from __future__ import annotations

from modules.ui.state.search import search_settings
from modules.util.config.settings import iter_settings
from modules.util.config.TrainConfig import TrainConfig

SETTINGS = iter_settings(TrainConfig)


def paths(words: str) -> list[str]:
    return [setting.path for setting in search_settings(SETTINGS, words)]


def test_beta_finds_the_beta_of_preference_training_first() -> None:
    assert paths("beta")[0] == "rlhf_dpo_beta"
    assert "optimizer.beta1" in paths("beta")


def test_every_setting_with_a_row_is_found_by_its_title_and_by_its_name() -> None:
    for setting in SETTINGS:
        if not setting.hidden:
            assert setting.path in [s.path for s in search_settings(SETTINGS, setting.title, 200)]
            assert search_settings(SETTINGS, setting.path, 200)[0].path == setting.path


def test_all_words_must_fit_and_their_case_does_not_matter() -> None:
    assert paths("LEARNING warm")[0] == "learning_rate_warmup_steps"
    assert paths("warm LEARNING") == paths("LEARNING warm")
    assert paths("beta nonsense") == []
    assert paths("   ") == []


def test_of_equals_those_of_the_run_come_before_those_of_a_part() -> None:
    assert paths("learning rate")[0] == "learning_rate"
    assert "unet.learning_rate" in paths("learning rate")


def test_rows_that_are_not_shown_come_last_unless_their_name_was_typed() -> None:
    lacks = lambda path: not path.startswith("learning_rate")  # noqa: E731
    found = [s.path for s in search_settings(SETTINGS, "learning rate", 200, lacks)]
    hidden = [path.startswith("learning_rate") for path in found]
    assert hidden == sorted(hidden) and any(hidden) and not all(hidden)
    assert search_settings(SETTINGS, "learning_rate", 200, lacks)[0].path == "learning_rate"


def test_choices_are_searched() -> None:
    assert "optimizer.optimizer" in paths("prodigy")


def test_hidden_settings_are_not_found() -> None:
    assert "rlhf_dpo_ref_mode" not in paths("reference")
