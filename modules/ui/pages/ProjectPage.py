"""The project page: the form, and boxes for the GPUs that train if this computer has several."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterable, Sequence
from tkinter import ttk

from modules.runner.devices import found_gpus
from modules.ui.pages.FormPage import FormPage
from modules.ui.texts import project as words
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.util.device_names import listed

FIELD = "train_device"


class ProjectPage(FormPage):
    """The form. Below the device is a box for each GPU, once several have been found."""

    def add_to_form(self) -> None:
        self.boxes: dict[str, ttk.Checkbutton] = {}
        self._on: dict[str, tk.BooleanVar] = {}
        self._frame = self.form.extend_card(self.ui.state.settings[FIELD].group)
        self.ui.work(found_gpus, self._offer, lambda _error: None)

    def _offer(self, names: Sequence[str]) -> None:
        """Show a box for each of several GPUs.

        Args:
            names: what they are called, in the order of their numbers.
        """
        if len(names) < 2 or not self.winfo_exists():
            return
        px = self.ui.theme.px
        ttk.Label(self._frame, text=words.GPUS).pack(anchor="w")
        row = FlowFrame(self._frame, px(12))
        row.pack(fill="x", pady=(px(3), 0))
        for number, name in enumerate(names):
            device = f"cuda:{number}"
            self._on[device] = tk.BooleanVar(self)
            box = self.boxes[device] = ttk.Checkbutton(
                row, text=words.GPU.format(device=device, name=name), variable=self._on[device],
                command=self._toggled,
            )  # fmt: skip
            box.bind("<Return>", lambda _event, box=box: box.invoke())  # type: ignore[misc]
            self.ui.services.tooltips.add(box, lambda: words.GPU_TIP)
            row.add(box)
        self._show_boxes()

    def _toggled(self) -> None:
        on = [device for device, variable in self._on.items() if variable.get()]
        self.ui.state.set_value(FIELD, ",".join(on) or words.NO_GPU)

    def _show_boxes(self) -> None:
        value = self.ui.state.value(FIELD)
        chosen = ["cuda:0"] if value in ("auto", "cuda") else listed(value)
        for device, variable in self._on.items():
            variable.set(device in chosen)

    def refresh(self, paths: Iterable[str] | None) -> None:
        super().refresh(paths)
        if paths is None or FIELD in paths:
            self._show_boxes()
