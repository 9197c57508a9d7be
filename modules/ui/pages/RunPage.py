"""The page of the run: curves, samples, log, diary and queue."""

from __future__ import annotations

import math
import time
import tkinter as tk
import webbrowser
from pathlib import Path
from tkinter import ttk

from modules.ui.form.inputs import choice_box
from modules.ui.pages.Page import Page
from modules.ui.pages.PageSpec import PageSpec
from modules.ui.remote.RemoteStrip import RemoteStrip
from modules.ui.run.CurvePlot import Curve, CurvePlot
from modules.ui.run.QueuePanel import QueuePanel
from modules.ui.run.SampleGallery import SampleGallery
from modules.ui.run.VotePanel import VotePanel
from modules.ui.state.curve_groups import group_curves
from modules.ui.state.LogTail import LogTail
from modules.ui.state.RunControl import RunControl
from modules.ui.state.RunHistory import Message, SampleImage
from modules.ui.texts import run as words
from modules.ui.texts import votes as vote_words
from modules.ui.Ui import Ui
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.ui.widgets.theme import style_text
from modules.ui.widgets.tk_support import Timer, elide_middle, on_event, pack_with_bar, set_text

LOG_MS = 500
MAX_LOG_LINES = 3000
SMOOTHING = 0.85
STRIP, ADVICE, PLOTS, TABS = 1, 2, 3, 4
"""Rows of the page below its head."""
FIRST_GROUPS = (("Loss",), ("Accuracy", "Reward"))
"""Groups shown until one is picked: the first one that has curves."""


class RunPage(Page):
    """Everything about the watched run."""

    def __init__(self, parent: tk.Misc, ui: Ui, spec: PageSpec) -> None:
        super().__init__(parent, ui, spec)
        self.control: RunControl = ui.services.runs
        px = ui.theme.px
        self.scroll = ScrollFrame(self, ui.theme, auto_hide=True, fill=True)
        self.scroll.pack(fill="both", expand=True)
        self.inside = self.scroll.inside
        self.inside.configure(padding=(px(12), px(10), px(12), px(8)))
        self.inside.columnconfigure(0, weight=1)
        self.inside.rowconfigure(PLOTS, weight=3, minsize=px(170))
        self.inside.rowconfigure(TABS, weight=4, minsize=px(250))
        self._head()
        self.strip = RemoteStrip(self.inside, ui, self.control, STRIP)
        self.advice = ttk.Label(self.inside, style="Error.TLabel", justify="left", padding=(px(10), px(6)))
        self._plots()
        self.tabs = ttk.Notebook(self.inside, takefocus=True)
        self.tabs.grid(row=TABS, column=0, sticky="nsew", pady=(px(8), 0))
        self.gallery = SampleGallery(self.tabs, ui, lambda name: self.control.file(name))
        self.gallery.configure(padding=px(8))
        self.log = self._text_tab()
        self.diary = self._text_tab()
        self.queue = QueuePanel(self.tabs, ui, ui.services.queue)
        self.votes = VotePanel(self.tabs, ui, self._questions)
        for widget, title in (
            (self.gallery, words.SAMPLES_TAB), (self.log.master, words.LOG_TAB),
            (self.diary.master, words.EVENTS_TAB), (self.queue, words.QUEUE_TAB), (self.votes, vote_words.TAB),
        ):  # fmt: skip
            self.tabs.add(widget, text=title)  # type: ignore[arg-type]
        self._asked = False
        self._came: set[Path] = set()
        self.tabs.bind("<<NotebookTabChanged>>", lambda _event: self._make_room())
        self._tail: LogTail | None = None
        self._last_message: Message | None = None
        self._reading = Timer(self, LOG_MS, self._look_at_log)
        self.bind(
            "<Configure>",
            lambda event: self.advice.configure(wraplength=max(100, self.winfo_width() - px(60))),
        )
        self.run_changed()

    # -- building --------------------------------------------------------------------------------------------

    def _head(self) -> None:
        px, tips = self.ui.theme.px, self.ui.services.tooltips
        head = FlowFrame(self.inside, px(6), style="Back.TFrame")
        head.grid(row=0, column=0, sticky="ew", pady=(0, px(8)))
        head.add(ttk.Label(head, text=self.spec.title, style="Title.TLabel"))
        self.folder = ttk.Label(head, style="Back.TLabel")
        head.add(self.folder)
        tips.add(self.folder, lambda: str(self.control.run.path) if self.control.run else "")
        for text, command, tip in (
            (words.ALL_RUNS, lambda: self.ui.services.show_page("runs"), words.ALL_RUNS_TIP),
            (words.FOLDER, self.open_folder, words.FOLDER_TIP),
            (words.TENSORBOARD, self.open_tensorboard, words.TENSORBOARD_TIP),
            (words.END_NOW, self.end_now, words.END_NOW_TIP),
        ):
            button = ttk.Button(head, text=text, style="Back.TButton", command=command)
            head.add(button)
            tips.add(button, tip)
        self.end_button = button
        self._smooth = tk.BooleanVar(self, True)
        switch = ttk.Checkbutton(
            head, text=words.SMOOTH, variable=self._smooth, command=self._draw, style="Back.TCheckbutton"
        )
        head.add(switch)

    def _plots(self) -> None:
        px = self.ui.theme.px
        frame = ttk.Frame(self.inside, style="Back.TFrame")
        frame.grid(row=PLOTS, column=0, sticky="nsew")
        frame.rowconfigure(0, weight=1)
        self.diagrams = frame
        self.plots: list[CurvePlot] = []
        self.pickers: list[ttk.Combobox] = []
        self._picked = [False] * len(FIRST_GROUPS)
        for column, (group, *_) in enumerate(FIRST_GROUPS):
            frame.columnconfigure(column, weight=1, uniform="plots")
            card = ttk.Frame(frame)
            card.grid(row=0, column=column, sticky="nsew", padx=(0 if column == 0 else px(8), 0))
            plot = CurvePlot(card, self.ui.theme, height=160, reserved=150)
            plot.pack(fill="both", expand=True)
            picker = choice_box(card, self.ui.theme, [group], 12)
            picker.set(group)
            picker.bind("<<ComboboxSelected>>", on_event(self._pick, column))
            picker.place(x=px(6), y=px(5))
            self.plots.append(plot)
            self.pickers.append(picker)

    def _pick(self, column: int) -> None:
        self._picked[column] = True
        self._draw()

    def _text_tab(self) -> tk.Text:
        frame = ttk.Frame(self.tabs, padding=self.ui.theme.px(8))
        box = tk.Text(frame, wrap="word", state="disabled", height=5, width=30, undo=False)
        style_text(self.ui.theme, box, mono=True)
        pack_with_bar(box)
        box.bind("<Tab>", lambda _event: self._leave(box))
        return box

    def _leave(self, box: tk.Text) -> str:
        following = box.tk_focusNext()
        if following is not None:
            following.focus_set()
        return "break"

    # -- showing ---------------------------------------------------------------------------------------------

    def opened(self) -> None:
        self.run_changed()
        self._look_at_log()

    def run_changed(self) -> None:
        if not self.showing:
            return
        run = self.control.run
        text = words.NO_RUN_YET
        if run is not None:
            here = Path.cwd()
            name = run.path.relative_to(here) if run.path.is_relative_to(here) else run.path
            shown = elide_middle(str(name), 48)
            text = words.STATE_AND_FOLDER.format(state=self.control.state, folder=shown)
        self.folder.configure(text=text)
        self.end_button.state([("!" if self.control.is_live_here else "") + "disabled"])
        self.strip.look()
        self._show_advice()
        self._draw()
        self.gallery.show(self._samples(), self._no_samples())
        self.votes.look(self.control.run.path if self.control.run is not None else None)
        self._write_diary()

    def _samples(self) -> list[SampleImage]:
        """The samples whose files are here: those of another computer come later than their events."""
        samples = self.control.history.samples
        if not self.control.is_mirror:
            return samples
        self._came |= {
            path for one in samples if (path := self._within(one.path)) not in self._came and path.is_file()
        }
        return [one for one in samples if self._within(one.path) in self._came]

    def _within(self, name: str) -> Path:
        """A file that another computer names. A name that leads elsewhere becomes one that does not exist."""
        inside = not Path(name).is_absolute() and ".." not in Path(name).parts
        return self.control.file(name if inside else "")

    def _questions(self, count: int) -> None:
        """Show the number of open questions in the tab, and bring the tab to the front with the first one."""
        title = vote_words.TAB_OPEN.format(count=count) if count else vote_words.TAB
        self.tabs.tab(self.votes, text=title)  # type: ignore[no-untyped-call]
        if count and not self._asked:
            self.tabs.select(self.votes)  # type: ignore[no-untyped-call]
            self.votes.images.canvas.focus_set()
        self._asked = bool(count)
        self._make_room()

    def _make_room(self) -> None:
        """Hide the diagrams to make room for images that are voted on."""
        voting = self._asked and self.tabs.select() == str(self.votes)  # type: ignore[no-untyped-call]
        (self.diagrams.grid_remove if voting else self.diagrams.grid)()
        room = self.ui.theme.px(170)
        self.inside.rowconfigure(PLOTS, weight=0 if voting else 3, minsize=0 if voting else room)

    def _no_samples(self) -> str:
        """Explain why there are no samples."""
        if self.control.makes_samples:
            return words.SAMPLES_COMING.format(progress=self.control.progress().text)
        return words.SAMPLES_DUE if self.control.has_prompts else words.NO_SAMPLES

    def _show_advice(self) -> None:
        fault = self.control.fault()
        if fault is None:
            self.advice.grid_remove()
            return
        text, hint = fault
        self.advice.configure(text=f"{text}\n\u2192 {hint}" if hint else text)
        self.advice.grid(row=ADVICE, column=0, sticky="ew", pady=(0, self.ui.theme.px(8)))

    def _draw(self) -> None:
        history = self.control.history
        groups = group_curves(history.series)
        for column, (plot, picker) in enumerate(zip(self.plots, self.pickers, strict=True)):
            picker.selection_clear()
            usual = FIRST_GROUPS[column]
            if not self._picked[column]:
                picker.set(next((group for group in usual if group in groups), usual[0]))
            shown = picker.get()
            picker.configure(values=list(dict.fromkeys([*groups, shown])))
            members = groups.get(shown, {})
            curves = [
                Curve(name, history.series[tag].steps, history.series[tag].values)
                for tag, name in members.items()
            ]
            plot.show("", curves, SMOOTHING if self._smooth.get() else 0.0)

    def _write_diary(self) -> None:
        messages = self.control.history.messages
        last = messages[-1] if messages else None
        if last is self._last_message and last is not None:
            return
        self._last_message = last
        _replace(self.diary, "\n".join(f"{_clock(m.when)}  {m.kind:13} {m.text}" for m in messages))

    def _look_at_log(self) -> None:
        if not self.showing:
            return
        run = self.control.run
        if run is not None:
            if self._tail is None or self._tail.path != run.log_path:
                self._tail = LogTail(run.log_path)
                _replace(self.log, "")
            text, fresh = self._tail.poll()
            if fresh:
                _replace(self.log, text)
            elif text:
                _append(self.log, text)
        self._reading.restart()

    # -- buttons ---------------------------------------------------------------------------------------------

    def open_folder(self) -> None:
        """Show the run's folder in the file manager."""
        if self.control.run is not None:
            webbrowser.open(self.control.run.path.as_uri())

    def open_tensorboard(self) -> None:
        """Open TensorBoard on the run."""
        if self.control.run is None:
            self.ui.status(words.NO_RUN)
            return
        board, port = self.ui.services.tensorboard, self.ui.state.config.tensorboard_port
        folder = self.control.run.tensorboard_dir
        self.ui.status(words.TENSORBOARD_STARTS)
        self.ui.work(lambda: board.open(folder, port), self._tensorboard_open, self._tensorboard_failed)

    def _tensorboard_open(self, address: str) -> None:
        self.ui.status(words.TENSORBOARD_OPEN.format(address=address))

    def _tensorboard_failed(self, error: Exception) -> None:
        self.ui.status(words.TENSORBOARD_FAILED)
        self.ui.error(error)

    def end_now(self) -> None:
        """Kill the trainer, after asking."""
        from modules.ui.dialogs import confirm

        if confirm(self.ui, words.END_TITLE, words.END_QUESTION, words.END_NOW, loses=True):
            self.ui.work(self.control.end_now, lambda _result: self.ui.status(words.ENDED))


def _clock(when: float) -> str:
    """Time of day of an event; blank if it has none."""
    return " " * 8 if math.isnan(when) else time.strftime("%H:%M:%S", time.localtime(when))


def _replace(box: tk.Text, text: str) -> None:
    if box.get("1.0", "end-1c") != text:
        set_text(box, text)
        box.see("end")


def _append(box: tk.Text, text: str) -> None:
    at_end = box.yview()[1] >= 0.999
    box.configure(state="normal")
    box.insert("end", text)
    lines = int(box.index("end-1c").split(".")[0])
    if lines > MAX_LOG_LINES:
        box.delete("1.0", f"{lines - MAX_LOG_LINES}.0")
    box.configure(state="disabled")
    if at_end:
        box.see("end")
