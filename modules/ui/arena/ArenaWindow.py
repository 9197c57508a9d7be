"""The window of the arena: voting, then the result."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path

from modules.ui.arena.ArenaController import ArenaController, ArenaResult, ArenaShot
from modules.ui.arena.ResultPage import ResultPage
from modules.ui.arena.VotingPage import VotingPage
from modules.ui.shell.tool_windows import new_window
from modules.ui.texts import arena as words
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.ToolHost import ToolHost


class ArenaWindow(ToolHost):
    """Shows the pages of the arena.

    Args:
        between, count: as for ``taste.py compare``.
        next_round: begins the next round; called once everything is closed.
    """

    name = words.NAME

    def __init__(
        self,
        window: tk.Toplevel,
        theme: Theme,
        folder: Path,
        between: str,
        count: int,
        next_round: Callable[[], None],
    ) -> None:
        super().__init__(window, theme, window.destroy)
        self._next_round = next_round
        self._shot: ArenaShot | None = None
        self.controller = ArenaController(folder, between, count, self.worker, self._changed, self._failed)
        self._title = folder.name
        self._vote(unasked=True)
        self.controller.start()

    def _vote(self, unasked: bool = False) -> None:
        page = VotingPage(self, self.theme, self.controller, self.prefetcher, self.show_result, unasked)
        self.show(page, self._title)
        if self._shot is not None and self._shot.ballot is not None:
            page.show(self._shot)

    def _changed(self, shot: ArenaShot) -> None:
        self._shot = shot
        if shot.ballot is None:
            self.show_result()
        elif isinstance(self.page, VotingPage):
            self.page.show(shot)

    def _failed(self, error: Exception) -> None:
        self.failed(error)
        if self._shot is None:  # it could not be opened
            self.close()
        elif isinstance(self.page, VotingPage) and self._shot.ballot is not None:
            self.page.show(self._shot)

    def show_result(self) -> None:
        """Show names, figures and all votes."""
        self.controller.result(self._show_result)

    def _show_result(self, result: ArenaResult) -> None:
        open_question = self._shot is not None and self._shot.ballot is not None
        more = self._vote if open_question else None
        page = ResultPage(
            self, self.theme, result, self.prefetcher, more, self.close, self._to_next_round
        )
        self.show(page, self._title)

    def _to_next_round(self) -> None:
        self.close(self._next_round)

    def prepare_close(self, then: Callable[[], None]) -> None:
        self.controller.close(then)


def open_arena_window(
    parent: tk.Misc, theme: Theme, folder: Path, between: str, count: int, next_round: Callable[[], None]
) -> tk.Toplevel:
    """Open the arena of a project. Its images must already exist."""
    window = new_window(parent, theme)
    ArenaWindow(window, theme, folder, between, count, next_round).pack(fill="both", expand=True)
    return window
