"""Files and folders dropped from a file manager, if the platform's library for it loads."""

from __future__ import annotations

import logging
import tkinter as tk
from collections.abc import Callable
from pathlib import Path

from modules.ui.texts import files as words
from modules.util.errors import UserError

log = logging.getLogger(__name__)
SHOWN = 5


def load_drops(root: tk.Tk) -> bool:
    """Enable dropping in a program. Return ``False`` if it is not available."""
    try:
        from tkinterdnd2 import TkinterDnD

        TkinterDnD._require(root)
    except (ImportError, RuntimeError, tk.TclError, OSError) as error:
        log.info("dropping files is not available: %s", error)
        return False
    root.drops_loaded = True  # type: ignore[attr-defined]
    return True


def accept_drops(widget: tk.Widget, dropped: Callable[[list[Path]], None]) -> None:
    """Call ``dropped`` with files dropped on a widget, or on a child that accepts nothing itself. While another window
    keeps all input, they are refused.
    """
    if not getattr(widget._root(), "drops_loaded", False):  # type: ignore[attr-defined]
        return

    def take(event: object) -> str:
        names = [str(name) for name in widget.tk.splitlist(getattr(event, "data", ""))]
        if not names or _is_blocked(widget):
            return "refuse_drop"
        dropped([Path(name) for name in names])
        return "copy"

    widget.drop_target_register("DND_Files")  # type: ignore[attr-defined]
    widget.dnd_bind("<<Drop>>", take)  # type: ignore[attr-defined]


def _is_blocked(widget: tk.Misc) -> bool:
    """Return whether all input goes to another window. Tk keeps back keys and clicks then, but not what is dropped."""
    holders = [str(one) for one in widget.tk.splitlist(widget.tk.call("grab", "current"))]
    return any(not f"{widget}.".startswith(f"{one}.") for one in holders)


def one_config(paths: list[Path]) -> Path:
    """The dropped config.

    Raises:
        UserError: something else or several files were dropped.
    """
    others = [path for path in paths if path.suffix.lower() != ".json" or not path.is_file()]
    if others:
        raise UserError(
            f"{names_of(others)} cannot be opened here",
            hint="drop a config (.json) here, folders of images onto the list of concepts, and images, prompts and "
            "workflows onto the Home page",
        )
    if len(paths) > 1:
        raise UserError(f"{len(paths)} configs were dropped at once", hint="drop the one to open")
    return paths[0]


def only_folders(paths: list[Path]) -> list[Path]:
    """The dropped folders.

    Raises:
        UserError: something else was dropped with them.
    """
    others = [path for path in paths if not path.is_dir()]
    if others:
        raise UserError(
            f"not a folder: {names_of(others)}",
            hint="drop the folder that holds the images; nothing was added",
        )
    return paths


def nearest_folder(paths: list[Path]) -> Path:
    """The dropped folder, or the folder of the dropped file.

    Raises:
        UserError: the file or folder does not exist on this computer.
    """
    first = paths[0]
    if not first.exists():
        raise UserError(f"{first} is not a file or folder of this computer", hint="drop a folder of images")
    return first if first.is_dir() else first.parent


def names_of(paths: list[Path]) -> str:
    """The names of the first few, for a message."""
    shown = ", ".join(path.name or str(path) for path in paths[:SHOWN])
    return words.AND_MORE.format(names=shown, count=len(paths) - SHOWN) if len(paths) > SHOWN else shown
