"""The part of an image that is not its background, found by a segmentation model of transformers that knows a
background.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy
import torch
from PIL import Image

from modules.captioner.failing import failing_as
from modules.captioner.Segmenter import (
    HUB,
    cannot_look,
    check_threshold,
    check_weights,
    model_fault,
    pixels_above,
)
from modules.util.errors import DataError
from modules.util.files.hub_names import fetched

PARTS = "a folder of a semantic segmentation model with config.json, the weights and preprocessor_config.json"
BACKGROUND = "background"
"""The label of such models for everything they do not know."""


class Subject:
    """The same image always gets the same part.

    Args:
        source: a folder, or a repository of the hub.
        threshold: least probability that a pixel belongs to some thing, 0 to 1.
        device: where the model works.

    Raises:
        ConfigError: the threshold is out of range.
        DataError: there is no such model, or it knows no background.
    """

    def __init__(self, source: str, threshold: float, device: torch.device) -> None:
        from safetensors import SafetensorError
        from transformers import AutoImageProcessor, AutoModelForSemanticSegmentation

        check_threshold(threshold)
        self._source, self._threshold, self._device = source, threshold, device
        with failing_as(partial(self._fault, "cannot be loaded"), ImportError, SafetensorError):
            # code that comes with a model is not run
            self._processor = fetched(AutoImageProcessor, source, trust_remote_code=False)
            model, read = fetched(
                AutoModelForSemanticSegmentation, source, trust_remote_code=False, output_loading_info=True
            )
            check_weights(read)
            self._background = _background_of(model.config.id2label)
        self._model = model.requires_grad_(False).eval().float().to(device)

    def select(self, image: Image.Image) -> numpy.ndarray:
        """Return the places where something other than the background is: booleans (height, width).

        Raises:
            UserError: the model cannot do it, whatever the image.
        """
        with failing_as(partial(cannot_look, self._fault)):
            # the whole image is looked at, not its middle alone
            whole = {"do_center_crop": False} if getattr(self._processor, "do_center_crop", None) else {}
            pixels = self._processor(images=[image.convert("RGB")], return_tensors="pt", **whole)[
                "pixel_values"
            ]
            with torch.no_grad():
                said_1Khw = self._model(pixel_values=pixels.to(self._device)).logits.float()
            subject_11hw = 1.0 - said_1Khw.softmax(dim=1)[:, self._background : self._background + 1]
            return pixels_above(subject_11hw, image, self._threshold)

    def _fault(self, what: str, error: Exception) -> DataError:
        return model_fault(
            self._source, what, error, f"{PARTS}, or {HUB} google/deeplabv3_mobilenet_v2_1.0_513"
        )


def _background_of(labels: Any) -> int:
    """The number of the label for the background.

    Raises:
        ValueError: there is none.
    """
    found = [int(number) for number, name in dict(labels).items() if str(name).casefold() == BACKGROUND]
    if not found:
        raise ValueError(f"none of its {len(labels)} labels is {BACKGROUND}")
    return found[0]
