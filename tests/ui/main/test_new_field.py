"""A config field is one line: form, search, documentation and checks pick it up by themselves."""

from __future__ import annotations

from typing import ClassVar

import pytest

from modules.ui.state.ConfigState import ConfigState
from modules.ui.state.search import search_settings
from modules.util.config.reference import settings_page
from modules.util.config.setting import Float, setting
from modules.util.config.settings import iter_settings
from modules.util.config.TrainConfig import TrainConfig
from tests.ui.main.conftest import OpenWindow


class Extended(TrainConfig):
    """A config with one more field."""

    SECTION: ClassVar[str] = "Training"

    sparkle_strength: Float = setting(
        0.25, within=(0, 2), title="Sparkle", group="Sparkle", tip="How much the images glitter."
    )


def test_the_flat_list_has_it_last() -> None:
    settings = iter_settings(Extended)
    assert settings[:-1] == iter_settings(TrainConfig)
    assert (settings[-1].path, settings[-1].section) == ("sparkle_strength", "Training")


def test_state_search_documentation_and_checks() -> None:
    state = ConfigState(Extended())
    fault = state.set_text("sparkle_strength", "3")
    assert fault is not None and "at most 2" in fault.message
    assert search_settings(state.settings.values(), "sparkle")[0].path == "sparkle_strength"
    assert search_settings(state.settings.values(), "glitter")[0].path == "sparkle_strength"
    page = settings_page(Extended)
    assert (
        "| `sparkle_strength` | `0.25` | number, 0 to 2 | **Sparkle.** How much the images glitter. |" in page
    )
    assert "sparkle" not in settings_page()
    assert Extended.from_dict(Extended(sparkle_strength=1.5).to_dict()).sparkle_strength == 1.5


@pytest.mark.gui
def test_the_window_has_a_row_for_it(open_window: OpenWindow) -> None:
    hands = open_window(model=Extended)
    row = hands.fill("sparkle_strength", "5")
    assert hands.window.page == "training"
    assert "at most 2" in str(row._fault.cget("text"))  # type: ignore[union-attr]
    hands.fill("sparkle_strength", "0.5")
    assert hands.window.state_.value("sparkle_strength") == 0.5
    hands.keys("<Control-f>", to=hands.window)
    hands.type("glitter")
    hands.keys("<Return>")
    hands.expect_focus(row.input.focus_widget)
    hands.close()
    again = open_window(model=Extended)
    assert again.window.state_.value("sparkle_strength") == 0.5


@pytest.mark.gui
def test_a_section_nobody_knows_gets_a_page_of_its_own(open_window: OpenWindow) -> None:
    class Elsewhere(Extended):
        SECTION: ClassVar[str] = "Magic"

    hands = open_window(model=Elsewhere)
    assert hands.window.pages[-1].title == "Magic"
    hands.fill("sparkle_strength", "1")
    assert hands.window.page == "magic"
