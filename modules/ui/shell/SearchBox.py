"""The search over all settings: type, pick from the list, and jump to the field."""

from __future__ import annotations

import tkinter as tk
from tkinter import ttk

from modules.ui.form.SettingsForm import has_row
from modules.ui.state.search import search_settings
from modules.ui.texts import window as words
from modules.ui.Ui import Ui
from modules.ui.widgets.theme import style_text
from modules.ui.widgets.tk_support import chosen_line, focused, later, on_event
from modules.util.config.settings import Setting

ROWS = 12


class SearchBox(ttk.Frame):
    """An entry field with a list of matches that floats over the pages."""

    def __init__(self, parent: tk.Misc, ui: Ui) -> None:
        super().__init__(parent)
        self._ui = ui
        self.found: list[Setting] = []
        self._text = tk.StringVar(self)
        self.entry = ttk.Entry(self, textvariable=self._text, width=11, font=ui.theme.fonts["text"])
        self.entry.pack(fill="x", expand=True)
        self._hint = tk.Label(self.entry, text=words.SEARCH_HINT, cursor="xterm", anchor="w")
        self._hint.bind("<Button-1>", lambda _event: self.focus_entry())
        self.list = tk.Listbox(ui.root, activestyle="none", exportselection=False)
        style_text(ui.theme, self.list)
        ui.theme.on_change(self._restyle, self)
        self._text.trace_add("write", lambda *_: self._search())
        self.entry.bind("<FocusIn>", lambda _event: self._show_hint())
        self.entry.bind("<FocusOut>", self._left)
        self.entry.bind("<Configure>", lambda _event: self._show_hint())
        for key, step in (("<Down>", 1), ("<Up>", -1)):
            self.entry.bind(key, on_event(self._move, step))
        self.entry.bind("<Return>", lambda _event: self.go())
        self.entry.bind("<Escape>", lambda _event: self.clear())
        self.list.bind("<ButtonRelease-1>", lambda _event: self.go())
        self._show_hint()

    def _restyle(self) -> None:
        palette = self._ui.theme.palette
        self._hint.configure(bg=palette.field, fg=palette.muted, font=self._ui.theme.fonts["text"])
        self.list.configure(relief="solid", borderwidth=1)

    def focus_entry(self) -> str:
        """Focus the entry field."""
        self.entry.focus_set()
        self.entry.selection_range(0, "end")
        return "break"

    def _show_hint(self) -> None:
        if self._text.get() or focused(self) is self.entry:
            self._hint.place_forget()
        else:
            edge, font = self._ui.theme.px(8), self._ui.theme.fonts["text"]
            room = self.entry.winfo_width() - 2 * edge
            hints = (words.SEARCH_HINT, words.SEARCH_HINT_SHORT, words.SEARCH_HINT_SHORTEST)
            self._hint.configure(text=next((hint for hint in hints if font.measure(hint) <= room), ""))
            self._hint.place(relx=0, rely=0.5, x=edge, relwidth=1, width=-2 * edge, anchor="w")

    def _search(self) -> None:
        self._show_hint()
        typed = self._text.get()
        state = self._ui.state
        self.found = search_settings(
            (s for s in state.settings.values() if has_row(s)), typed, shown=state.is_visible
        )
        self.list.delete(0, "end")
        for setting in self.found:
            place = " \u203a ".join(part for part in (setting.section, setting.group) if part)
            rest = "" if state.is_visible(setting.path) else words.NOT_SHOWN_NOW
            self.list.insert("end", f"{setting.title}    {place}    {setting.path}{rest}")
        if typed and not self.found:
            self.list.insert("end", words.NOTHING_FOUND)
        if not typed:
            self.list.place_forget()
            return
        self.list.selection_set(0)
        root, entry = self._ui.root, self.entry
        font, edge = self._ui.theme.fonts["text"], 2 * self._ui.theme.px(8)
        widest = max(font.measure(line) for line in self.list.get(0, "end")) + edge
        width = min(max(entry.winfo_width(), self._ui.theme.px(520), widest), root.winfo_width() - 8)
        right = entry.winfo_rootx() - root.winfo_rootx() + entry.winfo_width()
        self.list.configure(height=max(1, min(ROWS, self.list.size())))
        top = entry.winfo_rooty() - root.winfo_rooty() + entry.winfo_height() + 2
        self.list.place(x=max(4, right - width), y=top, width=width)
        self.list.lift()

    def _move(self, step: int) -> str:
        target = max(0, min(len(self.found) - 1, (chosen_line(self.list) or 0) + step))
        self.list.selection_clear(0, "end")
        self.list.selection_set(target)
        self.list.see(target)
        return "break"

    def go(self) -> str:
        """Jump to the chosen setting."""
        chosen = chosen_line(self.list)
        if chosen is not None and chosen < len(self.found):
            setting = self.found[chosen]
            self.clear()
            self._ui.jump(setting.path)
        return "break"

    def clear(self) -> str:
        """Clear the entry field and close the list."""
        self._text.set("")
        self.list.place_forget()
        return "break"

    def _left(self, _event: object) -> None:
        later(self, 150, self._hide_if_left)

    def _hide_if_left(self) -> None:
        if focused(self) not in (self.entry, self.list):
            self.list.place_forget()
            self._show_hint()
