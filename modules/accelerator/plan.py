"""All accelerators of a run: set up once, used around rollouts, undone at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from modules.accelerator.base import Accelerator, peel
from modules.accelerator.slots import Checked, Paradigm, check_slots, parse_slots

if TYPE_CHECKING:
    from torch import nn


class Rollout:
    """The interface for code that makes images: ``branch`` around each call of the denoiser."""

    def __init__(self, accelerators: list[Accelerator], forced: bool) -> None:
        self._accelerators = accelerators
        self.forced_grad = forced

    @contextmanager
    def branch(self, name: str = "cond", timestep: float | None = None) -> Iterator[None]:
        """Entered around one call of the denoiser.

        Args:
            name: ``cond`` or ``uncond``; one name for a call with both halves in one batch.
            timestep: 0 to 1000, for caches that depend on it.
        """
        with ExitStack() as stack:
            for one in self._accelerators:
                stack.enter_context(one.branch(name, timestep))
            yield

    def new_images(self) -> None:
        """Drop cached work of earlier images; called at the start of every rollout."""
        for one in self._accelerators:
            one.reset()


class AccelerationPlan:
    """The accelerators of one run.

    Attributes:
        warnings: warnings to show the user once.
        lossless: whether training and rollout agree to the last bit under this plan.
        forces_grad: whether the denoiser runs with gradients enabled in rollouts and evaluation.
    """

    def __init__(self, checked: Checked, paradigm: Paradigm) -> None:
        self._shared = checked.shared
        self._rollout = checked.rollout
        self.warnings = list(checked.warnings)
        self.paradigm = paradigm
        self.lossless = all(one.safety == "lossless" for one in [*self._shared, *self._rollout])
        self.forces_grad = paradigm == "coupled" and any(one.requires_grad_rollout for one in self._shared)
        self._undo = ExitStack()
        self._models: list[nn.Module] | None = None
        self._current: Rollout | None = None

    @property
    def names(self) -> list[str]:
        return [one.name for one in [*self._shared, *self._rollout]]

    def setup(self, models: Mapping[str, nn.Module]) -> None:
        """Apply everything in order, after resume, EMA and reference, because the weights must be final.

        Args:
            models: role to the denoiser that is called in rollouts and in training.

        Raises:
            UserError: an accelerator does not work here. Earlier ones are reverted.
        """
        if self._models is not None:
            raise RuntimeError("the acceleration plan is already set up")
        if not models:
            raise ValueError("no models to accelerate")
        with ExitStack() as stack:
            for one in [*self._shared, *self._rollout]:
                stack.callback(one.teardown)
                one.setup(models)
                self.warnings += one.warnings
            self._undo = stack.pop_all()
        outer = list(models.values())
        self._models = list(dict.fromkeys([*outer, *map(peel, outer)]))

    @contextmanager
    def rollout(self) -> Iterator[Rollout]:
        """Entered around the making of one batch of images: no gradients, except inside the denoiser if forced."""
        with self._stage([*self._shared, *self._rollout]) as rollout:
            yield rollout

    @contextmanager
    def evaluation(self) -> Iterator[Rollout]:
        """Like ``rollout``, without accelerators of rollouts only: the images of the model as it is."""
        with self._stage(list(self._shared)) as rollout:
            yield rollout

    @contextmanager
    def branch(self, name: str = "cond", timestep: float | None = None) -> Iterator[None]:
        """Entered around one call of the denoiser; in a rollout, as ``Rollout.branch``.

        In training it changes nothing, except that a plan that forces gradients forces them here too. The
        unconditional half, computed without gradients, then runs the same program as in the rollout.
        """
        from modules.accelerator.forced_grad import forced_grad

        if self._current is not None:
            with self._current.branch(name, timestep):
                yield
        elif self.forces_grad and self._models is not None:
            with forced_grad(self._models):
                yield
        else:
            yield

    @contextmanager
    def _stage(self, accelerators: list[Accelerator]) -> Iterator[Rollout]:
        import torch

        from modules.accelerator.forced_grad import forced_grad

        if self._models is None:
            raise RuntimeError("the acceleration plan is used before setup")
        if self._current is not None:
            raise RuntimeError("rollouts and evaluations cannot be nested")
        with ExitStack() as stack:
            self._current = Rollout(accelerators, self.forces_grad)
            stack.callback(setattr, self, "_current", None)
            # The VAE and the sampler's own arithmetic need no graph, even if the denoiser must have one.
            stack.enter_context(torch.no_grad())
            for one in accelerators:
                stack.enter_context(one.rollout_context())
            if self.forces_grad:
                stack.enter_context(forced_grad(self._models))
            yield self._current

    def teardown(self) -> None:
        """Undo everything in reverse order, even if one fails. May be called twice."""
        self._models = None
        self._undo.close()


def build_plan(
    value: Mapping[str, Any] | None,
    paradigm: Paradigm,
    *,
    swaps_weights: bool = False,
    num_inference_steps: int | None = None,
) -> AccelerationPlan:
    """Make the plan for the ``acceleration`` section of a config, and check it without loading torch.

    Args:
        value: ``{shared: [...], rollout: [...]}`` or ``None``.
        paradigm: how the mode uses its rollouts.
        swaps_weights: whether the reference or an old policy swaps weights by pointer.
        num_inference_steps: denoising steps of a rollout.

    Raises:
        ConfigError | UserErrors: the faults of the section.
    """
    checked = check_slots(
        parse_slots(value), paradigm, swaps_weights=swaps_weights, num_inference_steps=num_inference_steps
    )
    return AccelerationPlan(checked, paradigm)
