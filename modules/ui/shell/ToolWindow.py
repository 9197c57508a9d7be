"""The window of a tool: inputs, preview, progress, and undo. The work runs in a separate process."""

from __future__ import annotations

import threading
import tkinter as tk
from pathlib import Path
from tkinter import ttk

from modules.tools.ToolJob import ToolJob
from modules.tools.ToolSpec import PLACES, Kind, ToolField, ToolSpec, Value
from modules.ui.dialogs import Dialog
from modules.ui.form.inputs import choice_box
from modules.ui.ImageWindow import ImageWindow, ShownImage
from modules.ui.texts import tools as words
from modules.ui.Ui import Ui
from modules.ui.widgets.Chooser import What
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.ui.widgets.theme import style_text
from modules.ui.widgets.tk_support import later, set_text
from modules.util.errors import UserError

WATCH_MS = 80
MAX_LINES = 5000
OUTPUT_HEIGHT = 200
LINES_AT_ONCE = 400
_ASKED: dict[Kind, What] = {Kind.FOLDER: "folder", Kind.TARGET: "save"}
"""The kind of path of a field. All others are files to read."""


class ToolWindow(Dialog):
    """The window of a tool. Closing it stops the tool, which first cleans up its folder."""

    def __init__(self, ui: Ui, spec: ToolSpec) -> None:
        super().__init__(ui, spec.title, width=760, height=620)
        self.spec = spec
        self.job: ToolJob | None = None
        self._values: dict[str, tk.StringVar | tk.BooleanVar] = {}
        self.inputs: dict[str, tk.Widget] = {}
        px = ui.theme.px
        self.body.columnconfigure(0, weight=1)
        about = ttk.Label(self.body, text=spec.about, wraplength=px(720), justify="left")
        about.grid(row=0, column=0, columnspan=2, sticky="w", pady=(0, px(8)))
        self.asked = ScrollFrame(self.body, ui.theme, auto_hide=True)
        self.asked.inside.configure(style="TFrame")
        self.asked.inside.columnconfigure(1, weight=1)
        self.asked.grid(row=1, column=0, columnspan=2, sticky="ew")
        for row, field in enumerate(spec.fields):
            self._add_row(row, field)
        self.fault = ttk.Label(self.body, style="Error.TLabel", wraplength=px(720), justify="left")
        self.fault.grid(row=2, column=0, columnspan=2, sticky="w")
        self.output = tk.Text(self.body, wrap="word", height=4, width=60, state="disabled")
        style_text(ui.theme, self.output)
        self.output.grid(row=3, column=0, sticky="nsew", pady=(px(6), 0))
        self.body.rowconfigure(3, weight=1)
        self.body.bind("<Configure>", self._share_height, add="+")
        bar = ttk.Scrollbar(self.body, command=self.output.yview)
        bar.grid(row=3, column=1, sticky="ns", pady=(px(6), 0))
        self.output.configure(yscrollcommand=bar.set)
        self.progress = ttk.Label(self.foot, style="Muted.TLabel")
        self.progress.pack(side="left")
        self.close_button = self.add_button(words.CLOSE, self.cancel)
        self.buttons = [self.add_button(words.START, self.start, accent=True)]
        if spec.previews:
            self.buttons.append(self.add_button(words.PREVIEW, self.preview))
        if spec.undoes:
            self.buttons.append(self.add_button(words.UNDO, self.undo))

    def _share_height(self, _event: object) -> None:
        """Let the inputs scroll if they and a few lines of output do not fit."""
        room = self.body.winfo_height() - self.ui.theme.px(OUTPUT_HEIGHT)
        self.asked.canvas.configure(height=max(1, min(self.asked.inside.winfo_reqheight(), room)))

    def _add_row(self, row: int, field: ToolField) -> None:
        px, inside = self.ui.theme.px, self.asked.inside
        ttk.Label(inside, text=field.title).grid(row=row, column=0, sticky="w", padx=(0, px(10)))
        made: tk.Widget
        if field.kind is Kind.SWITCH:
            variable: tk.StringVar | tk.BooleanVar = tk.BooleanVar(self, False)
            made = ttk.Checkbutton(inside, variable=variable)
        elif field.kind is Kind.CHOICE:
            usual = (label for label, choice in field.labels.items() if choice == field.default)
            variable = tk.StringVar(self, next(usual, ""))
            labels = ["", *field.labels]
            made = choice_box(inside, self.ui.theme, labels, max(12, *map(len, labels)))
            made.configure(textvariable=variable)
        else:
            variable = tk.StringVar(self, str(field.default))
            wide = field.kind in (*PLACES, Kind.TEXT)
            font = self.ui.theme.fonts["text"]
            made = ttk.Entry(inside, textvariable=variable, width=40 if wide else 10, font=font)
        self._values[field.key], self.inputs[field.key] = variable, made
        made.grid(row=row, column=1, sticky="ew" if field.kind in PLACES else "w", pady=px(2))
        if field.kind in PLACES:
            browse = ttk.Button(inside, text=words.BROWSE, command=lambda: self._browse(field))
            browse.grid(row=row, column=2, sticky="w", padx=(px(8), 0))
        else:
            tip = ttk.Label(inside, text=field.tip, style="Muted.TLabel", wraplength=px(360), justify="left")
            tip.grid(row=row, column=2, sticky="w", padx=(px(8), 0))

    def _browse(self, field: ToolField) -> None:
        at = str(self._values[field.key].get())
        chosen = self.ui.chooser.path(_ASKED.get(field.kind, "file"), field.title, at, self)
        if chosen is not None:
            self.setvar(str(self._values[field.key]), str(chosen))

    def preview(self) -> None:
        """Show what would be done."""
        self._run(preview=True)

    def start(self) -> None:
        """Run the tool."""
        self._run(preview=False)

    def _run(self, preview: bool) -> None:
        values: dict[str, Value] = {key: variable.get() for key, variable in self._values.items()}
        missing = self.spec.missing(values)
        if missing:
            self.fault.configure(text=words.MISSING.format(fields=", ".join(missing)))
            return
        self._begin(self.spec.words(values, preview))

    def undo(self) -> None:
        """Undo the last change of the folder."""
        first = self.spec.fields[0]
        folder = str(self._values[first.key].get()).strip()
        if not folder:
            self.fault.configure(text=words.MISSING.format(fields=first.title))
            return
        self._begin(["undo", "--", folder])

    def _begin(self, command: list[str]) -> None:
        self.fault.configure(text="")
        set_text(self.output, "")
        try:
            self.job = ToolJob(self.spec.script, command, self.spec.title)
        except UserError as error:
            self.fault.configure(text=str(error))
            return
        for button in self.buttons:
            button.state(["disabled"])
        self.close_button.configure(text=words.STOP)
        later(self, WATCH_MS, self._watch, self.job)

    def _watch(self, job: ToolJob) -> None:
        ended = job.ended.is_set()
        self._show_lines(job)
        self.progress.configure(
            text=words.PROGRESS.format(done=job.done, total=job.total, at=job.at)
            if job.total
            else words.WORKING
        )
        if not ended or job.lines:
            later(self, WATCH_MS, self._watch, job)
            return
        self.job = None
        self.progress.configure(text=words.STOPPED if job.stopped else "" if job.fault else words.DONE)
        if job.fault is not None and not job.stopped:
            self.fault.configure(text=str(job.fault))
        for button in self.buttons:
            button.state(["!disabled"])
        self.close_button.configure(text=words.CLOSE)
        if self.spec.shows and job.fault is None and not job.stopped:
            self._show_image(Path(job.result))

    def _show_image(self, path: Path) -> None:
        if path.suffix == ".png" and path.is_file():
            ImageWindow(self.ui, [ShownImage(path, path.name)], 0, self)

    def _show_lines(self, job: ToolJob) -> None:
        taken = [job.lines.popleft() for _ in range(min(len(job.lines), LINES_AT_ONCE))]
        if taken:
            self.output.configure(state="normal")
            self.output.insert("end", "".join(f"{line}\n" for line in taken))
            extra = int(self.output.index("end-1c").split(".")[0]) - MAX_LINES
            if extra > 0:
                self.output.delete("1.0", f"{extra}.0")
            self.output.configure(state="disabled")
            self.output.see("end")

    def cancel(self) -> None:
        """Stop a running tool; otherwise close the window."""
        if self.job is None:
            self.destroy()
        elif not self.job.stopped:
            # cleaning up the folder may take some seconds
            threading.Thread(target=self.job.stop, daemon=True).start()
