"""Automatic judges: a taste that costs fidelity or variety is called a loss."""

from __future__ import annotations

import numpy as np
import pytest

from modules.arena.Judged import Judged

BASE = np.random.default_rng(5).normal(28.0, 1.0, 60)
NOISE = np.random.default_rng(6).normal(0.0, 0.5, 60)


THEMES = [f"prompt {i % 12}" for i in range(60)]


def judged(change: float = 0.0, spread: float = 1.0, **more) -> dict:
    scores = {"taste": (BASE + 1.0, BASE), "clip": (BASE + change + NOISE - NOISE.mean(), BASE)}
    apart = {f"prompt {i}": 10.0 + i for i in range(5)}
    fields = {"scores": scores, "measure": "vae", "missing": {"pickscore": "not installed"}, **more}
    mine = {name: spread * far for name, far in apart.items()}
    return Judged("round-1", "base", THEMES, spread=(mine, apart), **fields).to_dict()


def test_a_loss_of_fidelity_is_a_loss_in_words():
    found = judged(change=-1.0)
    assert found["automatic"] is True and found["fidelity"]["loss"]
    assert found["fidelity"]["interval"][0] < -1.0 < found["fidelity"]["interval"][1] < 0.0
    assert found["losses"] == [found["fidelity"]["sentence"]]
    assert "Loss: images of round-1 follow their prompts less well than" in found["losses"][0]


def test_a_loss_of_variety_is_a_loss_in_words():
    found = judged(spread=0.6)
    assert found["diversity"]["ratio"] == pytest.approx(0.6) and found["diversity"]["loss"]
    assert "less variety" in found["losses"][0] and "60%" in found["losses"][0]


def test_what_costs_nothing_is_no_loss():
    found = judged(change=0.0, spread=0.9)
    assert found["losses"] == [] and "no less well than" in found["fidelity"]["sentence"]
    (rate,) = found["win_rates"]
    assert rate["share"] == 1.0 and rate["interval"][0] > 0.85 and "learned taste" in rate["sentence"]


def test_what_was_not_measured_is_said():
    found = judged(scores={}, missing={"clip": "CLIP is not installed", "diversity": "no VAE"})
    assert found["fidelity"]["change"] is None and "CLIP is not installed" in found["fidelity"]["sentence"]
    empty = Judged("a", "b", [], {}, ({}, {}), "", {"diversity": "no VAE"}).to_dict()
    assert empty["diversity"]["ratio"] is None and "no VAE" in empty["diversity"]["sentence"]


def test_ties_count_half():
    one = [1.0, 2.0, 3.0, 4.0]
    found = Judged("a", "b", list("wxyz"), {"taste": (one, [1.0, 2.0, 3.0, 5.0])}, ({}, {}), "", {}).to_dict()
    assert found["win_rates"][0]["share"] == pytest.approx(0.375)


def test_a_chance_difference_between_prompts_is_rarely_called_a_loss():
    # all images of a prompt change together, by chance up or down: 5 % may be called a loss or a gain, so 2.5 % a loss
    rng = np.random.default_rng(3)
    losses = covered = 0
    for _ in range(400):
        change = np.tile(rng.normal(0.0, 2.0, 12), 5) + rng.normal(0.0, 1.0, 60)
        found = judged(scores={"taste": (BASE + change, BASE), "clip": (BASE + change, BASE)})
        losses += found["fidelity"]["loss"]
        low, high = found["win_rates"][0]["interval"]
        covered += low <= 0.5 <= high
    assert losses <= 0.05 * 400 and covered >= 0.92 * 400


def test_a_single_prompt_shows_no_loss():
    found = Judged("a", "b", ["a fox"] * 60, {"clip": (BASE - 3.0, BASE)}, ({}, {}), "", {}).to_dict()
    assert found["fidelity"]["interval"] is None and not found["fidelity"]["loss"]
    assert found["fidelity"]["sentence"].startswith("One prompt is too few to say")
