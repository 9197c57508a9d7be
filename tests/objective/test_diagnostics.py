from __future__ import annotations

import json
import random

import pytest

from modules.objective.diagnostics import Finding, PreferenceDiagnostics


def averages(**changes: float) -> dict[str, float]:
    return {"pairs": 4.0, "chosen_reward": 0.01, "accuracy": 0.8, "raw_loss": 0.5, "loss": 0.5} | changes


def feed(diagnostics: PreferenceDiagnostics, rows: list[dict[str, float]]) -> list[Finding]:
    return [found for step, row in enumerate(rows) for found in diagnostics.update(step, row)]


def noise(seed: int, steps: int, centre: float, spread: float) -> list[float]:
    chooser = random.Random(seed)
    return [chooser.gauss(centre, spread) for _ in range(steps)]


def test_a_healthy_run_is_left_alone() -> None:
    rows = [
        averages(chosen_reward=reward, accuracy=0.75, raw_loss=0.6 - index * 1e-3, loss=0.6 - index * 1e-3)
        for index, reward in enumerate(noise(0, 400, 0.01, 0.02))
    ]
    assert feed(PreferenceDiagnostics(), rows) == []


def test_reward_hacking() -> None:
    rows = [averages(chosen_reward=r, accuracy=0.98) for r in noise(1, 100, -0.01, 0.01)]
    found = feed(PreferenceDiagnostics(), rows)
    assert [(f.kind, f.step) for f in found] == [("REWARD_HACKING", 99)]
    assert "rlhf_supervised_mix" in found[0].message
    # without a reference, the reward is minus an error
    assert feed(PreferenceDiagnostics(reference=False), rows) == []


@pytest.mark.parametrize(("reward", "accuracy"), [(-0.01, 0.9), (0.01, 0.99), (-0.0005, 0.99)])
def test_not_reward_hacking(reward: float, accuracy: float) -> None:
    """Accuracy not saturated, reward above zero, or below zero by no more than its noise."""
    rows = [averages(chosen_reward=r, accuracy=accuracy) for r in noise(2, 100, reward, 0.01)]
    assert feed(PreferenceDiagnostics(), rows) == []


def test_losses_diverge() -> None:
    rows = [averages(raw_loss=0.5 + i * 1e-3, loss=0.9 - i * 1e-3) for i in range(100)]
    assert [f.kind for f in feed(PreferenceDiagnostics(), rows)] == ["LOSSES_DIVERGE"]


def test_losses_that_move_together_do_not_diverge() -> None:
    rising = [averages(raw_loss=0.5 + i * 1e-3, loss=0.9 + i * 1e-3) for i in range(100)]
    falling = [averages(raw_loss=0.5 - i * 1e-3, loss=0.9 - i * 1e-3) for i in range(100)]
    assert feed(PreferenceDiagnostics(), rising) == []
    assert feed(PreferenceDiagnostics(), falling) == []


def test_no_signal() -> None:
    chooser = random.Random(4)
    rows = [averages(accuracy=chooser.choice([0.25, 0.5, 0.75])) for _ in range(400)]
    found = feed(PreferenceDiagnostics(), rows)
    assert [(f.kind, f.step) for f in found] == [("NO_SIGNAL", 299)]
    assert feed(PreferenceDiagnostics(), rows[:299]) == []
    # without a reference, two different images are compared, so an accuracy near 0.5 is usual
    assert feed(PreferenceDiagnostics(reference=False), rows) == []


def test_told_again_only_much_later() -> None:
    rows = [averages(chosen_reward=-0.1, accuracy=1.0)] * 250
    steps = [f.step for f in feed(PreferenceDiagnostics(window=10), rows)]
    assert steps == [9, 109, 209]


def test_steps_that_are_not_finite_or_empty_are_left_out() -> None:
    diagnostics = PreferenceDiagnostics(window=10)
    rows = [averages(raw_loss=float("nan")), {"pairs": 0.0}] * 20
    assert feed(diagnostics, rows) == []
    assert diagnostics.state_dict()["steps"] == 0


def test_resumes_exactly() -> None:
    rows = [averages(chosen_reward=r, accuracy=0.97) for r in noise(5, 60, -0.02, 0.02)]
    whole, first, second = (PreferenceDiagnostics(window=20) for _ in range(3))
    expected = feed(whole, rows)
    got = feed(first, rows[:25])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    got += [found for step, row in enumerate(rows[25:], 25) for found in second.update(step, row)]
    assert got == expected
    assert [found.kind for found in expected] == ["REWARD_HACKING"]
    assert second.state_dict() == whole.state_dict()


def test_bad_values() -> None:
    with pytest.raises(ValueError, match="at least 10"):
        PreferenceDiagnostics(window=3)
    with pytest.raises(ValueError, match="damaged"):
        PreferenceDiagnostics().load_state_dict({"points": [[1.0]], "steps": 1, "told": {}})
    with pytest.raises(ValueError, match="damaged"):
        PreferenceDiagnostics().load_state_dict({})
