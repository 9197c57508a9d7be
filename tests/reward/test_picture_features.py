"""What a picture's statistics say, against pictures whose numbers are known."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.reward.base import RewardBatch
from modules.reward.frozen_features import FeatureOptions, FrozenFeatures
from modules.reward.picture_features import describe_picture
from modules.reward.preference_head import PreferenceReward, load_head, save_head
from modules.reward.taste_head import Answers, fit_taste
from modules.util.errors import ConfigError, DataError

SUBJECT = ("subject_tone", "subject_light")


def disc(colour, background, *, x=0.5, side=64):
    """(3, H, W): a disc of one colour on another."""
    at = (torch.arange(side) + 0.5) / side
    inside_HW = (at[None, :] - x).square() + (at[:, None] - 0.5).square() < 0.04
    front, back = (torch.tensor(one)[:, None, None] for one in (colour, background))
    return torch.where(inside_HW, front, back)


def test_the_subject_is_what_stands_out_and_its_colour_is_exact():
    made = describe_picture(disc((0.6, 0.3, 0.1), (0.1, 0.1, 0.5))[None], 2)
    assert torch.allclose(made["subject_tone"], torch.tensor([[0.6, 0.3, 0.1]]))
    # the largest channel; the mean of 0.5, 0.2 and 0.4
    assert torch.allclose(made["subject_light"], torch.tensor([[0.6, 1.1 / 3]]))


def test_tone_ignores_brightness_and_place_and_light_ignores_neither_brightness_nor_contrast():
    pictures = [
        disc((0.6, 0.3, 0.1), (0.0, 0.0, 0.0)),
        disc((0.3, 0.15, 0.05), (0.0, 0.0, 0.0), x=0.3),
        disc((0.6, 0.3, 0.1), (0.2, 0.2, 0.2)),
    ]
    made = describe_picture(torch.stack(pictures), 2)
    assert torch.allclose(made["subject_tone"], torch.tensor([[0.6, 0.3, 0.1]]).expand(3, 3))
    assert torch.allclose(made["subject_light"][:, 0], torch.tensor([0.6, 0.3, 0.6]))
    assert torch.allclose(made["subject_light"][:, 1], torch.tensor([1.0 / 3, 0.5 / 3, 0.6 / 3]))


def test_a_picture_of_one_colour_has_finite_numbers():
    for value in (0.0, 1.0):
        rows = describe_picture(torch.full((1, 3, 16, 16), value), 2)
        assert all(torch.isfinite(one).all() for one in rows.values())


def test_the_first_version_has_no_subject_and_the_same_numbers():
    pictures = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    first, now = (describe_picture(pictures, version) for version in (1, 2))
    assert set(now) - set(first) == set(SUBJECT)
    assert all(torch.equal(first[name], now[name]) for name in first)
    assert sum(one.shape[1] for one in first.values()) == 31


@pytest.mark.parametrize("version", [0, 3])
def test_versions_nobody_knows_are_refused(version):
    with pytest.raises(ConfigError, match="version"):
        FeatureOptions("picture", "", version=version)


def _head(path, version):
    """A taste for red discs, fitted on pictures that differ in tone alone."""
    steps = [place / 11 for place in range(12)]
    pictures = torch.stack([disc((0.5 + 0.2 * s, 0.4 - 0.2 * s, 0.1), (0.9, 0.9, 0.9)) for s in steps])
    features = FrozenFeatures(FeatureOptions("picture", "", version=version))
    rows = features(pictures)
    pairs = list(pairwise(range(12)))
    less, more = (torch.tensor(one) for one in zip(*pairs, strict=True))
    answers = Answers(more, less, torch.ones(len(pairs)))
    head = fit_taste(rows, features.parts, answers, ["a disc"] * 12)
    save_head(path, head, features.options, features.probe())
    return head, features, pictures


def test_a_head_from_before_there_were_versions_sees_what_it_was_trained_on(tmp_path):
    path = tmp_path / "taste.safetensors"
    head, features, pictures = _head(path, 1)
    tensors = load_file(path)
    told = {"kind": "picture", "source": "", "size": 0, "grid": 8, "family": "STABLE_DIFFUSION_15"}
    told |= {"block": "up_blocks", "timestep": 50, "noise": 0}
    description = json.dumps({"format": "preference-head-2", "features": told, "report": None})
    save_file(tensors, path, metadata={"description": description})
    assert load_head(path)[1].version == 1
    reward = PreferenceReward(str(path))
    reward.load()
    scores = reward.score(RewardBatch(pictures, ["a disc"] * 12))
    assert torch.allclose(scores, head(features(pictures)), atol=1e-6)
    assert scores[-1] > scores[0]


def test_a_head_of_a_newer_version_is_refused_and_named(tmp_path):
    path = tmp_path / "taste.safetensors"
    _head(path, 2)
    assert load_head(path)[1].version == 2
    with_new = json.dumps(
        {
            "format": "preference-head-2",
            "features": {
                "kind": "picture", "source": "", "size": 0, "grid": 8, "family": "STABLE_DIFFUSION_15",
                "block": "up_blocks", "timestep": 50, "noise": 0, "version": 99,
            },
            "report": None,
        }
    )  # fmt: skip
    save_file(load_file(path), path, metadata={"description": with_new})
    with pytest.raises(DataError, match=r"taste\.safetensors: 99 is not between 1 and 2"):
        load_head(path)
