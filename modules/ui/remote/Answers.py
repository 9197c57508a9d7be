"""Passwords and passphrases that a person typed. They are in memory only and are never written. No Tk here."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable

from modules.remote.Connection import NOT_ACCEPTED, OWN_QUESTIONS
from modules.ui.remote.FarJob import Post

Show = Callable[[str, Callable[[str | None], None]], object]
KEPT = ("password", "passphrase")
"""Words of questions whose answers stay valid."""
ONCE = re.compile(r"one[- ]?time|single[- ]use|\botp\b|code|token", re.IGNORECASE)
"""Words of questions whose answers are valid once, so that they are asked again each time."""


def _is_kept(question: str) -> bool:
    if question.startswith(OWN_QUESTIONS):
        return True
    # the address of the computer comes first
    text = question.partition(": ")[2]
    return any(word in text.lower() for word in KEPT) and not ONCE.search(text)


class Answers:
    """Asks the person on the Tk thread, for jobs in other threads, and remembers answers.

    Args:
        post: runs a function on the Tk thread.
        show: shows a question there; calls back with the answer, or with ``None``.
    """

    def __init__(self, post: Post, show: Show) -> None:
        self._post, self._show = post, show
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()
        self._waiting: set[queue.SimpleQueue[str | None]] = set()
        self._closed = False

    def ask(self, question: str) -> str | None:
        """Answer a question. Blocks; not for the Tk thread."""
        plain = question.removeprefix(NOT_ACCEPTED)
        given: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with self._lock:
            if self._closed:
                return None
            if question != plain:
                self._known.pop(plain, None)
            elif plain in self._known:
                return self._known[plain]
            self._waiting.add(given)
        self._post(lambda: self._show(question, given.put))
        answer = given.get()
        with self._lock:
            self._waiting.discard(given)
            if answer is not None and _is_kept(plain):
                self._known[plain] = answer
        return answer

    def forget(self) -> None:
        """Forget all answers, because one of them was wrong."""
        with self._lock:
            self._known.clear()

    def close(self) -> None:
        """Forget all answers and leave open questions unanswered."""
        with self._lock:
            self._closed = True
            self._known.clear()
            for given in self._waiting:
                given.put(None)
