"""Captions from a transformers model: BLIP, BLIP-2, GIT, Qwen-VL, LLaVA and others that turn an image into text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from modules.captioner.Captioner import THINKS, without_thoughts
from modules.captioner.failing import check_answer, failing_as
from modules.util.errors import DataError, UserError, first_line
from modules.util.files.hub_names import UNREADABLE, fetched

PARTS = "a folder with config.json, the weights, preprocessor_config.json and the tokenizer"
MOST_OF_A_MARK = 16
"""Number of tokens at the end of a question that may be the opening mark and what follows it."""


class TransformersCaptioner:
    """Uses greedy decoding, so that the same image gets the same text.

    Args:
        source: a folder, or a hub repository.
        prompt: the question, or the beginning of the text; empty if the model needs none.
        dtype: number format of its weights, by its name in torch.
        most_tokens: maximum length of a text.

    Raises:
        DataError: the model does not exist.
    """

    def __init__(self, source: str, prompt: str, dtype: str, device: torch.device, most_tokens: int) -> None:
        from safetensors import SafetensorError
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self._source, self._prompt, self._most_tokens, self._device = source, prompt, most_tokens, device
        try:
            # code that comes with a model is not executed
            self._processor = fetched(AutoProcessor, source, trust_remote_code=False)
            model = fetched(
                AutoModelForImageTextToText, source, dtype=getattr(torch, dtype), trust_remote_code=False
            )
        except (*UNREADABLE, ImportError, SafetensorError) as error:
            said = first_line(error)
            raise DataError(
                f"the captioning model {source!r} cannot be loaded: {said}",
                field="--model",
                hint=f"give {PARTS}, or the name of a repository on the hub",
            ) from error
        self._model = model.requires_grad_(False).eval().to(device)

    def describe(self, images: Sequence[Image.Image]) -> list[str | UserError]:
        """One text for each image, or why there is none."""
        with failing_as(self._fault):
            return self._answers(list(images))

    def _fault(self, error: Exception) -> UserError:
        said = first_line(error)
        return UserError(
            f"the model {self._source!r} cannot describe an image: {said}", "--prompt",
            "some models need a question, others none, and some a file chat_template.jinja next to them",
        )  # fmt: skip

    def _answers(self, images: list[Image.Image]) -> list[str | UserError]:
        inputs = self._inputs(images).to(self._device, self._model.dtype)
        with torch.no_grad():
            tokens_BT = self._model.generate(
                **inputs, max_new_tokens=self._most_tokens, do_sample=False, logits_processor=[_checked]
            )
        # models that continue a prompt repeat it before their answer; those with an encoder do not
        given = inputs["input_ids"].shape[1] if "input_ids" in inputs else 0
        begins = tokens_BT[:, :given]
        again = begins.shape[1] == given and bool((begins == inputs["input_ids"]).all()) if given else False
        texts: list[str] = self._processor.batch_decode(
            tokens_BT[:, given if again else 0 :], skip_special_tokens=True
        )
        begun = self._begun(inputs["input_ids"]) if given else [""] * len(texts)
        return [without_thoughts(first + text) for first, text in zip(begun, texts, strict=True)]

    def _begun(self, tokens_BT: torch.Tensor) -> list[str]:
        """The opening mark of thoughts where a question ends with it, as those of some chat templates do."""
        ends: list[str] = self._processor.batch_decode(tokens_BT[:, -MOST_OF_A_MARK:])
        return [THINKS if end.rstrip().endswith(THINKS) else "" for end in ends]

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


def _checked(tokens_BT: torch.Tensor, scores_BV: torch.Tensor) -> torch.Tensor:
    """The scores of the next token, for ``generate``, which would choose the first token where they are NaN."""
    check_answer(scores_BV)
    return scores_BV
