"""The samples of a run: for each prompt, the image at the start next to that of the chosen step."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path
from tkinter import ttk

from modules.ui.form.inputs import choice_box
from modules.ui.ImageWindow import ImageWindow, ShownImage
from modules.ui.run.Thumbnails import Thumbnails
from modules.ui.state.RunHistory import SampleImage
from modules.ui.texts import run as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import items_in_sight, on_event

CELL = 210


class SampleGallery(ttk.Frame):
    """A scrolling canvas that draws only the visible rows.

    Args:
        resolve: the file behind a reported path.
    """

    def __init__(self, parent: tk.Misc, ui: Ui, resolve: Callable[[str], Path]) -> None:
        super().__init__(parent)
        px = ui.theme.px
        self._ui, self._resolve = ui, resolve
        self._samples: tuple[SampleImage, ...] = ()
        self._nothing = words.NO_SAMPLES
        self._captions: dict[tuple[str, int], int] = {}
        self._rows: list[tuple[SampleImage | None, SampleImage]] = []
        self._thumbnails = Thumbnails(self, ui, self.redraw)
        head = ttk.Frame(self, padding=(0, 0, 0, px(6)))
        head.pack(fill="x")
        ttk.Label(head, text=words.STEP).pack(side="left", padx=(0, px(8)))
        self.step = choice_box(head, ui.theme, [words.NEWEST], 12)
        self.step.set(words.NEWEST)
        self.step.bind("<<ComboboxSelected>>", lambda _event: self._arrange())
        self.step.pack(side="left")
        self._note = ttk.Label(head, style="Muted.TLabel")
        self._note.pack(side="left", padx=px(12))
        self.canvas = tk.Canvas(
            self, highlightthickness=2, borderwidth=0, takefocus=1, height=px(200), width=px(200)
        )
        bar = ttk.Scrollbar(self, command=self._scroll)
        bar.pack(side="right", fill="y")
        self.canvas.pack(side="left", fill="both", expand=True)
        self.canvas.configure(yscrollcommand=bar.set)
        self.canvas.bind("<Configure>", lambda _event: self.redraw())
        self.canvas.bind("<Button-1>", lambda _event: self._open(self.canvas.find_withtag("current")))
        for key in ("<Return>", "<KP_Enter>", "<space>"):
            self.canvas.bind(key, lambda _event: self._open(items_in_sight(self.canvas)))
        for name, step in (("<Button-4>", -1), ("<Button-5>", 1), ("<Up>", -1), ("<Down>", 1)):
            self.canvas.bind(name, on_event(self._wheel, step))
        self.canvas.bind("<MouseWheel>", lambda event: self._wheel(-1 if event.delta > 0 else 1))
        ui.theme.on_change(self._restyle, self)

    # -- content ---------------------------------------------------------------------------------------------

    def show(self, samples: Sequence[SampleImage], nothing: str) -> None:
        """Show all samples of the run so far, or the text ``nothing`` if there are none."""
        if tuple(samples) == self._samples and nothing == self._nothing:
            return
        self._samples, self._nothing = tuple(samples), nothing
        steps = sorted({sample.step for sample in samples}, reverse=True)
        self.step.configure(values=[words.NEWEST, *(str(step) for step in steps)])
        if self.step.get() not in self.step.cget("values"):
            self.step.set(words.NEWEST)
        self._arrange()

    def _arrange(self) -> None:
        self.step.selection_clear()
        chosen = self.step.get()
        by_prompt: dict[tuple[int, str], list[SampleImage]] = {}
        for sample in self._samples:
            by_prompt.setdefault((sample.number, sample.prompt), []).append(sample)
        self._rows = []
        for _, members in sorted(by_prompt.items()):
            ordered = sorted(members, key=lambda sample: sample.step)
            first = ordered[0] if ordered[0].step == 0 else None
            fitting = [s for s in ordered if chosen == words.NEWEST or str(s.step) == chosen]
            if fitting:
                self._rows.append((first if first is not fitting[-1] else None, fitting[-1]))
        base = any(first is not None for first, _ in self._rows)
        self._note.configure(text=words.BEFORE_AND_AFTER if base else "")
        self.redraw()

    # -- drawing ---------------------------------------------------------------------------------------------

    def _geometry(self) -> tuple[int, int, int]:
        """Side of an image, width of a cell with its caption, and cells per row (one cell per prompt)."""
        side = self._ui.theme.px(CELL)
        paired = any(first is not None for first, _ in self._rows)
        width = side * (2 if paired else 1) + self._ui.theme.px(18)
        return side, width, max(1, self.canvas.winfo_width() // width)

    def _edges(self, side: int, width: int, columns: int) -> list[int]:
        """The top of each row and the bottom of the last. Captions are shown in full, however long they are."""
        px, made = self._ui.theme.px, [0]
        for start in range(0, len(self._rows), columns):
            members = [sample for _, sample in self._rows[start : start + columns]]
            made.append(made[-1] + side + px(12) + max(self._high(one, width - px(12)) for one in members))
        return made

    def _high(self, sample: SampleImage, width: int) -> int:
        """Height of a caption in pixels."""
        key = (_caption(sample), width)
        if key not in self._captions:
            font = self._ui.theme.fonts["small"]
            item = self.canvas.create_text(0, 0, anchor="nw", text=key[0], font=font, width=width)
            _, top, _, bottom = self.canvas.bbox(item)
            self.canvas.delete(item)
            self._captions[key] = bottom - top
        return self._captions[key]

    def _restyle(self) -> None:
        self._captions.clear()
        self.redraw()

    def redraw(self) -> None:
        """Draw the visible cells."""
        if not self.winfo_exists():
            return
        palette, px = self._ui.theme.palette, self._ui.theme.px
        canvas = self.canvas
        canvas.delete("all")
        canvas.configure(
            background=palette.panel, highlightbackground=palette.panel, highlightcolor=palette.accent
        )
        if not self._rows:
            canvas.create_text(
                px(12), px(12), anchor="nw", text=self._nothing, fill=palette.muted, font=self._ui.theme.fonts["text"],
                width=max(100, canvas.winfo_width() - px(24)),
            )  # fmt: skip
            canvas.configure(scrollregion=(0, 0, 1, 1))
            return
        side, width, columns = self._geometry()
        edges = self._edges(side, width, columns)
        canvas.configure(scrollregion=(0, 0, width * columns, edges[-1]))
        top, bottom = canvas.canvasy(0), canvas.canvasy(canvas.winfo_height())
        with self._thumbnails.drawing():
            for index, (first, sample) in enumerate(self._rows):
                y = edges[index // columns]
                if edges[index // columns + 1] < top or y > bottom:
                    continue
                x = index % columns * width + px(6)
                paired = width > side * 2
                if first is not None:
                    self._cell(first, x, y, side)
                self._cell(sample, x + (side if paired else 0), y, side)
                canvas.create_text(
                    x, y + side + px(2), anchor="nw", text=_caption(sample), fill=palette.muted,
                    font=self._ui.theme.fonts["small"], width=width - px(12),
                )  # fmt: skip

    def _cell(self, sample: SampleImage, x: int, y: int, side: int) -> None:
        box = side - self._ui.theme.px(6)
        shown = self._thumbnails.get((self._resolve(sample.path), (box, box)))
        middle = (x + box // 2, y + side // 2)
        if isinstance(shown, str):
            self.canvas.create_text(*middle, text=shown, fill=self._ui.theme.palette.muted, width=box)
        else:
            self.canvas.create_image(*middle, image=shown, tags=(f"image:{sample.path}",))

    # -- hands -----------------------------------------------------------------------------------------------

    def _scroll(self, *args: str) -> None:
        self.canvas.yview(*args)
        self.redraw()

    def _wheel(self, step: int) -> str:
        self.canvas.yview_scroll(step, "units")
        self.redraw()
        return "break"

    def _open(self, items: Sequence[int]) -> None:
        """Show the first image among these items large."""
        self.canvas.focus_set()
        tags = (tag for item in items for tag in self.canvas.gettags(item) if tag.startswith("image:"))
        tag = next(tags, None)
        if tag is not None:
            self._show_large(tag.removeprefix("image:"))

    def _show_large(self, path: str) -> None:
        samples = [sample for row in self._rows for sample in row if sample is not None]
        shown = [ShownImage(self._resolve(one.path), _title(one)) for one in samples]
        ImageWindow(self._ui, shown, [one.path for one in samples].index(path), self)


def _caption(sample: SampleImage) -> str:
    return words.SAMPLE_CAPTION.format(prompt=sample.prompt or words.NO_PROMPT, step=sample.step)


def _title(sample: SampleImage) -> str:
    return words.SAMPLE_TITLE.format(prompt=sample.prompt or words.NO_PROMPT, step=sample.step)
