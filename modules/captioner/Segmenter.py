"""The part of an image that words name, by a CLIPSeg model of transformers."""

from __future__ import annotations

import numpy
import torch
from PIL import Image

from modules.util.errors import ConfigError, DataError
from modules.util.files.hub_names import UNREADABLE, fetched

PARTS = "a folder of CLIPSeg with config.json, the weights, preprocessor_config.json and the tokenizer"


class Segmenter:
    """The same image always gets the same part.

    Args:
        source: a folder, or a repository of the hub.
        prompt: what is looked for.
        threshold: least probability of a pixel, 0 to 1.
        device: where the model works.

    Raises:
        ConfigError: the threshold is out of range.
        DataError: there is no such model.
    """

    def __init__(self, source: str, prompt: str, threshold: float, device: torch.device) -> None:
        from safetensors import SafetensorError
        from transformers import AutoImageProcessor, AutoTokenizer, CLIPSegForImageSegmentation

        if not 0 <= threshold <= 1:
            raise ConfigError(f"{threshold} is not between 0 and 1", "--threshold")
        self._source, self._threshold, self._device = source, threshold, device
        try:
            # code that comes with a model is not run
            self._processor = fetched(AutoImageProcessor, source, trust_remote_code=False)
            tokenizer = fetched(AutoTokenizer, source, trust_remote_code=False)
            model = fetched(CLIPSegForImageSegmentation, source)
            self._words = tokenizer([prompt], truncation=True, return_tensors="pt").to(device)
        except (*UNREADABLE, ImportError, SafetensorError) as error:
            raise self._fault("cannot be loaded", error) from error
        self._model = model.requires_grad_(False).eval().to(device)

    def select(self, image: Image.Image) -> numpy.ndarray:
        """Where the words are at least as probable as the threshold: booleans (height, width).

        Raises:
            DataError: the model cannot do it.
        """
        try:
            pixels = self._processor(images=[image.convert("RGB")], return_tensors="pt")["pixel_values"]
            with torch.no_grad():
                said = self._model(
                    input_ids=self._words["input_ids"], attention_mask=self._words["attention_mask"],
                    pixel_values=pixels.to(self._device),
                ).logits  # fmt: skip
            small = said.reshape(1, 1, *said.shape[-2:]).sigmoid().float()
            size = (image.height, image.width)
            found = torch.nn.functional.interpolate(small, size, mode="bilinear", align_corners=False)
        except UNREADABLE as error:
            raise self._fault("cannot look at an image", error) from error
        chosen: numpy.ndarray = (found[0, 0] >= self._threshold).cpu().numpy()
        return chosen

    def _fault(self, what: str, error: Exception) -> DataError:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        return DataError(
            f"the model {self._source!r} {what}: {said}",
            field="--model",
            hint=f"give {PARTS}, or the name of a repository of the hub, such as CIDAS/clipseg-rd64-refined",
        )
