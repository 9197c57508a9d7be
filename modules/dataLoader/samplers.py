"""Determines which items are trained on when, as a function of seed and epoch alone.

Every process computes the same plan of an epoch and takes its share. Nothing is sent between processes, and a
run resumes at any optimizer step without replaying earlier ones. Torch is not needed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from modules.util.rng import digest64

Int64s = npt.NDArray[np.int64]
Visit = tuple[int, int]
"""(unit, number of earlier visits in this run)."""


@dataclass(frozen=True)
class UnitGroup:
    """Consecutive units (images or pairs) of one concept.

    Args:
        buckets: (units, walk) bucket numbers of the units; visit v uses column v modulo walk.
        rate: visits of a unit per epoch, on average.
        name: determines the order in which fractional rates reach the units.
    """

    buckets: Int64s
    rate: Fraction
    name: str

    def __len__(self) -> int:
        return int(self.buckets.shape[0])


@dataclass(frozen=True)
class MicroBatch:
    """One process's share of a global micro-batch; empty if there are fewer items than processes."""

    visits: tuple[Visit, ...]
    bucket: int
    total: int


@dataclass(frozen=True)
class Step:
    """One process's share of one optimizer step.

    Args:
        epoch, step: its position; ``step`` counts within the epoch.
        micro_batches: the micro-batches; the same number in every process.
        total: items of the step over all processes.
    """

    epoch: int
    step: int
    micro_batches: tuple[MicroBatch, ...]
    total: int
    last: bool


@dataclass(frozen=True)
class _EpochPlan:
    units: Int64s
    visits: Int64s
    buckets: Int64s
    starts: Int64s
    stops: Int64s


class BucketBatchSampler:
    """Batches of one bucket each, every visit of an epoch in exactly one of them.

    A bucket's items are divided into as few batches as possible, with sizes that differ by at most one.
    Nothing is dropped or repeated, and no batch is needlessly small.

    Args:
        groups: the units, numbered consecutively in this order.
        batch_size: items of a micro-batch in one process. With W processes the plan has global micro-batches
            of ``batch_size * W`` items, so W processes do what one does with W times the batch size.
        accumulation: micro-batches of an optimizer step; the last step of an epoch may have fewer.
        rank, world_size: index of this process, and number of processes.
        shuffle: ``False`` keeps the order of the units, for validation.
    """

    def __init__(
        self,
        groups: Sequence[UnitGroup],
        batch_size: int,
        accumulation: int = 1,
        seed: int = 0,
        *,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
    ) -> None:
        if batch_size < 1 or accumulation < 1 or not 0 <= rank < world_size:
            raise ValueError(
                f"impossible: batch size {batch_size}, accumulation {accumulation}, rank {rank} of "
                f"{world_size}"
            )
        self.groups = tuple(groups)
        self.rank, self.world_size = rank, world_size
        self._global = batch_size * world_size
        self._accumulation = accumulation
        self._seed, self._shuffle = seed, shuffle
        self._phases = [self._phase(group) for group in self.groups]
        self._plans: dict[int, _EpochPlan] = {}
        self._steps: dict[int, int] = {}

    @property
    def constant(self) -> bool:
        """True if every epoch has the same number of steps."""
        return all(g.rate.denominator == 1 and g.buckets.shape[1] == 1 for g in self.groups)

    @property
    def idle(self) -> bool:
        """True if no unit is ever visited."""
        return not any(group.rate > 0 and len(group) for group in self.groups)

    def steps_in_epoch(self, epoch: int) -> int:
        """Optimizer steps of an epoch, the same in every process."""
        key = 0 if self.constant else epoch
        if key not in self._steps:
            _, _, buckets = self._visits(key)
            _, counts = np.unique(buckets, return_counts=True)
            batches = int(sum(-(-counts // self._global)))
            self._steps[key] = -(-batches // self._accumulation)
        return self._steps[key]

    def steps_in_epochs(self, epochs: int) -> int:
        """Optimizer steps of the first ``epochs`` epochs."""
        if self.constant:
            return epochs * self.steps_in_epoch(0)
        return sum(self.steps_in_epoch(epoch) for epoch in range(epochs))

    def steps(self, epoch: int, start_step: int = 0) -> Iterator[Step]:
        """This process's share of the optimizer steps of an epoch, from ``start_step`` on."""
        count = self.steps_in_epoch(epoch)
        if start_step < 0:
            raise ValueError(f"there is no step {start_step}")
        for step in range(start_step, count):
            yield self.step(epoch, step)

    def step(self, epoch: int, step: int) -> Step:
        """One optimizer step. Once the epoch is planned, its cost does not depend on the number of items."""
        plan = self._plan(epoch)
        first = step * self._accumulation
        stop = min(first + self._accumulation, len(plan.starts))
        batches = [self._share(plan, number) for number in range(first, stop)]
        total = sum(batch.total for batch in batches)
        return Step(epoch, step, tuple(batches), total, stop == len(plan.starts))

    def _share(self, plan: _EpochPlan, number: int) -> MicroBatch:
        start, stop = int(plan.starts[number]), int(plan.stops[number])
        total = stop - start
        mine = slice(
            start + total * self.rank // self.world_size, start + total * (self.rank + 1) // self.world_size
        )
        pairs = zip(plan.units[mine].tolist(), plan.visits[mine].tolist(), strict=True)
        return MicroBatch(tuple(pairs), int(plan.buckets[start]), total)

    # -- the plan of an epoch ------------------------------------------------------------------------------

    def _plan(self, epoch: int) -> _EpochPlan:
        if epoch not in self._plans:
            while len(self._plans) > 1:
                del self._plans[max(self._plans, key=lambda known: abs(known - epoch))]
            self._plans[epoch] = self._make_plan(epoch)
        return self._plans[epoch]

    def _make_plan(self, epoch: int) -> _EpochPlan:
        units, visits, buckets = self._visits(epoch)
        if self._shuffle:
            order = self._order("order", epoch, len(units))
            units, visits, buckets = units[order], visits[order], buckets[order]
        order = np.argsort(buckets, kind="stable")
        units, visits, buckets = units[order], visits[order], buckets[order]
        _, firsts, counts = np.unique(buckets, return_index=True, return_counts=True)
        starts: list[Int64s] = []
        stops: list[Int64s] = []
        for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
            batches = -(-count // self._global)
            edges = first + np.arange(batches + 1, dtype=np.int64) * count // batches
            starts.append(edges[:-1])
            stops.append(edges[1:])
        none = np.zeros(0, dtype=np.int64)
        start, stop = np.concatenate([none, *starts]), np.concatenate([none, *stops])
        if self._shuffle:
            order = self._order("batches", epoch, len(start))
            start, stop = start[order], stop[order]
        return _EpochPlan(units, visits, buckets, start, stop)

    def _visits(self, epoch: int) -> tuple[Int64s, Int64s, Int64s]:
        """Units, earlier visits and buckets of everything visited in an epoch, in the order of the units."""
        units, visits, buckets, offset = [], [], [], 0
        for group, phase in zip(self.groups, self._phases, strict=True):
            before, after = _visits_before(group, phase, epoch), _visits_before(group, phase, epoch + 1)
            counts = after - before
            own = np.repeat(np.arange(len(group), dtype=np.int64), counts)
            # index within a run of equal units
            run = np.arange(len(own), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
            visit = before[own] + run
            units.append(own + offset)
            visits.append(visit)
            buckets.append(group.buckets[own, visit % group.buckets.shape[1]])
            offset += len(group)
        none = np.zeros(0, dtype=np.int64)
        joined = [np.concatenate([none, *arrays]) for arrays in (units, visits, buckets)]
        return joined[0], joined[1], joined[2]

    def _phase(self, group: UnitGroup) -> Int64s:
        """A random rank for each unit, which determines the ones that a fractional rate reaches first."""
        if group.rate.denominator == 1:
            return np.zeros(len(group), dtype=np.int64)
        ranks = np.empty(len(group), dtype=np.int64)
        ranks[_random_order(digest64("rate", self._seed, group.name), len(group))] = np.arange(len(group))
        return ranks

    def _order(self, what: str, epoch: int, count: int) -> Int64s:
        return _random_order(digest64(f"sampler/{what}", self._seed, epoch), count)


def _random_order(seed: int, count: int) -> Int64s:
    # sorted raw words, because numpy guarantees the raw output of a bit generator forever, but not its
    # shuffles
    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable").astype(np.int64)


def _visits_before(group: UnitGroup, phase: Int64s, epoch: int) -> Int64s:
    """Number of visits of each unit before ``epoch``: floor(epoch * rate + rank / units), in integers, so that
    every epoch has rate * units visits and no unit is ever more than one ahead of another.
    """
    top, bottom, count = group.rate.numerator, group.rate.denominator, len(group)
    if bottom == 1:
        return np.full(count, epoch * top, dtype=np.int64)
    return (epoch * top * count + phase * bottom) // (bottom * count)
