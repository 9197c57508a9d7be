"""Rules that relate masks of images and pairs to the rest of a config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from modules.util.config.rules.rules import ConfigWarning, Finding, rule
from modules.util.enum.choices import MaskSource, PairMasks
from modules.util.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig


@rule(
    *(
        "masked_training",
        "rlhf_enabled",
        "training_method",
        "masked_prior_preservation_weight",
        "mask_source",
    ),
    "concepts",
)
def _masks_fit(c: TrainConfig) -> Iterator[Finding]:
    if not c.masked_training:
        yield from _masks_wanted(c)
        return
    if c.rlhf_enabled:
        yield UnsupportedError(
            "works only with single images, but preference training uses pairs or makes its own images",
            "masked_training",
            "set it to false",
        )
    elif c.masked_prior_preservation_weight and not c.training_method.keeps_the_model:
        yield UnsupportedError(
            "compares with the model without its adapter, but no adapter is trained",
            "masked_prior_preservation_weight",
            "set it to 0, or training_method to LORA",
        )
    with_masks = c.concepts is None or any(concept.mask_path for concept in c.concepts if concept.enabled)
    if c.mask_source is MaskSource.FOLDER and not with_masks:
        yield ConfigError(
            "is FOLDER, but no enabled concept has a mask folder",
            "mask_source",
            "set mask_path of the concepts",
        )


@rule("custom_conditioning_image", "model_type", "rlhf_enabled")
def _shows_pictures(c: TrainConfig) -> Iterator[Finding]:
    if not c.custom_conditioning_image:
        return
    if not c.model_type.spec.inpainting:
        yield UnsupportedError(
            f"{c.model_type.spec.label} is not an inpainting model, so there is no masked image to replace",
            "custom_conditioning_image",
            "set it to false, or choose an inpainting model",
        )
    elif c.rlhf_enabled:
        yield UnsupportedError(
            "is not supported in preference training", "custom_conditioning_image", "set it to false"
        )


def _masks_wanted(c: TrainConfig) -> Iterator[Finding]:
    for number, concept in enumerate(c.concepts or ()):
        for name in ("enable_random_circular_mask_shrink", "enable_random_mask_rotate_crop"):
            if concept.enabled and getattr(concept.image, name):
                yield ConfigWarning(
                    "has no effect without masked_training", f"concepts[{number}].image.{name}"
                )


@rule(
    "rlhf_enabled", "rlhf_mode", "rlhf_dpo_mask", "rlhf_dpo_anchor_weight", "rlhf_dpo_reference_cache",
    "rlhf_dpo_objective",
)  # fmt: skip
def _masks_of_pairs_fit(c: TrainConfig) -> Iterator[Finding]:
    for name, there in (
        ("rlhf_dpo_mask", c.rlhf_dpo_mask is not PairMasks.OFF),
        ("rlhf_dpo_anchor_weight", c.rlhf_dpo_anchor_weight > 0),
    ):
        if there and not c.trains_pairs:
            yield UnsupportedError(
                "applies only to pairs of images on disk, but this run does not train on pairs",
                name,
                "set rlhf_enabled to true and rlhf_mode to DPO, or reset this setting",
            )
    if c.takes_single_images and c.rlhf_dpo_mask is not PairMasks.OFF:
        yield UnsupportedError(
            f"masks both images of a pair, but {c.rlhf_dpo_objective} learns from single images",
            "rlhf_dpo_mask",
            "set it to OFF, or rlhf_dpo_objective to SIGMOID",
        )
    if c.trains_pairs and c.rlhf_dpo_anchor_weight > 0 and c.rlhf_dpo_reference_cache:
        yield UnsupportedError(
            "needs the reference's predictions, which cached reference scores do not contain",
            "rlhf_dpo_anchor_weight",
            "set it to 0, or rlhf_dpo_reference_cache to false",
        )
