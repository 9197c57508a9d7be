"""Grey images of more than eight bits, scaled to eight bits in the same way wherever images are read or shown."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image


def is_deep(image: Image.Image) -> bool:
    """Return whether an image has grey levels of more than eight bits."""
    return image.mode.startswith("I;16") or image.mode in ("I", "F")


def eight_bits(image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Grey levels of more than eight bits, scaled by what their type or their range suggests."""
    values = np.nan_to_num(np.asarray(image).astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    if image.mode == "F":
        top = 1.0 if values.max(initial=0.0) <= 1.0 else 255.0 if values.max() <= 255.0 else values.max()
    else:
        # integers of 32 bits in a TIFF file or in memory may be numbers of 8 bits; other files scale them to 16 bits
        levels = (255.0, 65535.0) if image.mode == "I" and image.format in ("TIFF", None) else (65535.0,)
        highest = values.max(initial=0.0)
        top = next((level for level in levels if highest <= level), highest)
    return np.clip(np.rint(values * (255.0 / top)), 0, 255).astype(np.uint8)
