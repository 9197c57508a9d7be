"""Dialogs for folders and files: those of the desktop if available, otherwise Tk's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tkinter as tk
from collections.abc import Sequence
from pathlib import Path
from tkinter import filedialog
from typing import Literal, Protocol

from modules.ui.texts import files as words
from modules.ui.widgets.tk_support import cancel_timer, focused, keep_input, later, show_error
from modules.util.errors import UserError

Kinds = Sequence[tuple[str, str]]
ANY: Kinds = ((words.ALL_FILES, "*"),)
JSON: Kinds = ((words.JSON_FILES, "*.json"), *ANY)
FOREIGN: Kinds = ((words.FOREIGN_FILES, words.FOREIGN_NAMES), *ANY)
What = Literal["folder", "file", "save"]
"""An existing folder, an existing file, or a file to write."""
POLL_MS = 40


class Remembers(Protocol):
    """Stores the last folder."""

    folder: str


class Chooser:
    """Asks for paths. It starts at the field's path, else in the last chosen folder, else in the home folder.

    Args:
        memory: stores the last folder.
    """

    def __init__(self, root: tk.Misc, memory: Remembers) -> None:
        self._root, self._memory = root, memory

    def folder(self, title: str, at: str = "", parent: tk.Misc | None = None) -> Path | None:
        """Ask for an existing folder; ``None`` if cancelled.

        Args:
            at: current text of the field.
            parent: the window that asks.
        """
        found = self._ask("folder", title, self._start(at), "", ANY, parent)
        if found is None:
            return None
        if not found.is_dir():
            self._refuse(words.NOT_A_FOLDER.format(path=found), parent)
            return None
        self._memory.folder = str(found)
        return found

    def file(
        self, title: str, at: str = "", kinds: Kinds = ANY, parent: tk.Misc | None = None
    ) -> Path | None:
        """Ask for an existing file; ``None`` if cancelled."""
        found = self._ask("file", title, self._start(at), "", kinds, parent)
        if found is None:
            return None
        if not found.is_file():
            self._refuse(words.NOT_A_FILE.format(path=found), parent)
            return None
        self._memory.folder = str(found.parent)
        return found

    def save_file(
        self, title: str, at: str = "", name: str = "", kinds: Kinds = ANY, parent: tk.Misc | None = None
    ) -> Path | None:
        """Ask for a file to write in an existing folder, and whether to replace one; ``None`` if cancelled.

        Args:
            name: suggested file name.
        """
        given = Path(at).name if at else ""
        found = self._ask("save", title, self._start(at), name or given, kinds, parent)
        if found is None:
            return None
        if not found.parent.is_dir():
            self._refuse(words.NOT_A_FOLDER.format(path=found.parent), parent)
            return None
        ending = kinds[0][1].removeprefix("*")
        if not found.suffix and ending:
            found = found.with_name(found.name + ending)
            if found.exists():  # replacing it was not confirmed
                self._refuse(words.EXISTS.format(path=found), parent)
                return None
        self._memory.folder = str(found.parent)
        return found

    def path(self, what: What, title: str, at: str, parent: tk.Misc) -> Path | None:
        """Ask for a path of one kind, as the method of that kind does."""
        if what == "folder":
            return self.folder(title, at, parent=parent)
        return (self.file if what == "file" else self.save_file)(title, at, parent=parent)

    def _refuse(self, message: str, parent: tk.Misc | None) -> None:
        show_error(parent or self._root, UserError(message, hint="Choose another one"))

    def _start(self, at: str) -> Path:
        places = [Path(at), Path(at).parent] if at and Path(at).is_absolute() else [Path(at)] if at else []
        if self._memory.folder:
            places.append(Path(self._memory.folder))
        for place in places:
            try:
                if place.is_dir():
                    return place.absolute()
            except (OSError, ValueError):  # not a file name at all
                continue
        return Path.home()

    def _ask(
        self, what: What, title: str, start: Path, name: str, kinds: Kinds, parent: tk.Misc | None
    ) -> Path | None:
        window = parent or self._root
        for line in desktop_commands(what, title, start, name, kinds):
            code, said = _run(window, line)
            if code == 0 and said:
                return Path(said)
            if code in (0, 1):  # cancelled
                return None
        return _ask_tk(window, what, title, start, name, kinds)


def desktop_commands(what: What, title: str, start: Path, name: str, kinds: Kinds) -> list[list[str]]:
    """Command lines of the desktop's file dialogs, best first; none if Tk uses the desktop's own."""
    if not sys.platform.startswith("linux"):
        return []
    place = str(start / name) if name else f"{start}{os.sep}"
    filters = [f"--file-filter={label} | {pattern}" for label, pattern in kinds]
    zenity = ["--file-selection", f"--title={title}", f"--filename={place}"]
    zenity += {
        "folder": ["--directory"],
        "file": filters,
        "save": ["--save", "--confirm-overwrite", *filters],
    }[what]
    verb = {"folder": "--getexistingdirectory", "file": "--getopenfilename", "save": "--getsavefilename"}[
        what
    ]
    kdialog = ["--title", title, verb, place]
    if what != "folder":
        kdialog.append("\n".join(f"{pattern}|{label}" for label, pattern in kinds))
    lines = {"zenity": zenity, "kdialog": kdialog}
    names = sorted(lines, reverse="KDE" not in os.environ.get("XDG_CURRENT_DESKTOP", "").upper())
    return [[found, *lines[name]] for name in names if (found := shutil.which(name))]


def _run(window: tk.Misc, line: list[str]) -> tuple[int | None, str]:
    """Run a dialog and return exit status and answer. Meanwhile, the program's own windows ignore input."""
    try:
        process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            errors="surrogateescape",
        )  # fmt: skip
    except OSError:
        return None, ""
    back = focused(window)
    guard = tk.Frame(window.winfo_toplevel(), width=1, height=1)
    guard.bindtags((str(guard),))  # keys do nothing here
    guard.place(x=0, y=0)
    guard.update_idletasks()
    keep_input(guard)
    guard.focus_set()
    timer = ""

    def look() -> None:
        nonlocal timer
        timer = later(guard, POLL_MS, look) if process.poll() is None else ""
        if timer:
            return
        if back is not None and back.winfo_exists() and focused(guard) in (None, guard):
            back.focus_set()
        guard.destroy()

    timer = later(guard, POLL_MS, look)
    guard.bind("<Destroy>", lambda _event: cancel_timer(guard, timer) if timer else None, add="+")
    window.wait_window(guard)
    if process.poll() is None:  # the window was closed
        process.kill()
        process.communicate()
        return 1, ""
    said, _ = process.communicate()
    return process.returncode, said.removesuffix("\n")


def _ask_tk(window: tk.Misc, what: What, title: str, start: Path, name: str, kinds: Kinds) -> Path | None:
    _hide_hidden_files(window)
    if what == "folder":
        found = filedialog.askdirectory(parent=window, title=title, initialdir=start, mustexist=True)
    elif what == "file":
        found = filedialog.askopenfilename(
            parent=window, title=title, initialdir=start, filetypes=list(kinds)
        )
    else:
        ending = kinds[0][1].removeprefix("*")
        found = filedialog.asksaveasfilename(
            parent=window, title=title, initialdir=start, initialfile=name, filetypes=list(kinds),
            defaultextension=ending,
        )  # fmt: skip
    return Path(found) if found else None


def _hide_hidden_files(window: tk.Misc) -> None:
    """Hide hidden files in Tk's own file dialogs on X11, and add a button that shows them."""
    if window.tk.call("tk", "windowingsystem") != "x11":
        return
    window.tk.eval("catch {tk_getOpenFile -no-such-option}")  # loads the script that defines the variables
    for variable, value in (("showHiddenBtn", 1), ("showHiddenVar", 0)):
        window.tk.call("set", f"::tk::dialog::file::{variable}", value)
