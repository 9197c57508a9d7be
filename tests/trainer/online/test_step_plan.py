from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.trainer.online.step_plan import StepRule, check_plan, order_of, plan_steps
from modules.util.errors import ConfigError, DataError


def numbers(images: list[int], rule: StepRule) -> list[tuple[int, ...]]:
    return [step.micro_batches for step in plan_steps(range(len(images)), images, rule)]


def test_fixed_accumulation_leaves_a_short_last_step() -> None:
    assert numbers([4] * 5, StepRule(accumulation=2)) == [(0, 1), (2, 3), (4,)]
    assert [s.images for s in plan_steps(range(5), [4, 4, 1, 0, 2], StepRule(accumulation=2))] == [8, 1, 2]
    assert numbers([0, 0, 3], StepRule(accumulation=2)) == [(2,)]


def test_steps_by_images_may_overshoot() -> None:
    steps = list(plan_steps(range(6), [3] * 6, StepRule(images=8)))
    assert [(s.micro_batches, s.images) for s in steps] == [((0, 1, 2), 9), ((3, 4, 5), 9)]
    assert numbers([5, 5], StepRule(images=3)) == [(0,), (1,)]
    # images that were left out make a step longer
    assert numbers([3, 1, 0, 3, 3], StepRule(images=6)) == [(0, 1, 3), (4,)]


def test_short_last_step() -> None:
    assert numbers([3, 3, 3], StepRule(images=6)) == [(0, 1), (2,)]
    with pytest.raises(DataError, match="3 images instead of 6"):
        numbers([3, 3, 3], StepRule(images=6, short_is_error=True))
    assert numbers([3, 3], StepRule(images=6, short_is_error=True)) == [(0, 1)]


def test_empty_micro_batches_and_multiples() -> None:
    with pytest.raises(DataError, match="3 micro-batches in a row"):
        numbers([4, 0, 0, 0, 4], StepRule(images=8, max_empty=3))
    assert numbers([4, 0, 0, 4], StepRule(images=8, max_empty=3)) == [(0, 3)]
    # images that were left out: on to the next multiple, and the last step takes what there is
    assert numbers([3, 3, 3, 1, 3, 2, 3], StepRule(images=6, multiple=2)) == [(0, 1), (2, 3, 4, 5), (6,)]


@pytest.mark.parametrize(
    ("count", "rule", "message"),
    [
        (6, StepRule(images=9, multiple=2), "a step has 3 micro-batches of 3 images"),
        (6, StepRule(images=12, multiple=4), "the last step of an epoch has 2 micro-batches"),
        (7, StepRule(images=6, multiple=2), "the last step of an epoch has 1 micro-batches"),
        (8, StepRule(images=3, multiple=4, unit=2, whole=True), "a step has 2 micro-batches"),
    ],
)
def test_plans_that_cannot_fill_multiples_are_refused(count: int, rule: StepRule, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_plan(count, 3, rule)
    assert caught.value.field == "rlhf_docs_per_step_multiple" and caught.value.hint


def test_plans_that_fill_multiples_are_fine() -> None:
    check_plan(6, 3, StepRule(images=6, multiple=2))
    check_plan(8, 3, StepRule(images=12, multiple=4))
    check_plan(8, 3, StepRule(images=3, multiple=2, unit=2, whole=True))
    check_plan(7, 3, StepRule(accumulation=2, multiple=2, short_is_error=True))
    with pytest.raises(DataError, match="3 images instead of 6"):
        check_plan(7, 3, StepRule(images=6, short_is_error=True))


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 3), st.integers(0, 30), st.booleans(), st.data())
def test_every_image_is_in_one_step_and_groups_stay_whole(
    blocks: int, unit: int, inner: int, wanted: int, fixed: bool, data: st.DataObject
) -> None:
    count = blocks * unit
    images = data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    order = order_of(count, unit, 7, 3, inner)
    assert sorted(order) == list(range(count))
    assert [b // unit for b in order[::unit]] == [order[i + unit - 1] // unit for i in range(0, count, unit)]
    rule = StepRule(
        accumulation=unit * 2, images=0 if fixed else wanted, unit=unit, whole=True, max_empty=1000
    )
    steps = list(plan_steps(order, images, rule))
    assert [one for step in steps for one in step.micro_batches] == order
    assert all(step.images == sum(images[i] for i in step.micro_batches) for step in steps)
    assert all(len(step.micro_batches) % unit == 0 for step in steps)


def test_the_first_pass_is_in_the_order_of_the_rollout_and_later_ones_are_not() -> None:
    assert order_of(8, 1, 1, 0, 0) == list(range(8))
    assert order_of(8, 1, 1, 0, 1) != list(range(8))
    assert order_of(8, 1, 1, 0, 1) == order_of(8, 1, 1, 0, 1) != order_of(8, 1, 1, 1, 1)
