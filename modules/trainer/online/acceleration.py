"""Applies accelerators to rollouts, and to the denoiser when it trains on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from modules.accelerator.plan import AccelerationPlan, Rollout
from modules.rollout.generate import RolloutHooks


class _Hooks:
    """Passes denoiser calls to the active rollout."""

    def __init__(self, plan: AccelerationPlan) -> None:
        self._plan = plan
        self._open: Rollout | None = None

    @contextmanager
    def around(self) -> Iterator[None]:
        with self._plan.rollout() as rollout:
            rollout.new_images()
            self._open = rollout
            try:
                yield
            finally:
                self._open = None

    def branch(self, name: str, timestep: float) -> AbstractContextManager[None]:
        if self._open is None:
            raise RuntimeError("the denoiser is called as in a rollout, and none is open")
        return self._open.branch(name, timestep)


def hooks_of(plan: AccelerationPlan) -> RolloutHooks:
    """The hooks through which rollouts use the accelerators of a run."""
    hooks = _Hooks(plan)
    return RolloutHooks(rollout_context=hooks.around, branch=hooks.branch)


def training_hooks(plan: AccelerationPlan) -> RolloutHooks:
    """Hooks entered around the denoiser when steps of a rollout are recomputed, with or without gradients. A
    plan that forces gradients in rollouts forces them here too, so that both run the same program.
    """
    return RolloutHooks(branch=plan.branch)
