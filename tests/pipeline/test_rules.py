from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from modules.pipeline.Rules import Rules
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.errors import ConfigError

WILD = {
    "image_variations": 4,
    "text_variations": 5,
    "image": {"enable_crop_jitter": True, "enable_random_flip": True},
    "text": {"enable_tag_shuffling": True},
}
DPO = ["DPO_CHOSEN", "DPO_REJECTED", "DPO_CHOSEN_VAL", "DPO_REJECTED_VAL"]


def rules(resolution: str = "512", **values: Any) -> Rules:
    return Rules.of(ConceptConfig.from_dict(values), "pets", resolution, True)


@pytest.mark.parametrize("kind", [*DPO, "VALIDATION"])
def test_nothing_is_augmented_in_pairs_and_validation(kind: str) -> None:
    made = rules(type=kind, **WILD)
    transforms = {made.transform((64, 64), f"i{n}", n, cached=False).text() for n in range(20)}
    assert len(transforms) == 1
    assert {made.prompt(("a, b, c, d",), f"i{n}", n, cached=False) for n in range(20)} == {"a, b, c, d"}
    assert made.variations == 1 and made.prompt_count(("a, b",)) == 1


@pytest.mark.parametrize("kind", ["STANDARD", "PRIOR_PREDICTION"])
def test_single_images_are_augmented(kind: str) -> None:
    made = rules(type=kind, **WILD)
    for cached, count in ((True, 4), (False, 20)):
        assert len({made.transform((64, 64), "i", n, cached).text() for n in range(20)}) == count
    assert len({made.prompt(("a, b, c, d",), "i", n, cached=True) for n in range(50)}) <= 5
    assert len({made.prompt(("a, b, c, d",), "i", n, cached=False) for n in range(50)}) == 6
    assert made.is_prior == (kind == "PRIOR_PREDICTION") and not made.is_dpo


def test_alternatives_are_all_used_even_with_one_variation() -> None:
    made = rules()
    assert {made.prompt(("a", "b", "c"), "i", n, cached=True) for n in range(3)} == {"a", "b", "c"}


def test_visits_walk_through_the_resolutions() -> None:
    made = rules("512,768,256", image_variations=4)
    crops = [made.crop((100, 100), "i", visit)[0] for visit in range(6)]
    assert sorted(crops[:3]) == [256, 512, 768] and crops[:3] == crops[3:]
    assert made.variations == 6
    starts = {made.crop((100, 100), f"i{n}", 0)[0] for n in range(20)}
    assert starts == {256, 512, 768}


def test_both_sides_of_a_pair_walk_together() -> None:
    sides = [rules("512,768", type=kind, seed=n) for n, kind in enumerate(DPO[:2])]
    for visit in range(4):
        assert len({side.crop((200, 100), "pair", visit) for side in sides}) == 1
        assert len({side.prompt(("a", "b", "c"), "pair", visit, cached=True) for side in sides}) == 1


def test_own_resolution() -> None:
    image = {"enable_resolution_override": True, "resolution_override": "256"}
    assert rules(image=image).crop((10, 10), "i", 0) == (256, 256)


def test_balancing() -> None:
    assert (rules(balancing=2.5).rate, rules(balancing=2.5).samples) == (Fraction(5, 2), None)
    assert rules(balancing=30.0, balancing_strategy="SAMPLES").samples == 30
    assert rules(balancing=0.1).rate == Fraction(1, 10)
    with pytest.raises(ConfigError, match="whole number"):
        rules(balancing=2.5, balancing_strategy="SAMPLES")
