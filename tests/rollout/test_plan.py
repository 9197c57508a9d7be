"""Plans: the path, which steps are trained, and that everybody finds the same ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.model.noising.sampling import make_sampler
from modules.model.noising.schedule import FlowSchedule
from modules.rollout import samplers, timesteps, transitions
from modules.rollout.plan import CHOICES, PlanOptions, RolloutPlan, make_plan, path, plan_for
from modules.rollout.Rollouts import LAYOUTS, STORAGE
from modules.rollout.transitions import CPS, DDIM, FLOW_SDE, ODE
from modules.util.enum.choices import (
    DataType,
    GroupNoise,
    GuidanceLayout,
    LogProbForm,
    LogProbReduction,
    RolloutSampler,
    RolloutTransition,
    SdeChoice,
    TimestepSampler,
)
from modules.util.errors import ConfigError, UnsupportedError
from tests.tiny import SIZE, tiny_model, tiny_setup

FLOW = FlowSchedule()


def plan(seed: int = 0, epoch: int = 0, even: bool = True, **options: object) -> RolloutPlan:
    made = PlanOptions(**({"steps": 10} | options))  # type: ignore[arg-type]
    positions = path(FLOW, make_sampler(FLOW, "EULER", made.steps, {}, even=even))
    return make_plan(FLOW, positions, made, seed, epoch)


def test_all_but_the_last_step_are_trained() -> None:
    made = plan()
    assert made.trained == tuple(range(9))
    assert made.points == tuple(range(10))
    assert [made.kind_of(index) for index in range(10)] == [FLOW_SDE] * 9 + [ODE]
    assert made.stds[9] == 0.0 and min(made.stds[:9]) > 0.0
    assert made.noise_level == 0.7


def test_a_window_and_a_number_of_steps() -> None:
    assert plan(window=(2, 4)).trained == (2, 3, 4)
    assert plan(window=(7, 9)).trained == (7, 8), "the last step never is"
    assert plan(window=(3, 3)).points == (3, 4)
    assert plan(kind=ODE).trained == () and plan(kind=ODE).points == ()


@given(
    seed=st.integers(0, 1000),
    epoch=st.integers(0, 50),
    count=st.integers(1, 5),
    choice=st.sampled_from(["RANDOM", "CONTIGUOUS"]),
)
@settings(deadline=None, max_examples=40)
def test_a_choice_depends_on_seed_and_epoch_alone(seed: int, epoch: int, count: int, choice: str) -> None:
    options = {"window": (1, 6), "count": count, "choice": choice}
    made = plan(seed, epoch, **options)
    assert made == plan(seed, epoch, **options)
    assert len(made.trained) == count
    assert list(made.trained) == sorted(set(made.trained))
    assert set(made.trained) <= set(range(1, 7))
    if choice == "CONTIGUOUS":
        assert made.trained[-1] - made.trained[0] == count - 1


@pytest.mark.parametrize("choice", ["RANDOM", "CONTIGUOUS"])
def test_epochs_and_seeds_choose_differently(choice: str) -> None:
    assert len({plan(0, epoch, count=2, choice=choice).trained for epoch in range(30)}) > 4
    assert len({plan(seed, 0, count=2, choice=choice).trained for seed in range(30)}) > 4


def test_temperature_multiplies_deviations() -> None:
    hot, plain = plan(temperature=2.0), plan()
    assert hot.stds == pytest.approx([2.0 * std for std in plain.stds])


def test_a_step_without_noise_is_not_trained() -> None:
    """CPS ends every step at the next level; at level 0 nothing is left of its noise."""
    with pytest.raises(ConfigError, match="rollout_noise_level"):
        plan(noise_level=0.0)
    assert plan(kind=CPS, steps=2).trained == (0,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "at least one step"),
        ({"steps": 1}, "rollout_steps"),
        ({"window": (9, 9)}, "sde_window"),
        ({"window": (3, 10)}, "sde_window"),
        ({"window": (5, 4)}, "sde_window"),
        ({"count": 10}, "only 9 can be"),
        ({"count": 4, "window": (0, 2)}, "set it to 3 or less"),
        ({"count": -1}, "rlhf_num_sde_steps"),
        ({"choice": "sliding"}, "unknown choice"),
        ({"temperature": 0.0}, "rollout_temperature"),
    ],
)
def test_plans_that_cannot_be(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(**options)


def test_the_usual_transition_of_a_model() -> None:
    assert plan().kind == FLOW_SDE
    made = plan_for(tiny_setup(), tiny_model(), PlanOptions(4), SIZE, 0, 0)
    assert made.kind == DDIM and made.noise_level == 1.0
    assert plan(kind=RolloutTransition.CPS).kind == CPS


def test_every_choice_of_the_settings_is_known_here() -> None:
    for enum, known in (
        (RolloutTransition, (transitions.AUTO, FLOW_SDE, transitions.DANCE_SDE, CPS, DDIM)),
        (SdeChoice, CHOICES),
        (LogProbReduction, transitions.REDUCTIONS),
        (LogProbForm, transitions.FORMS),
        (GuidanceLayout, LAYOUTS),
        (DataType, tuple(STORAGE)),
        (TimestepSampler, timesteps.SAMPLERS),
        (GroupNoise, timesteps.NOISES),
        (RolloutSampler, (samplers.AUTO, *samplers.SAMPLERS)),
    ):
        assert sorted(str(member.value) for member in enum) == sorted(known)


def test_transitions_of_the_other_kind_of_schedule() -> None:
    with pytest.raises(UnsupportedError, match="use FLOW_SDE or"):
        plan(kind=DDIM)
    with pytest.raises(UnsupportedError, match="use DDIM or ODE"):
        plan_for(tiny_setup(), tiny_model(), PlanOptions(4, FLOW_SDE), SIZE, 0, 0)


def test_a_discrete_path_follows_the_models_spacing() -> None:
    setup, model = tiny_setup(), tiny_model(prediction="v_prediction")
    made = plan_for(setup, model, PlanOptions(4, DDIM), SIZE, 0, 0)
    assert [at.timestep for at in made.positions] == [751.0, 501.0, 251.0, 1.0]
    timestep_B = made.timestep(1, 3, model.schedule)
    assert timestep_B.dtype == torch.int64 and timestep_B.tolist() == [501] * 3
    for at, after in zip(made.positions[:-1], made.positions[1:], strict=True):
        assert (at.signal_next, at.noise_next) == (after.signal, after.noise)
        assert at.signal**2 + at.noise**2 == pytest.approx(1.0)
    assert made.positions[-1].signal_next == pytest.approx(float(model.schedule.alphas_cumprod_T[0]) ** 0.5)


def test_a_flow_path_ends_at_the_image() -> None:
    made = plan(even=False)
    assert made.positions[0].noise == 1.0 and made.positions[0].safe == made.positions[1].noise
    assert made.positions[-1].noise_next == 0.0
    assert made.timestep(0, 2, FLOW).tolist() == [1000.0, 1000.0]
    assert made.timestep(0, 2, FLOW).dtype == torch.float32
