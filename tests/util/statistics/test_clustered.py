"""Intervals from values that depend on one another within a prompt hold for other prompts as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from modules.util.statistics.clustered import mean_interval, share_interval, student_95, wilson

SESSIONS = 400


@pytest.mark.parametrize(
    ("freedom", "value"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (3, 3.1824),
        (4, 2.7764),
        (11, 2.2010),
        (30, 2.0423),
        (120, 1.9799),
        (9999, 1.9600),
    ],
)
def test_students_distribution_has_its_published_quantiles(freedom, value):
    assert student_95(freedom) == pytest.approx(value, abs=1e-4)


def test_independent_values_have_the_interval_of_wilson():
    low, high = wilson(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert wilson(0, 0) is None and wilson(5, 5)[1] == 1.0
    right = [1.0] * 3200 + [0.0] * 800
    assert share_interval(right, range(4000)) == pytest.approx(wilson(3200, 4000), abs=1e-3)


@pytest.mark.parametrize("prompts", [3, 5, 12])
@pytest.mark.parametrize("share", [0.6, 0.75, 0.9])
def test_the_share_on_other_prompts_is_covered(prompts, share):
    # the share differs from prompt to prompt, and each answer gives three comparisons that are right or wrong together
    rng = np.random.default_rng(prompts)
    groups = np.repeat(np.arange(prompts), 12).tolist()
    covered = 0
    for _ in range(SESSIONS):
        of_prompt = rng.beta(share * 3, (1 - share) * 3, prompts)
        right = np.repeat(rng.random((prompts, 4)) < of_prompt[:, None], 3, axis=1)
        low, high = share_interval(right.ravel().astype(float).tolist(), groups)
        covered += low <= share <= high
    assert covered >= 0.92 * SESSIONS


def _best_and_worst(rng, prompts, taste, differing):
    """Differences (prompts, 7, features) of five images each: the best minus all others, all others minus the worst."""
    images = rng.normal(size=(prompts, 5, len(taste)))
    liked = np.einsum("pif,pf->pi", images, taste + differing * rng.normal(size=(prompts, len(taste))))
    ranked = np.take_along_axis(images, np.argsort(liked)[:, :, None], axis=1)
    return np.concatenate([ranked[:, 4:] - ranked[:, :4], ranked[:, 1:4] - ranked[:, :1]], axis=1)


def _fitted(differences):
    rows = differences.reshape(-1, differences.shape[-1])
    return np.linalg.solve(rows.T @ rows + 4.0 * np.eye(rows.shape[1]), rows.sum(0))


@pytest.mark.parametrize("prompts", [5, 10, 20])
def test_the_accuracy_of_cross_validation_is_covered(prompts):
    """What is measured with heads of four fifths each is said about the head that learns from everything."""
    rng = np.random.default_rng(prompts)
    covered = 0
    for _ in range(SESSIONS):
        taste, differing = np.eye(8)[0], rng.choice([0.0, 0.3, 0.6, 1.0])
        seen = _best_and_worst(rng, prompts, taste, differing)
        part_of = rng.integers(0, 5, prompts)
        parts = [np.flatnonzero(part_of == part) for part in np.unique(part_of)]
        right = np.zeros(seen.shape[:2])
        for part in parts:
            right[part] = seen[part] @ _fitted(np.delete(seen, part, axis=0)) > 0
        new = _best_and_worst(rng, 200, taste, differing)
        groups = np.repeat(np.arange(prompts), 7).tolist()
        low, high = share_interval(right.ravel().tolist(), groups, parts=len(parts))
        covered += low <= (new @ _fitted(seen) > 0).mean() <= high
    assert covered >= 0.92 * SESSIONS


@pytest.mark.parametrize("prompts", [2, 4, 12])
def test_the_mean_on_other_prompts_is_covered(prompts):
    rng = np.random.default_rng(7 + prompts)
    groups = [number % prompts for number in range(50)]
    covered = 0
    for _ in range(SESSIONS):
        values = rng.normal(0.0, 1.0, prompts)[groups] + rng.normal(0.0, 1.0, 50)
        low, high = mean_interval(values.tolist(), groups)
        covered += low <= 0.0 <= high
    assert 0.92 * SESSIONS <= covered <= 0.98 * SESSIONS


def test_one_prompt_says_nothing_about_others():
    assert share_interval([1.0] * 9, ["a fox"] * 9) == (0.0, 1.0)
    assert mean_interval([1.0] * 9, ["a fox"] * 9) is None
    assert share_interval([], []) is None and mean_interval([], []) is None
