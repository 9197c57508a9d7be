"""Selects the part of an image described by words, with a CLIPSeg model of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy
import torch
from PIL import Image

from modules.captioner.failing import check_answer, failing_as
from modules.util.display import counted
from modules.util.errors import ConfigError, DataError, UserError, first_line
from modules.util.files.hub_names import fetched

PARTS = "a folder of CLIPSeg with config.json, the weights, preprocessor_config.json and the tokenizer"
HUB = "the name of a repository of the hub, such as"
KIND = "clipseg"


def check_threshold(threshold: float) -> None:
    """Raises:
    ConfigError: it is out of range.
    """
    if not 0 <= threshold <= 1:
        raise ConfigError(f"{threshold} is not between 0 and 1", "--threshold")


def check_words(prompt: str, threshold: float) -> None:
    """Raises:
    ConfigError: the threshold is out of range, or there are no words.
    """
    check_threshold(threshold)
    if not prompt.strip():
        raise ConfigError("there are no words to look for", "--prompt", "name what the mask is to show in white")


def check_weights(read: Mapping[str, Any]) -> None:
    """Check transformers' loading info: weights missing from the files would be random.

    Raises:
        ValueError: some are missing or of another shape.
    """
    if lacking := sorted({*read["missing_keys"], *(key for key, *_ in read["mismatched_keys"])}):
        raise ValueError(f"{counted(len(lacking), 'weight')} missing, such as {lacking[0]}")


def pixels_above(probability_11hw: torch.Tensor, image: Image.Image, threshold: float) -> numpy.ndarray:
    """Return the places where a small map of probabilities reaches the threshold, at an image's size: booleans
    (height, width).

    Raises:
        UserError: a probability is NaN.
    """
    check_answer(probability_11hw)
    size = (image.height, image.width)
    found = torch.nn.functional.interpolate(probability_11hw, size, mode="bilinear", align_corners=False)
    chosen: numpy.ndarray = (found[0, 0] >= threshold).cpu().numpy()
    return chosen


def cannot_look(fault: Callable[[str, Exception], DataError], error: Exception) -> UserError:
    """The error of a model that fails for every image."""
    made = fault("cannot look at an image", error)
    return UserError(made.message, made.field, made.hint)


def model_fault(source: str, what: str, error: Exception, wanted: str) -> DataError:
    """The fault of a model, in one line."""
    said = first_line(error)
    return DataError(f"the model {source!r} {what}: {said}", field="--model", hint=f"give {wanted}")


class Segmenter:
    """Selects parts of images deterministically.

    Args:
        source: a folder, or a hub repository.
        prompt: what to look for.
        threshold: minimum probability of a pixel, 0 to 1.

    Raises:
        ConfigError: the threshold is out of range, or there are no words or too many.
        DataError: the model does not exist, or is of another kind.
    """

    def __init__(self, source: str, prompt: str, threshold: float, device: torch.device) -> None:
        from safetensors import SafetensorError
        from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, CLIPSegForImageSegmentation

        check_words(prompt, threshold)
        self._source, self._threshold, self._device = source, threshold, device
        with failing_as(partial(self._fault, "cannot be loaded"), ImportError, SafetensorError):
            # code that comes with a model is not executed
            self._processor = fetched(AutoImageProcessor, source, trust_remote_code=False)
            tokenizer = fetched(AutoTokenizer, source, trust_remote_code=False)
            if fetched(AutoConfig, source, trust_remote_code=False).model_type != KIND:
                raise ValueError(f"it is not of the kind {KIND}")
            model, read = fetched(CLIPSegForImageSegmentation, source, output_loading_info=True)
            check_weights(read)
            self._words = tokenizer([prompt], return_tensors="pt").to(device)
        most = model.config.text_config.max_position_embeddings
        if (tokens := self._words["input_ids"].shape[1]) > most:
            raise ConfigError(
                f"the text has {tokens} tokens, but the model reads at most {most}", "--prompt", "shorten it"
            )
        self._model = model.requires_grad_(False).eval().float().to(device)

    def select(self, image: Image.Image) -> numpy.ndarray:
        """The pixels at which the words are at least as probable as the threshold: booleans (height, width).

        Raises:
            UserError: the model fails for any image.
        """
        with failing_as(partial(cannot_look, self._fault)):
            pixels = self._processor(images=[image.convert("RGB")], return_tensors="pt")["pixel_values"]
            with torch.no_grad():
                said = self._model(
                    input_ids=self._words["input_ids"], attention_mask=self._words["attention_mask"],
                    pixel_values=pixels.to(self._device),
                ).logits  # fmt: skip
            small = said.reshape(1, 1, *said.shape[-2:]).sigmoid().float()
            return pixels_above(small, image, self._threshold)

    def _fault(self, what: str, error: Exception) -> DataError:
        return model_fault(self._source, what, error, f"{PARTS}, or {HUB} CIDAS/clipseg-rd64-refined")
