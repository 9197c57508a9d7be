"""The micro-batches that form an optimizer step of online training: a fixed number, or as many as hold enough
images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from modules.util.errors import ConfigError, DataError
from modules.util.rng import python_random


@dataclass(frozen=True)
class StepRule:
    """A rule for grouping micro-batches into optimizer steps.

    Args:
        accumulation: micro-batches per step, if ``images`` is 0.
        images: a step continues until it has at least this many images over all processes.
        multiple: the number of micro-batches is a multiple of this, except in a short last step.
        short_is_error: whether a last step with fewer images is an error instead of being trained.
        unit: number of micro-batches that hold whole groups; their order is kept and, with ``whole``, no step
            splits them.
        whole: whether a step must hold whole groups.
        max_empty: up to this many consecutive micro-batches may be empty.
    """

    accumulation: int = 1
    images: int = 0
    multiple: int = 1
    short_is_error: bool = False
    unit: int = 1
    whole: bool = False
    max_empty: int = 16


@dataclass(frozen=True)
class PlannedStep:
    """An optimizer step.

    Args:
        micro_batches: those it trains on.
        images: number of their images, over all processes.
        passed: all micro-batches since the previous step, including those without an image to train on.
    """

    micro_batches: tuple[int, ...]
    images: int
    passed: tuple[int, ...] = ()


def order_of(count: int, unit: int, seed: int, epoch: int, inner: int) -> list[int]:
    """The order of an inner epoch: at first as they were made, then blocks of ``unit`` in random order."""
    blocks = [list(range(start, min(start + unit, count))) for start in range(0, count, unit)]
    if inner:
        python_random("online/order", seed, epoch, inner).shuffle(blocks)
    return [number for block in blocks for number in block]


def plan_steps(order: Sequence[int], images: Sequence[int], rule: StepRule) -> Iterator[PlannedStep]:
    """The steps of an inner epoch.

    Args:
        order: numbers of micro-batches.
        images: number of images of each micro-batch over all processes; empty ones are skipped.

    Raises:
        DataError: the last step is short and that is an error, or there are too many empty micro-batches in a
            row.
    """
    open_step: list[int] = []
    passed: list[int] = []
    empty = 0
    for seen, number in enumerate(order, start=1):
        passed.append(number)
        if images[number]:
            open_step.append(number)
            empty = 0
        else:
            empty += 1
            if rule.images and empty >= rule.max_empty:
                raise DataError(
                    f"{empty} micro-batches in a row have no image left to train on",
                    field="rlhf_max_empty_batches",
                    hint="check the rewards: perhaps all images of a prompt get the same one, or nobody voted in time",
                )
        total = sum(images[one] for one in open_step)
        if rule.images:
            enough = total >= rule.images and len(open_step) % rule.multiple == 0
        else:
            enough = seen % rule.accumulation == 0
        if rule.whole and seen % rule.unit:
            enough = False
        if enough:
            if open_step:
                yield PlannedStep(tuple(open_step), total, tuple(passed))
            open_step, passed = [], []
    if not open_step:
        return
    total = sum(images[one] for one in open_step)
    if rule.images and rule.short_is_error:
        raise DataError(
            f"the last step of the epoch has {total} images instead of {rule.images}",
            field="rlhf_short_step",
            hint="set it to TRAIN, or rlhf_docs_per_step to a divisor of the number of images in an epoch",
        )
    yield PlannedStep(tuple(open_step), total, tuple(passed))


def check_plan(count: int, images: int, rule: StepRule) -> None:
    """Check that an epoch without skipped images can be split as the rule requires.

    Args:
        count: number of micro-batches of an epoch.
        images: number of images of a micro-batch over all processes.

    Raises:
        ConfigError: the micro-batches of a step are not a multiple of ``multiple``.
        DataError: the last step is short and that is an error.
    """
    if not rule.images:
        return
    for planned in plan_steps(range(count), [images] * count, replace(rule, multiple=1)):
        found = len(planned.micro_batches)
        if found % rule.multiple:
            which = "a step" if planned.images >= rule.images else "the last step of an epoch"
            raise ConfigError(
                f"{which} has {found} micro-batches of {images} images, which is not a multiple of {rule.multiple}",
                "rlhf_docs_per_step_multiple",
                "set it to 1, or change the images per step and the prompts per epoch",
            )
