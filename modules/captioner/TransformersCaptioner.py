"""Captions by a model of transformers: BLIP, BLIP-2, GIT, Qwen-VL, LLaVA and others that turn an image into text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from modules.util.errors import DataError
from modules.util.files.hub_names import UNREADABLE, fetched

PARTS = "a folder with config.json, the weights, preprocessor_config.json and the tokenizer"


class TransformersCaptioner:
    """Always the most likely words, so the same image gets the same text.

    Args:
        source: a folder, or a repository of the hub.
        prompt: what the model is asked, or how its text begins; empty where it needs none.
        dtype: number format of its weights, ``torch``'s name of it.
        device: where it works.
        most_tokens: how long a text may be.

    Raises:
        DataError: there is no such model.
    """

    def __init__(self, source: str, prompt: str, dtype: str, device: torch.device, most_tokens: int) -> None:
        from safetensors import SafetensorError
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self._prompt, self._most_tokens, self._device = prompt, most_tokens, device
        try:
            self._processor = fetched(AutoProcessor, source)
            model = fetched(AutoModelForImageTextToText, source, dtype=getattr(torch, dtype))
        except (*UNREADABLE, ImportError, SafetensorError) as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(
                f"the captioning model {source!r} cannot be loaded: {said}",
                field="--model",
                hint=f"give {PARTS}, or the name of a repository of the hub",
            ) from error
        self._model = model.requires_grad_(False).eval().to(device)

    def describe(self, images: Sequence[Image.Image]) -> list[str]:
        """One text for each image."""
        inputs = self._inputs(list(images)).to(self._device, self._model.dtype)
        with torch.no_grad():
            tokens_BT = self._model.generate(**inputs, max_new_tokens=self._most_tokens, do_sample=False)
        # models that continue a prompt give it back before their answer, those with an encoder of their own do not
        given = inputs["input_ids"].shape[1] if "input_ids" in inputs else 0
        asked = given and bool((tokens_BT[:, :given] == inputs["input_ids"]).all())
        texts: list[str] = self._processor.batch_decode(
            tokens_BT[:, given if asked else 0 :], skip_special_tokens=True
        )
        return [text.strip() for text in texts]

    def _inputs(self, images: list[Image.Image]) -> Any:
        if getattr(self._processor, "chat_template", None):
            words = [{"type": "text", "text": self._prompt}] if self._prompt else []
            chats = [
                [{"role": "user", "content": [{"type": "image", "image": image}, *words]}] for image in images
            ]
            return self._processor.apply_chat_template(
                chats, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
                processor_kwargs={"padding": True, "padding_side": "left"},
            )  # fmt: skip
        text = {"text": [self._prompt] * len(images)} if self._prompt else {}
        return self._processor(images=images, return_tensors="pt", **text)
