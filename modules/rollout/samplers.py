"""Determines which process makes which images of which prompt, in which batches.

An epoch has M prompts with K images each. Every sampler is a function of (seed, epoch): all processes compute
the same plan and take their share. Nothing is sent between them, and an epoch can be repeated or resumed at
any batch. Torch is not needed here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from modules.util.errors import ConfigError
from modules.util.rng import python_random

AUTO = "AUTO"
DISTRIBUTED, K_REPEAT = "GROUP_DISTRIBUTED", "DISTRIBUTED_K_REPEAT"
CONTIGUOUS = "GROUP_CONTIGUOUS"
_SIZE, _PROMPTS = "rlhf_group_size", "rlhf_prompts_per_epoch"


@dataclass(frozen=True)
class Slot:
    """One image to make.

    Args:
        prompt: number of the prompt in the data.
        group: number of the group, unique in the run; the same prompt in another epoch is another group.
        member: 0 to K - 1 over all processes; group and member determine the image's noise.
    """

    prompt: int
    group: int
    member: int


@dataclass(frozen=True)
class SamplerLayout:
    """The sizes of an epoch.

    Args:
        prompts: M, number of different prompts.
        group_size: K, images per prompt.
        batch_size: B, images that a process makes at once.
        world_size, rank: number of processes, and the index of this one.
    """

    prompts: int
    group_size: int
    batch_size: int
    world_size: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        for name, field in (
            ("prompts", _PROMPTS),
            ("group_size", _SIZE),
            ("batch_size", "batch_size"),
            ("world_size", None),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}", field=field)
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"process {self.rank} of {self.world_size} does not exist")

    @property
    def images(self) -> int:
        """Images of an epoch over all processes."""
        return self.prompts * self.group_size

    @property
    def global_batch(self) -> int:
        """Images of a batch over all processes."""
        return self.batch_size * self.world_size

    @property
    def batches(self) -> int:
        """Batches of a process in an epoch."""
        return self.images // self.global_batch


# -- alignment ------------------------------------------------------------------------------------------------


def divisors(number: int) -> list[int]:
    """All divisors in ascending order, found up to the square root."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def align_group_size(group_size: int, world_size: int, batch_size: int) -> int:
    """The smallest K' >= K that W divides and that divides W * B: W times a divisor of B.

    Raises:
        ConfigError: K is below 1 or above W * B.
    """
    if group_size < 1:
        raise ConfigError(f"a group needs at least 1 image, not {group_size}", field=_SIZE)
    if group_size > world_size * batch_size:
        raise ConfigError(
            f"a group of {group_size} images does not fit into a global batch of {world_size} x {batch_size}",
            field=_SIZE,
            hint=f"use a group size of up to {world_size * batch_size}, or a batch size of at least "
            f"{math.ceil(group_size / world_size)}",
        )
    share = math.ceil(group_size / world_size)
    return world_size * next(d for d in divisors(batch_size) if d >= share)


def prompts_step(group_size: int, world_size: int, batch_size: int) -> int:
    """The number of prompts per epoch must be a multiple of this, or batches would be left over."""
    whole = world_size * batch_size
    return whole // math.gcd(group_size, whole)


def _proposals(layout: SamplerLayout) -> str:
    """Valid group and batch sizes near the requested ones."""
    k, w, b = layout.group_size, layout.world_size, layout.batch_size
    sizes = [w * d for d in divisors(b)]
    near = sorted(
        {max((s for s in sizes if s < k), default=0), min((s for s in sizes if s > k), default=0)} - {0}
    )
    said = [f"a group size of {' or '.join(map(str, near))}"] if near else []
    if k % w == 0:
        share = k // w
        below, above = b // share * share, -(-b // share) * share
        fits = sorted({below, above} - {0, b})
        if fits:
            said.append(f"a batch size of {' or '.join(map(str, fits))}")
    return ", or ".join(said)


def check_alignment(layout: SamplerLayout) -> None:
    """Raise ``ConfigError`` unless every global batch holds whole groups, with the same share of each in
    every process.
    """
    k, w, b = layout.group_size, layout.world_size, layout.batch_size
    if k > layout.global_batch:
        align_group_size(k, w, b)
    if k % w or layout.global_batch % k:
        what = f"cannot be shared by {w} processes" if k % w else f"do not fill a global batch of {w} x {b}"
        raise ConfigError(f"groups of {k} images {what}", field=_SIZE, hint=f"use {_proposals(layout)}")
    _check_prompts(layout)


def _check_prompts(layout: SamplerLayout) -> None:
    unit = prompts_step(layout.group_size, layout.world_size, layout.batch_size)
    if layout.prompts % unit:
        below, above = layout.prompts // unit * unit, -(-layout.prompts // unit) * unit
        fits = " or ".join(str(n) for n in (below, above) if n)
        raise ConfigError(
            f"{layout.prompts} prompts of {layout.group_size} images do not fill whole batches of "
            f"{layout.world_size} x {layout.batch_size}",
            field=_PROMPTS,
            hint=f"use {fits}",
        )


# -- samplers -------------------------------------------------------------------------------------------------


class GroupSampler(ABC):
    """Batches of slots of one process, epoch by epoch.

    Args:
        dataset_size: number of prompts.

    Raises:
        ConfigError: the numbers are inconsistent. The message suggests near ones that are valid; none is
            changed.
    """

    kind: str

    def __init__(self, layout: SamplerLayout, dataset_size: int, seed: int) -> None:
        if layout.prompts > dataset_size:
            raise ConfigError(
                f"an epoch needs {layout.prompts} different prompts, but there are {dataset_size}",
                field=_PROMPTS,
                hint="use fewer, or add prompts",
            )
        self.layout, self.dataset_size, self.seed = layout, dataset_size, seed
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Raise ``ConfigError`` unless the layout suits this sampler."""

    @abstractmethod
    def share(self, epoch: int, groups: list[list[Slot]]) -> list[Slot]:
        """This process's slots, in order.

        Args:
            groups: M groups of K slots, in the order of the epoch.
        """

    def groups(self, epoch: int) -> list[list[Slot]]:
        """The epoch's groups in random order; the same in every process."""
        layout = self.layout
        source = python_random("rollout/prompts", self.seed, epoch)
        chosen = source.sample(range(self.dataset_size), layout.prompts)
        first = epoch * layout.prompts
        return [
            [Slot(prompt, first + place, member) for member in range(layout.group_size)]
            for place, prompt in enumerate(chosen)
        ]

    def batches(self, epoch: int, start: int = 0) -> Iterator[list[Slot]]:
        """The batches of an epoch from batch ``start`` on."""
        mine, size = self.share(epoch, self.groups(epoch)), self.layout.batch_size
        for number in range(start, self.layout.batches):
            yield mine[number * size : (number + 1) * size]

    def __len__(self) -> int:
        return self.layout.batches


class GroupDistributedSampler(GroupSampler):
    """Every process makes K / W images of every prompt, in the same order, so that each global batch consists
    of whole groups. Processes differ only in the member numbers.
    """

    kind = DISTRIBUTED

    def check(self) -> None:
        check_alignment(self.layout)

    def share(self, epoch: int, groups: list[list[Slot]]) -> list[Slot]:
        part = self.layout.group_size // self.layout.world_size
        begin = self.layout.rank * part
        return [slot for group in groups for slot in group[begin : begin + part]]


class DistributedKRepeatSampler(GroupSampler):
    """The images of a global batch in random order over all processes. Groups are whole in a global batch,
    but which process makes which member is random.
    """

    kind = K_REPEAT

    def check(self) -> None:
        layout = self.layout
        if layout.global_batch % layout.group_size:
            fits = [d for d in divisors(layout.global_batch) if d > 1]
            raise ConfigError(
                f"groups of {layout.group_size} images do not fill a global batch of {layout.world_size} x "
                f"{layout.batch_size}",
                field=_SIZE,
                hint=f"use one of {', '.join(map(str, fits))}" if fits else "use a larger batch size",
            )
        _check_prompts(layout)

    def share(self, epoch: int, groups: list[list[Slot]]) -> list[Slot]:
        layout = self.layout
        per_batch = layout.global_batch // layout.group_size
        mine: list[Slot] = []
        for number in range(layout.batches):
            whole = [
                slot for group in groups[number * per_batch : (number + 1) * per_batch] for slot in group
            ]
            python_random("rollout/places", self.seed, epoch, number).shuffle(whole)
            begin = layout.rank * layout.batch_size
            mine += whole[begin : begin + layout.batch_size]
        return mine


class GroupContiguousSampler(GroupSampler):
    """Every group is made by one process, its images one after the other; a group may span batches.

    For rewards that must see a whole group, without sending images.
    """

    kind = CONTIGUOUS

    def check(self) -> None:
        layout = self.layout
        unit = contiguous_step(layout)
        if layout.prompts % unit:
            below, above = layout.prompts // unit * unit, -(-layout.prompts // unit) * unit
            raise ConfigError(
                f"{layout.prompts} groups of {layout.group_size} images cannot be shared by {layout.world_size} "
                f"processes in whole batches of {layout.batch_size}",
                field=_PROMPTS,
                hint=f"use {' or '.join(str(n) for n in (below, above) if n)}",
            )

    def share(self, epoch: int, groups: list[list[Slot]]) -> list[Slot]:
        part = self.layout.prompts // self.layout.world_size
        begin = self.layout.rank * part
        return [slot for group in groups[begin : begin + part] for slot in group]


def contiguous_step(layout: SamplerLayout) -> int:
    """The number that the prompts must be a multiple of for ``GroupContiguousSampler``."""
    share = layout.batch_size // math.gcd(layout.group_size, layout.batch_size)
    return layout.world_size * share


SAMPLERS: dict[str, type[GroupSampler]] = {
    one.kind: one for one in (GroupDistributedSampler, DistributedKRepeatSampler, GroupContiguousSampler)
}


def create_sampler(kind: object, layout: SamplerLayout, dataset_size: int, seed: int) -> GroupSampler:
    """Create a sampler by name: GROUP_DISTRIBUTED, DISTRIBUTED_K_REPEAT, GROUP_CONTIGUOUS, or AUTO for the
    first if groups fit into global batches and the last otherwise.

    Raises:
        ConfigError: the name is unknown, or the numbers are inconsistent.
    """
    name = str(getattr(kind, "value", kind))
    if name == AUTO:
        k, w = layout.group_size, layout.world_size
        name = DISTRIBUTED if k % w == 0 and layout.global_batch % k == 0 else CONTIGUOUS
    if name not in SAMPLERS:
        known = ", ".join((AUTO, *SAMPLERS))
        raise ConfigError(f"unknown sampler {name!r}", field="rlhf_sampler", hint=f"known: {known}")
    return SAMPLERS[name](layout, dataset_size, seed)
