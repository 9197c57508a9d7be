"""Files and folders dropped from a file manager, where the platform's library for it loads."""

from __future__ import annotations

import logging
import tkinter as tk
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)


def load_drops(root: tk.Tk) -> bool:
    """Make dropping possible in a program; false, and nothing else, where it is not."""
    try:
        from tkinterdnd2 import TkinterDnD

        TkinterDnD._require(root)
    except (ImportError, RuntimeError, tk.TclError, OSError) as error:
        log.info("dropping files is not available: %s", error)
        return False
    root.drops_loaded = True  # type: ignore[attr-defined]
    return True


def accept_drops(widget: tk.Widget, dropped: Callable[[list[Path]], None]) -> None:
    """Call ``dropped`` with what is dropped on a widget."""
    if not getattr(widget._root(), "drops_loaded", False):  # type: ignore[attr-defined]
        return

    def take(event: object) -> str:
        names = widget.tk.splitlist(getattr(event, "data", ""))
        dropped([Path(name) for name in names])
        return "copy"

    widget.drop_target_register("DND_Files")  # type: ignore[attr-defined]
    widget.dnd_bind("<<Drop>>", take)  # type: ignore[attr-defined]
