"""How the losses of many (image, step) pairs become one number, and the counts that takes.

N images, T trained denoising steps, mask 1 where a step is trained on. The counts are those of a whole
optimizer step, over every micro-batch and rank, so that the shares of all micro-batches add up to the loss of
one large batch. With full masks and L = T all modes are the same number; they differ under masks only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from modules.util.errors import ConfigError, DataError, list_offenders

SAMPLE_MEAN, PROMPT_MEAN, TOKEN_MEAN, CONSTANT = "sample_mean", "prompt_mean", "token_mean", "constant"
MODES = (SAMPLE_MEAN, PROMPT_MEAN, TOKEN_MEAN, CONSTANT)
ALIASES = {"step_mean": TOKEN_MEAN}

MODE_FIELD = "rlhf_loss_aggregation"
DIVISOR_FIELD = "rlhf_loss_aggregation_divisor"

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Adds a tensor up over the ranks and returns the sum, the same on each of them."""


@dataclass(frozen=True)
class Aggregation:
    """A mode of ``MODES`` that was checked, and the constant step count L of ``constant``."""

    mode: str = SAMPLE_MEAN
    divisor: float | None = None


@dataclass(frozen=True)
class StepPlan:
    """What the checks of an aggregation need to know about the run.

    Args:
        group_size: images of one prompt, K; ``None`` where images have no groups.
        images_per_step: images of an optimizer step over all ranks; ``None`` where it varies.
        steps_per_rollout: optimizer steps that share the images of one rollout.
        world_size: ranks.
        groups_across_ranks: whether the K images of a prompt are dealt evenly to the ranks.
        kl_beta, entropy_beta: strengths of the loss terms beside the policy's.
        own_normalisers: whether those terms are normalised on their own, whatever the mode of the policy loss.
        strict_loss_mixing: refuse ``token_mean`` beside terms that share its normaliser.
        changes_mask: something takes steps out of the mask after the counts were made.
        custom_reducer: something else than this module adds the losses up.
    """

    group_size: int | None = None
    images_per_step: int | None = None
    steps_per_rollout: int = 1
    world_size: int = 1
    groups_across_ranks: bool = False
    kl_beta: float = 0.0
    entropy_beta: float = 0.0
    own_normalisers: bool = True
    strict_loss_mixing: bool = True
    changes_mask: bool = False
    custom_reducer: bool = False


def resolve_aggregation(
    mode: object = SAMPLE_MEAN,
    divisor: object = None,
    calculate_per_step_loss: bool = False,
    pg_loss_divisor: object = None,
    plan: StepPlan | None = None,
) -> Aggregation:
    """The aggregation that a complete configuration asks for; called once, before a model is loaded.

    Args:
        mode: one of ``MODES`` or ``step_mean``.
        divisor: L of ``constant``, finite and > 0; given for no other mode.
        calculate_per_step_loss: older spelling of ``token_mean``.
        pg_loss_divisor: older spelling of ``constant`` and its divisor together.
        plan: the run it is for; without one only what concerns the values themselves is checked.

    Raises:
        ConfigError: the values are out of range, contradict each other or do not fit the run.
    """
    plan = plan or StepPlan()
    chosen = _known_mode(mode)
    if plan.custom_reducer and (
        chosen != SAMPLE_MEAN or calculate_per_step_loss or pg_loss_divisor is not None
    ):
        raise ConfigError(
            "a custom loss reducer leaves no room for another aggregation",
            field=MODE_FIELD,
            hint=f"use {SAMPLE_MEAN} with it, or take the reducer out",
        )
    chosen = _with_per_step(chosen, bool(calculate_per_step_loss), pg_loss_divisor)
    chosen, divisor = _with_older_divisor(chosen, divisor, pg_loss_divisor)
    if chosen != CONSTANT:
        if divisor is not None:
            raise ConfigError(
                f"{divisor!r} is given, but {chosen} has no divisor",
                field=DIVISOR_FIELD,
                hint=f"leave it out, or choose {CONSTANT}",
            )
        _check_plan(chosen, plan)
        return Aggregation(chosen)
    _check_plan(chosen, plan)
    return Aggregation(chosen, _positive(divisor, DIVISOR_FIELD))


def _known_mode(mode: object) -> str:
    text = getattr(mode, "value", mode)
    if not isinstance(text, str):
        raise ConfigError(
            f"{mode!r} is not the name of an aggregation", field=MODE_FIELD, hint=f"one of {', '.join(MODES)}"
        )
    name = text.lower()
    name = ALIASES.get(name, name)
    if name not in MODES:
        raise ConfigError(
            f"unknown aggregation {text!r}", field=MODE_FIELD, hint=f"one of {', '.join((*MODES, *ALIASES))}"
        )
    return name


def _positive(value: object, field: str) -> float:
    number = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
    if not math.isfinite(number) or not number > 0:
        raise ConfigError(
            f"{CONSTANT} needs a finite divisor above 0, not {value!r}",
            field=field,
            hint="a nominal number of denoising steps, the same for the whole run",
        )
    return number


def _with_per_step(mode: str, per_step: bool, older_divisor: object) -> str:
    if not per_step:
        return mode
    if mode not in (SAMPLE_MEAN, TOKEN_MEAN) or older_divisor is not None:
        other = mode if older_divisor is None else "pg_loss_divisor"
        raise ConfigError(
            f"it stands for {TOKEN_MEAN} and contradicts {other}",
            field="calculate_per_step_loss",
            hint=f"leave it out and set {MODE_FIELD} alone",
        )
    return TOKEN_MEAN


def _with_older_divisor(mode: str, divisor: object, older: object) -> tuple[str, object]:
    if older is None:
        return mode, divisor
    number = _positive(older, "pg_loss_divisor")
    if mode not in (SAMPLE_MEAN, CONSTANT):
        raise ConfigError(
            f"it stands for {CONSTANT} and contradicts {mode}",
            field="pg_loss_divisor",
            hint=f"leave it out and set {MODE_FIELD} alone",
        )
    if divisor is not None and _positive(divisor, DIVISOR_FIELD) != number:
        raise ConfigError(
            f"{older!r} contradicts the divisor {divisor!r}",
            field="pg_loss_divisor",
            hint=f"leave it out and set {DIVISOR_FIELD} alone",
        )
    return CONSTANT, number


def _check_plan(mode: str, plan: StepPlan) -> None:
    if mode in (PROMPT_MEAN, TOKEN_MEAN) and plan.changes_mask:
        raise ConfigError(
            f"{mode} counts its steps before a custom function changes the mask",
            field=MODE_FIELD,
            hint=f"use {SAMPLE_MEAN} or {CONSTANT}, or take the function out",
        )
    extra = plan.kl_beta > 0 or plan.entropy_beta > 0
    if mode == TOKEN_MEAN and extra and not plan.own_normalisers and plan.strict_loss_mixing:
        raise ConfigError(
            f"{mode} beside a KL or entropy term that is averaged over images mixes two scales",
            field=MODE_FIELD,
            hint="set the strength of the term to 0, or strict_loss_mixing to false",
        )
    if mode == PROMPT_MEAN:
        _check_prompt_plan(plan)


def _check_prompt_plan(plan: StepPlan) -> None:
    def refuse(message: str, hint: str) -> ConfigError:
        return ConfigError(f"{PROMPT_MEAN} {message}", field=MODE_FIELD, hint=hint)

    size = plan.group_size
    if size is None or size < 1:
        raise refuse("needs images in groups of one prompt", "set the number of images per prompt")
    if plan.images_per_step is None:
        return
    images = plan.images_per_step
    if images % size:
        raise refuse(
            f"needs whole groups in a step; {images} images are no multiple of {size} per prompt",
            "change the batch size, the gradient accumulation or the images per prompt",
        )
    if plan.steps_per_rollout == 1:
        return
    slice_size = images // plan.world_size
    if plan.groups_across_ranks and size % plan.world_size:
        raise refuse(
            f"cannot deal {size} images per prompt evenly to {plan.world_size} ranks",
            "choose a multiple of the number of ranks",
        )
    part = size // plan.world_size if plan.groups_across_ranks else size
    if images % plan.world_size or slice_size % part:
        raise refuse(
            f"with {plan.steps_per_rollout} steps per rollout needs whole groups in each of them; a rank's "
            f"{images}/{plan.world_size} images are no multiple of {part}",
            "use one step per rollout, or change the images per step",
        )


def check_images_per_step(target: object, group_size: int | None = None, whole_groups: bool = False) -> int:
    """How many images an optimizer step waits for (``rollouts_per_step``); 0 is a fixed accumulation.

    Raises:
        ConfigError: not a whole number >= 0, or, where groups must stay whole, no multiple of K.
    """
    field = "rollouts_per_step"
    if isinstance(target, bool) or not isinstance(target, int) or target < 0:
        raise ConfigError(f"{target!r} is not a whole number >= 0", field=field, hint="0 turns it off")
    if whole_groups and target and (not group_size or target % group_size):
        raise ConfigError(
            f"{target} images are no multiple of the {group_size} per prompt",
            field=field,
            hint="groups have to stay whole",
        )
    return target


@dataclass(frozen=True)
class GlobalCounts:
    """Counts over an optimizer step, of every micro-batch and rank.

    Args:
        images: n, also those whose steps are all masked.
        steps: unmasked (image, step) pairs.
        groups: G, 0 where images have no groups.
        group_id_G: ids of the counted groups, int64, ascending.
        group_steps_G: unmasked steps of those groups.
    """

    images: int
    steps: int
    groups: int = 0
    group_id_G: torch.Tensor | None = None
    group_steps_G: torch.Tensor | None = None

    def steps_of_group(self, group_B: torch.Tensor) -> torch.Tensor:
        """Unmasked steps of the group of each image, int64, (B,)."""
        if self.group_id_G is None or self.group_steps_G is None:
            raise DataError(f"{PROMPT_MEAN} needs the group of every image, and none were counted")
        ids_G = self.group_id_G.to(group_B.device)
        at_B = torch.searchsorted(ids_G, group_B).clamp(max=len(ids_G) - 1)
        unknown = group_B[ids_G[at_B] != group_B]
        if unknown.numel():
            raise DataError(f"groups {unknown.tolist()} were not counted for this optimizer step")
        return self.group_steps_G.to(group_B.device)[at_B]

    def denominator(self, by_images: bool = False) -> int:
        """Unmasked steps of the optimizer step, or its images (``normalize_by_documents``)."""
        return self.images if by_images else self.steps


def index_groups(
    group_N: torch.Tensor, reduce: Reduce | None = None, slots: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of the groups and, for every image, the place of its own among them.

    Args:
        group_N: int64 ids; with ``reduce`` dense ones, 0 <= id < ``slots``.
        reduce: given where other ranks hold images too.
        slots: number of group ids in use over all ranks, the same on each.

    Returns:
        (G,) ids and (N,) indices into them; with ``slots`` all ids below it, also those without an image.
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
    """Every group has all K images.

    Args:
        names: what to call the groups in the error (uids), in the order of ``group_id_G``.

    Raises:
        DataError: names the groups that are short or too long.
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
        reduce: adds an int64 tensor up over the ranks; called once.
        slots: with ``reduce`` and groups, the number of group ids in use over all ranks.
        group_size: K, if every group has to be complete.

    Raises:
        DataError: a mask value other than 0 and 1, an incomplete group, or nothing left to train on.
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
    counts_2G = torch.zeros(2, len(ids_G), dtype=torch.int64, device=mask_NT.device)
    counts_2G.index_add_(1, at_N, torch.stack((torch.ones_like(steps_N), steps_N)))
    if reduce is not None:
        counts_2G = reduce(counts_2G)
    images_G, steps_G = counts_2G
    images, steps = int(images_G.sum()), int(steps_G.sum())
    if not images:
        raise DataError("an optimizer step without a single image")
    if not steps:
        raise DataError(f"all steps of the {images} images of an optimizer step are masked")
    if group_N is None:
        return GlobalCounts(images, steps)
    present_G = images_G > 0
    if group_size is not None:
        check_group_sizes(ids_G[present_G], images_G[present_G], group_size)
    return GlobalCounts(images, steps, int(present_G.sum()), ids_G, steps_G)


def step_weights(
    mask_BT: torch.Tensor,
    group_B: torch.Tensor | None,
    aggregation: Aggregation,
    counts: GlobalCounts,
    image_steps_B: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """What each loss counts for: the loss of an optimizer step is the sum of losses times weights, (B, T).

    Args:
        mask_BT: some of the images, all or some of their steps.
        group_B: their groups; ``prompt_mean`` needs them.
        image_steps_B: unmasked steps of each image, where ``mask_BT`` does not hold all of them.
    """
    if aggregation.mode == TOKEN_MEAN:
        weight_B = torch.full((len(mask_BT), 1), 1.0 / counts.steps, dtype=dtype, device=mask_BT.device)
    elif aggregation.mode == PROMPT_MEAN:
        if group_B is None:
            raise DataError(f"{PROMPT_MEAN} needs the group of every image")
        steps_B = counts.steps_of_group(group_B.to(mask_BT.device)).clamp(min=1).to(dtype)
        weight_B = 1.0 / (counts.groups * steps_B.unsqueeze(1))
    elif aggregation.mode == CONSTANT:
        if aggregation.divisor is None:
            raise ValueError(f"{CONSTANT} without its divisor")
        each = 1.0 / (aggregation.divisor * counts.images)
        weight_B = torch.full((len(mask_BT), 1), each, dtype=dtype, device=mask_BT.device)
    else:
        steps_B = mask_BT.long().sum(1) if image_steps_B is None else image_steps_B.to(mask_BT.device)
        steps_B = steps_B.clamp(min=1).to(dtype)
        weight_B = 1.0 / (counts.images * steps_B.unsqueeze(1))
    return weight_B * mask_BT.to(dtype)


def weighted_sum(value_BT: torch.Tensor, mask_BT: torch.Tensor, weight_BT: torch.Tensor) -> torch.Tensor:
    """Sum of values times weights; what a masked value is does not matter, not even NaN."""
    return (torch.where(mask_BT.bool(), value_BT, torch.zeros_like(value_BT)) * weight_BT).sum()


def aggregate(
    value_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    group_B: torch.Tensor | None,
    aggregation: Aggregation,
    counts: GlobalCounts,
    image_steps_B: torch.Tensor | None = None,
    scale: float = 1.0,
) -> torch.Tensor:
    """This micro-batch's share of the loss of the optimizer step; all shares of all ranks add up to it.

    ``sample_mean`` (1/n) sum_i sum_t l m / N_i; ``prompt_mean`` (1/G) sum_g of a group's sum over its steps;
    ``token_mean`` sum l m / sum m; ``constant`` sum l m / (L n).

    Args:
        value_BT: losses, float32 or float64.
        image_steps_B: as for ``step_weights``.
        scale: number of ranks where gradients are averaged over them, 1 where they are added up.
    """
    if value_BT.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"losses are float32 or float64, not {value_BT.dtype}")
    if value_BT.shape != mask_BT.shape:
        raise ValueError(f"{tuple(value_BT.shape)} losses under a mask of {tuple(mask_BT.shape)}")
    weight_BT = step_weights(mask_BT, group_B, aggregation, counts, image_steps_B, value_BT.dtype)
    return weighted_sum(value_BT, mask_BT, weight_BT) * scale


class DeferredDenominator:
    """The denominator of an optimizer step whose size is known at its end only.

    Backward passes add up losses that are divided by nothing; before clipping and stepping, the gradients are
    multiplied by ``factor``. This needs no buffer of micro-batches.
    """

    def __init__(self, by_images: bool = False) -> None:
        self.by_images = by_images
        self.images = 0
        self.steps = 0

    def add(self, mask_BT: torch.Tensor) -> None:
        """Take in a micro-batch of whole images."""
        self.images += len(mask_BT)
        self.steps += int(mask_BT.bool().sum())

    def factor(self, reduce: Reduce | None = None) -> float:
        """1 / denominator over all ranks.

        Raises:
            DataError: no images, or no unmasked steps, in the whole optimizer step.
        """
        counts = torch.tensor([self.images, self.steps], dtype=torch.int64)
        images, steps = (counts if reduce is None else reduce(counts)).tolist()
        total = int(images if self.by_images else steps)
        if not total:
            raise DataError(f"an optimizer step without {'images' if self.by_images else 'unmasked steps'}")
        return 1.0 / total
