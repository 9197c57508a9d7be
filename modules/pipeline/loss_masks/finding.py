"""Finds the mask files of images, and their faults."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.nodes.collect import image_paths
from modules.pipeline.nodes.images import has_alpha
from modules.util.display import counted
from modules.util.enum.choices import MaskSource
from modules.util.errors import DataError, UserError, list_offenders
from modules.util.pairs.dpo_pair_files import IMAGE_EXTENSIONS, dpo_pair_key

SUFFIX = "-masklabel.png"
"""Suffix of a mask next to its image, after the image's name."""
CONDITION_SUFFIX = "-condlabel.png"
"""Suffix of the picture shown to an inpainting model, next to its image."""
CONDITION = "conditioning image"
"""The name of such pictures in messages."""
TOLERANCE = 0.01
"""Tolerance between the shapes of a mask and its image."""


@dataclass(frozen=True, slots=True)
class FoundMask:
    """Paths of an image and of its mask; the same for an alpha channel."""

    image: str
    mask: str


@dataclass
class Masks:
    """Masks by item id, and their faults."""

    masks: dict[str, FoundMask] = field(default_factory=dict)
    faults: list[UserError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def look_for_masks(
    source: MaskSource,
    units: Sequence[tuple[str, Sequence[Item]]],
    concepts: Sequence[Any],
    pairs: bool = False,
) -> Masks:
    """The masks of a run's images, found by ``find_masks``. Units without one are counted in a warning.

    No mask at all is a fault.

    Args:
        units: name and images of everything that needs a mask: images, or pairs, which need one of two.
    """
    try:
        masks = find_masks(source, [item for _, items in units for item in items], concepts)
        missing = sorted(name for name, items in units if not any(item.id in masks for item in items))
        warning = _missing(source, missing, len(units), pairs)
    except UserError as error:
        return Masks(faults=[error])
    return Masks(masks, warnings=[warning] if warning else [])


def look_for_conditions(items: Sequence[Item]) -> Masks:
    """The pictures next to images that an inpainting model is shown instead of the masked images. Images
    without one are counted in a warning; no picture at all is a fault.
    """
    named = {item.id: Path(item.path).with_suffix("").as_posix() + CONDITION_SUFFIX for item in items}
    found = {
        item.id: FoundMask(item.path, named[item.id]) for item in items if os.path.lexists(named[item.id])
    }
    missing = sorted(named.keys() - found.keys())
    if not missing:
        return Masks(found)
    if not found:
        fault = DataError(
            f"none of the {counted(len(items), 'image')} has a {CONDITION}",
            field="custom_conditioning_image",
            hint=f"put NAME{CONDITION_SUFFIX} next to each image, or switch it off",
        )
        return Masks(faults=[fault])
    have = "image has" if len(missing) == 1 else "images have"
    warning = f"{len(missing)} {have} no {CONDITION}; the masked image is shown:\n{list_offenders(missing)}"
    return Masks(found, warnings=[warning])


def find_masks(source: MaskSource, items: Sequence[Item], concepts: Sequence[Any]) -> dict[str, FoundMask]:
    """Masks by item id. Images without one are left out. Two concepts may have masks for the same image.

    Args:
        concepts: configs by the items' concept index; FOLDER uses the ``mask_path`` of a concept.

    Raises:
        DataError: a mask folder does not exist, or an image's header is unreadable.
    """
    if source is MaskSource.ALPHA:
        return {item.id: FoundMask(item.path, item.path) for item in items if has_alpha(item.path)}
    if source is MaskSource.FILE:
        named = {
            item.id: FoundMask(item.path, str(Path(item.path).with_suffix("")) + SUFFIX) for item in items
        }
        # what is not a file, as a folder or a broken link, is reported by ``mask_faults``
        return {name: found for name, found in named.items() if os.path.lexists(found.mask)}
    there = {n: _masks_below(concept.mask_path) for n, concept in enumerate(concepts) if concept.mask_path}
    return {
        item.id: FoundMask(item.path, mask)
        for item in items
        if (mask := there.get(item.concept, {}).get(item.key)) is not None
    }


def _masks_below(folder: str) -> dict[str, str]:
    """Masks by their path below the folder, without extension."""
    place = Path(folder)
    if not place.is_dir():
        raise DataError(
            f"the folder of masks {folder} does not exist",
            field="concepts",
            hint="check the concept's mask folder",
        )
    try:
        paths = sorted(image_paths(place, True), reverse=True)
        # a folder with the name of a mask is reported by ``mask_faults``
        folders = [path for path in place.iterdir() if path.suffix.lower() in IMAGE_EXTENSIONS and path.is_dir()]
    except OSError as error:
        raise DataError(
            f"the folder of masks {error.filename} cannot be read ({error.strerror})", field="concepts"
        ) from error
    return {dpo_pair_key(path, place): str(path) for path in [*folders, *paths]}


def _missing(source: MaskSource, missing: Sequence[str], count: int, pairs: bool) -> str:
    """A warning about images or pairs without a mask, empty if all have one.

    Raises:
        DataError: none of them has a mask.
    """
    if not missing:
        return ""
    noun = "pair" if pairs else "image"
    if len(missing) == count:
        wanted = {
            MaskSource.FILE: f"put NAME{SUFFIX} next to each image",
            MaskSource.ALPHA: "save the images with an alpha channel",
            MaskSource.FOLDER: "set the mask folder of the concepts; a mask has the name of its image",
        }
        raise DataError(
            f"training with masks is on, but none of the {counted(count, noun)} has a mask (mask_source {source})",
            field="rlhf_dpo_mask" if pairs else "masked_training",
            hint=f"{wanted[source]}, or switch it off",
        )
    have, are = (f"{noun} has", "is") if len(missing) == 1 else (f"{noun}s have", "are")
    return f"{len(missing)} {have} no mask and {are} learned in full:\n{list_offenders(list(missing))}"


def mask_faults(
    masks: Mapping[str, FoundMask],
    files: FileIndex,
    ignore: Collection[str] = (),
    *,
    decode: bool = False,
    noun: str = "mask",
) -> list[UserError]:
    """Masks that are unreadable, or differ in shape from their image.

    Args:
        noun: their name in messages, if they are other pictures that belong to images.
        ignore: paths of images already reported as faults.
        decode: decode every mask, not only its header.
    """
    bad: list[str] = []
    for path, mask in dict.fromkeys((found.image, found.mask) for found in masks.values()):
        if path in ignore or mask == path:
            continue
        try:
            (width, height), (own_width, own_height) = files.size(mask), files.size(path)
            if decode:
                files.check_decodes(mask)
        except DataError as error:
            bad.append(error.message)
            continue
        if abs(width * own_height / (height * own_width) - 1.0) > TOLERANCE:
            bad.append(
                f"{mask}: {width}x{height}, a different shape from its image of {own_width}x{own_height}"
            )
    if not bad:
        return []
    return [
        DataError(
            f"{counted(len(bad), noun)} cannot be used:\n{list_offenders(bad)}",
            hint=f"replace or remove them; a {noun} may be smaller or larger than its image, with the same shape",
        )
    ]
