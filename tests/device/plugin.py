"""A pytest plugin (``-p tests.device.plugin``): runs take place on another device, whatever device they name.

``TEST_DEVICE`` says on which: ``second`` (a device made for tests, see ``second_device.py``) or ``cuda``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from modules.trainer import distributed
from tests.device import second_device

NAME = os.environ.get("TEST_DEVICE", second_device.NAME)
if NAME == second_device.NAME:
    second_device.register(second_device.build(Path(os.environ["SECOND_DEVICE_FOLDER"])))
as_it_was = distributed.Processes.__init__


def _elsewhere(self: distributed.Processes, *args: Any, **kwargs: Any) -> None:
    as_it_was(self, *args, **kwargs)
    self.device = torch.device(NAME, 0)


distributed.Processes.__init__ = _elsewhere  # type: ignore[method-assign]
