from __future__ import annotations

import time
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.dataLoader.samplers import BucketBatchSampler, Step, UnitGroup, Visit


@st.composite
def groups(draw: st.DrawFn, whole: bool = False) -> list[UnitGroup]:
    made = []
    for number in range(draw(st.integers(1, 3))):
        units = draw(st.integers(1, 30))
        walk = draw(st.integers(1, 3))
        rows = draw(st.lists(st.integers(0, 3), min_size=units * walk, max_size=units * walk))
        rate = Fraction(draw(st.integers(1, 3)), 1 if whole else draw(st.integers(1, 4)))
        made.append(UnitGroup(np.array(rows, dtype=np.int64).reshape(units, walk), rate, f"concept {number}"))
    return made


def table(*buckets: int, rate: Fraction = Fraction(1)) -> UnitGroup:
    return UnitGroup(np.array(buckets, dtype=np.int64)[:, None], rate, "concept")


def visits(steps: list[Step]) -> list[Visit]:
    return [visit for step in steps for micro in step.micro_batches for visit in micro.visits]


@settings(max_examples=60, deadline=None)
@given(groups(whole=True), st.integers(1, 5), st.integers(1, 3), st.integers(0, 3))
def test_every_visit_of_an_epoch_comes_exactly_once(
    made: list[UnitGroup], batch: int, accumulation: int, epoch: int
) -> None:
    steps = list(BucketBatchSampler(made, batch, accumulation, 7).steps(epoch))
    offset, wanted = 0, set()
    for group in made:
        rate = int(group.rate)
        wanted |= {(offset + u, epoch * rate + r) for u in range(len(group)) for r in range(rate)}
        offset += len(group)
    assert Counter(visits(steps)) == Counter(wanted)


@settings(max_examples=60, deadline=None)
@given(groups(), st.integers(1, 5), st.integers(1, 3))
def test_fractional_rates_are_fair_and_exact(made: list[UnitGroup], batch: int, accumulation: int) -> None:
    sampler = BucketBatchSampler(made, batch, accumulation, 7)
    epochs = 12
    seen: Counter[int] = Counter()
    for epoch in range(epochs):
        for unit, visit in sorted(visits(list(sampler.steps(epoch)))):
            assert visit == seen[unit]
            seen[unit] += 1
    offset = 0
    for group in made:
        counts = [seen[offset + unit] for unit in range(len(group))]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == epochs * group.rate * len(group)
        offset += len(group)


@settings(max_examples=60, deadline=None)
@given(groups(), st.integers(1, 5), st.integers(1, 3), st.integers(0, 4))
def test_batches_are_of_one_bucket_and_no_smaller_than_needed(
    made: list[UnitGroup], batch: int, accumulation: int, epoch: int
) -> None:
    rows = [row for group in made for row in group.buckets.tolist()]
    steps = list(BucketBatchSampler(made, batch, accumulation, 1).steps(epoch))
    sizes: dict[int, list[int]] = {}
    for step in steps:
        assert 1 <= len(step.micro_batches) <= accumulation
        assert step.total == sum(len(micro.visits) for micro in step.micro_batches)
        for micro in step.micro_batches:
            found = {rows[unit][visit % len(rows[unit])] for unit, visit in micro.visits}
            assert found == {micro.bucket}
            sizes.setdefault(micro.bucket, []).append(len(micro.visits))
    for found_sizes in sizes.values():
        assert len(found_sizes) == -(-sum(found_sizes) // batch)
        assert max(found_sizes) <= batch and max(found_sizes) - min(found_sizes) <= 1
    assert all(len(step.micro_batches) == accumulation for step in steps[:-1])
    assert [step.last for step in steps] == [False] * (len(steps) - 1) + [True] * bool(steps)


@settings(max_examples=60, deadline=None)
@given(groups(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 40), st.integers(0, 3))
def test_resuming_anywhere_equals_not_stopping(
    made: list[UnitGroup], batch: int, accumulation: int, start: int, epoch: int
) -> None:
    whole = list(BucketBatchSampler(made, batch, accumulation, 3).steps(epoch))
    start = min(start, len(whole))
    fresh = BucketBatchSampler(made, batch, accumulation, 3)
    assert list(fresh.steps(epoch, start)) == whole[start:]
    assert fresh.steps_in_epoch(epoch) == len(whole)
    assert fresh.steps_in_epochs(3) == sum(len(list(fresh.steps(e))) for e in range(3))


@settings(max_examples=60, deadline=None)
@given(groups(), st.integers(1, 3), st.integers(1, 3), st.integers(2, 4), st.integers(0, 3))
def test_processes_share_what_one_would_do(
    made: list[UnitGroup], batch: int, accumulation: int, world: int, epoch: int
) -> None:
    alone = list(BucketBatchSampler(made, batch * world, accumulation, 5).steps(epoch))
    together = [
        list(BucketBatchSampler(made, batch, accumulation, 5, rank=r, world_size=world).steps(epoch))
        for r in range(world)
    ]
    assert {len(steps) for steps in together} == {len(alone)}
    for number, step in enumerate(alone):
        shares = [steps[number] for steps in together]
        assert {len(share.micro_batches) for share in shares} == {len(step.micro_batches)}
        assert {share.total for share in shares} == {step.total}
        for place, micro in enumerate(step.micro_batches):
            parts = [share.micro_batches[place].visits for share in shares]
            assert sum(parts, ()) == micro.visits
            lengths = [len(part) for part in parts]
            assert max(lengths) - min(lengths) <= 1 and max(lengths) <= batch


def test_epochs_and_seeds_differ_and_repeat() -> None:
    group = table(*[0] * 50)
    one = BucketBatchSampler([group], 4, 1, 1)
    assert list(one.steps(0)) == list(BucketBatchSampler([group], 4, 1, 1).steps(0))
    order = [unit for unit, _ in visits(list(one.steps(0)))]
    assert order != [unit for unit, _ in visits(list(one.steps(1)))]
    assert order != [unit for unit, _ in visits(list(BucketBatchSampler([group], 4, 1, 2).steps(0)))]
    assert order != sorted(order)


def test_the_order_is_pinned() -> None:
    """A run backed up by one version resumes with the same items in the next."""
    steps = list(BucketBatchSampler([table(0, 1, 0, 1, 0, 0, 1)], 2, 2, 42).steps(1))
    assert [[micro.visits for micro in step.micro_batches] for step in steps] == [
        [((6, 1),), ((3, 1), (1, 1))],
        [((4, 1), (0, 1)), ((2, 1), (5, 1))],
    ]


def test_validation_keeps_the_order() -> None:
    steps = list(BucketBatchSampler([table(1, 0, 1, 0)], 2, shuffle=False).steps(0))
    assert [unit for unit, _ in visits(steps)] == [1, 3, 0, 2]


def test_fewer_items_than_processes_leaves_some_empty() -> None:
    shares = [
        next(BucketBatchSampler([table(0, 0)], 2, rank=r, world_size=3).steps(0)).micro_batches[0]
        for r in range(3)
    ]
    assert [len(share.visits) for share in shares] == [0, 1, 1]
    assert {share.total for share in shares} == {2}


def test_samples_rate_gives_so_many_per_epoch() -> None:
    sampler = BucketBatchSampler([table(*[0] * 7, rate=Fraction(3, 7))], 1)
    assert [len(visits(list(sampler.steps(epoch)))) for epoch in range(5)] == [3] * 5
    seen = [unit for epoch in range(7) for unit, _ in visits(list(sampler.steps(epoch)))]
    assert Counter(seen) == dict.fromkeys(range(7), 3)


def test_nothing_to_visit() -> None:
    sampler = BucketBatchSampler([table(0, 0, rate=Fraction(0))], 1)
    assert sampler.idle and sampler.steps_in_epoch(0) == 0 and list(sampler.steps(0)) == []
    assert BucketBatchSampler([], 1).idle


@pytest.mark.parametrize(
    ("batch", "accumulation", "rank", "world"), [(0, 1, 0, 1), (1, 0, 0, 1), (1, 1, 1, 1)]
)
def test_impossible_settings(batch: int, accumulation: int, rank: int, world: int) -> None:
    with pytest.raises(ValueError, match="impossible"):
        BucketBatchSampler([table(0)], batch, accumulation, rank=rank, world_size=world)


def test_cost_of_a_step_does_not_grow_with_the_items() -> None:
    def seconds(units: int) -> float:
        rows = np.random.default_rng(0).integers(0, 9, (units, 1))
        sampler = BucketBatchSampler([UnitGroup(rows, Fraction(1), "a")], 2, 1, 0)
        count = sampler.steps_in_epoch(0)
        sampler.step(0, 0)
        best = float("inf")
        for _ in range(5):
            # of this thread's processor: the other work of the machine does not count
            start = time.thread_time()
            for step in range(200):
                sampler.step(0, step % count)
            best = min(best, time.thread_time() - start)
        return best

    assert seconds(100_000) < 3 * seconds(10)
