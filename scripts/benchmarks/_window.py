"""A window that lives while it is measured. Nothing here loads more than a window does."""

from __future__ import annotations

import sys
import time
import tkinter as tk
from collections.abc import Callable

PATIENCE = 120.0


def live_until(root: tk.Tk, done: Callable[[], object]) -> None:
    """Serve the window until something is done; ``TimeoutError`` after ``PATIENCE`` seconds."""
    end = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > end:
            raise TimeoutError
        root.update()
        time.sleep(0.0005)


def live_for(root: tk.Tk, seconds: float) -> None:
    """Serve the window for some time."""
    end = time.monotonic() + seconds
    live_until(root, lambda: time.monotonic() >= end)


def heavy_packages() -> list[str]:
    """The packages that this process has loaded and a window must not."""
    return sorted({"torch", "diffusers", "transformers", "peft"} & set(sys.modules))
