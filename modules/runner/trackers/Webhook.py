"""Sends a message to an address of one's own when a run ends."""

from __future__ import annotations

import json

import requests

from modules.runner.events import step_of
from modules.runner.trackers.Tracker import Event, Tracker
from modules.util.errors import ConfigError, UserError
from modules.util.web.HttpClient import host_of

SECONDS = 10.0
JSON = {"Content-Type": "application/json"}
TRIES = 3


class Webhook(Tracker):
    """Sends one JSON object at the end: ``run``, ``status`` and ``step``, and the same as a sentence in ``text``
    and ``content`` for chats.

    Args:
        name: name of the run in the message; no local path is sent.
    """

    def __init__(self, url: str, name: str) -> None:
        if not host_of(url):
            # it may contain a secret, so it is not repeated
            raise ConfigError("the text given is not an address", "--url", "for example https://example.org/hook")
        self._url, self._name = url, name
        self._step, self._error, self._ended = 0, "", ""

    def take(self, event: Event) -> None:
        self._step = max(self._step, step_of(event) or 0)
        if event["kind"] == "run_started":
            # a run that was resumed has several ends, of which the last one is sent
            self._error = self._ended = ""
        if event["kind"] == "error":
            self._error = str(event.get("category", "error"))
        if event["kind"] == "run_finished":
            self._ended = str(event.get("status", "finished"))

    def _send(self, ended: str) -> None:
        why = f" ({self._error})" if ended == "failed" and self._error else ""
        text = f"{self._name}: {ended}{why} after {self._step} steps"
        body = {
            "run": self._name,
            "status": ended,
            "step": self._step,
            "text": text,
            "content": text,
        }
        data, said = json.dumps(body).encode(), ""
        for _ in range(TRIES):
            try:
                # what the server says is not read, however much it is
                with requests.post(
                    self._url, data=data, headers=JSON, timeout=SECONDS, allow_redirects=False, stream=True
                ) as answer:
                    status = answer.status_code
            except requests.RequestException as error:
                said = type(error).__name__
                continue
            if status < 300:
                return
            said = f"status {status}"
            if status < 500:
                break
        # an address may contain a secret, so it is not repeated
        raise UserError(f"the webhook was not reached: {said}", "--url", "check the address")

    def finish(self) -> None:
        """Send the message, if the run has ended."""
        if self._ended:
            self._send(self._ended)
