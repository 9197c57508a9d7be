"""The person chooses the GPUs that train, on a computer that has several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands
from tests.usual import usual

pytestmark = pytest.mark.gui
Opened = Callable[[Sequence[str]], Hands]


@pytest.fixture
def project_page(open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Opens the page on a computer with these GPUs."""

    def open_it(names: Sequence[str]) -> Hands:
        monkeypatch.setattr("modules.ui.pages.ProjectPage.found_gpus", lambda: list(names))
        hands = open_window()
        hands.window.show_page("project")
        hands.rest(0.3)
        return hands

    return open_it


def test_boxes_list_the_devices_that_train(project_page: Opened, tmp_path: Path) -> None:
    hands = project_page(["Card A", "Card B", "Card C"])

    def device() -> str:
        return hands.window.state_.config.train_device

    boxes = hands.window.current_page().boxes  # type: ignore[attr-defined]
    hands.wait(lambda: len(boxes) == 3, "no boxes")
    first, second, third = boxes.values()
    hands.window.current_page().scroll.see(third)  # type: ignore[attr-defined]
    hands.wait(third.winfo_viewable)
    assert [box.instate(["selected"]) for box in (first, second, third)] == [True, False, False]
    assert device() == "auto"
    hands.click(third)
    assert device() == "cuda:0,cuda:2"
    hands.focus(second)
    hands.keys("<space>")
    assert device() == "cuda:0,cuda:1,cuda:2"
    hands.picture(tmp_path / "gpus.png")
    hands.click(first)
    hands.click(third)
    assert device() == "cuda:1"
    hands.click(second)
    assert device() == "auto"
    hands.fill("train_device", "cuda:1,cuda:2")
    assert [box.instate(["selected"]) for box in (first, second, third)] == [False, True, True]


@pytest.mark.parametrize("names", usual([[], ["Card A"]], ["Card A"]))
def test_with_one_device_there_is_nothing_to_choose(project_page: Opened, names: list[str]) -> None:
    hands = project_page(names)
    assert not hands.window.current_page().boxes  # type: ignore[attr-defined]
    assert hands.window.state_.config.train_device == "auto"
