"""Reuses the work of earlier denoising steps in rollouts, through the caches of diffusers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from modules.accelerator.base import Accelerator, Params, peel, register
from modules.accelerator.cache_methods import METHODS, make_config, read_settings
from modules.util.errors import UnsupportedError

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)

FEW_STEPS = 8


def _hooks(model: nn.Module, start: str) -> list[Any]:
    """The cache hooks on the parts of a model whose names begin with ``start``."""
    registries = (getattr(part, "_diffusers_hook", None) for part in model.modules())
    return [
        hook
        for registry in registries
        if registry is not None
        for name, hook in registry.hooks.items()
        if name.startswith(start)
    ]


def _refuse_gradients(module: nn.Module, arguments: Any) -> None:
    import torch

    if torch.is_grad_enabled():
        raise RuntimeError(
            f"{type(module).__name__} was called with gradients on while a cache is on: the gradient would miss "
            "every reused block. Train outside of the rollout context."
        )


@register
class DiffusersCache(Accelerator):
    """Reuses results of earlier denoising steps in rollouts, by one of diffusers' caches.

    Parameters: ``method`` (``FirstBlockCache``, ``TaylorSeerCache``, ``MagCache``, ``FasterCache``,
    ``PyramidAttentionBroadcast``) and the parameters of that method. Images made with it differ a little from
    those the plain model makes, which is why it is for modes that only use the final images.
    """

    name = "diffusers_cache"
    safety = "lossy"
    stage = "rollout"

    def __init__(self, params: Params) -> None:
        self._field = params.field
        self.method = params.text("method", "FirstBlockCache", allowed=tuple(METHODS)) or "FirstBlockCache"
        self._settings = read_settings(self.method, params)
        self._models: list[Any] = []
        self._active = False
        self._timestep: float | None = None
        self._shared_hooks: list[Any] = []
        self._states: dict[tuple[int, str], Any] = {}
        super().__init__(params)

    def advice(self, num_inference_steps: int | None) -> Iterator[str]:
        if num_inference_steps is not None and num_inference_steps <= FEW_STEPS:
            yield (
                f"{self.method} with {num_inference_steps} steps: with so few steps it reuses little, or harms the "
                "images; measure the gain, or remove it"
            )
        expected = self._settings.get("num_inference_steps", 28 if self.method == "MagCache" else None)
        if expected is not None and num_inference_steps not in (None, expected):
            yield f"{self.method} is set for {expected} steps, but a rollout has {num_inference_steps}"

    def setup(self, models: Mapping[str, nn.Module]) -> None:
        """Check every model by enabling the cache once and disabling it again."""
        peeled = {role: peel(model) for role, model in models.items()}
        for role, model in peeled.items():
            self._check_class(role, model)
        for role, model in peeled.items():
            self._try(role, model)
        self._models = list(peeled.values())

    def _check_class(self, role: str, model: nn.Module) -> None:
        from diffusers.models.cache_utils import CacheMixin

        if isinstance(model, CacheMixin):
            return
        kind = type(model).__name__
        reason = (
            "a UNet has no stack of equal transformer blocks to reuse"
            if kind.startswith("UNet")
            else "diffusers offers no cache for this class of model"
        )
        raise UnsupportedError(
            f"diffusers_cache does not work on {kind} ({role}): {reason}",
            field=self._field,
            hint="remove diffusers_cache from acceleration.rollout for this model",
        )

    def _try(self, role: str, model: nn.Module) -> None:
        kind = type(model).__name__
        try:
            with self._enabled(model):
                hooks = _hooks(model, METHODS[self.method].hook)
        except (ValueError, TypeError, IndexError, AttributeError, KeyError) as error:
            raise UnsupportedError(
                f"{self.method} cannot be used on {kind} ({role}): {error}",
                field=self._field,
                hint="choose another method, TaylorSeerCache for example, or remove diffusers_cache",
            ) from error
        if not hooks:
            raise UnsupportedError(
                f"{self.method} finds nothing to reuse in {kind} ({role}): no block matches",
                field=self._field,
                hint="choose another method, or remove diffusers_cache from acceleration.rollout for this model",
            )

    def _now(self) -> float:
        if self._timestep is None:
            raise RuntimeError(f"{self.method} decides by the timestep: give it to branch(name, timestep)")
        return float(self._timestep)

    @contextmanager
    def _enabled(self, model: Any) -> Iterator[None]:
        if model.is_cache_enabled:
            log.warning("a cache was already on in %s; it is replaced", type(model).__name__)
            model.disable_cache()
        config = make_config(self.method, self._settings, self._now)
        try:
            model.enable_cache(config)
            _forget_stale_registries(model)
            yield
        finally:
            model._cache_config = config  # to remove hooks of an attempt that failed half-way too
            model.disable_cache()
            _forget_stale_registries(model)

    @contextmanager
    def rollout_context(self) -> Iterator[None]:
        """Inside the block, the cache is on, initially empty, and refuses calls with gradients. It is always
        disabled at the end.
        """
        if self._active:
            raise RuntimeError("rollout contexts of diffusers_cache cannot be nested")
        if not self._models:
            raise RuntimeError("diffusers_cache is used before setup")
        with ExitStack() as stack:
            self._active = True
            stack.callback(self._leave)
            for model in self._models:
                stack.enter_context(self._enabled(model))
                stack.callback(model.register_forward_pre_hook(_refuse_gradients).remove)
                # These keep one state for all calls; each branch gets its own.
                self._shared_hooks += [*_hooks(model, "pyramid_attention"), *_hooks(model, "faster_cache")]
            self.reset()
            yield

    def _leave(self) -> None:
        self._active = False
        self._timestep = None
        self._states.clear()
        self._shared_hooks.clear()

    def reset(self) -> None:
        """Clear the cache before other images."""
        self._states.clear()
        for model in self._models:
            model._reset_stateful_cache()

    @contextmanager
    def branch(self, name: str, timestep: float | None = None) -> Iterator[None]:
        """Wrap one call of the denoiser. Each ``name`` has a cache of its own.

        Args:
            name: ``cond``, ``uncond``, or another name for calls that may share work.
            timestep: 0 to 1000, for methods that depend on it.
        """
        if not self._active:
            yield
            return
        self._timestep = timestep
        for hook in self._shared_hooks:
            hook.state = self._states.setdefault((id(hook), name), type(hook.state)())
        with ExitStack() as stack:
            for model in self._models:
                stack.enter_context(model.cache_context(name))
            yield

    def teardown(self) -> None:
        self._models = []


def _forget_stale_registries(model: nn.Module) -> None:
    """Before diffusers 0.42, the list of hooked parts was not updated when hooks changed."""
    from diffusers.hooks.hooks import HookRegistry

    registry = HookRegistry.check_if_exists_or_initialize(model)
    if not hasattr(registry, "invalidate_child_registries_cache"):
        registry._child_registries_cache = None
