"""Every way of choosing in the window: offered on the start page, and played by its keys."""

from __future__ import annotations

import pytest

from modules.curation.CurationMode import CurationMode
from tests.ui.curation.drivers import choose_everything

pytestmark = pytest.mark.gui


@pytest.mark.parametrize("mode", list(CurationMode), ids=lambda mode: mode.value)
def test_the_start_page_offers_it_and_it_is_played_by_its_keys(sit_down, mode):
    hands = sit_down(groups=2, per_group=5)
    hands.open_start()
    page = hands.start_page
    assert list(page.mode_buttons) == list(CurationMode)
    assert str(page.mode_buttons[mode].cget("text")) == mode.way.title
    page.mode_buttons[mode].invoke()
    assert ("disabled" in page.entries["threshold"].state()) == (not mode.way.stops_when_certain)
    hands.focus(page.go)
    hands.press("Return")
    assert str(hands.page.hint_label.cget("text")) != ""
    shown = {key for action in hands.page._actions for key in action.keys}
    assert {key for one in mode.way.keys(len(hands.question)) for key in one.keys} <= shown
    choose_everything(hands)
    assert hands.shot.counts.paired == 2
