"""Captions by a server with the chat protocol of OpenAI (LM Studio, llama.cpp, Ollama, vLLM)."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from PIL import Image

from modules.util.errors import ConfigError, UserError
from modules.util.web.HttpClient import HttpClient

WHAT = "the caption server"
LONGEST_SIDE = 1024


class ServerCaptioner:
    """Sends the pixels of each image and a question; nothing else of the file leaves the computer.

    Args:
        url: of its interface, for example ``http://127.0.0.1:1234/v1``.
        model: its name there.
        parallel: how many images are asked about at once.
        remote: it may be outside this computer and its network.
        seconds: how long an answer may take.

    Raises:
        UserError: the address is not one, or too far away.
    """

    def __init__(
        self, url: str, model: str, prompt: str, parallel: int, remote: bool, seconds: float, most_tokens: int
    ) -> None:
        if not prompt.strip():
            raise ConfigError("a server needs a question", "--prompt", "for example: Describe this image.")
        self._model, self._prompt, self._parallel, self._most_tokens = model, prompt, parallel, most_tokens
        self._make = partial(HttpClient, WHAT, url, remote, "images", seconds)
        self._make()
        self._own = threading.local()

    def describe(self, images: Sequence[Image.Image]) -> list[str]:
        """One answer for each image; a failure is tried again a few times."""
        with ThreadPoolExecutor(self._parallel) as threads:
            asked = [threads.submit(self._ask, image) for image in images]
            try:
                return [one.result() for one in asked]
            finally:
                for one in asked:
                    one.cancel()

    def _ask(self, image: Image.Image) -> str:
        if not hasattr(self._own, "client"):
            self._own.client = self._make()
        content = [
            {"type": "text", "text": self._prompt},
            {"type": "image_url", "image_url": {"url": data_url(image)}},
        ]
        answer = self._own.client.post(
            "chat/completions",
            {
                "model": self._model,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": self._most_tokens,
                "temperature": 0,
            },
            again=True,
        )
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise UserError(f"{WHAT} answered without a text: {str(answer)[:300]}") from error
        if not isinstance(text, str):
            raise UserError(f"{WHAT} answered without a text: {str(answer)[:300]}")
        return text.strip()


def data_url(image: Image.Image) -> str:
    """The pixels of an RGB image as a PNG of at most 1024 pixels a side, without metadata."""
    plain = image.copy()
    plain.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    plain.info = {}
    stream = io.BytesIO()
    plain.save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
