"""Saves the session shortly after every change, off the Tk thread, and once more at the end."""

from __future__ import annotations

import logging
import threading
import tkinter as tk
from collections.abc import Callable

from modules.ui.state.SessionStore import Session, SessionStore, WindowMemory
from modules.ui.texts import window as words
from modules.ui.widgets.tk_support import Timer

log = logging.getLogger(__name__)
DELAY_MS = 700


class Autosave:
    """Saves what ``snapshot`` returns.

    Args:
        root: the window whose timer is used.
        store: where to save.
        snapshot: returns the current session and window state; called on the Tk thread.
        failed: called (from any thread) with the reason when saving fails, once until it works again.
    """

    def __init__(
        self,
        root: tk.Misc,
        store: SessionStore,
        snapshot: Callable[[], tuple[Session, WindowMemory]],
        failed: Callable[[str], None],
    ) -> None:
        self._store, self._snapshot, self._failed = store, snapshot, failed
        self._timer = Timer(root, DELAY_MS, self._start)
        self._lock = threading.Lock()
        self._complained = False

    def soon(self) -> None:
        """Schedule a save after a change."""
        self._timer.start()

    def _start(self) -> None:
        session, memory = self._snapshot()
        threading.Thread(target=self._write, args=(session, memory), daemon=True, name="autosave").start()

    def now(self) -> None:
        """Save before returning, for the end of the program."""
        self._timer.stop()
        self._write(*self._snapshot())

    def _write(self, session: Session, memory: WindowMemory) -> None:
        with self._lock:
            try:
                self._store.save_session(session)
                self._store.save_window(memory)
            except OSError as error:
                log.warning("settings are not saved: %s", error)
                if not self._complained:
                    self._complained = True
                    reason = error.strerror or error
                    self._failed(words.SETTINGS_NOT_SAVED.format(folder=self._store.folder, reason=reason))
                return
            self._complained = False
