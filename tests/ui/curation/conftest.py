"""A person before an open pair tool."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ui.curation.drivers import Hands, make_images


@pytest.fixture(autouse=True)
def shown_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Error dialogs are noted instead of opened."""
    monkeypatch.setattr(Hands, "failures", [])
    for module in ("widgets.ToolHost", "review.ReviewPage"):
        monkeypatch.setattr(
            f"modules.ui.{module}.show_error", lambda parent, error: Hands.failures.append(error)
        )


@pytest.fixture
def sit_down(root: tk.Tk, tmp_path: Path) -> Iterator[Callable[..., Hands]]:
    """Make images and open the tool on them."""
    made: list[Hands] = []

    def sit(groups: int = 3, per_group: int = 4, blank: int = 0) -> Hands:
        source = make_images(tmp_path / "images", groups, per_group, blank=blank)
        made.append(Hands(root, source, tmp_path / "pairs", tmp_path / "settings"))
        return made[-1]

    yield sit
    for hands in made:
        if not hands.closed:
            hands.close()
