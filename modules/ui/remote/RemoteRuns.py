"""Actions of the window on another computer: check it, start a run there, fetch its files."""

from __future__ import annotations

import asyncio
import tkinter as tk
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from modules.remote import computers, starting
from modules.remote.again import persistently
from modules.remote.Connection import Ask, Lost, Refused, Unreachable
from modules.remote.Far import Far, far_side
from modules.remote.fetching import Fetch, Report
from modules.remote.host_keys import UnknownHost, place_of, trust
from modules.ui.dialogs import show_notes
from modules.ui.remote.Answers import Answers
from modules.ui.remote.FarJob import Ends, FarJob
from modules.ui.remote.MirrorWatch import MirrorWatch
from modules.ui.remote.windows import PasswordDialog, TrustDialog
from modules.ui.state.RunControl import RunControl
from modules.ui.texts import remote as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import Timer, listen_while_alive
from modules.util.config.load import load_config
from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.display import counted
from modules.util.errors import UserError
from modules.util.owned_files import shown

T = TypeVar("T")
TICK_MS = 300


class RemoteRuns:
    """Does one thing at a time, in a thread that can be cancelled.

    Args:
        refused: called when the settings have errors.
        heard: called when the state of the watched run changes.
    """

    def __init__(
        self, ui: Ui, control: RunControl, refused: Callable[[], None], heard: Callable[[], None]
    ) -> None:
        self._ui, self._refused, self._heard = ui, refused, heard
        self._answers = Answers(ui.pump.post, lambda question, answer: PasswordDialog(ui, question, answer))
        self.watch = MirrorWatch(ui, control, self._answers, self._changed, self._fault)
        self.doing = ""
        """The current action; empty if nothing is."""
        self.said = ""
        """The result of what was done last."""
        self.computers: list[RemoteConfig] = []
        """The saved computers."""
        self._job: FarJob[Any] | None = None
        self._start: starting.Start | None = None
        self._checking = False
        self._what = ""
        self._on_closing = (words.COPYING_TITLE, words.COPYING)
        self._ticking = Timer(ui.root, TICK_MS, self._tick)
        self._listeners: list[Callable[[], None]] = []

    # -- watching this object --------------------------------------------------------------------------------

    def listen(self, call: Callable[[], None], widget: tk.Misc) -> None:
        """Call ``call`` after changes as long as ``widget`` exists."""
        listen_while_alive(self._listeners, call, widget)

    def _changed(self) -> None:
        for listener in list(self._listeners):
            listener()
        self._heard()

    @property
    def begins(self) -> bool:
        """True if a trainer was told to begin, so that closing the window does not cancel the start."""
        return self._start is not None and self._start.begins

    @property
    def on_closing(self) -> tuple[str, str]:
        """Title and text of the question before the window is closed while something is being done. The text
        names what it is.
        """
        title, text = self._on_closing
        what = self.doing if self.doing == self._what else f"{self._what}\n{self.doing}"
        return title, (words.STARTS_ANYWAY if self.begins else text).format(what=what)

    @property
    def share(self) -> float | None:
        """The share of the files that was copied, from 0 to 1; ``None`` if nothing is being copied."""
        task = self._start
        return min(1.0, task.sent / task.total) if task is not None and task.total else None

    def _tick(self) -> None:
        if self._job is not None:
            self._ticking.start()
        for listener in list(self._listeners):
            listener()

    # -- the saved computers ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the saved computers."""
        self._ui.work(computers.saved, self._listed)

    def _listed(self, found: list[RemoteConfig]) -> None:
        self.computers = found
        self._changed()

    def choose(self, remote: RemoteConfig) -> None:
        """Take a saved computer over into the settings."""
        values = {f"remote.{name}": getattr(remote, name) for name in type(remote).model_fields}
        self._ui.state.set_values(values, words.USE_COMPUTER.format(address=remote.address()))

    def forget(self, remote: RemoteConfig) -> None:
        """Remove a computer from the list."""
        self._ui.work(lambda: computers.forget(remote), self._listed)

    # -- one piece of work -----------------------------------------------------------------------------------

    def _do(
        self,
        what: str,
        work: Callable[[Ask], Coroutine[Any, Any, T]],
        done: Callable[[T], object],
        again: Callable[[], object],
        on_closing: tuple[str, str] = (words.COPYING_TITLE, words.COPYING),
        start: starting.Start | None = None,
    ) -> None:
        """Do something on the other computer, unless something is being done.

        Args:
            what: shown meanwhile.
            done: called with its result.
            again: begins it once more, after the computer was trusted.
            on_closing: title and text of the question before the window is closed meanwhile.
            start: the start of a run, if it is one.
        """
        if self._busy():
            return
        self.doing, self.said, self._start = what, "", start
        self._what, self._on_closing = what, on_closing
        ends = Ends(partial(self._done, done), partial(self._failed, again), self._cancelled)
        may_cancel = (lambda: True) if start is None else (lambda: not start.begins)
        self._job = FarJob(work, self._answers.ask, self._ui.pump.post, ends, may_cancel)
        self._changed()
        self._tick()

    def _busy(self) -> bool:
        if self._job is None and not self._checking:
            return False
        self._ui.status(words.BUSY.format(what=self.doing))
        return True

    def _end(self) -> None:
        self._job = self._start = None
        self.doing = ""

    def _done(self, done: Callable[[T], object], result: T) -> None:
        self._end()
        done(result)
        self._changed()

    def _failed(self, again: Callable[[], object], error: Exception) -> None:
        self._end()
        self._changed()
        self._fault(error, again)

    def _cancelled(self) -> None:
        begins = self.begins
        self._end()
        self._tell_result(words.MAY_TRAIN if begins else words.CANCELLED)

    def _fault(self, error: Exception, again: Callable[[], object]) -> None:
        if isinstance(error, UnknownHost):
            unknown = error

            def trusted(_file: Path) -> None:
                self._ui.status(words.TRUSTED.format(place=place_of(unknown.remote)))
                again()

            TrustDialog(
                self._ui, unknown, lambda: self._ui.work(lambda: trust(unknown.remote, unknown.key), trusted)
            )
            return
        if isinstance(error, Refused):
            self._answers.forget()
        self._ui.error(error)

    def _tell(self, line: str) -> None:
        """Show a line; called in other threads. Some of them come from the other computer."""
        self._ui.pump.post(partial(self._show_line, shown(line, 300)))

    def _show_line(self, line: str) -> None:
        if self._job is not None:
            self.doing = line  # the next tick shows it: there may be hundreds of lines in a second

    def _tell_result(self, text: str) -> None:
        self.said = text
        self._ui.status(text)
        self._changed()

    def cancel(self) -> None:
        """Cancel what is being done, if that is still possible."""
        if self._checking:
            self._checking = False
            self._cancelled()
        elif self.begins:
            self._ui.status(words.TOO_LATE)
        elif self._job is not None:
            self.doing = words.CANCELLING
            self._job.cancel()
            self._changed()

    # -- the connection --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Log in and report what is there."""
        remote = self._ui.state.config.remote.copy_of()

        async def work(ask: Ask) -> tuple[dict[str, Any], list[RemoteConfig]]:
            environment = await asyncio.to_thread(starting.environment_for, remote)
            async with far_side(remote, ask) as far:
                found = await far.ask(dict[str, Any], "look", environment=environment)
            return found, await asyncio.to_thread(computers.keep, remote)

        def done(result: tuple[dict[str, Any], list[RemoteConfig]]) -> None:
            found, self.computers = result
            free = found.get("free")
            environment = (
                words.ENVIRONMENT_OWN.format(python=remote.python) if remote.python
                else words.ENVIRONMENT_READY if found.get("ready") is True else words.ENVIRONMENT_MISSING
            )  # fmt: skip
            gib = (free if isinstance(free, int) else 0) >> 30
            self._tell_result(
                words.CONNECTED.format(address=remote.address(), free=gib, environment=environment)
            )

        self._do(
            words.CHECKING.format(address=remote.address() or "?"), work, done, self.check,
            (words.CHECK_TITLE, words.CHECK_CANCELLED),
        )  # fmt: skip

    # -- starting --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a run with the current settings there. Settings and files are checked here first."""
        check = self._ui.services.check
        if self._busy():
            return
        if not self._ui.state.config.remote.host:
            self._ui.error(
                UserError("there is no computer to train on", "remote.host", "enter its name or address")
            )
        elif check.errors_of_settings():
            self._refused()
        else:
            self._checking, self.doing, self.said = True, words.CHECKING_SETTINGS, ""
            self._what, self._on_closing = self.doing, (words.COPYING_TITLE, words.COPYING)
            self._changed()
            check.now(self._start_if_fine, self._saves_there())

    def _saves_there(self) -> dict[str, str]:
        """Settings of the check of a run there: what is here where the result would be saved does not matter."""
        config = self._ui.state.config
        folder = Path(config.workspace_dir).absolute().parent / starting.new_name(config)
        name = Path(config.output_model_destination).name
        return {"output_model_destination": str(folder / "model" / name)}

    def _start_if_fine(self) -> None:
        if not self._checking:  # cancelled
            return
        self._checking, self.doing = False, ""
        self._changed()
        if self._ui.services.check.errors():
            self._refused()
            return
        config = self._ui.state.config.copy_of()
        run = starting.new_name(config)
        self._launch(config, run, Path(config.workspace_dir).absolute().parent / run, words.STARTING)

    def _launch(self, config: TrainConfig, run: str, folder: Path, what: str) -> None:
        remote = config.remote
        task = starting.Start(starting.Wanted(remote, config, run, folder=folder), self._tell)

        async def work(ask: Ask) -> None:
            try:
                await persistently(remote, ask, self._tell, task.work, starting.TRIES)
            except (Lost, Unreachable) as error:
                if not task.begins:
                    raise
                raise UserError(error.message, hint=words.MAY_TRAIN) from error

        def done(_result: None) -> None:
            self._tell_result(words.STARTED.format(address=remote.address()))
            self._ui.services.run_actions.attach(str(folder))
            self.watch.attend(again=True)  # the events here may still say that it has ended
            self._ui.services.show_page("run")
            # Training continues whether or not this succeeds.
            self._ui.work(lambda: computers.keep(remote), self._listed)

        again = partial(self._launch, config, run, folder, what)
        self._do(what.format(address=remote.address()), work, done, again, start=task)

    def resume(self) -> None:
        """Start the watched run again, from its newest backup."""
        record = self.watch.record
        if record is None or self._busy():
            return

        def loaded(config: TrainConfig) -> None:
            config.remote, config.continue_last_backup = record.remote, True
            self._launch(config, record.run, record.folder, words.RESUMING)

        self._ui.work(lambda: load_config(record.mirror.config_path), loaded)

    # -- fetching --------------------------------------------------------------------------------------------

    def fetch(self, backups: bool) -> None:
        """Fetch the files of the watched run."""
        record, lock = self.watch.record, self.watch.fetching
        if record is None:
            return

        async def bring(far: Far) -> Report:
            return await Fetch(record, backups, self._tell).work(far)

        async def work(ask: Ask) -> Report:
            while not lock.acquire(blocking=False):
                await asyncio.sleep(0.1)
            try:
                return await persistently(record.remote, ask, self._tell, bring)
            finally:
                lock.release()

        def done(report: Report) -> None:
            files = counted(len(report.fetched), "file")
            self._tell_result(words.FETCHED.format(files=files, same=report.same, folder=record.folder))
            left = [shown(name) for name in [*report.differ, *report.refused]]
            if left:
                show_notes(self._ui, words.LEFT_ALONE_TITLE, words.LEFT_ALONE, left)

        address = record.remote.address()
        self._do(
            words.FETCHING.format(address=address), work, done, partial(self.fetch, backups),
            (words.FETCH_TITLE, words.FETCH_CANCELLED),
        )  # fmt: skip

    def close(self) -> None:
        """Cancel everything and forget all passwords. Runs continue."""
        self._ticking.stop()
        self.watch.leave()
        if self._job is not None:
            self._job.cancel()
        self._answers.close()
