"""Samplers: who makes what, in which batches; numbers that do not fit are answered with ones that do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import gcd

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from modules.rollout.generate import image_seed
from modules.rollout.samplers import (
    SAMPLERS,
    DistributedKRepeatSampler,
    GroupContiguousSampler,
    GroupDistributedSampler,
    SamplerLayout,
    Slot,
    align_group_size,
    check_alignment,
    contiguous_step,
    create_sampler,
    divisors,
    prompts_step,
)
from modules.util.errors import ConfigError


def test_the_alignment_search_finds_what_trying_all_sizes_finds() -> None:
    tried = 0
    for size in range(1, 40):
        for world in range(1, 6):
            for batch in range(1, 20):
                fitting = [
                    k for k in range(size, world * batch + 1) if k % world == 0 and world * batch % k == 0
                ]
                if size > world * batch:
                    assert not fitting
                    with pytest.raises(ConfigError, match="does not fit"):
                        align_group_size(size, world, batch)
                else:
                    assert align_group_size(size, world, batch) == fitting[0]
                tried += 1
    assert tried == 39 * 5 * 19


def test_the_numbers_of_prompts_found_by_trying_all() -> None:
    for size in range(1, 20):
        for world in range(1, 5):
            for batch in range(1, 12):
                whole = world * batch
                fits = [m for m in range(1, whole + 1) if m * size % whole == 0]
                assert prompts_step(size, world, batch) == fits[0]


@given(number=st.integers(1, 5000))
@settings(deadline=None, max_examples=50)
def test_divisors(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_a_group_has_an_image_at_least() -> None:
    for size in (0, -3):
        with pytest.raises(ConfigError, match="at least 1 image"):
            align_group_size(size, 1, 4)


@st.composite
def layouts(draw: st.DrawFn, kind: str) -> tuple[SamplerLayout, int]:
    world, batch = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    if kind == "GROUP_DISTRIBUTED":
        size = world * draw(st.sampled_from(divisors(batch)))
    elif kind == "DISTRIBUTED_K_REPEAT":
        size = draw(st.sampled_from(divisors(world * batch)))
    else:
        size = draw(st.integers(1, 9))
    layout = SamplerLayout(1, size, batch, world, 0)
    unit = contiguous_step(layout) if kind == "GROUP_CONTIGUOUS" else prompts_step(size, world, batch)
    prompts = unit * draw(st.integers(1, 3))
    assume(prompts <= 60)
    return replace(layout, prompts=prompts), prompts + draw(st.integers(0, 5))


def ranks(kind: str, layout: SamplerLayout, size: int, seed: int, epoch: int) -> list[list[list[Slot]]]:
    """rank -> batch -> slots."""
    return [
        list(create_sampler(kind, replace(layout, rank=rank), size, seed).batches(epoch))
        for rank in range(layout.world_size)
    ]


@pytest.mark.parametrize("kind", list(SAMPLERS))
@given(data=st.data(), seed=st.integers(0, 5), epoch=st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_every_image_of_every_group_is_made_once(
    kind: str, data: st.DataObject, seed: int, epoch: int
) -> None:
    layout, size = data.draw(layouts(kind))
    plan = ranks(kind, layout, size, seed, epoch)
    assert all(len(batches) == layout.batches for batches in plan)
    assert all(len(batch) == layout.batch_size for batches in plan for batch in batches)
    slots = [slot for batches in plan for batch in batches for slot in batch]
    counts = Counter((slot.group, slot.member) for slot in slots)
    assert set(counts.values()) == {1}
    members: dict[int, set[int]] = {}
    for slot in slots:
        members.setdefault(slot.group, set()).add(slot.member)
    assert all(found == set(range(layout.group_size)) for found in members.values())
    assert sorted(members) == list(range(epoch * layout.prompts, (epoch + 1) * layout.prompts))
    assert len({slot.prompt for slot in slots}) == layout.prompts
    assert all(0 <= slot.prompt < size for slot in slots)
    assert len({image_seed(seed, epoch, slot.group, slot.member) for slot in slots}) == layout.images
    # an epoch holds whole groups
    assert set(Counter(slot.group for slot in slots).values()) == {layout.group_size}


@given(data=st.data(), seed=st.integers(0, 5), epoch=st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_distributed_groups(data: st.DataObject, seed: int, epoch: int) -> None:
    layout, size = data.draw(layouts("GROUP_DISTRIBUTED"))
    plan = ranks("GROUP_DISTRIBUTED", layout, size, seed, epoch)
    share = layout.group_size // layout.world_size
    for batches in zip(*plan, strict=True):
        prompts = [[slot.prompt for slot in batch] for batch in batches]
        assert all(other == prompts[0] for other in prompts), "every process has the same prompts"
        assert set(Counter(prompts[0]).values()) == {share}
        # equal numbers are next to each other, so the images of a group stay together
        assert len([1 for a, b in zip(prompts[0], prompts[0][1:], strict=False) if a != b]) + 1 == len(
            set(prompts[0])
        )


@given(data=st.data(), seed=st.integers(0, 5), epoch=st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_repeated_prompts_fill_global_batches(data: st.DataObject, seed: int, epoch: int) -> None:
    layout, size = data.draw(layouts("DISTRIBUTED_K_REPEAT"))
    for batches in zip(*ranks("DISTRIBUTED_K_REPEAT", layout, size, seed, epoch), strict=True):
        counts = Counter(slot.group for batch in batches for slot in batch)
        assert set(counts.values()) == {layout.group_size}


@given(data=st.data(), seed=st.integers(0, 5), epoch=st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_contiguous_groups_stay_on_one_process(data: st.DataObject, seed: int, epoch: int) -> None:
    layout, size = data.draw(layouts("GROUP_CONTIGUOUS"))
    seen: set[int] = set()
    for batches in ranks("GROUP_CONTIGUOUS", layout, size, seed, epoch):
        slots = [slot for batch in batches for slot in batch]
        for begin in range(0, len(slots), layout.group_size):
            group = slots[begin : begin + layout.group_size]
            assert [slot.member for slot in group] == list(range(layout.group_size))
            assert len({slot.group for slot in group}) == 1
        own = {slot.group for slot in slots}
        assert not own & seen
        seen |= own


@pytest.mark.parametrize("kind", list(SAMPLERS))
def test_an_epoch_is_continued_and_repeated(kind: str) -> None:
    made = create_sampler(kind, SamplerLayout(6, 4, 4), 20, seed=1)
    whole = list(made.batches(2))
    assert len(whole) == len(made) == 6
    for start in range(7):
        assert list(made.batches(2, start)) == whole[start:]
    assert list(create_sampler(kind, SamplerLayout(6, 4, 4), 20, seed=1).batches(2)) == whole
    prompts = {tuple(s.prompt for batch in made.batches(epoch) for s in batch) for epoch in range(8)}
    other = create_sampler(kind, SamplerLayout(6, 4, 4), 20, seed=2)
    assert len(prompts) == 8 and list(other.batches(2)) != whole


def test_desktop_groups_larger_than_a_batch() -> None:
    made = GroupContiguousSampler(SamplerLayout(2, 8, 2), 2, 0)
    assert [len({slot.group for slot in batch}) for batch in made.batches(0)] == [1] * 8
    with pytest.raises(ConfigError, match="does not fit into a global batch of 1 x 2"):
        GroupDistributedSampler(SamplerLayout(2, 8, 2), 2, 0)


def test_auto_spreads_groups_where_they_fit() -> None:
    assert create_sampler("AUTO", SamplerLayout(2, 4, 2, 2), 2, 0).kind == "GROUP_DISTRIBUTED"
    assert create_sampler("AUTO", SamplerLayout(2, 8, 2), 2, 0).kind == "GROUP_CONTIGUOUS"
    assert create_sampler("AUTO", SamplerLayout(2, 3, 3, 2), 2, 0).kind == "GROUP_CONTIGUOUS"


@pytest.mark.parametrize("world", [1, 2, 3])
def test_proposals_fit(world: int) -> None:
    """Every size named in an error is one that is accepted, and nothing is changed silently."""
    for size in range(1, 30):
        for batch in range(1, 13):
            layout = SamplerLayout(prompts_step(size, world, batch), size, batch, world)
            good = size % world == 0 and world * batch % size == 0
            if good:
                check_alignment(layout)
                continue
            with pytest.raises(ConfigError) as caught:
                check_alignment(layout)
            if size > world * batch:
                continue
            assert caught.value.hint is not None
            for said in caught.value.hint.removeprefix("use ").split(", or "):
                kind, numbers = said.removeprefix("a ").split(" of ")
                for number in map(int, numbers.split(" or ")):
                    k, b = (number, batch) if kind == "group size" else (size, number)
                    assert k % world == 0 and world * b % k == 0, (size, world, batch, said)


def test_numbers_of_prompts_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="use 2 or 4") as caught:
        GroupDistributedSampler(SamplerLayout(3, 2, 4), 10, 0)
    assert caught.value.field == "rlhf_prompts_per_epoch"
    with pytest.raises(ConfigError, match="use 2 or 4"):
        GroupContiguousSampler(SamplerLayout(3, 2, 4), 10, 0)
    with pytest.raises(ConfigError, match="use one of 2, 4"):
        DistributedKRepeatSampler(SamplerLayout(4, 3, 4), 10, 0)
    with pytest.raises(ConfigError, match="there are 3"):
        GroupContiguousSampler(SamplerLayout(4, 2, 4), 3, 0)
    with pytest.raises(ConfigError, match="known: AUTO, GROUP_DISTRIBUTED"):
        create_sampler("random", SamplerLayout(1, 1, 1), 1, 0)


@pytest.mark.parametrize("name", ["prompts", "group_size", "batch_size", "world_size"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_numbers_that_are_none(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        SamplerLayout(**({"prompts": 1, "group_size": 1, "batch_size": 1} | {name: value}))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="process 2 of 2"):
        SamplerLayout(1, 1, 1, 2, 2)


def test_the_contract_of_distributed_groups_in_numbers() -> None:
    layout = SamplerLayout(4, 6, 6, 2)
    assert layout.images == 24 and layout.batches == 2 and gcd(6, 12) == 6
    assert [slot.member for slot in next(GroupDistributedSampler(layout, 9, 0).batches(0))] == [0, 1, 2] * 2
    other = GroupDistributedSampler(replace(layout, rank=1), 9, 0)
    assert [slot.member for slot in next(other.batches(0))] == [3, 4, 5] * 2
