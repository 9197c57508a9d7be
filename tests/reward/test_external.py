"""Rewards of other packages, by stand-ins with the packages' own calls (they do not install next to ours)."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from modules.reward.base import RewardError, create_reward
from modules.util.errors import ConfigError, DataError, UnsupportedError
from tests.reward.builders import batch_of, noise_images


def level(picture):
    return float(np.asarray(picture).mean())


@pytest.mark.parametrize(("key", "package"), [("hpsv2", "hpsv2"), ("image_reward", "image-reward")])
def test_a_missing_package_is_named_with_the_way_around(key, package):
    with pytest.raises(UnsupportedError, match=package) as caught:
        create_reward(key).load()
    assert "reward_server.py" in str(caught.value) and "remote" in str(caught.value)


def test_hpsv2_is_asked_once_a_prompt(monkeypatch, tmp_path):
    seen = []

    def score(images, prompt, hps_version, **more):
        seen.append((prompt, len(images), hps_version, more))
        return [np.float32(level(one)) for one in images][: 1 if prompt == "short" else None]

    package = SimpleNamespace(score=score)
    monkeypatch.setitem(sys.modules, "hpsv2", SimpleNamespace(img_score=package))
    monkeypatch.setitem(sys.modules, "hpsv2.img_score", package)
    weights = tmp_path / "hps.pt"
    weights.touch()
    reward = create_reward("hpsv2", {"weights": str(weights)})
    with pytest.raises(RuntimeError, match="load"):
        reward.score(batch_of(noise_images(1)))
    reward.load()
    images = noise_images(3)
    expected = [float((one * 255).round().mean()) for one in images]
    found = reward.score(batch_of(images, prompts=["b", "a", "b"]))
    assert found.tolist() == pytest.approx(expected, rel=1e-4)
    assert seen == [("b", 2, "v2.1", {"cp": str(weights)}), ("a", 1, "v2.1", {"cp": str(weights)})]
    with pytest.raises(RewardError, match="for 2 images"):
        reward.score(batch_of(noise_images(2), prompts=["short", "short"]))
    reward.unload()
    with pytest.raises(ConfigError, match="version"):
        create_reward("hpsv2", {"version": "v3"})
    with pytest.raises(DataError, match=r"gone\.pt"):
        create_reward("hpsv2", {"weights": str(tmp_path / "gone.pt")}).load()


def test_image_reward_is_loaded_once_onto_the_device(monkeypatch):
    loaded = []

    def load(name, device, **more):
        loaded.append((name, device, more))
        return SimpleNamespace(score=lambda prompt, picture: level(picture) + len(prompt))

    monkeypatch.setitem(sys.modules, "ImageReward", SimpleNamespace(load=load))
    reward = create_reward("image_reward")
    reward.load("cpu"), reward.load("cpu")
    assert loaded == [("ImageReward-v1.0", "cpu", {})]
    images = noise_images(2)
    expected = [float((one * 255).round().mean()) + 8 for one in images]
    assert reward.score(batch_of(images)).tolist() == pytest.approx(expected, rel=1e-4)
    reward._model.score = lambda prompt, picture: "high"
    with pytest.raises(RewardError, match="'high'"):
        reward.score(batch_of(images))
