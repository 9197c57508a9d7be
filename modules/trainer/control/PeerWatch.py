"""Detects when another process of the run was killed or stopped, so that no process waits for it forever.

Every process increments a heartbeat in a shared store and watches those of the others. A process on the same
machine that no longer exists is detected within a beat, any other by its silence.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from modules.runner.events import ERROR_CATEGORIES
from modules.runner.outcome import Outcome
from modules.runner.ProcessId import ProcessId

BEAT_SECONDS = 5.0
SILENCE_SECONDS = 300.0
"""Maximum silence of another process, counted only while this one runs, because a computer may sleep."""
LEAVING_SECONDS = 20.0
"""``torchrun`` kills the other processes 30 seconds after the first has failed."""
EXPLAINING_SECONDS = 10.0
HURRIED_SECONDS = 0.2
MAX_REASON = 2000
EXIT_STATUS = 2
"""Of a process whose error a person can fix, or that was ended because another one was lost."""
HINT = "start all processes again: continue_last_backup resumes from the last backup"


class PeerLost(Exception):
    """Another process of the run is gone. The message says which and why.

    Args:
        fault: the error because of which it left, for people; by default, that it was killed.
    """

    def __init__(self, message: str, fault: Outcome | None = None) -> None:
        super().__init__(message)
        self.fault = fault or Outcome("killed", message, HINT)

    @property
    def exit_status(self) -> int:
        """The exit status of a process that ends because of this: that of the lost one, if it told its error."""
        return EXIT_STATUS if self.fault.category in ("user", "killed") else 1

    def text(self) -> str:
        """The text that the command line prints."""
        hint = f"\n  -> {self.fault.hint}" if self.fault.hint else ""
        return f"error: {self.fault.message}{hint}"


class Store(Protocol):
    """The part of ``torch.distributed.Store`` used here. Every call may raise ``RuntimeError``."""

    def add(self, key: str, amount: int, /) -> int: ...

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


class PeerWatch:
    """A thread that sends heartbeats of this process and watches the others.

    Once a process is lost, ``lost`` is set. If this process then does not end, because it is blocked in a
    library waiting for the lost one, it is killed.

    Args:
        store: store shared by all processes; no other thread may use it.
        rank, world_size: index of this process, and number of processes.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self._store, self._rank = store, rank
        self._others = [peer for peer in range(world_size) if peer != rank]
        self._beats = dict.fromkeys(self._others, 0)
        self._silent = dict.fromkeys(self._others, 0.0)
        self._known: dict[int, ProcessId | None] = {}
        self._fault: Outcome | None = None
        self._unreached = 0.0
        self._heard_at = time.monotonic()
        self._leaving, self._asked, self._wake = threading.Event(), threading.Event(), threading.Event()
        self._told = threading.Event()
        self.lost: PeerLost | None = None
        self._thread = threading.Thread(target=self._run, name="PeerWatch", daemon=True)

    def start(self) -> None:
        """Start sending heartbeats and watching."""
        self._store.set(f"who/{self._rank}", json.dumps({"host": _host(), **ProcessId.own().to_dict()}))
        self._thread.start()

    def leave(self, fault: Outcome | None = None) -> None:
        """Announce that this process leaves deliberately, so that its silence means nothing.

        Args:
            fault: the error because of which it leaves, which ends the others too; ``None`` if there is none.
        """
        self._fault = fault
        self._leaving.set()
        self._wake.set()
        self._thread.join(EXPLAINING_SECONDS)

    def explain(self) -> PeerLost | None:
        """Explain why a message to the others failed: which one is gone; ``None`` if all still seem alive
        after a while.
        """
        self._asked.set()
        self._wake.set()
        self._told.wait(EXPLAINING_SECONDS)
        return self.lost

    def _run(self) -> None:
        while True:
            self.lost = self._look()
            if self.lost is not None:
                break
            if self._leaving.is_set():
                self._say_goodbye()
                return
            if self._wake.wait(HURRIED_SECONDS if self._asked.is_set() else BEAT_SECONDS):
                self._wake.clear()
        self._told.set()
        if not self._leaving.wait(LEAVING_SECONDS):
            sys.stderr.write(f"{self.lost.text()}\n")
            sys.stderr.flush()
            os._exit(self.lost.exit_status)

    def _look(self) -> PeerLost | None:
        """Send a heartbeat, and check whether another process is gone."""
        now = time.monotonic()
        # no more than this process would have waited, because it may itself have been stopped
        passed, self._heard_at = min(now - self._heard_at, 2 * BEAT_SECONDS), now
        try:
            self._store.add(f"beat/{self._rank}", 1)
            found = self._missing() or self._silent_one(passed)
        except RuntimeError as error:
            self._unreached += passed
            if (killed := self._killed()) is not None:
                return PeerLost(f"process {killed} was killed")
            if self._unreached < SILENCE_SECONDS:
                return None
            return PeerLost(f"the store of the process group no longer responds ({error})")
        self._unreached = 0.0
        return found

    def _missing(self) -> PeerLost | None:
        """A process that no longer exists, or has announced its leaving although it is needed."""
        killed = self._killed()
        # reasons first: a process that ends because of another one's error says none
        for peer in self._others:
            if self._store.check([f"why/{peer}"]):
                return _lost_by(peer, self._store.get(f"why/{peer}"))
        # checked last, because a process announces its leaving before it ends
        if killed is not None and not self._has_left(killed):
            return PeerLost(f"process {killed} was killed")
        for peer in self._others:
            if self._asked.is_set() and self._has_left(peer):
                return PeerLost(f"process {peer} ended with an error, which it has printed")
        return None

    def _killed(self) -> int | None:
        """A process of this machine that no longer exists."""
        return next((peer for peer, one in self._known.items() if one is not None and not one.alive()), None)

    def _silent_one(self, passed: float) -> PeerLost | None:
        """A process whose last heartbeat is too old.

        Args:
            passed: seconds since the last check.
        """
        for peer in self._others:
            beats = self._store.add(f"beat/{peer}", 0)
            self._silent[peer] = self._silent[peer] + passed if beats == self._beats[peer] else 0.0
            self._beats[peer] = beats
            if peer not in self._known and self._store.check([f"who/{peer}"]):
                self._known[peer] = _on_this_machine(self._store.get(f"who/{peer}"))
            if self._silent[peer] >= SILENCE_SECONDS and not self._has_left(peer):
                return PeerLost(
                    f"process {peer} has not responded for {SILENCE_SECONDS:.0f} seconds: it was stopped, or its "
                    "machine is gone"
                )
        return None

    def _has_left(self, peer: int) -> bool:
        return self._store.add(f"left/{peer}", 0) > 0

    def _say_goodbye(self) -> None:
        with contextlib.suppress(RuntimeError):
            # the store may disappear first, if its process ends first
            if self._fault is not None:
                self._store.set(f"why/{self._rank}", json.dumps(asdict(self._fault)))
            self._store.add(f"left/{self._rank}", 1)


def _lost_by(peer: int, said: bytes) -> PeerLost:
    """A process that ended with an error, in its own words."""
    data = json.loads(said)
    category = data["category"] if data["category"] in ERROR_CATEGORIES else "bug"
    message = f"process {peer} ended with an error: {str(data['message'])[:MAX_REASON]}"
    return PeerLost(message, Outcome(category, message, str(data["hint"])[:MAX_REASON]))


def _host() -> str:
    """An identifier of this machine and its process numbering."""
    space = Path("/proc/self/ns/pid").readlink() if sys.platform == "linux" else ""
    return f"{socket.gethostname()} {space}"


def _on_this_machine(said: bytes) -> ProcessId | None:
    """The process that another one claims to be, if it is visible from here."""
    data = json.loads(said)
    process = ProcessId.from_dict(data)
    return process if process is not None and data["host"] == _host() and process.alive() else None
