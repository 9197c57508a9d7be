"""A dialog for appearance, scale, and desktop notifications at the end of runs."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from tkinter import ttk

from modules.ui.dialogs import Dialog
from modules.ui.form.inputs import choice_box
from modules.ui.texts import window as words
from modules.ui.Ui import Ui
from modules.ui.widgets.theme import APPEARANCES, SCALES


def open_view_dialog(ui: Ui, appearance: str, scale: int, change: Callable[[str, int], None]) -> Dialog:
    """Open the dialog. Nothing changes before OK."""
    dialog = Dialog(ui, words.VIEW_TITLE, width=340)
    px = ui.theme.px
    dialog.body.columnconfigure(1, weight=1)
    looks = choice_box(dialog.body, ui.theme, APPEARANCES)
    sizes = choice_box(dialog.body, ui.theme, [f"{size} %" for size in SCALES])
    looks.set(appearance)
    sizes.set(f"{scale} %")
    for row, (label, combo) in enumerate(((words.APPEARANCE, looks), (words.SIZE, sizes))):
        ttk.Label(dialog.body, text=label).grid(row=row, column=0, sticky="w", padx=(0, px(12)))
        combo.grid(row=row, column=1, sticky="ew", pady=px(4))

    notices = tk.BooleanVar(dialog, ui.services.memory.notices)
    switch = ttk.Checkbutton(dialog.body, text=words.NOTICES, variable=notices)
    switch.grid(row=2, column=0, columnspan=2, sticky="w", pady=(px(8), 0))

    def take() -> None:
        chosen, size = looks.get(), int(sizes.get().split()[0])
        ui.services.memory.notices = notices.get()
        ui.services.remember()
        dialog.destroy()
        change(chosen, size)

    for field in (looks, sizes, switch):
        field.bind("<Return>", lambda _event: take())
    dialog.add_button("OK", take, accent=True)
    dialog.add_button("Cancel", dialog.cancel)
    dialog.present(looks)
    return dialog
