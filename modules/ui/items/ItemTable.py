"""A table of concepts or samples with the buttons that change it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from tkinter import ttk
from typing import Any

from modules.ui.shell.FileActions import write_list
from modules.ui.state.ItemList import ItemList
from modules.ui.texts import lists as words
from modules.ui.Ui import Ui
from modules.ui.widgets.Chooser import JSON
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.tk_support import IDLE, bind_row_keys, fit_middle, later, on_event, pack_with_bar
from modules.util.display import counted

Action = tuple[str, Callable[[], object], str]


@dataclass(frozen=True)
class Column:
    """One column: heading, width at 100 %, text of an item, whether it takes the remaining width, and whether
    a text that is too long is shortened in the middle instead of at its end.
    """

    title: str
    width: int
    text: Callable[[Any], str]
    stretch: bool = False
    middle: bool = False


class ItemTable(ttk.Frame):
    """The list of a page.

    Args:
        columns: columns of the table; the first shows whether an item is enabled.
        edit: opens the window of the item at a position.
        first_actions: buttons before the usual ones: text, action, tip.
        rows: number of visible rows.
    """

    def __init__(
        self,
        parent: tk.Misc,
        ui: Ui,
        items: ItemList[Any],
        columns: Sequence[Column],
        edit: Callable[[int], object],
        first_actions: Sequence[Action],
        rows: int = 7,
    ) -> None:
        px = ui.theme.px
        super().__init__(parent)
        self._ui, self.items, self._columns, self._edit = ui, items, columns, edit
        self._switched = "enabled" in items.kind.model_fields
        bar = FlowFrame(self, px(4))
        bar.pack(fill="x", pady=(0, px(6)))
        self._buttons(bar, first_actions)
        names = [str(index) for index in range(len(columns))]
        holder = ttk.Frame(self)
        holder.pack(fill="both", expand=True)
        self.tree = ttk.Treeview(holder, columns=names, show="headings", height=rows, selectmode="extended")
        for name, column in zip(names, columns, strict=True):
            self.tree.heading(name, text=column.title, anchor="w")
            self.tree.column(name, width=px(column.width), stretch=column.stretch, minwidth=px(30))
        pack_with_bar(self.tree)
        self._width = 0
        self.tree.bind("<Configure>", self._resized)
        self.tree.bind("<Double-Button-1>", self._double)
        self.tree.bind("<Button-1>", self._click, add="+")
        bind_row_keys(self.tree)
        keys: dict[str, Callable[[], object]] = {
            "<Return>": self.edit, "<Delete>": self.remove, "<space>": self.toggle,
            "<Alt-Up>": lambda: self.move(-1), "<Alt-Down>": lambda: self.move(1),
            "<Control-d>": self.duplicate, "<Control-a>": self.select_all,
        }  # fmt: skip
        if not self._switched:
            del keys["<space>"]
        for key, action in keys.items():
            self.tree.bind(key, on_event(self._key, action))
        self.note = ttk.Label(self, style="Small.TLabel", anchor="w")
        self.note.pack(fill="x", pady=(px(4), 0))
        ui.theme.on_change(self._restyle, self)

    def _buttons(self, bar: FlowFrame, first_actions: Sequence[Action]) -> None:
        tips = self._ui.services.tooltips
        usual: tuple[Action, ...] = (
            (words.EDIT, self.edit, words.EDIT_TIP),
            (words.DUPLICATE, self.duplicate, words.DUPLICATE_TIP),
            (words.REMOVE, self.remove, words.REMOVE_TIP),
            ("\u2191", lambda: self.move(-1), words.UP_TIP),
            ("\u2193", lambda: self.move(1), words.DOWN_TIP),
        )
        if self._switched:
            usual += ((words.SWITCH, self.toggle, words.SWITCH_TIP),)
        if self.items.file_field:
            usual += (
                (words.READ, self.read, words.READ_TIP),
                (words.WRITE, self.write, words.WRITE_TIP),
            )
        for text, command, tip in (*first_actions, *usual):
            button = ttk.Button(bar, text=text, command=partial(self._do, command))
            if len(text) == 1:
                button.configure(width=2)
            bar.add(button)
            tips.add(button, tip)

    def _restyle(self) -> None:
        self.tree.tag_configure("off", foreground=self._ui.theme.palette.muted)
        self.tree.tag_configure("wrong", foreground=self._ui.theme.palette.error)

    # -- showing ---------------------------------------------------------------------------------------------

    def refresh(self, wrong: Callable[[Any], bool] = lambda item: False) -> None:
        """Show the current list, keeping selection and scroll position."""
        items = self.items.items()
        chosen = self.selected()
        have = len(self.tree.get_children())
        for index, item in enumerate(items):
            values = [self._fitted(number, item) for number in range(len(self._columns))]
            tags = ("wrong",) if wrong(item) else () if getattr(item, "enabled", True) else ("off",)
            if index < have:
                if list(self.tree.item(str(index), "values")) != values:
                    self.tree.item(str(index), values=values)
                self.tree.item(str(index), tags=tags)
            else:
                self.tree.insert("", "end", str(index), values=values, tags=tags)
        self.tree.delete(*(str(index) for index in range(len(items), have)))
        self.select([index for index in chosen if index < len(items)])
        self._write_note(len(items))

    def _fitted(self, number: int, item: Any) -> str:
        """The text of an item in a column. If its ends matter, a text that is too long is shortened in the
        middle.
        """
        column = self._columns[number]
        text = column.text(item)
        if not column.middle:
            return text
        theme = self._ui.theme
        return fit_middle(text, self.tree.column(str(number), "width") - theme.px(16), theme.fonts["text"])

    def _resized(self, event: tk.Event[tk.Misc]) -> None:
        if event.width != self._width:
            self._width = event.width
            later(self, IDLE, self._fit)

    def _fit(self) -> None:
        for index, item in enumerate(self.items.items()):
            for number, column in enumerate(self._columns):
                if column.middle and self.tree.exists(str(index)):
                    self.tree.set(str(index), str(number), self._fitted(number, item))

    def _write_note(self, count: int) -> None:
        if self.items.fault is not None:
            self.note.configure(text=str(self.items.fault).replace("\n", " "), style="Error.TLabel")
        elif self.items.from_file and count:
            name = self.items.state.value(self.items.file_field)
            self.note.configure(text=words.READ_FROM.format(name=name), style="Small.TLabel")
        else:
            self.note.configure(text="", style="Small.TLabel")

    def selected(self) -> list[int]:
        """Positions of the selected rows."""
        return [int(name) for name in self.tree.selection()]

    def select(self, indices: Sequence[int]) -> None:
        """Select rows."""
        self.tree.selection_set([str(index) for index in indices])
        if indices:
            self.tree.focus(str(indices[0]))
            self.tree.see(str(indices[0]))

    # -- hands -----------------------------------------------------------------------------------------------

    def _do(self, command: Callable[[], object]) -> None:
        with self._ui.errors_shown():
            command()

    def _key(self, action: Callable[[], object]) -> str:
        self._do(action)
        return "break"

    def _click(self, event: tk.Event[tk.Misc]) -> None:
        row = self.tree.identify_row(event.y)
        if self._switched and row and self.tree.identify_column(event.x) == "#1":
            items = self.items.items()
            self.items.set_all("enabled", not items[int(row)].enabled, [int(row)])

    def _double(self, event: tk.Event[tk.Misc]) -> None:
        row = self.tree.identify_row(event.y)
        if row and not (self._switched and self.tree.identify_column(event.x) == "#1"):
            self._edit(int(row))

    def edit(self) -> None:
        """Open the window of the first selected item."""
        chosen = self.selected()
        if chosen:
            self._edit(chosen[0])

    def append(self, item: Any) -> None:
        """Add an item at the end and select it."""
        self.select([self.items.add([item])])

    def duplicate(self) -> None:
        """Copy the selected items."""
        chosen = self.selected()
        if chosen:
            first = self.items.duplicate(chosen)
            self.select(list(range(first, first + len(chosen))))

    def remove(self) -> None:
        """Remove the selected items. Undo brings them back."""
        chosen = self.selected()
        if chosen:
            self.items.remove(chosen)
            left = len(self.items.items())
            self.select([min(chosen[0], left - 1)] if left else [])
            removed = counted(len(chosen), words.ENTRY, words.ENTRIES)
            self._ui.status(words.REMOVED.format(entries=removed))

    def move(self, step: int) -> None:
        """Move the selected items up or down."""
        self.select(self.items.move(self.selected(), step))

    def toggle(self) -> None:
        """Enable or disable the selected items."""
        chosen = self.selected()
        if chosen:
            items = self.items.items()
            self.items.set_all("enabled", not all(items[index].enabled for index in chosen), chosen)

    def select_all(self) -> None:
        self.tree.selection_set(self.tree.get_children())

    def read(self) -> None:
        """Ask for a file and load its list."""
        path = self._ui.chooser.file(words.READ_TITLE, kinds=JSON)
        if path is not None:
            self.items.read(path)

    def write(self) -> None:
        """Ask for a file and write the list to it."""
        write_list(self._ui, self.items.items(), self.items.field, f"{self.items.field}.json")
