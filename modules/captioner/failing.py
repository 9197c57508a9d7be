"""Errors that models raise for an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from modules.util.errors import UserError
from modules.util.files.hub_names import UNREADABLE


@contextmanager
def failing_as(fault: Callable[[Exception], UserError], *more: type[Exception]) -> Iterator[None]:
    """Raise the fault of whatever a model raises in the block. That a graphics card is full is not a fault of the
    model, and stays what it is.

    Args:
        more: what the model may raise besides ``UNREADABLE``.
    """
    kinds: tuple[type[Exception], ...] = (*UNREADABLE, *more)
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except kinds as error:
        raise fault(error) from error


def check_answer(answer: torch.Tensor) -> None:
    """Check what a model computed for an image.

    Raises:
        UserError: a number is NaN.
    """
    if answer.isnan().any():
        raise UserError("the model's answer is NaN", "--model", "its files may be damaged: download it again")
