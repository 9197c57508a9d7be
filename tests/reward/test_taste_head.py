"""A taste as a Gaussian process: against formulas written out, what it can learn, and its file."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.reward.frozen_features import FeatureOptions
from modules.reward.head_training import (
    Comparisons,
    HeadOptions,
    train_taste,
)
from modules.reward.preference_head import load_head, save_head
from modules.reward.taste_head import (
    Answers,
    differences,
    find_mode,
    fit_taste,
    information,
    kernel,
    terms_of,
    within_groups,
)
from modules.util.errors import DataError

PARTS = {"tones": 20, "place": 2}


def covariance(count=9, seed=0):
    x = torch.randn(count, 30, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x @ x.T / 10


def outcomes(count=9):
    return torch.tensor([1.0, 0.5, 1.0, 1.0, 0.0, 1.0, 0.5, 1.0, 0.0][:count], dtype=torch.float64)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_mode_and_its_evidence_are_those_of_the_formulas(weighted):
    k, y = covariance(), outcomes()
    w = torch.linspace(0.2, 2.0, 9, dtype=torch.float64) if weighted else torch.ones(9, dtype=torch.float64)
    found = find_mode(k, y, w if weighted else None)
    f = k @ found.dual_P
    p = torch.sigmoid(f)
    assert torch.allclose(found.dual_P, w * (y - p), atol=1e-8), "the gradient of the posterior is 0"
    likely = (w * (y * p.log() + (1 - y) * (1 - p).log())).sum()
    curvature = torch.diag(w * p * (1 - p))
    prior = 0.5 * f @ torch.linalg.inv(k) @ f
    volume = 0.5 * torch.logdet(torch.eye(len(y)) + k @ curvature)
    assert found.evidence == pytest.approx(float(likely - prior - volume), abs=1e-6)


def places(count, seed):
    """Images of ten prompts that differ within a prompt by their place alone, and by much else between prompts."""
    stream = torch.Generator().manual_seed(seed)
    groups = [f"prompt {i % 10}" for i in range(count)]
    base = 5 * torch.randn(10, 22, generator=stream)
    rows = base[[i % 10 for i in range(count)]] * torch.tensor([1.0] * 20 + [0.0] * 2)
    rows = rows + torch.cat([torch.randn(count, 20, generator=stream), torch.zeros(count, 2)], 1)
    rows[:, 20:] = torch.rand(count, 2, generator=stream)
    return rows, groups


def answered(rows, groups, count, seed, quality):
    stream = torch.Generator().manual_seed(seed)
    first = torch.randint(0, len(rows), (count,), generator=stream)
    step = 10 * torch.randint(1, len(rows) // 10, (count,), generator=stream)
    second = (first + step) % len(rows)
    gap = quality[first] - quality[second]
    return Answers(first, second, torch.where(gap.abs() < 0.02, 0.5, (gap > 0).double()))


def right(head, rows, quality):
    first, second = torch.arange(0, len(rows) - 10), torch.arange(10, len(rows))
    said, truth = head(rows), quality
    return float(((said[first] > said[second]) == (truth[first] > truth[second])).double().mean())


def test_a_best_value_in_the_middle_is_learned():
    rows, groups = places(120, 1)
    middle = -(rows[:, 20:] - 0.5).norm(dim=1)
    head = fit_taste(rows, PARTS, answered(rows, groups, 80, 2, middle), groups)
    new, _ = places(200, 3)
    assert right(head, new, -(new[:, 20:] - 0.5).norm(dim=1)) > 0.85
    edge = new.clone()
    edge[:, 20:] = torch.tensor([0.5, 0.5])
    corner = new.clone()
    corner[:, 20:] = torch.tensor([0.95, 0.05])
    assert (head(edge) > head(corner)).all()


def test_a_weighted_sum_is_learned_and_ties_pull_together():
    rows, groups = places(120, 1)
    quality = rows[:, 20]
    head = fit_taste(rows, PARTS, answered(rows, groups, 30, 2, quality), groups)
    assert right(head, places(200, 3)[0], places(200, 3)[0][:, 20]) > 0.9
    tied = answered(rows, groups, 30, 2, quality)
    tied = Answers(tied.first_P, tied.second_P, torch.full((30,), 0.5, dtype=torch.float64))
    assert fit_taste(rows, PARTS, tied, groups)(rows).abs().max() < 1e-6


def test_equal_answers_give_equal_numbers():
    rows, groups = places(60, 1)
    made = [fit_taste(rows, PARTS, answered(rows, groups, 20, 2, rows[:, 21]), groups) for _ in range(2)]
    assert all(torch.equal(one, made[1].tensors[name]) for name, one in made[0].tensors.items())


def test_uncertainty_is_the_posterior_and_grows_away_from_what_was_judged():
    rows, groups = places(60, 1)
    head = fit_taste(rows, PARTS, answered(rows, groups, 20, 2, rows[:, 21]), groups)
    t = head.tensors
    x = (rows.double() - t["mean_D"]) / t["scale_D"]
    support = t["support_ND"]

    def k(a, b):
        return sum(
            v * kernel(term, a, b) for v, term in zip(t["variance_T"].tolist(), head.terms, strict=True)
        )

    answers = Answers(t["first_P"], t["second_P"], torch.zeros(20, dtype=torch.float64))
    inner = differences(k(support, support), answers) + torch.diag(1 / t["root_P"].square())
    to = k(x, support)
    to = to[:, t["first_P"]] - to[:, t["second_P"]]
    own = k(x, x)
    pairs = torch.tensor([[0, 10], [5, 25], [7, 7]])
    cross = to[pairs[:, 0]] - to[pairs[:, 1]]
    prior = torch.stack([own[a, a] + own[b, b] - 2 * own[a, b] for a, b in pairs.tolist()])
    expected = prior - (cross @ torch.linalg.inv(inner) * cross).sum(1)
    mean, variance = head.differ(rows, pairs)
    assert torch.allclose(variance, expected.clamp(min=1e-12), rtol=1e-4, atol=1e-6)
    assert torch.allclose(mean.float(), head(rows)[pairs[:, 0]] - head(rows)[pairs[:, 1]], atol=1e-4)
    far = rows.clone()
    far[:, 20:] += 20
    assert (head.uncertainty(far) > head.uncertainty(rows)).all()


def test_the_scale_is_that_within_prompts():
    rows, groups = places(40, 1)
    _, scale = within_groups(rows.double(), groups)
    parts = [
        rows[[i for i, one in enumerate(groups) if one == name]].double() for name in dict.fromkeys(groups)
    ]
    apart = torch.cat([part - part.mean(0) for part in parts])
    assert torch.allclose(scale, (apart.square().sum(0) / 30).sqrt())


def test_information_is_that_of_the_definition():
    mean, variance = (
        torch.tensor([0.0, 0.7, 5.0], dtype=torch.float64),
        torch.tensor([4.0, 1.0, 0.01]).double(),
    )
    at = torch.linspace(-8, 8, 20001, dtype=torch.float64)
    weight = torch.exp(-0.5 * at.square())
    weight /= weight.sum()

    def entropy(p):
        return -(p * p.log() + (1 - p) * (1 - p).log())

    for m, v, found in zip(mean, variance, information(mean, variance), strict=True):
        p = torch.sigmoid(m + v.sqrt() * at)
        expected = entropy((weight * p).sum()) - (weight * entropy(p)).sum()
        assert float(found) == pytest.approx(float(expected), abs=2e-3)


def test_accuracy_is_measured_on_answers_a_head_has_not_seen():
    rows, groups = places(120, 1)
    given = answered(rows, groups, 60, 2, rows[:, 20])
    swap = given.outcome_P < 0.5
    better = torch.where(swap, given.second_P, given.first_P)
    worse = torch.where(swap, given.first_P, given.second_P)
    names = [groups[one] for one in better.tolist()]
    tied = given.outcome_P == 0.5
    data = Comparisons(rows, better, worse, names, None, tied)
    _, report = train_taste(data, PARTS, HeadOptions(), groups)
    assert report.train_pairs == 60 and report.held_out_pairs == 60 - int(tied.sum())
    low, high = report.held_out_interval
    assert 0.7 < low < report.held_out_accuracy <= high
    coin = torch.rand(60, generator=torch.Generator().manual_seed(1)) < 0.5
    guessed = Comparisons(
        rows, torch.where(coin, better, worse), torch.where(coin, worse, better), names, None, tied
    )
    _, guessing = train_taste(guessed, PARTS, HeadOptions(), groups)
    assert guessing.train_accuracy > guessing.held_out_accuracy and guessing.held_out_accuracy < 0.7
    with pytest.raises(DataError, match="no comparison"):
        train_taste(
            Comparisons(rows, better, worse, names, None, torch.ones(60).bool()), PARTS, HeadOptions(), groups
        )


def test_the_interval_allows_for_five_heads_that_learned_from_the_same_answers():
    stream = torch.Generator().manual_seed(3)
    worse_PD = torch.randn(40, 2, generator=stream, dtype=torch.float64)
    rows = torch.cat([worse_PD + torch.tensor([5.0, 0.0]), worse_PD])
    names = [f"prompt {number}" for number in range(40)]
    data = Comparisons(rows, torch.arange(40), torch.arange(40, 80), names)
    _, report = train_taste(data, {"all": 2}, HeadOptions(), names * 2)
    assert report.held_out_accuracy == 1.0
    count = 40 * (1.95996 / 2.77645) ** 2
    low, high = report.held_out_interval
    assert (low, high) == (pytest.approx(count / (count + 1.95996**2), abs=1e-4), 1.0)


def test_comparisons_that_share_one_answer_count_as_one():
    rows, groups = places(120, 1)
    given = answered(rows, groups, 16, 2, rows[:, 20])
    twice = [torch.cat([one, one]) for one in (given.first_P, given.second_P)]
    halves = Answers(*twice, torch.cat([given.outcome_P] * 2), torch.full((32,), 0.5))
    one, other = (fit_taste(rows, PARTS, answers, groups) for answers in (given, halves))
    torch.testing.assert_close(one(rows), other(rows), rtol=1e-3, atol=1e-4)
    names = [groups[place] for place in given.first_P.tolist()] * 2
    data = Comparisons(rows, *twice, names, None, None, halves.weight_P)
    _, report = train_taste(data, PARTS, HeadOptions(), groups)
    assert report.train_pairs == 16 and report.held_out_pairs == 16
    once = Comparisons(rows, given.first_P, given.second_P, names[:16])
    _, whole = train_taste(once, PARTS, HeadOptions(), groups)
    assert report.held_out_accuracy == pytest.approx(whole.held_out_accuracy)
    assert report.held_out_interval == pytest.approx(whole.held_out_interval)


@pytest.fixture(scope="module")
def fitted():
    """A head and the features of its images, only to be read."""
    rows, groups = places(60, 1)
    return fit_taste(rows, PARTS, answered(rows, groups, 20, 2, rows[:, 21]), groups), rows


def made(tmp_path, fitted):
    head, rows = fitted
    path = tmp_path / "taste.safetensors"
    save_head(path, head, FeatureOptions("denoiser", "x", timestep=30, noise=7), rows[0])
    return path, head, rows


def test_a_taste_survives_its_file(tmp_path, fitted):
    path, head, rows = made(tmp_path, fitted)
    again, options, probe, _ = load_head(path)
    assert torch.equal(again(rows), head(rows)) and torch.equal(
        again.uncertainty(rows), head.uncertainty(rows)
    )
    assert (options.kind, options.timestep, options.noise, options.block) == ("denoiser", 30, 7, "up_blocks")
    assert torch.equal(probe, rows[0])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dual_P", lambda one: one[:-1]),
        ("first_P", lambda one: one + 10_000),
        ("second_P", lambda one: one - 1000),
        ("first_P", lambda one: one.double()),
        ("part_widths", lambda one: one + 1),
        ("part_widths", lambda one: one[:0]),
        ("variance_T", lambda one: one[:-1]),
        ("variance_T", lambda one: -one),
        ("support_ND", lambda one: one[:, :-1]),
        ("scale_D", lambda one: one * 0),
        ("factor_PP", lambda one: one * math.nan),
        ("factor_PP", lambda one: one * 0),
        ("root_P", None),
    ],
)
def test_damaged_tastes_are_named(tmp_path, fitted, name, change):
    path, _, _ = made(tmp_path, fitted)
    tensors = load_file(path)
    description = {
        "format": "preference-head-2",
        "features": {
            "kind": "denoiser", "source": "x", "size": 0, "grid": 8, "family": "STABLE_DIFFUSION_15",
            "block": "up_blocks", "timestep": 30, "noise": 7,
        },
        "report": None,
    }  # fmt: skip
    if change is None:
        del tensors[name]
    else:
        tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, path, metadata={"description": json.dumps(description)})
    with pytest.raises(DataError, match=r"taste\.safetensors"):
        load_head(path)


def test_wide_parts_are_weighted_sums_alone():
    assert [(one.start, one.stop, one.curved) for one in terms_of({"a": 20, "b": 3})] == [
        (0, 20, False),
        (20, 23, False),
        (20, 23, True),
    ]
