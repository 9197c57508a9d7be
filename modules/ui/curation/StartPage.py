"""The first page of the pair tool: image folder, output folder and way of choosing."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tkinter import ttk

from modules.curation.CurationMode import CurationMode
from modules.curation.group_state import SessionSettings
from modules.curation.intake.edit_sources import options_of_form
from modules.curation.intake.folders import check_folders
from modules.curation.intake.groups import ScanOptions
from modules.ui.curation.PairController import PickingOptions
from modules.ui.curation.PairToolMemory import PairToolMemory
from modules.ui.form.inputs import choice_box
from modules.ui.state.SessionStore import SessionStore, WindowMemory
from modules.ui.texts import start as words
from modules.ui.widgets.Chooser import Chooser
from modules.ui.widgets.drop import accept_drops, nearest_folder
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.ui.widgets.theme import APPEARANCES, SCALES, Theme
from modules.ui.widgets.tk_support import (
    IDLE,
    Pump,
    Timer,
    dialog_with_focus,
    elide_middle,
    later,
    on_event,
    run_in_thread,
    show_in_grid,
)
from modules.util.display import counted
from modules.util.dpo_curation_util import load_manifest
from modules.util.errors import UserError
from modules.util.files.user_path import user_path

LOOK_MS = 300


class Looks:
    """Appearance and scale if there is no main window to set them.

    Args:
        store: keeps them; the main window reads the same file.
    """

    def __init__(self, theme: Theme, store: SessionStore, memory: WindowMemory) -> None:
        self._theme, self._store, self._memory = theme, store, memory

    @property
    def now(self) -> tuple[str, int]:
        """Appearance and scale."""
        return self._memory.appearance, self._memory.scale

    def set(self, appearance: str, scale: int) -> None:
        """Change and save them. Raises ``OSError`` if they cannot be saved."""
        self._memory, _ = self._store.load_window()
        self._memory.appearance, self._memory.scale = appearance, scale
        self._theme.apply(appearance, scale)
        self._store.save_window(self._memory)


@dataclass(frozen=True)
class StartActions:
    """Callbacks of the page.

    Args:
        start: called with valid options.
        review: opens the review of an output folder.
        looks: called with a new appearance and scale.
    """

    start: Callable[[PickingOptions], None]
    review: Callable[[Path], None]
    looks: Callable[[str, int], None]


class StartPage(ttk.Frame):
    """A form with one button that starts or continues a session.

    Args:
        memory: fills the form, and is updated on start.
        looks: shown if there is no main window to set them.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        pump: Pump,
        memory: PairToolMemory,
        chooser: Chooser,
        actions: StartActions,
        looks: Looks | None = None,
    ) -> None:
        super().__init__(parent, style="Back.TFrame")
        self.theme, self.memory = theme, memory
        self._pump, self._chooser, self._actions = pump, chooser, actions
        self._looking = Timer(self, LOOK_MS, self._look)
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self.source = tk.StringVar(self, memory.source)
        self.output = tk.StringVar(self, memory.output)
        self.edited = tk.StringVar(self, memory.sources)
        self.edits = tk.BooleanVar(self, memory.edits)
        self.mode = CurationMode(memory.mode)
        self.pairs = tk.StringVar(self, str(memory.pairs_per_group))
        self.certainty = tk.StringVar(self, f"{memory.certainty:g}")
        self.merge = tk.BooleanVar(self, memory.near_duplicates >= 0)
        self.bits = tk.StringVar(self, str(memory.near_duplicates if memory.near_duplicates >= 0 else 2))
        self.blind = tk.BooleanVar(self, memory.blind)
        self.ask = tk.BooleanVar(self, memory.ask_to_continue)
        self.errors: dict[str, ttk.Label] = {}
        self.entries: dict[str, ttk.Entry] = {}
        self.mode_buttons: dict[CurationMode, ttk.Button] = {}
        scroll = ScrollFrame(self, theme)
        scroll.grid(row=0, column=0, sticky="nsew")
        scroll.inside.columnconfigure(0, weight=1)
        card = ttk.Frame(scroll.inside, padding=theme.px(16))
        card.grid(row=0, column=0, sticky="new", padx=theme.px(16), pady=theme.px(12))
        card.columnconfigure(1, weight=1)
        self._card, self._row = card, 0
        self._folders()
        self._modes()
        self._details()
        if looks is not None:
            self._looks(looks)
        self._bottom()
        self._show_mode()
        self._suggested = suggested_output(memory.source)
        self._follow()
        self.source.trace_add("write", lambda *_: self._follow())
        for folder in (self.source, self.output):
            folder.trace_add("write", lambda *_: self._looking.restart())
        self._looking.start()
        for name, entry in self.entries.items():
            if name in ("source", "output"):
                accept_drops(entry, partial(self._dropped, name))
        later(self, IDLE, self._first_focus)

    def _first_focus(self) -> None:
        """Give the focus to the first thing to do; while a dialog over this window has it, wait until that closes."""
        dialog = dialog_with_focus(self)
        if dialog is not None:
            dialog.bind("<Destroy>", lambda _event: later(self, IDLE, self._first_focus), add="+")
            return
        empty = [name for name in ("source", "output") if not self.folder_of(name)]
        (self.entries[empty[0]] if empty else self.go).focus_set()

    def folder_of(self, name: str) -> str:
        """The content of a folder field."""
        return (self.source if name == "source" else self.output).get().strip()

    def _dropped(self, name: str, paths: list[Path]) -> None:
        try:
            folder = nearest_folder(paths)
        except UserError as error:
            self.show_error(name, str(error))
            return
        self.show_error(name, "")
        (self.source if name == "source" else self.output).set(str(folder))

    # --- building -----------------------------------------------------------------------------------------------

    def _add(self, label: str, widget: tk.Widget, name: str | None = None, sticky: str = "ew") -> None:
        px = self.theme.px
        if label:
            ttk.Label(self._card, text=label).grid(
                row=self._row, column=0, sticky="nw", padx=(0, px(14)), pady=px(6)
            )
        widget.grid(row=self._row, column=1, sticky=sticky, pady=px(3))
        self._row += 1
        if name is not None:
            error = ttk.Label(self._card, style="Error.TLabel", wraplength=px(560))
            error.grid(row=self._row, column=1, sticky="w")
            error.grid_remove()
            self.errors[name] = error
            self._row += 1

    def _folder_field(self, label: str, name: str, variable: tk.StringVar) -> None:
        holder = ttk.Frame(self._card)
        holder.columnconfigure(0, weight=1)
        entry = ttk.Entry(holder, textvariable=variable, font=self.theme.fonts["text"])
        entry.grid(row=0, column=0, sticky="ew")
        entry.bind("<Return>", lambda _event: self.submit())
        self.entries[name] = entry
        button = ttk.Button(holder, text=words.BROWSE, command=lambda: self._browse(label, variable))
        button.grid(row=0, column=1, padx=(self.theme.px(6), 0))
        self._add(label, holder, name)

    def _browse(self, title: str, variable: tk.StringVar) -> None:
        folder = self._chooser.folder(title, variable.get().strip(), parent=self)
        if folder is not None:
            variable.set(str(folder))

    def _folders(self) -> None:
        if self.memory.recent:
            names = [elide_middle(source, 70) for source, _ in self.memory.recent]
            box = choice_box(self._card, self.theme, names)
            box.set(words.EARLIER)
            box.bind("<<ComboboxSelected>>", lambda _event: self._take_recent(box.current()))
            self._add(words.RECENT, box)
        self._folder_field(words.IMAGES, "source", self.source)
        self._folder_field(words.PAIRS, "output", self.output)
        self.found = ttk.Label(self._card, style="Small.TLabel", wraplength=self.theme.px(560))
        self._add("", self.found)

    def _take_recent(self, index: int) -> None:
        source, output = self.memory.recent[index]
        self.source.set(source)
        self.output.set(output)

    def _modes(self) -> None:
        px = self.theme.px
        holder = ttk.Frame(self._card)
        holder.columnconfigure(1, weight=1)
        modes = list(CurationMode)
        for row, mode in enumerate(modes):
            way = mode.way
            button = ttk.Button(holder, text=way.title, width=9, command=partial(self.set_mode, mode))
            button.grid(row=row, column=0, sticky="ew")
            for key, step in (("<Up>", -1), ("<Down>", 1)):
                other = modes[(row + step) % len(modes)]
                button.bind(key, on_event(self._focus_mode, other))
            label = ttk.Label(holder, text=way.text, style="Muted.TLabel")
            label.grid(row=row, column=1, sticky="ew", padx=px(10))
            label.bind("<Button-1>", on_event(self.set_mode, mode))
            wrap_to_width(label)
            self.mode_buttons[mode] = button
        self._add(words.HOW, holder)

    def _focus_mode(self, mode: CurationMode) -> str:
        self.mode_buttons[mode].focus_set()
        self.set_mode(mode)
        return "break"

    def set_mode(self, mode: CurationMode) -> None:
        """Select a way of choosing."""
        self.mode = mode
        self._show_mode()

    def _show_mode(self) -> None:
        for mode, button in self.mode_buttons.items():
            button.configure(style="SideOn.TButton" if mode is self.mode else "Side.TButton")
        self.entries["threshold"].state(["!disabled" if self.mode.way.stops_when_certain else "disabled"])

    def _number(self, label: str, name: str, variable: tk.StringVar, unit: str) -> None:
        holder = ttk.Frame(self._card)
        entry = ttk.Entry(holder, textvariable=variable, width=6, font=self.theme.fonts["text"])
        entry.pack(side="left")
        entry.bind("<Return>", lambda _event: self.submit())
        ttk.Label(holder, text=unit, style="Muted.TLabel").pack(side="left", padx=self.theme.px(8))
        self.entries[name] = entry
        self._add(label, holder, name)

    def _switch(self, text: str, variable: tk.BooleanVar) -> None:
        button = ttk.Checkbutton(self._card, text=text, variable=variable)
        button.bind("<Return>", lambda _event: button.invoke())
        self._add("", button, sticky="w")

    def _details(self) -> None:
        self._number(words.PAIRS_PER_PROMPT, "pairs_per_group", self.pairs, words.PAIRS_PER_PROMPT_UNIT)
        self._number(words.CERTAINTY, "threshold", self.certainty, words.CERTAINTY_UNIT)
        self._switch(words.MERGE, self.merge)
        self._number(words.TOLERANCE, "near_duplicates", self.bits, words.TOLERANCE_UNIT)
        self._folder_field(words.SOURCES, "sources", self.edited)
        self._add("", wrapped_note(self._card, words.SOURCES_NOTE))
        self._switch(words.EDITS, self.edits)
        self._switch(words.BLIND, self.blind)
        self._switch(words.ASK, self.ask)

    def _looks(self, looks: Looks) -> None:
        holder = ttk.Frame(self._card)
        appearance = choice_box(holder, self.theme, APPEARANCES, 9)
        appearance.set(looks.now[0])
        appearance.pack(side="left")
        scale = choice_box(holder, self.theme, [f"{n} %" for n in SCALES], 7)
        scale.set(f"{looks.now[1]} %")
        scale.pack(side="left", padx=self.theme.px(8))

        def changed(_event: object) -> None:
            self._keep()
            self._actions.looks(appearance.get(), int(scale.get().split()[0]))

        self.look_boxes = (appearance, scale)
        for box in self.look_boxes:
            box.bind("<<ComboboxSelected>>", changed)
        self._add(words.APPEARANCE, holder)

    def _bottom(self) -> None:
        px = self.theme.px
        bottom = ttk.Frame(self, padding=(px(16), px(8)))
        bottom.grid(row=1, column=0, sticky="ew")
        bottom.columnconfigure(0, weight=1)
        row = FlowFrame(bottom, self.theme.px(6))
        row.grid(row=0, column=0, sticky="ew")
        self.go = ttk.Button(row, text=words.START, style="Accent.TButton", command=self.submit)
        self.go.bind("<Return>", lambda _event: self.submit())
        self.review_button = ttk.Button(row, text=words.REVIEW, command=self._open_review)
        self.review_button.bind("<Return>", lambda _event: self._open_review())
        row.add(self.go, self.review_button)

    # --- the output folder --------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Suggest a folder next to the images until the person chooses another one."""
        before, self._suggested = self._suggested, suggested_output(self.source.get())
        if self.output.get().strip() in ("", before):
            self.output.set(self._suggested)

    def _look(self) -> None:
        name = self.output.get().strip()
        if not name:
            self._found(None)
            return

        def count() -> int | None:
            folder = user_path(name)
            return len(load_manifest(folder)["pairs"]) if (folder / "manifest.json").exists() else None

        run_in_thread(
            self._pump,
            count,
            lambda count: self._found(count if isinstance(count, int) else None),
            lambda error: self._found(None, str(error)),
        )

    def _found(self, pairs: int | None, problem: str = "") -> None:
        if not self.winfo_exists():
            return
        text = words.NEW_FOLDER
        if pairs is not None:
            text = words.CONTINUES.format(pairs=counted(pairs, words.PAIR))
        self.found.configure(text=problem or text)
        self.go.configure(text=words.START if pairs is None else words.CONTINUE)
        self.review_button.state(["!disabled" if pairs else "disabled"])

    def _open_review(self) -> None:
        self._actions.review(user_path(self.output.get().strip()))

    # --- starting -----------------------------------------------------------------------------------------------

    def show_error(self, name: str, message: str) -> None:
        """Mark a field and show the reason; an empty message removes the mark."""
        label = self.errors[name]
        label.configure(text=message)
        show_in_grid(label, bool(message))
        if message:
            self.entries[name].focus_set()
        self.entries[name].state(["invalid" if message else "!invalid"])

    def _read_number(self, name: str, text: str, low: float, high: float, whole: bool) -> float | None:
        try:
            value = float(int(text)) if whole else float(text)
        except ValueError:
            value = float("nan")
        if low <= value <= high:
            return value
        kind = words.WHOLE if whole else words.ANY
        self.show_error(name, words.NOT_A_NUMBER.format(value=text, kind=kind, low=low, high=high))
        return None

    def submit(self) -> None:
        """Start, or show what is wrong next to the fields."""
        for name in self.errors:
            self.show_error(name, "")
        certainty = self._read_number("threshold", self.certainty.get(), 50.1, 99.99, False)
        pairs = self._read_number("pairs_per_group", self.pairs.get(), 1, 1000, True)
        bits = self._read_number("near_duplicates", self.bits.get(), 0, 32, True)
        if not self.output.get().strip():
            self.show_error("output", words.NO_PAIRS_FOLDER)
            return
        source = Path(self.source.get().strip())
        try:
            source, output = (user_path(v.get().strip()) for v in (self.source, self.output))
            check_folders(source, output)
        except UserError as error:
            self.show_error("source" if str(source) in error.message else "output", str(error))
            return
        try:
            options_of_form(self.edited.get(), self.edits.get()).check()
        except UserError as error:
            self.show_error("sources", str(error))
            return
        if certainty is None or pairs is None or bits is None:
            return
        self._keep()
        memory = self.memory
        memory.pairs_per_group, memory.certainty = int(pairs), certainty
        memory.near_duplicates = int(bits) if self.merge.get() else -1
        memory.source, memory.output = str(source), str(output)
        memory.remember()
        self._actions.start(picking_options(memory))

    def _keep(self) -> None:
        """Remember the fields that need no check."""
        memory = self.memory
        memory.source, memory.output = self.source.get(), self.output.get()
        memory.mode = self.mode.value
        memory.blind, memory.ask_to_continue = self.blind.get(), self.ask.get()
        memory.sources, memory.edits = self.edited.get().strip(), self.edits.get()


def suggested_output(source: str) -> str:
    """The output folder suggested for a folder with images."""
    folder = Path(source.strip())
    return str(folder.with_name(f"{folder.name}-pairs")) if folder.name else ""


def wrapped_note(parent: tk.Misc, text: str) -> ttk.Label:
    """A small label that wraps to the available width."""
    label = ttk.Label(parent, text=text, style="Small.TLabel")
    wrap_to_width(label)
    return label


def wrap_to_width(label: ttk.Label) -> None:
    """Wrap the text of a label to its available width."""
    label.bind("<Configure>", lambda event: label.configure(wraplength=max(1, event.width)), add="+")


def picking_options(memory: PairToolMemory) -> PickingOptions:
    """The options of a session, from the form."""
    settings = SessionSettings(CurationMode(memory.mode), memory.pairs_per_group, memory.certainty / 100)
    merge = memory.near_duplicates if memory.near_duplicates >= 0 else None
    return PickingOptions(
        Path(memory.source),
        Path(memory.output),
        settings,
        ScanOptions(
            seed=settings.seed, near_duplicates=merge, edits=options_of_form(memory.sources, memory.edits)
        ),
        memory.ask_to_continue,
    )
