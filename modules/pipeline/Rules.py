"""Applies a concept's settings to its items: bucket, transform and prompt of every visit.

A visit is one use of an item, counted from 0. Everything random about it is determined by the concept's seed,
the item and the visit, so that any process can compute it without the earlier visits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from modules.pipeline.loss_masks.aiming import Points, aimed
from modules.pipeline.nodes.prompts import augment_text, augments_text, choose_line, text_variations
from modules.pipeline.nodes.transforms import Transform, decide_transform
from modules.util.bucket import bucket_of
from modules.util.config.resolution import parse_resolutions
from modules.util.errors import ConfigError
from modules.util.rng import digest64

DPO_TYPES = frozenset({"DPO_CHOSEN", "DPO_REJECTED", "DPO_CHOSEN_VAL", "DPO_REJECTED_VAL"})
VALIDATION_TYPES = frozenset({"VALIDATION", "DPO_CHOSEN_VAL", "DPO_REJECTED_VAL"})
_FINEST = 1_000_000
"""Maximum denominator of a number of repeats."""


@dataclass(frozen=True)
class Rules:
    """The data settings of one concept.

    Args:
        name: its name in messages, and the first part of its items' ids.
        kind: name of the concept type.
        seed: seed of everything random about it.
        resolutions: resolutions that the visits of an item cycle through.
        variations: number of augmented versions of an image with cached latents.
        text_variations: number of versions of a caption.
        image, text: augmentation settings; ``None`` if augmentation is off.
        rate: visits of an item per epoch; if set, ``samples`` visits of the whole concept instead.
        loss_weight: weight of its samples.
        bucketing: whether crops follow the image's aspect ratio.
        multiple: number of pixels that sides must be a multiple of.
        source_resolution: side of a square of the area of images that are edited; ``None`` for that of the result.
    """

    name: str
    kind: str
    seed: int
    resolutions: tuple[int, ...]
    variations: int
    text_variations: int
    image: Any | None
    text: Any | None
    rate: Fraction
    samples: int | None
    loss_weight: float
    bucketing: bool
    multiple: int
    source_resolution: int | None = None

    @staticmethod
    def of(
        concept: Any,
        name: str,
        resolution: str,
        bucketing: bool,
        multiple: int = 8,
        source_resolution: int | None = None,
    ) -> Rules:
        """The rules of a concept config.

        Preference pairs and validation images are never augmented: both sides must stay comparable, and
        validation must measure the same thing every time.

        Raises:
            ConfigError: the balancing is impossible.
        """
        kind = str(getattr(concept.type, "value", concept.type))
        plain = kind in DPO_TYPES or kind in VALIDATION_TYPES
        own = concept.image.enable_resolution_override
        resolutions = tuple(parse_resolutions(concept.image.resolution_override if own else resolution))
        wanted = 1 if plain else max(1, int(concept.image_variations))
        rate, samples = _balancing(concept, name)
        return Rules(
            name=name,
            kind=kind,
            seed=int(concept.seed),
            resolutions=resolutions,
            # a whole number of cycles through the resolutions
            variations=-(-wanted // len(resolutions)) * len(resolutions),
            text_variations=1 if plain else max(1, int(concept.text_variations)),
            image=None if plain else concept.image,
            text=None if plain else concept.text,
            rate=rate,
            samples=samples,
            loss_weight=float(concept.loss_weight),
            bucketing=bucketing,
            multiple=multiple,
            source_resolution=source_resolution,
        )

    @property
    def is_dpo(self) -> bool:
        return self.kind in DPO_TYPES

    @property
    def lists_tags(self) -> bool:
        """True if special tags decide which tags of a caption may be dropped."""
        text = self.text
        return text is not None and text.tag_dropout_enable and str(text.tag_dropout_special_tags_mode) != "NONE"

    @property
    def is_prior(self) -> bool:
        return self.kind == "PRIOR_PREDICTION"

    def visits_of(self, items: int) -> Fraction:
        """Visits of an item per epoch, on average, of a concept with this number of items."""
        return self.rate if self.samples is None else Fraction(self.samples, items)

    def crop(self, size: tuple[int, int], name: str, visit: int) -> tuple[int, int]:
        """(height, width) of the bucket of an image.

        Args:
            size: (width, height) of the image.
            name: the item's id, or the pair's, which both sides share.
        """
        return bucket_of(*size, self._resolution(name, visit), self.multiple, self.bucketing)

    def _resolution(self, name: str, visit: int) -> int:
        start = digest64("resolution", name) if len(self.resolutions) > 1 else 0
        return self.resolutions[(start + visit) % len(self.resolutions)]

    def transform(self, crop: tuple[int, int], name: str, visit: int, cached: bool) -> Transform:
        """The transform of an image at a visit. With cached latents, the variations take turns."""
        variation = visit % self.variations if cached else visit
        return decide_transform(crop, self.image, self.seed, name, variation)

    @property
    def aims_at_masks(self) -> bool:
        """True if images are randomly transformed according to their masks."""
        image = self.image
        return image is not None and bool(
            image.enable_random_circular_mask_shrink or image.enable_random_mask_rotate_crop
        )

    def aim(
        self,
        transform: Transform,
        white: Points,
        size: tuple[int, int],
        name: str,
        visit: int,
        cached: bool,
    ) -> Transform:
        """``transform`` combined with the transforms that depend on the mask.

        Args:
            white: the mask's outline.
            size: (width, height) of the image.
        """
        least = min(self.resolutions) / self._resolution(name, visit)
        variation = visit % self.variations if cached else visit
        return aimed(transform, self.image, white, size, least, (self.seed, name, variation))

    def prompt_count(self, prompts: Sequence[str]) -> int:
        """Number of prompts that an item uses in turn if text states are cached."""
        return text_variations(prompts, self.text_variations, augments_text(self.text))

    def prompt(self, prompts: Sequence[str], name: str, visit: int, cached: bool) -> str:
        """The prompt of a visit.

        Args:
            name: the item's id, or the pair's, so that both sides use the same alternative.
        """
        variation = visit % self.prompt_count(prompts) if cached else visit
        line = choose_line(prompts, self.seed if self.text is not None else 0, name, variation)
        return line if self.text is None else augment_text(line, self.text, self.seed, name, variation)


def _balancing(concept: Any, name: str) -> tuple[Fraction, int | None]:
    value = float(concept.balancing)
    strategy = str(getattr(concept.balancing_strategy, "value", concept.balancing_strategy))
    if strategy == "SAMPLES":
        if value != int(value):
            raise ConfigError(
                f"a number of samples is a whole number, not {value}", field=f"concept {name}: balancing"
            )
        return Fraction(1), int(value)
    rate = Fraction(value).limit_denominator(1000)
    # a small rate must not become 0, which leaves the concept out
    return rate if rate or not value else Fraction(value).limit_denominator(_FINEST), None
