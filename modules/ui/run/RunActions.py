"""Starting a run, sending it commands, and reporting how it ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from modules.runner.launcher import unfinished
from modules.runner.outcome import Outcome
from modules.runner.RunDirectory import RunDirectory
from modules.ui.run.notice import send_notice
from modules.ui.run.StartCheck import StartCheck
from modules.ui.state.RunControl import RunControl
from modules.ui.texts import run as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import cancel_timer, later
from modules.util.errors import UserError

log = logging.getLogger(__name__)
POLL_MS = 250
CATCH_UP_MS = 12
SHOWN_EVERY = 0.6
RETRY_SECONDS = 1.0


class RunActions:
    """Connects the bottom bar and the run.

    Args:
        check: checks the settings and their files.
        refused: called when there are errors.
        heard: called when polling the run brought news.
    """

    def __init__(
        self,
        ui: Ui,
        control: RunControl,
        check: StartCheck,
        refused: Callable[[], None],
        heard: Callable[[], None],
    ) -> None:
        self._ui, self.control, self._check, self._refused, self._heard = ui, control, check, refused, heard
        self.starting = False
        self.waiting = ""
        """The reason why the start of a run is waiting; empty if none is waiting."""
        self._waiting_run: tuple[str, dict[str, Any]] | None = None
        self._retry_at = 0.0
        self._trying = False
        """True if a trainer is being launched now, in a thread."""
        self._checking = False
        """True if a start waits for the check of its files."""
        self._turn = 0
        """Number of the present start. A cancelled one has another."""
        self._again = False
        """True if Start was pressed while a cancelled start was still being tried."""
        self._news, self._shown = False, 0.0
        self._timer = later(ui.root, POLL_MS, self._tick)

    def start(self) -> None:
        """Start with the current settings, unless they have errors.

        While another trainer uses the device, the run waits; ``order("stop")`` cancels the start.
        """
        if self._trying and self._waiting_run is None:
            self._again = True
            return
        if self.starting or self._waiting_run is not None or self.control.is_live_here:
            return
        self._start_checked()

    def _start_checked(self) -> None:
        if self._check.errors_of_settings():
            self._refused()
        elif self._check.errors():  # perhaps they were fixed in the meantime
            self._ui.status(words.CHECKING_AGAIN)
            self._checking = True
            self._check.now(self._start_if_fine)
        else:
            self._start_now()

    def _start_if_fine(self) -> None:
        if not self._checking:  # cancelled
            return
        self._checking = False
        if self._check.errors():
            self._refused()
        else:
            self._start_now()

    def _start_now(self) -> None:
        state = self._ui.state
        folder, config = state.config.workspace_dir, state.config.to_dict()
        self._ui.status(words.STARTING.format(folder=folder))
        if config.get("continue_last_backup"):
            self._try_to_start(folder, config)
            return
        self.starting = True
        self._turn += 1
        run, turn = RunDirectory(folder), self._turn
        self._ui.work(
            lambda: unfinished(run),
            lambda left: self._start_or_resume(folder, config, left) if turn == self._turn else None,
            lambda error: self._not_started(error) if turn == self._turn else self._ui.error(error),
        )

    def _start_or_resume(self, folder: str, config: dict[str, Any], left: tuple[int, int] | None) -> None:
        """Start a new run, or resume the one in this folder, as the person decides."""
        from modules.ui.dialogs import Question

        if left is None:
            self._try_to_start(folder, config)
            return
        self.starting = False
        self._ui.status("")
        step, total = left
        dialog = Question(self._ui, words.UNFINISHED_TITLE, words.UNFINISHED.format(step=step, total=total))
        for label, resumes in ((words.RESUME_RUN, True), (words.NEW_RUN, False)):
            chosen = {**config, "continue_last_backup": resumes}
            dialog.offer(label, partial(self._try_to_start, folder, chosen))
        dialog.offer(words.CANCEL, partial(self._ui.status, words.START_CANCELLED))
        dialog.present()

    def _try_to_start(self, folder: str, config: dict[str, Any]) -> None:
        self.starting = self._trying = True
        self._waiting_run = (folder, config)
        self._ui.work(lambda: self.control.start(folder, config), self._started, self._not_started)

    def _started(self, waits_for: str) -> None:
        self.starting = self._trying = False
        cancelled, again = self._waiting_run is None, self._again
        self._again = False
        if waits_for and not cancelled:
            self.waiting = waits_for
            self._retry_at = time.monotonic() + RETRY_SECONDS
        elif not waits_for:
            self._stop_waiting()
            self._ui.services.remote.watch.attend()
            self.control.poll()
            if cancelled:  # Stop was pressed just when its turn came
                self._ui.work(self.control.end_now, lambda _result: self._start_checked() if again else None)
        elif again:
            self._start_checked()
        self._heard()

    def _not_started(self, error: Exception) -> None:
        self.starting = self._trying = self._again = False
        self._stop_waiting()
        self._heard()
        self._ui.error(error)

    def _stop_waiting(self) -> None:
        self.waiting, self._waiting_run = "", None

    def _cancel_start(self) -> bool:
        """Cancel a start that is under way or waiting. Return whether there was one."""
        if not self.starting and not self._checking and self._waiting_run is None:
            return False
        self._again = self._checking = False
        self._turn += 1
        self.starting = self._trying  # a launch in a thread ends by itself, and then ends its trainer
        self._stop_waiting()
        self._ui.status(words.START_CANCELLED)
        self._heard()
        return True

    def order(self, kind: str) -> None:
        """Send the run a command. ``stop`` cancels a start instead, if one is under way or waiting."""
        if kind == "stop" and self._cancel_start():
            return
        if self.control.state not in ("running", "paused"):
            self._ui.status(words.NOTHING_LIVE)
            return
        with self._ui.errors_shown():
            if self.control.is_mirror:
                self._ui.services.remote.watch.send(kind)
                return  # that computer answers later
            self.control.post(kind)
            without = kind == "sample" and not self.control.has_prompts
            self._ui.status(words.NOTHING_TO_SAMPLE if without else words.COMMANDED[kind])

    def pause_or_resume(self) -> None:
        """Pause or resume, whichever is possible now."""
        self.order("resume" if self.control.state == "paused" else "pause")

    def attach(self, folder: str) -> None:
        """Watch the run in a folder."""
        self.control.follow(folder)
        self.control.poll()
        self._heard()
        self._ui.services.remote.watch.attend()

    def _tick(self) -> None:
        if self.starting:
            self._timer = later(self._ui.root, POLL_MS, self._tick)
            return
        if self._waiting_run is not None and time.monotonic() > self._retry_at:
            self._try_to_start(*self._waiting_run)
            self._timer = later(self._ui.root, POLL_MS, self._tick)
            return
        self._news = self.control.poll() or self._news
        behind = self.control.is_behind
        self._timer = later(self._ui.root, CATCH_UP_MS if behind else POLL_MS, self._tick)
        # A long run is read in pieces. Drawing after each piece would take longer than reading.
        if self._news and (not behind or time.monotonic() - self._shown > SHOWN_EVERY):
            self._news, self._shown = False, time.monotonic()
            self._heard()
        outcome = self.control.take_outcome()
        if outcome is not None:
            self.ended(outcome)

    def ended(self, outcome: Outcome) -> None:
        """Report how the watched run ended."""
        self._check.soon()  # its files exist now
        self._ui.status(outcome.message)
        self._heard()
        self._give_notice(outcome)
        if not outcome.ok:
            run = self.control.run
            where = words.LOG_IS.format(path=run.log_path) if run is not None else ""
            hint = "\n".join(part for part in (outcome.hint, where) if part)
            self._ui.error(UserError(outcome.message, hint=hint or None))

    def _give_notice(self, outcome: Outcome) -> None:
        """Show a desktop notification, from a thread. If that fails, nothing else changes."""
        run = self.control.run
        if not self._ui.services.memory.notices or run is None:
            return
        title, text = words.NOTICE_TITLE.format(name=run.path.name), outcome.message
        self._ui.work(
            lambda: send_notice(title, text),
            lambda _result: None,
            lambda error: log.warning("the desktop cannot show a notification that the run ended: %r", error),
        )

    def close(self) -> None:
        """Stop watching. The run continues."""
        cancel_timer(self._ui.root, self._timer)
