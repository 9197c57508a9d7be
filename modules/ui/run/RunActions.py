"""Starting a run, giving it orders, and saying how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from modules.runner.outcome import Outcome
from modules.ui.state.RunControl import RunControl
from modules.ui.Ui import Ui
from modules.util.errors import UserError

POLL_MS = 250
CATCH_UP_MS = 12
SHOWN_EVERY = 0.6
_WORDS = {
    "stop": "Stopping after this step",
    "backup": "Backup ordered",
    "sample": "Samples ordered",
    "pause": "Pausing after this step",
    "resume": "Going on",
    "save": "Saving ordered",
}


class RunActions:
    """Between the bottom bar and the run.

    Args:
        ui: what parts share.
        control: the run.
        refused: called with the number of errors when the settings do not allow a start.
        heard: called after each look at the run that brought something new.
    """

    def __init__(
        self, ui: Ui, control: RunControl, refused: Callable[[int], None], heard: Callable[[], None]
    ) -> None:
        self._ui, self.control, self._refused, self._heard = ui, control, refused, heard
        self.starting = False
        self._news, self._shown = False, 0.0
        self._timer = ui.root.after(POLL_MS, self._tick)

    def start(self) -> None:
        """Start with the settings as they are, unless something is wrong with them."""
        if self.starting or self.control.is_live:
            return
        state = self._ui.state
        errors = [problem for problem in state.problems() if not problem.warning]
        if errors:
            self._refused(len(errors))
            return
        folder, config = state.config.workspace_dir, state.config.to_dict()
        self.starting = True
        self._ui.status(f"Starting training in {folder}")
        self._ui.work(lambda: self.control.start(folder, config), self._started, self._not_started)

    def _started(self, _result: object) -> None:
        self.starting = False
        self.control.poll()
        self._heard()

    def _not_started(self, error: Exception) -> None:
        self.starting = False
        self._heard()
        self._ui.error(error)

    def order(self, kind: str) -> None:
        """Give the run an order."""
        if self.control.state not in ("running", "paused"):
            self._ui.status("No run is under way")
            return
        try:
            self.control.post(kind)
        except UserError as error:
            self._ui.error(error)
            return
        self._ui.status(_WORDS[kind])

    def attach(self, folder: str) -> None:
        """Watch the run in a folder."""
        self.control.follow(folder)
        self.control.poll()
        self._heard()

    def _tick(self) -> None:
        if self.starting:
            self._timer = self._ui.root.after(POLL_MS, self._tick)
            return
        self._news = self.control.poll() or self._news
        behind = self.control.is_behind
        self._timer = self._ui.root.after(CATCH_UP_MS if behind else POLL_MS, self._tick)
        # A long run is read piece by piece; to draw after each piece would take longer than reading it.
        if self._news and (not behind or time.monotonic() - self._shown > SHOWN_EVERY):
            self._news, self._shown = False, time.monotonic()
            self._heard()
        outcome = self.control.take_outcome()
        if outcome is not None:
            self._ended(outcome)

    def _ended(self, outcome: Outcome) -> None:
        self._ui.status(outcome.message)
        self._heard()
        if not outcome.ok:
            run = self.control.run
            where = f"The log is {run.log_path}" if run is not None else ""
            hint = "\n".join(part for part in (outcome.hint, where) if part)
            self._ui.error(UserError(outcome.message, hint=hint or None))

    def close(self) -> None:
        """Stop looking; the run goes on."""
        self._ui.root.after_cancel(self._timer)
