"""Inputs and outputs of the online losses, the KL to a reference, and the registry of modes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch

from modules.objective.aggregation import Aggregation
from modules.util.errors import DataError
from modules.util.Registry import Registry

KLType = Literal["exact", "flow_grpo", "x", "v"]
KL_TYPES: tuple[KLType, ...] = ("exact", "flow_grpo", "x", "v")
RatioCheck = Literal["off", "warn", "error"]


class NonFiniteError(DataError):
    """A log-probability, ratio, error or loss that is NaN or infinite."""


@dataclass(frozen=True)
class StepTerms:
    """Inputs of a coupled loss for B images and T of their trained steps.

    Args:
        logp_new_BT: log-probabilities of the stored transitions now, with gradient; fp32.
        logp_old_BT: the same at the time the images were made.
        adv_B: advantages.
        mask_BT: 1 where a step is trained on; other values are ignored.
        group_B: int64 group ids; ``prompt_mean`` needs them.
        ref_kl_BT: KL to the reference of each step (``transition_kl``), with gradient.
        image_steps_B: unmasked steps of each image, if T is not all of them (one step at a time).
        mean_gap_BT: (mu_new - mu_old)^2, its mean or sum over the latent as for the log-probabilities, with gradient;
            GRPO-Guard.
        guard_scale_BT: k = sqrt(-dt) times the standard deviation of a unit step, that is the standard deviation of the
            transition; GRPO-Guard.
    """

    logp_new_BT: torch.Tensor
    logp_old_BT: torch.Tensor
    adv_B: torch.Tensor
    mask_BT: torch.Tensor
    group_B: torch.Tensor | None = None
    ref_kl_BT: torch.Tensor | None = None
    image_steps_B: torch.Tensor | None = None
    mean_gap_BT: torch.Tensor | None = None
    guard_scale_BT: torch.Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.logp_new_BT.shape
        if len(shape) != 2:
            raise ValueError(f"log-probabilities are (B, T), not {tuple(shape)}")
        for name in ("logp_old_BT", "mask_BT", "ref_kl_BT", "mean_gap_BT", "guard_scale_BT"):
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, logp_new_BT {tuple(shape)}")
        for name in ("adv_B", "group_B", "image_steps_B"):
            value = getattr(self, name)
            if value is not None and value.shape != shape[:1]:
                raise ValueError(f"{name} has shape {tuple(value.shape)} for {shape[0]} images")
        for name in ("logp_new_BT", "logp_old_BT", "adv_B", "ref_kl_BT", "mean_gap_BT"):
            require_wide(name, getattr(self, name))


@dataclass(frozen=True)
class StepOptions:
    """Options of the coupled losses.

    Args:
        clip_low, clip_high: ratios are clipped to [1 - clip_low, 1 + clip_high]; of the order of 1e-4 for
            log-probabilities that are means over the latent. ``clip_low`` < 1.
        kl_beta: strength of the KL to the reference, 0 for none; averaged as ``sample_mean`` in every mode.
        aggregation: how the policy loss is averaged.
        guard: regulated ratios (GRPO-Guard); needs ``mean_gap_BT`` and ``guard_scale_BT``. GRPO only.
        gspo_weighting: GSPO only. ``length`` weights an image by its steps, ``document`` weights images
            equally.
        normalize_by_documents: GSPO with ``length``: divide by the images of the step, not by its steps.
    """

    clip_low: float = 1e-4
    clip_high: float = 1e-4
    kl_beta: float = 0.0
    aggregation: Aggregation = field(default_factory=Aggregation)
    guard: bool = False
    gspo_weighting: Literal["length", "document"] = "length"
    normalize_by_documents: bool = False

    def __post_init__(self) -> None:
        for name in ("clip_low", "clip_high", "kl_beta"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} is {value!r}; it must be finite and >= 0")
        if self.clip_low >= 1:
            raise ValueError(f"clip_low is {self.clip_low!r}; ratios are above 0, so it must be below 1")
        if self.gspo_weighting not in ("length", "document"):
            raise ValueError(f"gspo_weighting is {self.gspo_weighting!r}, not 'length' or 'document'")


@dataclass(frozen=True)
class ImageTerms:
    """Inputs of a decoupled per-image loss for B images at one timestep: predictions, (B, C, h, w), in the
    family's parameterisation.

    Args:
        prediction_BChw: of the policy, with gradient.
        target_BChw: the prediction that gives x_0 exactly.
        adv_B: advantages.
        x0_factor_B: how much x_0 changes with the prediction, without its sign: sigma for flow,
            sqrt(1 - alpha) for v, sqrt(1 - alpha) / sqrt(alpha) for eps, 1 for x_0.
        old_BChw: of the policy that made the images, or its moving average, if the mode keeps one.
        reference_BChw: of the frozen reference, if the options ``compares``.
    """

    prediction_BChw: torch.Tensor
    target_BChw: torch.Tensor
    adv_B: torch.Tensor
    x0_factor_B: torch.Tensor
    old_BChw: torch.Tensor | None = None
    reference_BChw: torch.Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.prediction_BChw.shape
        for name, value in vars(self).items():
            if value is None:
                continue
            if value.shape != (shape[:1] if name in ("adv_B", "x0_factor_B") else shape):
                raise ValueError(f"{name} has shape {tuple(value.shape)}, prediction_BChw {tuple(shape)}")
            require_finite(name, value)


@dataclass(frozen=True)
class ImageOptions:
    """Options of losses on ``ImageTerms``.

    Args:
        adv_max: advantage that means "certainly good", to which advantages are clipped.
        kl_beta: strength of mean (v - v_ref)^2.
    """

    adv_max: float = 5.0
    kl_beta: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.adv_max) or self.adv_max <= 0:
            raise ValueError(f"adv_max is {self.adv_max!r}; it must be finite and above 0")
        if not math.isfinite(self.kl_beta) or self.kl_beta < 0:
            raise ValueError(f"kl_beta is {self.kl_beta!r}; it must be finite and >= 0")

    @property
    def compares(self) -> bool:
        """True if the loss needs the prediction of the reference."""
        return self.kl_beta > 0


@dataclass(frozen=True)
class PolicyOut:
    """The result of an online loss for this micro-batch.

    Args:
        loss: this micro-batch's share of the loss of the optimizer step, with gradient.
        coefficients: detached derivatives of ``loss`` by its inputs, named ``logp``, ``kl``, ``mean_gap`` or
            ``dsm``, in their shapes. ``(coefficient * input).sum().backward()`` of each input in turn adds
            up to ``loss.backward()``, so graphs need not be kept together.
        shares: detached numbers to be added up over the micro-batches and ranks of an optimizer step.
        maxima: detached numbers whose maximum over them counts; -inf if there was nothing.
    """

    loss: torch.Tensor
    coefficients: Mapping[str, torch.Tensor]
    shares: Mapping[str, torch.Tensor]
    maxima: Mapping[str, torch.Tensor] = field(default_factory=dict)


def require_wide(name: str, value: torch.Tensor | None) -> None:
    """Refuse half types, because scores, ratios and log-probabilities differ by less than their rounding."""
    if value is not None and value.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} is {value.dtype}; it has to be float32 or float64")


def require_finite(what: str, value: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    """Raise ``NonFiniteError`` with the name and index of the first unmasked value that is NaN or infinite."""
    bad = ~value.detach().isfinite()
    if mask is not None:
        bad = bad & mask.bool()
    if not bool(bad.any()):
        return
    at = torch.nonzero(bad)[0].tolist()
    place = "".join(f", {axis} {i}" for axis, i in zip(("image", "step"), at, strict=False))
    raise NonFiniteError(
        f"{what} is {float(value.detach()[bad][0])}{place} ({int(bad.sum())} of {bad.numel()} values)",
        hint="a lower learning rate, float32 arithmetic or a smaller noise level usually fix this",
    )


def require_gradient(what: str, value: torch.Tensor, like: torch.Tensor) -> None:
    """Refuse a term computed under no_grad, from which nothing would be learned."""
    if like.requires_grad and not value.requires_grad:
        raise RuntimeError(f"{what} carries no gradient; compute it outside no_grad")


def transition_kl(
    kl_type: KLType,
    new_BChw: torch.Tensor,
    reference_BChw: torch.Tensor,
    std: torch.Tensor | float | None = None,
    dt: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """KL of a denoising step to that of the reference, (B,), with the gradient of ``new_BChw``.

    ``exact`` is mean (mu - mu_ref)^2 / (2 std^2), the KL of two Gaussians per latent dimension; ``flow_grpo``
    divides by the variance of a unit step instead, std^2 / -dt, so it is -dt times ``exact``; ``x``
    divides by nothing; ``v`` is the mean squared difference of two predictions.

    Args:
        new_BChw, reference_BChw: means of the transitions; predictions for ``v``. The reference is detached.
        std: standard deviation of the transition, step size and temperature included; a number or (B,).
        dt: change of the noise level, below 0; ``flow_grpo`` only.

    Raises:
        ValueError: the kind is unknown, the shapes differ, or a value required by the kind is missing.
    """
    if kl_type not in KL_TYPES:
        raise ValueError(f"unknown kind of KL {kl_type!r}; known: {', '.join(KL_TYPES)}")
    if new_BChw.shape != reference_BChw.shape:
        raise ValueError(f"shapes {tuple(new_BChw.shape)} and {tuple(reference_BChw.shape)} differ")
    kind = torch.float64 if new_BChw.dtype == torch.float64 else torch.float32
    square_B = (new_BChw.to(kind) - reference_BChw.detach().to(kind)).square().flatten(1).mean(1)
    if kl_type in ("x", "v"):
        return square_B
    variance = _positive("std", std, square_B).square()
    if kl_type == "flow_grpo":
        variance = variance / _positive("-dt", None if dt is None else -dt, square_B)
    return square_B / (2.0 * variance)


def _positive(name: str, value: torch.Tensor | float | None, like: torch.Tensor) -> torch.Tensor:
    if value is None:
        raise ValueError(f"this kind of KL needs {name}")
    number = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if not bool((number.isfinite() & (number > 0)).all()):
        raise ValueError(f"{name} is {number.tolist()}; a step without noise has no density")
    return number


def check_ratio(ratio_error: float, check: RatioCheck, tolerance: float = 0.0) -> str | None:
    """Check that the first ratios after a rollout are 1, as they must be while the weights are those of the
    rollout.

    Args:
        ratio_error: largest ``abs(ratio - 1)`` over the first micro-step, of all ranks.
        tolerance: 0 where rollout and training do the same arithmetic, a quarter of the clip otherwise.

    Returns:
        A warning, if any.

    Raises:
        DataError: the ratios are off and ``check`` is ``error``.
    """
    if check not in ("off", "warn", "error"):
        raise ValueError(f"ratio_check is {check!r}, not 'off', 'warn' or 'error'")
    if check == "off" or ratio_error <= tolerance:
        return None
    message = (
        f"before the first update ratios differ from 1 by up to {ratio_error:.3g} (allowed: {tolerance:.3g}); "
        "the rollout and the training pass do not compute the same log-probabilities"
    )
    if check == "error":
        raise DataError(
            message,
            hint="check dropout, autocast, guidance, attention backend and batch shape, or recompute the old "
            "log-probabilities with the training batch",
        )
    return message


ONLINE_LOSSES: Registry[Callable[..., PolicyOut]] = Registry(
    "loss of an online mode", "modules.objective.policy_gradient"
)
"""Losses by the key of their mode. Their arguments differ between coupled and decoupled modes."""

Loss = TypeVar("Loss", bound=Callable[..., PolicyOut])


def online_loss(key: str) -> Callable[[Loss], Loss]:
    """Decorator that registers the loss of the mode ``key`` of ``modules/spec/modes``."""

    def decorate(function: Loss) -> Loss:
        ONLINE_LOSSES.register(key)(function)
        return function

    return decorate


def get_online_loss(key: str) -> Callable[..., PolicyOut]:
    """The loss of the mode ``key``.

    Raises:
        ValueError: the mode does not exist.
    """
    return ONLINE_LOSSES.get(str(getattr(key, "value", key)))
