"""ADAFACTOR as in other trainers: second moments of a matrix are stored as one row and one column.

Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018), with the choices
that the trainers of image models share: the scaling by the size of the weights and the rate from the number
of the step can each be switched off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

_OF_TORCH = {"beta2_decay": "decay_rate", "d": "clip_threshold"}
"""Names in backups from when torch's class was used, which always scaled by the size of the weights."""


class Adafactor(torch.optim.Optimizer):
    """The update rule.

    Args:
        lr: unused with ``relative_step``.
        eps: added to squared gradients.
        eps2: minimum size of weights that ``scale_parameter`` scales by.
        clip_threshold: maximum root mean square of an update before it is multiplied by the rate.
        decay_rate: exponent of the step number in the decay of squared gradients, below 0.
        beta1: momentum of updates; ``None`` for none.
        scale_parameter: multiply the rate by the root mean square of the weights.
        relative_step: the rate is 1/sqrt(step), at most 0.01.
        warmup_init: with ``relative_step``, at most 1e-6 times the step.

    Raises:
        ValueError: numbers out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        eps: float = 1e-30,
        eps2: float = 1e-3,
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = False,
        warmup_init: bool = False,
    ) -> None:
        settings = {
            "eps": eps,
            "eps2": eps2,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
            "relative_step": relative_step,
            "warmup_init": warmup_init,
        }
        _check(settings)
        super().__init__(params, {"lr": lr, **settings})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for theirs, ours in _OF_TORCH.items():
                if theirs in group:
                    group[ours] = group.pop(theirs)
            if isinstance(group.get("eps"), tuple | list):
                least, group["eps2"] = group["eps"]
                group["eps"] = self.defaults["eps"] if least is None else least
                group["scale_parameter"] = True
            for name in self.defaults.keys() - {"differentiable"}:
                group.setdefault(name, self.defaults[name])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return loss

    def _move(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> None:
        assert parameter.grad is not None
        half = parameter.dtype in (torch.float16, torch.bfloat16)
        gradient = parameter.grad.float() if half else parameter.grad
        weights = parameter.float() if half else parameter
        state = self.state[parameter]
        # on the CPU, where it is read
        step = state.setdefault("step", torch.zeros((), device="cpu")).add_(1).item()
        rate = _rate(group, step, weights)
        update = _normalised(gradient, state, group, 1.0 - math.pow(step, group["decay_rate"]))
        update.div_((_rms(update) / group["clip_threshold"]).clamp_(min=1.0)).mul_(rate)
        if group["beta1"] is not None:
            mean = _kept(state, "exp_avg", gradient, gradient.shape)
            update = mean.mul_(group["beta1"]).add_(update, alpha=1 - group["beta1"])
        if group["weight_decay"] != 0:
            weights.sub_(weights * (rate * group["weight_decay"]))
        weights.sub_(update)
        if half:
            parameter.copy_(weights)


def _check(settings: Mapping[str, Any]) -> None:
    for name in ("eps", "eps2", "weight_decay"):
        if not 0 <= settings[name] < math.inf:
            raise ValueError(f"{name} must be 0 or more, not {settings[name]}")
    if not settings["clip_threshold"] > 0:
        raise ValueError(f"clip_threshold must be greater than 0, not {settings['clip_threshold']}")
    if not settings["decay_rate"] < 0:
        raise ValueError(f"decay_rate must be below 0 (usually -0.8), not {settings['decay_rate']}")
    for name in ("scale_parameter", "relative_step", "warmup_init"):
        if not isinstance(settings[name], bool):
            raise ValueError(f"{name} must be true or false, not {settings[name]}")
    if settings["warmup_init"] and not settings["relative_step"]:
        raise ValueError("warmup_init needs relative_step")


def _rms(values: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = values.norm(2) / values.numel() ** 0.5
    return found


def _rate(group: Mapping[str, Any], step: float, weights: torch.Tensor) -> torch.Tensor:
    """The learning rate of the step, as a tensor so that the CPU does not wait for the device."""
    rate: float = group["lr"]
    if group["relative_step"]:
        rate = min(1e-6 * step if group["warmup_init"] else 1e-2, 1.0 / math.sqrt(step))
    if not group["scale_parameter"]:
        return torch.full((), rate, dtype=weights.dtype, device=weights.device)
    return _rms(weights).clamp(min=group["eps2"]) * rate


def _kept(state: dict[str, Any], name: str, like: torch.Tensor, shape: Iterable[int]) -> torch.Tensor:
    """A tensor of the state, in the type of the computation; zeros before the first step."""
    state[name] = state[name].to(like) if name in state else like.new_zeros(tuple(shape))
    return state[name]  # type: ignore[no-any-return]


def _normalised(
    gradient: torch.Tensor, state: dict[str, Any], group: Mapping[str, Any], memory: float
) -> torch.Tensor:
    """The gradient divided by the root of its running mean square, which includes this step."""
    square = gradient**2 + group["eps"]
    if gradient.ndim < 2:
        mean = _kept(state, "variance", gradient, gradient.shape)
        return mean.mul_(memory).add_(square, alpha=1 - memory).rsqrt().mul_(gradient)
    shape = gradient.shape
    row = _kept(state, "row_var", gradient, (*shape[:-1], 1))
    column = _kept(state, "col_var", gradient, (*shape[:-2], 1, shape[-1]))
    row.mul_(memory).add_(square.mean(dim=-1, keepdim=True), alpha=1 - memory)
    column.mul_(memory).add_(square.mean(dim=-2, keepdim=True), alpha=1 - memory)
    return (row / row.mean(dim=-2, keepdim=True)).rsqrt_().mul(column.rsqrt()).mul_(gradient)
