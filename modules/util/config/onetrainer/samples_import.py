"""Import of samples: when they begin, and what they are painted into."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from modules.util.config.foreign.Notes import Notes
from modules.util.enum.ModelType import ModelType

Data = dict[str, Any]
_INTERVALS = {"sample_skip_first": "sample_after", "save_skip_first": "save_every"}
PAINTED = ("base_image_path", "mask_image_path")
SWITCH = "sample_inpainting"


def import_skips(full: Mapping[str, Any], notes: Notes) -> Data:
    """How many samplings and saves are skipped. There it is a time in the unit of the interval, here a number."""
    made: Data = {}
    for name, interval in _INTERVALS.items():
        skipped, every = full[name], full[interval]
        if not all(isinstance(value, (int, float)) and 0 < value < 1e9 for value in (skipped, every)):
            continue
        made[name] = _skipped(skipped, every, full[f"{interval}_unit"], saves=name == "save_skip_first")
        if made[name] != skipped:
            notes.moved(name, skipped, f"{made[name]}", f"there in units of {interval}, here how many")
    return made


def _skipped(first: float, every: float, unit: str, saves: bool) -> int:
    """How many of the times ``every``, twice ``every``, ... are left out.

    There, what is due at step k counts as done at k + 1, and is left out up to ``first``. Only saves by steps are due
    at the end of the step itself.

    Args:
        saves: it is about saves, not samples.
    """
    if unit == "ALWAYS":
        return 0
    return int(first // every) if saves and unit == "STEP" else max(0, math.ceil(first / every) - 1)


def import_painting(full: Mapping[str, Any], family: ModelType, where: str, notes: Notes) -> Data:
    """The image that a sample is painted into, and its mask."""
    given = {name: full[name] for name in PAINTED if full[name] not in ("", None)}
    if full[SWITCH] is not True:
        for name, value in given.items():
            notes.add(f"{where}.{name}", value, f"left out; without {SWITCH} it is not read there")
        return dict.fromkeys(PAINTED, "")
    if family.spec.inpainting and len(given) != 1:
        notes.moved(f"{where}.{SWITCH}", True, f"{where}.base_image_path", "an image to paint into")
        return given
    why = (
        "its image or its mask is missing" if family.spec.inpainting else f"{family.label} makes whole images"
    )
    for name, value in {SWITCH: True, **given}.items():
        notes.add(f"{where}.{name}", value, f"left out; {why}")
    return dict.fromkeys(PAINTED, "")
