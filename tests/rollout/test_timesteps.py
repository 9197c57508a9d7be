"""Timesteps and noise of decoupled training."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.model.noising.schedule import FlowSchedule
from modules.rollout.timesteps import (
    CONTINUOUS_SAMPLERS,
    DISCRETE_SAMPLERS,
    TimestepOptions,
    group_noise,
    sample_timesteps,
    timestep_count,
    valid_steps,
)
from modules.util.errors import ConfigError
from tests.rollout.test_transitions import table

FLOW = FlowSchedule()
TEN = [1000.0 - 100.0 * i for i in range(10)]


def drawn(options: TimestepOptions, epoch: int = 0, steps: list[float] = TEN) -> list[float]:
    return sample_timesteps(FLOW, options, steps, 0, epoch).tolist()


@pytest.mark.parametrize("sampler", [*CONTINUOUS_SAMPLERS, *DISCRETE_SAMPLERS])
@given(
    low=st.floats(0.0, 0.5),
    width=st.floats(0.3, 0.5),
    epoch=st.integers(0, 99),
    shift=st.floats(0.2, 5.0),
)
@settings(deadline=None, max_examples=25)
def test_timesteps_lie_in_the_interval(
    sampler: str, low: float, width: float, epoch: int, shift: float
) -> None:
    options = TimestepOptions(sampler, 0, (low, low + width), shift)
    found = drawn(options, epoch)
    assert len(found) == timestep_count(FLOW, options, TEN)
    assert found == drawn(options, epoch)
    assert all(1000 * (1 - low - width) - 1e-2 <= t <= 1000 * (1 - low) + 1e-2 for t in found)
    if sampler in DISCRETE_SAMPLERS:
        assert set(found) <= set(TEN) and found == sorted(set(found), reverse=True)


def test_counts() -> None:
    assert timestep_count(FLOW, TimestepOptions("UNIFORM"), TEN) == 6
    assert timestep_count(FLOW, TimestepOptions("UNIFORM", 0, (0.3, 0.6)), TEN) == 3
    assert timestep_count(FLOW, TimestepOptions("UNIFORM", 0, (0.0, 0.05)), TEN) == 1
    assert timestep_count(FLOW, TimestepOptions("UNIFORM", 4), TEN) == 4
    assert timestep_count(FLOW, TimestepOptions("DISCRETE_WO_INIT", 0, (0.0, 0.8)), TEN) == 8


def test_continuous_draws_are_stratified_and_shuffled() -> None:
    found = drawn(TimestepOptions("UNIFORM", 8, (0.0, 1.0), 1.0))
    assert sorted(int(t / 125.0) for t in found) == list(range(8))
    orders = {
        tuple(int(t / 125) for t in drawn(TimestepOptions("UNIFORM", 8, (0.0, 1.0), 1.0), e))
        for e in range(9)
    }
    assert len(orders) > 5
    many = torch.tensor(drawn(TimestepOptions("LOGIT_NORMAL", 4000, (0.0, 1.0), 1.0, 0.5, 0.8)))
    raw = torch.logit(1.0 - many.double() / 1000.0)
    assert float(raw.mean()) == pytest.approx(0.5, abs=0.01) and float(raw.std()) == pytest.approx(
        0.8, abs=0.02
    )


def test_shift_moves_towards_the_image_within_the_interval() -> None:
    plain, moved = (
        sum(drawn(TimestepOptions("UNIFORM", 50, (0.2, 0.6), shift))) / 50 for shift in (1.0, 3.0)
    )
    assert moved < plain - 50


def test_every_step_is_drawn_equally_often_and_none_twice() -> None:
    options = TimestepOptions("DISCRETE", 4)
    counts = dict.fromkeys(TEN[:7], 0)
    for epoch in range(3000):
        found = drawn(options, epoch)
        assert len(set(found)) == 4
        for t in found:
            counts[t] += 1
    for count in counts.values():
        assert count / 3000 == pytest.approx(4 / 7, abs=0.05)


def test_the_first_step_is_always_or_never_drawn() -> None:
    for epoch in range(20):
        assert drawn(TimestepOptions("DISCRETE_WITH_INIT", 3), epoch)[0] == 1000.0
        assert 1000.0 not in drawn(TimestepOptions("DISCRETE_WO_INIT", 3), epoch)
    assert drawn(TimestepOptions("DISCRETE_WITH_INIT", 1)) == [1000.0]
    assert sorted(drawn(TimestepOptions("DISCRETE_WITH_INIT", 7))) == sorted(TEN[:7])
    assert sorted(drawn(TimestepOptions("DISCRETE_WO_INIT", 6))) == sorted(TEN[1:7])


def test_more_than_there_are() -> None:
    for sampler, most in (("DISCRETE", 7), ("DISCRETE_WITH_INIT", 7), ("DISCRETE_WO_INIT", 6)):
        assert len(drawn(TimestepOptions(sampler, most))) == most
        with pytest.raises(ConfigError, match=f"only {most} steps") as caught:
            drawn(TimestepOptions(sampler, most + 1))
        assert caught.value.field == "rlhf_num_train_timesteps"


def test_intervals_without_a_step() -> None:
    with pytest.raises(ConfigError, match="no denoising step of the rollout") as caught:
        drawn(TimestepOptions("DISCRETE", 1, (0.02, 0.05)))
    assert caught.value.field == "rlhf_timestep_range_low"
    with pytest.raises(ConfigError, match="apart from the first one"):
        drawn(TimestepOptions("DISCRETE_WO_INIT", 1, (0.0, 0.05)))
    with pytest.raises(ConfigError, match="no denoising step"):
        drawn(TimestepOptions("DISCRETE", 0, (0.02, 0.05)))
    assert valid_steps(TimestepOptions(interval=(0.2, 0.5)), TEN, 1000) == [2, 3, 4, 5]


@pytest.mark.parametrize("sampler", ["UNIFORM", "LOGIT_NORMAL", "DISCRETE"])
def test_discrete_schedules_get_whole_timesteps(sampler: str) -> None:
    found = sample_timesteps(table(), TimestepOptions(sampler, 2), [751.0, 501.0, 251.0, 1.0], 0, 0)
    assert found.dtype == torch.int64
    assert all(400 <= t <= 1000 for t in found.tolist())
    if sampler == "DISCRETE":
        assert found.tolist() == [751, 501]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"sampler": "normal"}, "rlhf_timestep_sampler"),
        ({"interval": (0.5, 0.5)}, "rlhf_timestep_range_low"),
        ({"interval": (-0.1, 0.5)}, "rlhf_timestep_range_low"),
        ({"interval": (0.1, 1.5)}, "rlhf_timestep_range_low"),
        ({"count": -1}, "rlhf_num_train_timesteps"),
        ({"shift": 0.0}, "rlhf_time_shift"),
        ({"shift": float("nan")}, "rlhf_time_shift"),
        ({"std": 0.0}, "rlhf_timestep_std"),
    ],
)
def test_options_out_of_range(options: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TimestepOptions(**options)  # type: ignore[arg-type]
    assert caught.value.field == field


GROUPS, IDS = [5, 5, 9, 5], ["a", "b", "c", "d"]


def noise(
    kind: str, t: int = 0, inner: int = 0, groups: list[int] = GROUPS, ids: list[str] = IDS
) -> torch.Tensor:
    return group_noise(kind, groups, ids, (4, 3, 3), 1, 2, inner, t)


def test_noise_of_groups() -> None:
    fixed = noise("GROUP_FIXED")
    assert torch.equal(fixed[0], fixed[1]) and torch.equal(fixed[0], fixed[3])
    assert not torch.equal(fixed[0], fixed[2])
    assert torch.equal(fixed, noise("GROUP_FIXED", t=3))
    assert not torch.equal(fixed, noise("GROUP_FIXED", inner=1))
    moving = noise("GROUP_PER_TIMESTEP")
    assert torch.equal(moving[0], moving[1]) and not torch.equal(moving, noise("GROUP_PER_TIMESTEP", t=1))
    own = noise("INDEPENDENT")
    assert len({tuple(row.flatten().tolist()) for row in own}) == 4
    assert not torch.equal(own, noise("INDEPENDENT", t=1))
    with pytest.raises(ConfigError, match="rlhf_dgpo_noise"):
        noise("shared")


@pytest.mark.parametrize("kind", ["GROUP_FIXED", "GROUP_PER_TIMESTEP", "INDEPENDENT"])
def test_noise_does_not_depend_on_the_batch(kind: str) -> None:
    whole = noise(kind, 2)
    for number in range(4):
        alone = noise(kind, 2, groups=GROUPS[number : number + 1], ids=IDS[number : number + 1])
        assert torch.equal(alone[0], whole[number])
    assert abs(float(noise(kind, groups=[*range(400)], ids=[*map(str, range(400))]).std()) - 1.0) < 0.02
