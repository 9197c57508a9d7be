"""Commands to a run from outside: files in its folder, and system signals."""

from __future__ import annotations

import time
from collections.abc import Callable

from modules.runner.commands import Command
from modules.runner.RunDirectory import RunDirectory
from modules.trainer.callbacks import Callback
from modules.trainer.control.StopSignals import StopSignals
from modules.trainer.distributed import Processes

STOP, BACKUP, SAMPLE, SAVE, PAUSE, RESUME = (1 << bit for bit in range(6))
_BITS = {"stop": STOP, "backup": BACKUP, "sample": SAMPLE, "save": SAVE, "pause": PAUSE, "resume": RESUME}
PAUSE_SECONDS = 0.2


class Commands:
    """Commands and signals of all processes, as one set of bits that is the same in all of them.

    Args:
        run: the run whose commands the first process reads.
        callback: notified when a command is taken and done.
    """

    def __init__(
        self, run: RunDirectory, signals: StopSignals, callback: Callback, processes: Processes
    ) -> None:
        self._run, self._signals, self._callback, self._processes = run, signals, callback, processes
        self._pending: list[Command] = []

    def _poll(self) -> int:
        if self._processes.first:
            taken, refused = self._run.take_commands()
            for command in taken:
                self._callback.command(command, "taken")
            for name in refused:
                self._callback.warning(f"the file commands/{name} holds no command")
            self._pending += taken
        wishes = STOP if self._signals.received else 0
        for command in self._pending:
            wishes |= _BITS[command.kind]
        return wishes

    def stop_wanted(self) -> bool:
        """Return whether this process was asked to stop, for use during long work. Other commands wait."""
        return bool(self._poll() & STOP)

    def hear(self) -> int:
        """All pending commands, the same in every process. All processes must call this equally often."""
        return self._processes.agree(self._poll())

    def done(self, bit: int, message: str = "") -> None:
        """Report the commands behind ``bit`` as done."""
        self._answer(bit, "done", message)

    def failed(self, bit: int, message: str) -> None:
        """Report the commands behind ``bit`` as failed, with the reason."""
        self._answer(bit, "failed", message)

    def _answer(self, bit: int, state: str, message: str) -> None:
        for command in [c for c in self._pending if _BITS[c.kind] == bit]:
            self._pending.remove(command)
            self._callback.command(command, state, message)

    def wait_while_paused(self, other: Callable[[int], None]) -> int:
        """After PAUSE, wait for RESUME or STOP while executing other commands. Returns the last commands."""
        self.done(PAUSE)
        while True:
            wishes = self.hear()
            if wishes & (STOP | RESUME):
                self.done(RESUME)
                return wishes & ~(PAUSE | RESUME)
            self.done(PAUSE)
            other(wishes)
            time.sleep(PAUSE_SECONDS)
