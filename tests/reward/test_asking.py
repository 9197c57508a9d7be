"""Which images to ask about: those whose order a taste is least sure of."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from modules.reward.asking import least_sure, worth_asking
from modules.reward.preference_head import PreferenceHead
from modules.reward.taste_head import Answers, fit_taste
from modules.util.rng import generator
from scripts import least_sure as script
from scripts import train_reward


def test_a_head_that_knows_its_uncertainty_is_asked_for_information() -> None:
    """Against plain numerical integration over the difference in liking."""
    draw = generator("asking", 1)
    features_ND = torch.randn(12, 3, generator=draw, dtype=torch.float64)
    answers = Answers(torch.arange(6), torch.arange(6, 12), torch.ones(6, dtype=torch.float64))
    head = fit_taste(features_ND, {"a": 2, "b": 1}, answers, ["one"] * 6 + ["two"] * 6)
    worth_NN = worth_asking(head, head(features_ND), features_ND)
    assert torch.equal(worth_NN, worth_NN.T) and not worth_NN.diagonal().any()

    def entropy(p: torch.Tensor) -> torch.Tensor:
        return -(p * p.log() + (1 - p) * (1 - p).log())

    grid_K = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    weight_K = torch.exp(-grid_K.square() / 2)
    weight_K /= weight_K.sum()
    for first, second in ((0, 1), (2, 9), (11, 4)):
        mean, variance = (float(one) for one in head.differ(features_ND, torch.tensor([[first, second]])))
        p_K = torch.sigmoid(mean + variance**0.5 * grid_K)
        expected = entropy((weight_K * p_K).sum()) - (weight_K * entropy(p_K)).sum()
        assert worth_NN[first, second] == pytest.approx(float(expected), rel=0.02, abs=1e-6)  # 9 points


def test_another_head_is_asked_for_what_it_cannot_tell_apart() -> None:
    head = PreferenceHead({"mean_D": torch.zeros(1).double(), "scale_D": torch.ones(1).double(),
                           "out": torch.ones(1).double()})  # fmt: skip
    features_ND = torch.tensor([[0.0], [3.0], [0.1], [-4.0]])
    worth_NN = worth_asking(head, head(features_ND), features_ND)
    assert least_sure(worth_NN, 2) == [0, 2]
    assert worth_NN[0, 2] == pytest.approx(0.6919, abs=1e-4)  # entropy of sigmoid(0.1)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_pair_comes_first_and_then_what_is_worth_most_with_it(seed: int) -> None:
    half = torch.rand(7, 7, generator=generator("asking-greedy", seed), dtype=torch.float64).triu(1)
    worth_NN = half + half.T
    pairs = itertools.combinations(range(7), 2)
    found = set(max(pairs, key=lambda pair: float(worth_NN[pair])))
    assert set(least_sure(worth_NN, 2)) == found
    for count in (3, 4, 5):
        left = [one for one in range(7) if one not in found]
        found.add(max(left, key=lambda one: float(sum(worth_NN[one, other] for other in found))))
        assert least_sure(worth_NN, count) == sorted(found)
    assert least_sure(worth_NN, 9) == list(range(7))
    assert {1, 5} < set(least_sure(worth_NN, 3, [5, 1])) and len(least_sure(worth_NN, 3, [5, 1])) == 3


def test_the_script_chooses_by_features_of_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bright was preferred to dark: two images of equal brightness are what it cannot order."""
    told = []
    for number in range(20):
        for name, shade in (("dark", 30 + number), ("bright", 210 + number)):
            Image.new("RGB", (16, 16), (shade, shade, shade)).save(tmp_path / f"{name}{number}.png")
        paths = [str(tmp_path / f"{name}{number}.png") for name in ("bright", "dark")]
        told.append({"better": paths[0], "worse": paths[1], "prompt": f"a fox {number}"})
    (tmp_path / "told.json").write_text(json.dumps(told))
    weights = tmp_path / "taste.safetensors"
    assert train_reward.main(
        ["--comparisons", str(tmp_path / "told.json"), "--features", "picture", "--out", str(weights)]
    ) == 0  # fmt: skip
    for number, shade in enumerate((30, 128, 129, 250, 60)):
        Image.new("RGB", (16, 16), (shade, shade, shade)).save(tmp_path / f"new{number}.png")
    images = [str(tmp_path / f"new{number}.png") for number in range(5)]
    groups = [
        {"prompt": "a fox", "images": images, "chosen": []},
        {"prompt": "b", "images": images, "chosen": [3]},
    ]

    def ask(**more: object) -> int:
        request = {"taste": str(weights), "base": "", "count": 2, "groups": groups, **more}
        stdin = io.TextIOWrapper(io.BytesIO(json.dumps(request).encode()))
        monkeypatch.setattr("sys.stdin", stdin)
        capsys.readouterr()
        return script.main([])

    assert ask() == 0
    first, second = json.loads(capsys.readouterr().out)["chosen"]
    assert len(first) == len(second) == 2 and 3 in second
    assert first != [0, 3], "the order of the darkest and the brightest is known"
    assert ask(groups=[]) == 2 and "no images" in capsys.readouterr().err
    assert ask(taste=str(tmp_path / "none")) == 2
