"""The widgets for editing fields, one class per kind of value."""

from __future__ import annotations

import tkinter as tk
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from tkinter import ttk
from typing import Any

from modules.ui.form.BothEnds import BothEnds
from modules.ui.texts import window as words
from modules.ui.widgets.Chooser import Chooser, What
from modules.ui.widgets.theme import Theme, style_text
from modules.util.catalog import accelerators, rewards
from modules.util.config.settings import Choice, Setting

TextChanged = Callable[[str], None]
ValueChanged = Callable[[Any], None]
DEVICES = ("auto", "cpu", "cuda", "cuda:0", "cuda:1", "mps")
LAYER_PRESETS = ("attn-mlp", "attn-only", "blocks", "full", "custom")
_SUGGESTIONS: dict[str, tuple[str, ...]] = {
    "device": DEVICES,
    "layers": LAYER_PRESETS,
    "reward": tuple(rewards()),
    "accelerator": tuple(accelerators()),
}


class Input(ABC):
    """An editor of one value. ``widget`` is the one to grid, ``focus_widget`` the one that takes the focus."""

    widget: tk.Widget
    focus_widget: tk.Widget

    @abstractmethod
    def show(self, value: Any, text: str) -> None:
        """Show a value (and the text it was typed as) without reporting a change."""

    def mark(self, wrong: bool) -> None:
        """Mark the content as invalid or valid. Inputs that only offer choices are always valid."""
        return

    def enable(self, on: bool) -> None:
        """Enable the input or grey it out."""
        self.focus_widget.state([("!" if on else "") + "disabled"])  # type: ignore[attr-defined]


class Switch(Input):
    """On or off."""

    def __init__(self, parent: tk.Misc, changed: ValueChanged) -> None:
        self._variable = tk.BooleanVar(parent)
        self.widget = self.focus_widget = ttk.Checkbutton(
            parent, variable=self._variable, command=lambda: changed(self._variable.get())
        )
        self.widget.bind("<Return>", lambda _event: self.focus_widget.invoke())  # type: ignore[attr-defined]

    def show(self, value: Any, text: str) -> None:
        self._variable.set(bool(value))


class Line(Input):
    """A line of text, with a browse button if it names a file or folder."""

    def __init__(
        self, parent: tk.Misc, setting: Setting, theme: Theme, chooser: Chooser, changed: TextChanged
    ) -> None:
        self._variable = tk.StringVar(parent)
        self._loading = False
        self._changed = changed
        self._variable.trace_add("write", self._written)
        buttons = _BROWSERS.get(setting.widget, {})
        holder: tk.Misc = ttk.Frame(parent) if buttons else parent
        entry = ttk.Entry(holder, textvariable=self._variable, font=theme.fonts["text"], width=12)
        self.widget = self.focus_widget = entry
        if setting.optional:
            self._add_hint(entry, theme, words.EMPTY_OF.get(setting.widget, words.EMPTY))
        if buttons and isinstance(holder, ttk.Frame):
            holder.columnconfigure(0, weight=1)
            entry.grid(row=0, column=0, sticky="ew")
            for column, (text, what) in enumerate(buttons.items(), 1):
                button = ttk.Button(holder, text=text, width=max(2, len(text)))
                button.configure(command=partial(self._browse, chooser, what, setting.title))
                button.grid(row=0, column=column, padx=(theme.px(4), 0))
            self.widget = holder
            BothEnds(entry, self._variable, theme)

    def _add_hint(self, entry: ttk.Entry, theme: Theme, meaning: str) -> None:
        """Show what an empty field means."""
        hint = tk.Label(entry, text=meaning, cursor="xterm", borderwidth=0, padx=0, pady=0)
        hint.bind("<Button-1>", lambda _event: _focus(entry))

        def restyle() -> None:
            hint.configure(bg=theme.palette.field, fg=theme.palette.muted, font=theme.fonts["text"])

        def follow(*_: object) -> None:
            if self._variable.get():
                hint.place_forget()
            else:
                hint.place(x=theme.px(10), rely=0.5, anchor="w")

        theme.on_change(restyle, hint)
        self._variable.trace_add("write", follow)
        follow()

    def _written(self, *_: object) -> None:
        if not self._loading:
            self._changed(self._variable.get())

    def _browse(self, chooser: Chooser, what: What, title: str) -> None:
        found = chooser.path(what, title, self._variable.get(), self.widget.winfo_toplevel())
        if found is not None:
            self._variable.set(str(found))

    def show(self, value: Any, text: str) -> None:
        if self._variable.get() == text:
            return
        self._loading = True
        self._variable.set(text)
        self._loading = False

    def mark(self, wrong: bool) -> None:
        self.focus_widget.state([("" if wrong else "!") + "invalid"])  # type: ignore[attr-defined]


BROWSE = "\u2026"
_BROWSERS: dict[str, dict[str, What]] = {
    "file": {BROWSE: "file"},
    "folder": {BROWSE: "folder"},
    "save_file": {BROWSE: "save"},
    "model": {"File": "file", "Folder": "folder"},
}
"""Browse buttons by the hint of the setting."""


class Paragraph(Input):
    """Several lines of text."""

    def __init__(self, parent: tk.Misc, theme: Theme, changed: TextChanged) -> None:
        self._changed = changed
        self._shown = ""
        box = tk.Text(parent, height=3, width=20, wrap="word", undo=False)
        style_text(theme, box)
        box.bind("<Tab>", self._leave)
        box.bind("<<Modified>>", self._modified)
        self._box = box
        self.widget = self.focus_widget = box

    def _leave(self, event: tk.Event[tk.Misc]) -> str:
        following = self._box.tk_focusNext()
        if following is not None:
            following.focus_set()
        return "break"

    def _modified(self, _event: object) -> None:
        if not self._box.edit_modified():
            return
        self._box.edit_modified(False)
        text = self._box.get("1.0", "end-1c")
        if text != self._shown:
            self._shown = text
            self._changed(text)

    def show(self, value: Any, text: str) -> None:
        if text == self._shown:
            return
        self._shown = text
        self._box.delete("1.0", "end")
        self._box.insert("1.0", text)

    def enable(self, on: bool) -> None:
        self._box.configure(state="normal" if on else "disabled")


class Pick(Input):
    """One of several choices."""

    def __init__(
        self,
        parent: tk.Misc,
        choices: tuple[Choice, ...],
        empty: str,
        theme: Theme,
        changed: ValueChanged,
    ) -> None:
        """Make it. ``empty`` is the label of no choice; empty if there has to be one."""
        self._values: list[str | None] = [choice.value for choice in choices]
        labels = [choice.label for choice in choices]
        if empty:
            self._values.insert(0, None)
            labels.insert(0, empty)
        self._changed = changed
        combo = choice_box(parent, theme, labels, 12)
        combo.configure(height=min(len(labels), 14))
        combo.bind("<<ComboboxSelected>>", self._selected)
        self._combo = combo
        self.widget = self.focus_widget = combo

    def _selected(self, _event: object) -> None:
        self._combo.selection_clear()
        self._changed(self._values[self._combo.current()])

    def show(self, value: Any, text: str) -> None:
        wanted = getattr(value, "value", value)
        self._combo.current(self._values.index(wanted))


def _focus(widget: tk.Misc) -> str:
    widget.focus_set()
    return "break"


class Suggest(Line):
    """A text with usual values to pick from."""

    def __init__(
        self, parent: tk.Misc, suggestions: tuple[str, ...], theme: Theme, changed: TextChanged
    ) -> None:
        self._variable = tk.StringVar(parent)
        self._loading = False
        self._changed = changed
        self._variable.trace_add("write", self._written)
        combo = choice_box(parent, theme, suggestions, 12, typed=True)
        combo.configure(textvariable=self._variable)
        self.widget = self.focus_widget = combo


class Several(Input):
    """A choice of any number of values."""

    def __init__(self, parent: tk.Misc, choices: tuple[Choice, ...], changed: ValueChanged) -> None:
        self._changed = changed
        self._variables: dict[str, tk.BooleanVar] = {}
        self._order: list[str] = []
        frame = ttk.Frame(parent)
        self._buttons = []
        for choice in choices:
            variable = tk.BooleanVar(parent)
            button = ttk.Checkbutton(frame, text=choice.label, variable=variable, command=self._toggled)
            button.pack(anchor="w")
            self._variables[choice.value] = variable
            self._buttons.append(button)
        self.widget = frame
        self.focus_widget = self._buttons[0]

    def _toggled(self) -> None:
        on = [name for name, variable in self._variables.items() if variable.get()]
        self._order = [name for name in self._order if name in on] + [n for n in on if n not in self._order]
        self._changed(list(self._order))

    def show(self, value: Any, text: str) -> None:
        self._order = [getattr(item, "value", item) for item in value or ()]
        for name, variable in self._variables.items():
            variable.set(name in self._order)

    def enable(self, on: bool) -> None:
        for button in self._buttons:
            button.state([("!" if on else "") + "disabled"])


def choice_box(
    parent: tk.Misc, theme: Theme, values: list[str] | tuple[str, ...], width: int = 20, typed: bool = False
) -> ttk.Combobox:
    """Make a box to pick a text from; ``typed`` allows other texts too."""
    box = ttk.Combobox(parent, values=values, width=width, font=theme.fonts["text"])
    box.configure(state="normal" if typed else "readonly", postcommand=lambda: _style_popdown(theme, box))
    return box


def _style_popdown(theme: Theme, combo: ttk.Combobox) -> None:
    """Colour a combobox's list before it opens; it is a plain Tk list, which does not follow the theme."""
    palette = theme.palette
    popdown = combo.tk.call("ttk::combobox::PopdownWindow", str(combo))
    combo.tk.call(
        f"{popdown}.f.l", "configure", "-background", palette.field, "-foreground", palette.text,
        "-selectbackground", palette.selected, "-selectforeground", palette.text,
        "-font", str(theme.fonts["text"]), "-borderwidth", 0, "-highlightthickness", 0,
    )  # fmt: skip


def make_input(
    parent: tk.Misc,
    setting: Setting,
    theme: Theme,
    chooser: Chooser,
    text_changed: TextChanged,
    value_changed: ValueChanged,
) -> Input:
    """Make the editor that suits a setting."""
    if setting.kind == "bool":
        return Switch(parent, value_changed)
    if setting.kind == "choice":
        empty = words.EMPTY_OF.get(setting.widget, "\u2014") if setting.optional else ""
        return Pick(parent, setting.choices, empty, theme, value_changed)
    if setting.kind == "choices":
        return Several(parent, setting.choices, value_changed)
    if setting.widget == "multiline":
        return Paragraph(parent, theme, text_changed)
    if setting.widget in _SUGGESTIONS:
        return Suggest(parent, _SUGGESTIONS[setting.widget], theme, text_changed)
    return Line(parent, setting, theme, chooser, text_changed)
