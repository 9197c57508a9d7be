"""Selects the part of an image described by words, with a CLIPSeg model of transformers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
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


def _check_weights(read: Mapping[str, Any]) -> None:
    """Check transformers' loading info: weights missing from the files would be random.

    Raises:
        ValueError: some are missing or of another shape.
    """
    if lacking := sorted({*read["missing_keys"], *(key for key, *_ in read["mismatched_keys"])}):
        raise ValueError(f"{counted(len(lacking), 'weight')} missing, such as {lacking[0]}")


def _pixels_above(probability_11hw: torch.Tensor, image: Image.Image, threshold: float) -> numpy.ndarray:
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


class Selector(ABC):
    """A model that selects pixels of an image, always the same of the same image.

    Args:
        source: a folder, or a hub repository.
        threshold: minimum probability of a pixel, 0 to 1.

    Attributes:
        WANTED: what a user is to give.

    Raises:
        ConfigError: the threshold is out of range.
        DataError: the model does not exist, or is of another kind.
    """

    WANTED: str

    def __init__(self, source: str, threshold: float, device: torch.device) -> None:
        from safetensors import SafetensorError
        from transformers import AutoImageProcessor

        check_threshold(threshold)
        self._source, self._threshold, self._device = source, threshold, device
        with failing_as(partial(self._fault, "cannot be loaded"), ImportError, SafetensorError):
            # code that comes with a model is not executed
            self._processor = fetched(AutoImageProcessor, source, trust_remote_code=False)
            model, read = self._load(source)
            _check_weights(read)
        self._model = model.requires_grad_(False).eval().float().to(device)

    @abstractmethod
    def _load(self, source: str) -> Any:
        """The model, and transformers' loading info."""

    @abstractmethod
    def _probability(self, pixels_13HW: torch.Tensor) -> torch.Tensor:
        """The probability (1, 1, h, w) of each pixel."""

    def select(self, image: Image.Image) -> numpy.ndarray:
        """The pixels that are at least as probable as the threshold: booleans (height, width).

        Raises:
            UserError: the model fails for any image.
        """
        with failing_as(self._cannot_look):
            # the whole image is looked at, not its middle alone
            whole = {"do_center_crop": False} if getattr(self._processor, "do_center_crop", None) else {}
            read = self._processor(images=[image.convert("RGB")], return_tensors="pt", **whole)
            with torch.no_grad():
                probability_11hw = self._probability(read["pixel_values"].to(self._device))
            return _pixels_above(probability_11hw, image, self._threshold)

    def _cannot_look(self, error: Exception) -> UserError:
        made = self._fault("cannot look at an image", error)
        return UserError(made.message, made.field, made.hint)

    def _fault(self, what: str, error: Exception) -> DataError:
        said = first_line(error)
        return DataError(f"the model {self._source!r} {what}: {said}", "--model", f"give {self.WANTED}")


class Segmenter(Selector):
    """Selects the parts of images that words describe.

    Args:
        prompt: what to look for.

    Raises:
        ConfigError: the threshold is out of range, or there are no words or too many.
    """

    WANTED = f"{PARTS}, or {HUB} CIDAS/clipseg-rd64-refined"

    def __init__(self, source: str, prompt: str, threshold: float, device: torch.device) -> None:
        check_words(prompt, threshold)
        self._prompt = prompt
        super().__init__(source, threshold, device)
        most, tokens = self._model.config.text_config.max_position_embeddings, self._words["input_ids"].shape[1]
        if tokens > most:
            raise ConfigError(
                f"the text has {tokens} tokens, but the model reads at most {most}", "--prompt", "shorten it"
            )

    def _load(self, source: str) -> Any:
        from transformers import AutoConfig, AutoTokenizer, CLIPSegForImageSegmentation

        tokenizer = fetched(AutoTokenizer, source, trust_remote_code=False)
        if fetched(AutoConfig, source, trust_remote_code=False).model_type != KIND:
            raise ValueError(f"it is not of the kind {KIND}")
        self._words = tokenizer([self._prompt], return_tensors="pt").to(self._device)
        return fetched(CLIPSegForImageSegmentation, source, output_loading_info=True)

    def _probability(self, pixels_13HW: torch.Tensor) -> torch.Tensor:
        said: torch.Tensor = self._model(
            input_ids=self._words["input_ids"], attention_mask=self._words["attention_mask"],
            pixel_values=pixels_13HW,
        ).logits  # fmt: skip
        return said.reshape(1, 1, *said.shape[-2:]).sigmoid().float()
