"""The part of an image that is not its background, found by a segmentation model of transformers that knows a
background.
"""

from __future__ import annotations

from typing import Any

import torch

from modules.captioner.Segmenter import HUB, Selector
from modules.util.files.hub_names import fetched

PARTS = "a folder of a semantic segmentation model with config.json, the weights and preprocessor_config.json"
BACKGROUND = "background"
"""The label of such models for everything they do not know."""


class Subject(Selector):
    """Selects everything but the background.

    Raises:
        ConfigError: the threshold is out of range.
        DataError: there is no such model, or it knows no background.
    """

    WANTED = f"{PARTS}, or {HUB} google/deeplabv3_mobilenet_v2_1.0_513"

    def _load(self, source: str) -> Any:
        from transformers import AutoModelForSemanticSegmentation

        model, read = fetched(
            AutoModelForSemanticSegmentation, source, trust_remote_code=False, output_loading_info=True
        )
        self._background = _background_of(model.config.id2label)
        return model, read

    def _probability(self, pixels_13HW: torch.Tensor) -> torch.Tensor:
        said_1Khw: torch.Tensor = self._model(pixel_values=pixels_13HW).logits.float()
        return 1.0 - said_1Khw.softmax(dim=1)[:, self._background : self._background + 1]


def _background_of(labels: Any) -> int:
    """The number of the label for the background.

    Raises:
        ValueError: there is none.
    """
    found = [int(number) for number, name in dict(labels).items() if str(name).casefold() == BACKGROUND]
    if not found:
        raise ValueError(f"none of its {len(labels)} labels is {BACKGROUND}")
    return found[0]
