"""One image in a window of its own, as large as the screen allows."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path

from PIL import Image, ImageTk

from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import elide_middle

SHARE = 0.85


def open_image(ui: Ui, path: Path) -> None:
    """Decode in a thread, then show; Escape or a click closes it."""
    most = (int(ui.root.winfo_screenwidth() * SHARE), int(ui.root.winfo_screenheight() * SHARE))

    def load() -> Image.Image:
        with Image.open(path) as image:
            made = image.convert("RGB")
        factor = min(most[0] / made.width, most[1] / made.height, 4.0)
        return made.resize((max(1, int(made.width * factor)), max(1, int(made.height * factor))))

    def show(image: Image.Image) -> None:
        window = tk.Toplevel(ui.root)
        window.title(f"{elide_middle(str(path), 80)}")
        photo = ImageTk.PhotoImage(image, master=window)
        label = tk.Label(window, image=photo, borderwidth=0)  # type: ignore[arg-type]
        label.pack()
        window.photo = photo  # type: ignore[attr-defined]
        for name in ("<Escape>", "<Button-1>", "<space>"):
            window.bind(name, lambda _event: window.destroy())
        window.focus_set()

    ui.work(load, show)
