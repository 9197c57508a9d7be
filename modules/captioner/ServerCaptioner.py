"""Captions from a server with OpenAI's chat protocol (LM Studio, llama.cpp, Ollama, vLLM)."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Sequence
from functools import partial

from PIL import Image

from modules.captioner.Captioner import without_thoughts
from modules.util.errors import AnswerError, ConfigError, UserError
from modules.util.web.HttpClient import HttpClient

WHAT = "the caption server"
LONGEST_SIDE = 1024
MOST_CHARACTERS = 20_000
WATCH_SECONDS = 0.2


class ServerCaptioner:
    """Sends the pixels of each image and a question; nothing else of the file leaves the computer. All images
    of a call are sent in parallel.

    Args:
        url: address of the server, for example ``http://127.0.0.1:1234/v1``.
        model: name of the model there.
        remote: whether it may be outside this computer and its network.
        seconds: timeout of an answer.

    Raises:
        UserError: the address is invalid, or outside this network.
    """

    def __init__(
        self, url: str, model: str, prompt: str, remote: bool, seconds: float, most_tokens: int
    ) -> None:
        if not prompt.strip():
            raise ConfigError("a server needs a question", "--prompt", "for example: Describe this image.")
        self._model, self._prompt, self._most_tokens = model, prompt, most_tokens
        self._client = partial(HttpClient, WHAT, url, remote, "images", seconds)
        self._client()

    def describe(self, images: Sequence[Image.Image]) -> list[str | UserError]:
        """Return one answer for each image, or why there is none. A failure is tried three times in total."""
        found: list[str | UserError] = [UserError("not asked")] * len(images)

        def ask(place: int) -> None:
            try:
                found[place] = self._ask(images[place])
            except UserError as error:
                found[place] = error

        # threads that end with the program, so that it can be stopped while a server does not answer
        threads = [threading.Thread(target=ask, args=(place,), daemon=True) for place in range(len(images))]
        for one in threads:
            one.start()
        for one in threads:
            while one.is_alive():
                one.join(WATCH_SECONDS)
        return found

    def _ask(self, image: Image.Image) -> str | UserError:
        content = [
            {"type": "text", "text": self._prompt},
            {"type": "image_url", "image_url": {"url": data_url(image)}},
        ]
        answer = self._client().post(
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
            choice = answer["choices"][0]
            text, reason = choice["message"]["content"], choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise UserError(f"{WHAT} answered without a text: {str(answer)[:300]}") from error
        if not isinstance(text, str):
            raise UserError(f"{WHAT} answered without a text: {str(answer)[:300]}")
        if reason == "length" or len(text) > MOST_CHARACTERS:
            raise AnswerError(
                "the answer is too long", hint="use a larger --length, or ask for a short answer"
            )
        return without_thoughts(text)


def data_url(image: Image.Image) -> str:
    """The pixels of an RGB image as a PNG of at most 1024 pixels per side, without metadata."""
    plain = image.copy()
    plain.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
    plain.info = {}
    stream = io.BytesIO()
    plain.save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
