"""Aggregates the losses of many (image, step) pairs into one number, with the necessary counts.

There are N images and T trained denoising steps; the mask is 1 where a step is trained on. The counts are
those of a whole optimizer step, over every micro-batch and rank, so that the shares of all micro-batches add
up to the loss of one large batch. With full masks and L = T, all modes give the same number; they differ only
under masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from modules.util.errors import DataError, list_offenders

SAMPLE_MEAN, PROMPT_MEAN, TOKEN_MEAN, CONSTANT = "sample_mean", "prompt_mean", "token_mean", "constant"
MODES = (SAMPLE_MEAN, PROMPT_MEAN, TOKEN_MEAN, CONSTANT)

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Sums a tensor over the ranks. The result is the same on each of them."""


@dataclass(frozen=True)
class Aggregation:
    """A way of averaging losses.

    Args:
        mode: one of ``MODES``.
        divisor: L of ``constant``, a nominal number of steps for the whole run; not used by other modes.
    """

    mode: str = SAMPLE_MEAN
    divisor: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"unknown aggregation {self.mode!r}; known: {', '.join(MODES)}")
        if self.mode != CONSTANT and self.divisor is not None:
            raise ValueError(f"a divisor of {self.divisor!r} is given, but {self.mode} has none")
        if self.mode == CONSTANT:
            number = self.divisor
            if number is None or not math.isfinite(number) or not number > 0:
                raise ValueError(f"{CONSTANT} needs a finite divisor above 0, not {number!r}")


@dataclass(frozen=True)
class GlobalCounts:
    """Counts over an optimizer step, of every micro-batch and rank.

    Args:
        images: n, including those whose steps are all masked.
        steps: unmasked (image, step) pairs.
        groups: G, 0 if images have no groups.
        group_id_G: ids of the counted groups, int64, ascending.
        group_steps_G: unmasked steps of those groups.
        left_out: images whose steps are all masked.
    """

    images: int
    steps: int
    groups: int = 0
    group_id_G: torch.Tensor | None = None
    group_steps_G: torch.Tensor | None = None
    left_out: int = 0

    @property
    def trained(self) -> GlobalCounts:
        """The same without images whose steps are all masked, for displayed averages."""
        return replace(self, images=self.images - self.left_out, left_out=0)

    def steps_of_group(self, group_B: torch.Tensor) -> torch.Tensor:
        """Unmasked steps of the group of each image, int64, (B,).

        Raises:
            DataError: a group was not counted.
        """
        if self.group_id_G is None or self.group_steps_G is None:
            raise DataError(f"{PROMPT_MEAN} needs the group of every image, and none were counted")
        ids_G = self.group_id_G.to(group_B.device)
        at_B = torch.searchsorted(ids_G, group_B).clamp(max=len(ids_G) - 1)
        unknown = group_B[ids_G[at_B] != group_B]
        if unknown.numel():
            raise DataError(f"groups {unknown.tolist()} were not counted for this optimizer step")
        return self.group_steps_G.to(group_B.device)[at_B]


def index_groups(
    group_N: torch.Tensor, reduce: Reduce | None = None, slots: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of the groups and, for every image, the index of its own.

    Args:
        group_N: int64 ids; with ``reduce`` dense ones, 0 <= id < ``slots``.
        reduce: given if other ranks hold images too.
        slots: number of group ids in use over all ranks, the same on each.

    Returns:
        (G,) ids and (N,) indices into them; with ``slots`` all ids below it, including those without an
            image.

    Raises:
        TypeError: the ids are not int64 of shape (N,).
        ValueError: an id is not among the slots, or there are several ranks without ``slots``.
    """
    if group_N.dtype != torch.int64 or group_N.dim() != 1:
        raise TypeError(f"group ids are int64 of shape (N,), not {group_N.dtype} {tuple(group_N.shape)}")
    if slots is None:
        if reduce is not None:
            raise ValueError("ids of several ranks are added up by slot: say how many slots there are")
        ids_G, at_N = torch.unique(group_N, return_inverse=True)
        return ids_G, at_N
    outside = (group_N < 0) | (group_N >= slots)
    if bool(outside.any()):
        raise ValueError(f"group ids {group_N[outside].tolist()} are not among the {slots} slots")
    return torch.arange(slots, device=group_N.device), group_N


def check_group_sizes(
    group_id_G: torch.Tensor, images_G: torch.Tensor, group_size: int, names: Sequence[str] | None = None
) -> None:
    """Check that every group has all K images.

    Args:
        names: names of the groups in the error (uids), in the order of ``group_id_G``.

    Raises:
        DataError: groups are too small or too large. The message names them.
    """
    wrong = torch.nonzero(images_G.round().long() != group_size).flatten().tolist()
    if wrong:
        lines = [
            f"{names[i] if names else f'group {int(group_id_G[i])}'}: {int(images_G[i].round())}"
            for i in wrong
        ]
        raise DataError(f"groups without exactly {group_size} images:\n{list_offenders(lines)}")


def count_steps(
    mask_NT: torch.Tensor,
    group_N: torch.Tensor | None = None,
    reduce: Reduce | None = None,
    *,
    slots: int | None = None,
    group_size: int | None = None,
) -> GlobalCounts:
    """Count the images and unmasked steps of a whole optimizer step, before its first backward pass.

    Args:
        mask_NT: all images of this rank's optimizer step; bool, or 0 and 1.
        group_N: group ids, int64, unique per (epoch, prompt slot).
        reduce: sums an int64 tensor over the ranks; called once.
        slots: with ``reduce`` and groups, the number of group ids in use over all ranks.
        group_size: K, if every group must be complete.

    Raises:
        DataError: a mask value is neither 0 nor 1, a group is incomplete, or nothing is left to train on.
    """
    if mask_NT.dim() != 2:
        raise ValueError(f"a mask is (N, T), not {tuple(mask_NT.shape)}")
    steps_N = mask_NT.long().sum(1)
    if mask_NT.dtype != torch.bool and not bool(((mask_NT == 0) | (mask_NT == 1)).all()):
        raise DataError("a step mask holds values other than 0 and 1")
    if group_N is None:
        ids_G, at_N = torch.zeros(1, dtype=torch.int64), torch.zeros_like(steps_N)
    else:
        if group_N.shape != steps_N.shape:
            raise ValueError(f"{tuple(group_N.shape)} group ids for {len(steps_N)} images")
        ids_G, at_N = index_groups(group_N.to(mask_NT.device), reduce, slots)
    counts_3G = torch.zeros(3, len(ids_G), dtype=torch.int64, device=mask_NT.device)
    counts_3G.index_add_(1, at_N, torch.stack((torch.ones_like(steps_N), steps_N, (steps_N == 0).long())))
    if reduce is not None:
        counts_3G = reduce(counts_3G)
    images_G, steps_G, left_out_G = counts_3G
    images, steps, left_out = int(images_G.sum()), int(steps_G.sum()), int(left_out_G.sum())
    if not images:
        raise DataError("an optimizer step without a single image")
    if not steps:
        raise DataError(f"all steps of the {images} images of an optimizer step are masked")
    if group_N is None:
        return GlobalCounts(images, steps, left_out=left_out)
    present_G = images_G > 0
    if group_size is not None:
        check_group_sizes(ids_G[present_G], images_G[present_G], group_size)
    return GlobalCounts(images, steps, int(present_G.sum()), ids_G, steps_G, left_out)


def step_weights(
    mask_BT: torch.Tensor,
    group_B: torch.Tensor | None,
    aggregation: Aggregation,
    counts: GlobalCounts,
    image_steps_B: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The weight of each loss, (B, T): the loss of an optimizer step is the sum of losses times weights.

    Args:
        mask_BT: some of the images, all or some of their steps.
        group_B: their groups; ``prompt_mean`` needs them.
        image_steps_B: unmasked steps of each image, if ``mask_BT`` does not hold all of them.

    Raises:
        DataError: ``prompt_mean`` without groups, or with one that was not counted.
    """
    if aggregation.mode == TOKEN_MEAN:
        weight_B = torch.full((len(mask_BT), 1), 1.0 / counts.steps, dtype=dtype, device=mask_BT.device)
    elif aggregation.mode == PROMPT_MEAN:
        if group_B is None:
            raise DataError(f"{PROMPT_MEAN} needs the group of every image")
        steps_B = counts.steps_of_group(group_B.to(mask_BT.device)).clamp(min=1).to(dtype)
        weight_B = 1.0 / (counts.groups * steps_B.unsqueeze(1))
    elif aggregation.mode == CONSTANT:
        assert aggregation.divisor is not None
        each = 1.0 / (aggregation.divisor * counts.images)
        weight_B = torch.full((len(mask_BT), 1), each, dtype=dtype, device=mask_BT.device)
    else:
        steps_B = mask_BT.long().sum(1) if image_steps_B is None else image_steps_B.to(mask_BT.device)
        steps_B = steps_B.clamp(min=1).to(dtype)
        weight_B = 1.0 / (counts.images * steps_B.unsqueeze(1))
    return weight_B * mask_BT.to(dtype)


def weighted_sum(value_BT: torch.Tensor, mask_BT: torch.Tensor, weight_BT: torch.Tensor) -> torch.Tensor:
    """Sum of values times weights. Masked values are ignored, even NaN."""
    return (torch.where(mask_BT.bool(), value_BT, torch.zeros_like(value_BT)) * weight_BT).sum()
