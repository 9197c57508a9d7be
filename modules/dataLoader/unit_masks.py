"""Finds which images of a run have masks; of a pair, one of the two needs a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modules.dataLoader.pairing import Pair
from modules.pipeline.Item import Item
from modules.pipeline.loss_masks.finding import Masks, look_for_conditions, look_for_masks
from modules.util.enum.choices import PairMasks

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig


def collect_masks(config: TrainConfig, entries: Sequence[Any], concepts: Sequence[Any]) -> Masks:
    """The masks of images or pairs; empty if the run uses none.

    Args:
        entries: items, or pairs.
        concepts: configured concepts, by the items' concept index.
    """
    pairs = config.trains_pairs
    wanted = config.rlhf_dpo_mask is PairMasks.FILE if pairs else config.masked_training
    if not wanted or not entries:
        return Masks()
    units = [(one.id, [one.chosen, one.rejected] if isinstance(one, Pair) else [one]) for one in entries]
    return look_for_masks(config.mask_source, units, concepts, pairs)


def collect_conditions(config: TrainConfig, items: Sequence[Item]) -> Masks:
    """The pictures shown to an inpainting model instead of the masked images; empty if the run has none."""
    wanted = config.custom_conditioning_image and not config.rlhf_enabled
    return look_for_conditions(items) if wanted and items else Masks()
