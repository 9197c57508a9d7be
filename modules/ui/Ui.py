"""Objects that pages and forms share: window, theme, the settings being edited, status line."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from modules.ui.Services import Services
from modules.ui.state.ConfigState import ConfigState
from modules.ui.widgets.Chooser import Chooser
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import Pump, run_in_thread, show_error
from modules.util.errors import UserError

T = TypeVar("T")


def _no_jump(path: str) -> None:
    raise RuntimeError(f"no window to show {path}")


@dataclass
class Ui:
    """Shared objects, passed to everything in the main window.

    Args:
        root: the window.
        theme: colours, fonts, scale.
        state: the settings being edited.
        pump: runs calls from worker threads on the Tk thread.
        chooser: asks for folders and files.
        status: shows a line at the bottom.
        jump: goes to the row of a field.
    """

    root: tk.Tk
    theme: Theme
    state: ConfigState
    pump: Pump
    chooser: Chooser
    status: Callable[[str], None] = lambda text: None
    jump: Callable[[str], None] = _no_jump
    services: Services = field(init=False)
    """The services of the window; set once they exist."""

    def error(self, error: BaseException) -> None:
        """Show an exception in a dialog."""
        show_error(self.root, error)

    @contextmanager
    def errors_shown(self) -> Iterator[None]:
        """Show a ``UserError`` of the block in a dialog, instead of the rest of the block."""
        try:
            yield
        except UserError as error:
            self.error(error)

    def work(
        self,
        work: Callable[[], T],
        done: Callable[[T], object],
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Run ``work`` in a thread, then call ``done`` here with its result. A failure goes to ``failed`` or
        is shown.
        """
        run_in_thread(self.pump, work, done, failed or self.error)
