"""Pages that open with the settings that matter first."""

from __future__ import annotations

import pytest

from modules.spec.registry import MODES
from modules.ui.pages.FormPage import FormPage
from modules.util.config.settings import is_visible, iter_settings
from modules.util.config.TrainConfig import TrainConfig
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands

LIMIT = 10


def first_shown(section: str, **values: object) -> list[str]:
    defaults = {s.path: s.default for s in iter_settings(TrainConfig)} | values
    return [
        s.path
        for s in iter_settings(TrainConfig)
        if s.section == section and s.first and is_visible(s.visible, lambda name: defaults[name])
    ]


@pytest.mark.parametrize("mode", list(MODES))
def test_every_mode_opens_with_at_most_ten_settings(mode: str) -> None:
    shown = first_shown("RLHF", rlhf_enabled=True, rlhf_mode=mode, rlhf_dpo_validation=True)
    assert {"rlhf_enabled", "rlhf_mode"} < set(shown)
    assert 6 <= len(shown) <= LIMIT, shown


def test_training_opens_with_ten_settings() -> None:
    shown = first_shown("Training")
    assert len(shown) == LIMIT
    assert {"learning_rate", "epochs", "batch_size", "optimizer.optimizer"} < set(shown)


def page_of(hands: Hands, key: str) -> FormPage:
    hands.window.show_page(key)
    hands.rest()
    page = hands.window.current_page()
    assert isinstance(page, FormPage)
    return page


def on_screen(page: FormPage) -> list[str]:
    return [path for path, row in page.form.rows.items() if row.label.winfo_ismapped()]


@pytest.mark.gui
def test_the_page_shows_ten_rows_until_more_is_pressed_and_remembers(open_window: OpenWindow) -> None:
    hands = open_window()
    page = page_of(hands, "training")
    assert sorted(on_screen(page)) == sorted(first_shown("Training"))
    hidden = len(page.form.behind_more())
    assert page.more.cget("text") == f"{hidden} more settings"
    hands.click(page.more)
    assert len(on_screen(page)) == LIMIT + hidden
    hands.close()
    again = open_window()
    page = page_of(again, "training")
    assert page.more.cget("text") == "Fewer settings"
    again.focus(page.more)
    again.keys("<Return>")
    again.wait(lambda: sorted(on_screen(page)) == sorted(first_shown("Training")), "more than ten rows stay")


@pytest.mark.slow
@pytest.mark.gui
def test_the_button_counts_what_is_changed_behind_it(hands: Hands) -> None:
    page = page_of(hands, "training")
    hands.window.state_.set_value("ema_decay", 0.5)
    assert "changed" not in page.more.cget("text")  # no row at these settings, so nothing to find there
    hands.window.state_.set_value("clip_grad_norm", 0.5)
    assert page.more.cget("text").endswith("more settings (1 changed)")


@pytest.mark.gui
def test_a_search_for_a_hidden_setting_opens_more(hands: Hands) -> None:
    page = page_of(hands, "training")
    hands.keys("<Control-f>", to=hands.window)
    hands.type("clip gradient")
    hands.keys("<Return>")
    row = page.form.rows["clip_grad_norm"]
    assert row.label.winfo_viewable()
    hands.expect_focus(row.input.focus_widget)


@pytest.mark.slow
@pytest.mark.gui
def test_an_error_at_a_hidden_setting_opens_more_once(hands: Hands) -> None:
    page = page_of(hands, "training")
    state = hands.window.state_
    state.set_text("clip_grad_norm", "-1")
    row = page.form.rows["clip_grad_norm"]
    hands.wait(lambda: row.label.winfo_ismapped(), "the row with the error stays hidden")
    hands.focus(page.more)
    hands.keys("<Return>")
    state.set_value("epochs", 3)  # the error is known: closing again is respected
    hands.rest(0.2)
    assert not row.label.winfo_ismapped()


@pytest.mark.gui
def test_pages_without_first_settings_have_no_button(hands: Hands) -> None:
    page = page_of(hands, "lora")
    assert not page.more.winfo_ismapped()
    assert len(on_screen(page)) > 3
