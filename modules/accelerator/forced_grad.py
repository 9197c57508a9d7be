"""Runs a denoiser with gradients enabled inside code that has disabled them.

Dynamo compiles one program for calls with gradients and another for calls without; the two may differ in the
last bits. A rollout that has to give the numbers of the training forward runs the training program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def _with_grad(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    @functools.wraps(function)
    def forced(*args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            return function(*args, **kwargs)

    return forced


@contextmanager
def _replaced(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of the instance, and restore it afterwards (absent, if it came from the class)."""
    own = name in module.__dict__
    before = module.__dict__.get(name)
    object.__setattr__(module, name, value)
    try:
        yield
    finally:
        if own:
            object.__setattr__(module, name, before)
        else:
            object.__delattr__(module, name)


@contextmanager
def _put_aside(module: nn.Module, name: str) -> Iterator[None]:
    """Temporarily restore the attribute of the class."""
    forced = module.__dict__.pop(name)
    try:
        yield
    finally:
        module.__dict__[name] = forced


def _force(module: nn.Module, stack: ExitStack) -> None:
    before = module.__dict__.get("forward")
    stack.enter_context(_replaced(module, "forward", _with_grad(module.forward)))
    compiled = module._compiled_call_impl
    if compiled is None:
        return

    def plain(*args: Any, **kwargs: Any) -> Any:
        # Dynamo guards on ``forward``: with the forced one in place it would compile a third program.
        with ExitStack() as inner:
            if before is None:
                inner.enter_context(_put_aside(module, "forward"))
            else:
                inner.enter_context(_replaced(module, "forward", before))
            return compiled(*args, **kwargs)

    stack.enter_context(_replaced(module, "_compiled_call_impl", _with_grad(plain)))


@contextmanager
def forced_grad(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Run both entry points of the modules, ``forward`` and the compiled call, with gradients enabled.

    Their results stay connected to the graph. Detach them before the next step, otherwise memory grows with
    every step.
    """
    with ExitStack() as stack:
        for module in dict.fromkeys(modules):
            _force(module, stack)
        yield
