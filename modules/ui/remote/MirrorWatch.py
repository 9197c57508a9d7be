"""Accompanies the watched run if it is on another computer, so that it behaves as one on this computer."""

from __future__ import annotations

import logging
import threading
import tkinter as tk
from collections.abc import Callable
from functools import partial
from pathlib import Path

from modules.remote.Attendance import SEND_SECONDS, Attendance
from modules.remote.Connection import Refused
from modules.remote.records import Record, of_folder
from modules.runner.outcome import Outcome
from modules.ui.remote.Answers import Answers
from modules.ui.remote.FarJob import Ends, FarJob
from modules.ui.state.RunControl import RunControl
from modules.ui.texts import remote as words
from modules.ui.texts import run as run_words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import bind_own, later
from modules.util.errors import UserError
from modules.util.owned_files import shown

_log = logging.getLogger(__name__)
CATCH_UP_MS = 50
ENDED = ("finished", "stopped", "failed")


class MirrorWatch:
    """Follows at most one run.

    Args:
        changed: called when ``line`` or the state of the run changes.
        fault: shows an error; the second argument tries again.
    """

    def __init__(
        self,
        ui: Ui,
        control: RunControl,
        answers: Answers,
        changed: Callable[[], None],
        fault: Callable[[Exception, Callable[[], object]], None],
    ) -> None:
        self._ui, self._control, self._answers = ui, control, answers
        self._changed, self._fault = changed, fault
        self.fetching = threading.Lock()
        """Held while files of a run are fetched."""
        self.record: Record | None = None
        """The watched run, if it is on another computer and was started from here."""
        self.line = ""
        """The state of the connection; empty for a run on this computer."""
        self.connecting = False
        """True if the run is being followed, or its computer is being connected."""
        self._attendance: Attendance | None = None
        self._job: FarJob[str] | None = None
        self._turn = 0
        self._unanswered = 0
        self._leaving: list[threading.Thread] = []
        bind_own(ui.root, "<Destroy>", self._closed)

    def attend(self, again: bool = False) -> None:
        """Follow the run that the window watches now, if it is on another computer.

        Args:
            again: connect although it has ended, because it was started again.
        """
        self.leave()
        run, turn = self._control.run, self._turn
        if run is None or not self._control.is_mirror:
            self._changed()
            return
        self._ui.work(lambda: of_folder(run.path), partial(self._found, turn, again))

    def _found(self, turn: int, again: bool, found: tuple[Record | None, list[Path]]) -> None:
        if turn != self._turn:
            return
        record, damaged = found
        self.record = record
        skipped = words.DAMAGED_RECORDS.format(files=", ".join(map(str, damaged))) if damaged else ""
        if skipped:
            _log.warning("%s", skipped)
            self._ui.status(skipped)
        if record is None:
            self.line = f"{words.UNKNOWN_RUN}. {skipped}" if skipped else words.UNKNOWN_RUN
            self._changed()
        elif self._control.state in ENDED and not again:
            self._say(words.ENDED_THERE)
        else:
            self.connect(False)

    def connect(self, loud: bool = True) -> None:
        """Follow the run again.

        Args:
            loud: show an error in a dialog, and not only on the Run page. Otherwise, a computer that does not
                answer is tried again.
        """
        record = self.record
        if record is None or self.connecting:
            return
        self._turn += 1
        turn, post = self._turn, self._ui.pump.post
        self.connecting = True
        self._unanswered = 0
        address = record.remote.address()

        def answered(kind: str, done: bool, text: str) -> None:
            if not done:  # the window may be closed by now
                _log.warning("%s: %s: %s", address, kind, shown(text, 2000))
            post(partial(self._answered, turn, address, kind, done, text))

        attendance = self._attendance = Attendance(
            record, self.fetching, lambda up, text: post(partial(self._online, turn, up, text)), answered,
            patient=not loud,
        )  # fmt: skip
        ends = Ends[str](
            partial(self._ended, turn), partial(self._failed, turn, loud), partial(self._lost, turn, "")
        )
        self._job = FarJob(attendance.work, self._answers.ask, post, ends)
        self._say(words.CONNECTING_TO)

    def leave(self) -> None:
        """Stop following. The run continues. Commands on their way still reach it, or an error is shown."""
        self._turn += 1
        if self._job is not None:
            if self._unanswered:
                self._leaving.append(self._job.thread)
            self._job.cancel()
        self._unanswered = 0
        self._job = self._attendance = self.record = None
        self.line, self.connecting, self._control.connected = "", False, False

    def send(self, kind: str) -> None:
        """Send the run a command. The answer comes later.

        Raises:
            UserError: it is not connected.
        """
        if self._attendance is None or not self._control.connected:
            address = self.record.remote.address() if self.record is not None else words.THAT_COMPUTER
            raise UserError(words.NOT_SENT.format(address=address), hint=words.NOT_SENT_HINT)
        self._attendance.send(kind)
        self._unanswered += 1
        self._ui.status(words.SENDING.format(address=self._attendance.record.remote.address()))

    def _closed(self, _event: tk.Event[tk.Misc]) -> None:
        """The window is gone. Wait for commands on their way, because their threads end with the program."""
        for thread in self._leaving:
            thread.join(SEND_SECONDS)

    # -- what is heard of it ---------------------------------------------------------------------------------

    def _say(self, text: str, why: str = "") -> None:
        if self.record is not None:
            self.line = text.format(address=self.record.remote.address(), why=shown(why, 300)).strip()
        self._changed()

    def _online(self, turn: int, up: bool, text: str) -> None:
        if turn != self._turn:
            return
        self._control.connected = up
        self._say((words.NOTE if text else words.ONLINE) if up else words.OFFLINE, text)

    def _answered(self, turn: int, address: str, kind: str, done: bool, text: str) -> None:
        if turn == self._turn:
            self._unanswered -= 1
        if not done:
            self._ui.error(
                UserError(words.NOT_DONE.format(kind=kind, address=address, why=shown(text, 2000)))
            )
        elif turn == self._turn:
            self._ui.status(run_words.COMMANDED[kind])

    def _lost(self, turn: int, why: str) -> None:
        if turn != self._turn:
            return
        self._job = self._attendance = None
        self.connecting = self._control.connected = False
        self._say(words.OFFLINE, why)

    def _failed(self, turn: int, loud: bool, error: Exception) -> None:
        if turn != self._turn:
            return
        if isinstance(error, Refused):  # or the next attempt would send the wrong answer again
            self._answers.forget()
        known = isinstance(error, UserError)
        self._lost(turn, error.message if isinstance(error, UserError) else repr(error))
        if loud or not known:
            self._fault(error, self.connect)

    def _ended(self, turn: int, state: str) -> None:
        if turn != self._turn:
            return
        self._control.poll()
        if self._control.is_behind:
            later(self._ui.root, CATCH_UP_MS, self._ended, turn, state)
            return
        self._job = self._attendance = None
        self.connecting = self._control.connected = False
        self._say(words.ENDED_THERE)
        self._ui.services.run_actions.ended(self._outcome(state))

    def _outcome(self, state: str) -> Outcome:
        if state in ("finished", "stopped"):
            return Outcome(state, run_words.ENDED_AS.format(status=state))
        message, hint = self._control.fault() or (words.DIED, "")
        return Outcome("bug", message, hint)
