"""The window of the demo project: make images, pick pairs, load settings. After that, Start trains."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from tkinter import ttk

from modules.ui.demo.demo_project import (
    DEFAULT_FOLDER,
    MAX_PER_PROMPT,
    MAX_PROMPTS,
    PER_PROMPT,
    PROMPTS,
    DemoProject,
    MakerProcess,
)
from modules.ui.dialogs import Dialog
from modules.ui.texts import demo as words
from modules.ui.Ui import Ui
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.ui.widgets.tk_support import IDLE, Timer, later
from modules.util.display import counted
from modules.util.errors import UserError
from modules.util.files.user_path import user_path

POLL_MS = 150
WIDTH = 660
FEWEST_PAIRS = 2
"""One pair to train on, and one of another prompt to validate on."""


class DemoWindow(Dialog):
    """Three steps. Each opens when the previous one is done. Progress is read back from the folder."""

    def __init__(self, ui: Ui, folder: Path = DEFAULT_FOLDER) -> None:
        super().__init__(ui, words.TITLE, width=WIDTH)
        self._maker: MakerProcess | None = None
        self._polling = Timer(self, POLL_MS, self._poll)
        self._tool: tk.Toplevel | None = None
        self.folder = tk.StringVar(self, str(folder))
        self.prompts = tk.StringVar(self, str(PROMPTS))
        self.per_prompt = tk.StringVar(self, str(PER_PROMPT))
        self.entries: dict[str, ttk.Entry] = {}
        self.buttons: dict[str, ttk.Button] = {}
        self.scroll = ScrollFrame(self.body, ui.theme, auto_hide=True)
        self.scroll.configure(style="TFrame")
        canvas = self.scroll.canvas
        ui.theme.on_change(lambda: canvas.configure(background=ui.theme.palette.panel), canvas)
        self.scroll.grid(row=0, column=0, sticky="nsew")
        self.body.columnconfigure(0, weight=1)
        self.body.rowconfigure(0, weight=1)
        self.inside = ttk.Frame(self.scroll.inside)
        self.inside.pack(fill="both", expand=True)
        self.inside.columnconfigure(0, weight=1)
        self._label(words.INTRO, "Muted.TLabel").grid(sticky="ew")
        self._folder_row()
        self._images_step()
        self._pairs_step()
        self._train_step()
        self.error = self._label("", "Error.TLabel")
        self.error.grid(sticky="ew", pady=(ui.theme.px(8), 0))
        self.add_button(words.CLOSE, self.cancel)
        self.folder.trace_add("write", lambda *_: self._look())
        self._look()

    # -- building --------------------------------------------------------------------------------------------

    def _label(self, text: str, style: str = "TLabel") -> ttk.Label:
        wrap = self.ui.theme.px(WIDTH - 40)
        label = ttk.Label(self.inside, text=text, style=style, justify="left", width=1, wraplength=wrap)
        label.bind("<Configure>", lambda event: label.configure(wraplength=max(1, event.width)))
        return label

    def _head(self, text: str) -> None:
        self._label(text, "Bold.TLabel").grid(sticky="ew", pady=(self.ui.theme.px(14), self.ui.theme.px(4)))

    def _row(self) -> FlowFrame:
        row = FlowFrame(self.inside, self.ui.theme.px(6))
        row.grid(sticky="ew", pady=(self.ui.theme.px(4), 0))
        return row

    def _button(self, row: FlowFrame, name: str, text: str, command: Callable[[], None]) -> None:
        self.buttons[name] = row.add_button(text, command)

    def _entry(self, row: ttk.Frame, name: str, variable: tk.StringVar, width: int) -> ttk.Entry:
        entry = ttk.Entry(row, textvariable=variable, width=width, font=self.ui.theme.fonts["text"])
        self.entries[name] = entry
        return entry

    def _folder_row(self) -> None:
        px = self.ui.theme.px
        row = ttk.Frame(self.inside)
        row.grid(sticky="ew", pady=(px(12), 0))
        row.columnconfigure(1, weight=1)
        ttk.Label(row, text=words.FOLDER).grid(row=0, column=0, padx=(0, px(10)))
        self._entry(row, "folder", self.folder, 30).grid(row=0, column=1, sticky="ew")
        browse = self.buttons["browse"] = ttk.Button(row, text=words.BROWSE, command=self._browse)
        browse.grid(row=0, column=2, padx=(px(6), 0))

    def _images_step(self) -> None:
        px = self.ui.theme.px
        self._head(words.IMAGES_HEAD)
        row = ttk.Frame(self.inside)
        row.grid(sticky="ew")
        self._entry(row, "prompts", self.prompts, 5).pack(side="left")
        ttk.Label(row, text=words.PROMPTS_LABEL, style="Muted.TLabel").pack(side="left", padx=px(8))
        self._entry(row, "per_prompt", self.per_prompt, 5).pack(side="left")
        ttk.Label(row, text=words.EACH_LABEL, style="Muted.TLabel").pack(side="left", padx=px(8))
        actions = self._row()
        self._button(actions, "images", words.MAKE_IMAGES, self.make_images)
        self._button(actions, "cancel", words.CANCEL, self.stop_making)
        self.bar = ttk.Progressbar(self.inside, maximum=1.0)
        self.bar.grid(sticky="ew", pady=(px(8), 0))
        self.about_images = self._label("", "Small.TLabel")
        self.about_images.grid(sticky="ew")

    def _pairs_step(self) -> None:
        self._head(words.PAIRS_HEAD)
        self._label(words.PAIRS_ABOUT, "Muted.TLabel").grid(sticky="ew")
        actions = self._row()
        self._button(actions, "choose", words.CHOOSE, self.open_pair_tool)
        self._button(actions, "person", words.SIMULATE, self.simulate)
        self.about_pairs = self._label("", "Small.TLabel")
        self.about_pairs.grid(sticky="ew")

    def _train_step(self) -> None:
        self._head(words.TRAIN_HEAD)
        self._label(words.TRAIN_ABOUT, "Muted.TLabel").grid(sticky="ew")
        self._button(self._row(), "train", words.OPEN_SETTINGS, self.open_settings)

    def open(self) -> None:
        """Show it over the main window, which stays usable. On small screens it scrolls."""
        self.update_idletasks()
        self.scroll.canvas.configure(height=self.inside.winfo_reqheight(), width=1)
        self.present()
        self.grab_release()
        self._focus_next()

    # -- showing ---------------------------------------------------------------------------------------------

    @property
    def project(self) -> DemoProject:
        """The project in the folder of the form.

        Raises:
            UserError: the folder is not a path here.
        """
        return DemoProject(user_path(self.folder.get().strip() or DEFAULT_FOLDER, words.FOLDER).absolute())

    def _look(self) -> None:
        """Handle a change of the folder."""
        self.say_error("")
        try:
            known = self.project.size()
        except UserError:
            known = None  # said by refresh
        if known is not None:
            self.prompts.set(str(known[0]))
            self.per_prompt.set(str(known[1]))
        self.refresh()

    def refresh(self) -> None:
        """Read the folder and enable the steps that are possible."""
        busy = self._maker is not None
        wanted = self._wanted_images()
        project = None
        try:
            project = self.project
            images, (pairs, waiting) = project.image_count(), project.pair_counts()
        except (UserError, OSError) as error:
            self.say_error(str(error))
            images = pairs = waiting = 0
        ready = images > 0 and not busy
        self._enable("images", project is not None and not busy and (wanted is None or images < wanted))
        self._enable("cancel", busy)
        for name in ("choose", "person"):
            self._enable(name, ready)
        self._enable("train", pairs >= FEWEST_PAIRS and not busy)
        for name, entry in self.entries.items():
            entry.state(["disabled" if busy or (name != "folder" and images) else "!disabled"])
        self._enable("browse", not busy)
        self.buttons["choose"].configure(text=words.CONTINUE_CHOOSING if pairs else words.CHOOSE)
        self.buttons["images"].configure(
            text=words.MAKE_THE_REST if 0 < images < (wanted or 0) else words.MAKE_IMAGES
        )
        if not busy:
            self.bar.configure(value=min(1.0, images / wanted) if wanted else 0.0)
            self.about_images.configure(text=counted(images, words.IMAGE) if images else words.NO_IMAGES)
        made = counted(pairs, words.PAIR)
        ready_pairs = made if waiting else words.SORTED.format(pairs=made)
        self.about_pairs.configure(text=ready_pairs if pairs else words.NO_PAIRS)
        self._show_accent("train" if pairs >= FEWEST_PAIRS else "choose" if ready else "images")

    def _show_accent(self, name: str) -> None:
        for key in ("images", "choose", "train"):
            self.buttons[key].configure(style="Accent.TButton" if key == name else "TButton")

    def _enable(self, name: str, on: bool) -> None:
        self.buttons[name].state(["!disabled" if on else "disabled"])

    def _focus_next(self) -> None:
        for name in ("train", "choose", "images", "cancel"):
            if not self.buttons[name].instate(["disabled"]):
                self.buttons[name].focus_set()
                return

    def say_error(self, text: str) -> None:
        """Show an error below the steps; an empty text clears it."""
        self.error.configure(text=text)

    def _browse(self) -> None:
        folder = self.ui.chooser.folder(words.ASK_FOLDER, self.folder.get(), parent=self)
        if folder is not None:
            self.folder.set(str(folder))

    # -- images ----------------------------------------------------------------------------------------------

    def _number(self, variable: tk.StringVar, low: int, high: int, what: str) -> int:
        text = variable.get().strip()
        if not text.isdecimal() or not low <= int(text) <= high:
            raise UserError(
                words.NOT_POSSIBLE.format(value=text, field=what), hint=words.RANGE.format(low=low, high=high)
            )
        return int(text)

    def _numbers(self) -> tuple[int, int]:
        return (
            self._number(self.prompts, 2, MAX_PROMPTS, words.PROMPTS_FIELD),
            self._number(self.per_prompt, 2, MAX_PER_PROMPT, words.EACH_FIELD),
        )

    def _wanted_images(self) -> int | None:
        try:
            prompts, each = self._numbers()
        except UserError:
            return None
        return prompts * each

    def make_images(self) -> None:
        """Make the missing images in a separate process."""

        def start() -> MakerProcess:
            prompts, each = self._numbers()
            self.project.prepare(prompts, each)
            return MakerProcess.images(self.project, prompts, each)

        self._work(start, words.LOADING)

    def simulate(self) -> None:
        """Let a simulated person choose."""
        self._work(lambda: MakerProcess.person(self.project), words.SIMULATING)

    def _work(self, start: Callable[[], MakerProcess], text: str) -> None:
        self.say_error("")
        try:
            self._maker = start()
        except UserError as error:
            self.say_error(str(error))
            return
        self.about_images.configure(text=text)
        self.refresh()
        self.buttons["cancel"].focus_set()
        self._polling.start()

    def _poll(self) -> None:
        maker = self._maker
        if maker is None:
            return
        if maker.total:
            self.bar.configure(value=maker.done / maker.total)
            self.about_images.configure(
                text=words.MADE_OF.format(done=maker.done, images=counted(maker.total, words.IMAGE))
            )
        if maker.running():
            self._polling.start()
            return
        self._maker = None
        problem = maker.problem()
        self.refresh()
        if problem is not None:
            self.ui.error(problem)
        elif not maker.cancelled:
            self._focus_next()

    def stop_making(self) -> None:
        """End the process. Finished images stay, and "Make the rest" continues from there."""
        maker = self._maker
        if maker is not None and not maker.cancelled:
            maker.cancelled = True
            self.about_images.configure(text="Stopping\u2026")
            self.ui.work(maker.cancel, lambda _result: None)

    # -- pairs -----------------------------------------------------------------------------------------------

    def open_pair_tool(self) -> None:
        """Choose in the pair tool. This window returns when the tool is closed."""
        from modules.ui.curation.DPOCurationWindow import DPOCurationWindow
        from modules.ui.curation.StartPage import picking_options
        from modules.ui.curation.windows import open_pair_tool

        self.say_error("")
        try:
            memory = self.project.prepare_pair_tool()
        except OSError as error:
            self.say_error(words.CANNOT_WRITE.format(folder=self.project.folder, reason=error.strerror))
            return
        window = self._tool = open_pair_tool(self.ui.root, self.ui.theme, settings=self.project.folder)
        tool = next(child for child in window.winfo_children() if isinstance(child, DPOCurationWindow))
        tool.start(picking_options(memory))
        window.bind("<Destroy>", lambda event: self._tool_closed() if event.widget is window else None, "+")
        self.withdraw()

    def _tool_closed(self) -> None:
        self._tool = None
        if self.winfo_exists():
            later(self, IDLE, self._come_back)

    def _come_back(self) -> None:
        self.deiconify()
        self.lift()
        self.refresh()
        self._focus_next()

    # -- training --------------------------------------------------------------------------------------------

    def open_settings(self) -> None:
        """Split the pairs if needed, write and open the settings, then close."""
        self.say_error("")
        project, model = self.project, self.ui.state.model

        def work() -> None:
            train, _ = project.finalise()
            project.make_config(model, train).save(project.config_path)

        self._enable("train", False)
        self.ui.work(work, lambda _result: self._opened(project), self._not_opened)

    def _opened(self, project: DemoProject) -> None:
        if not self.ui.services.files.load(project.config_path):
            self.refresh()
            return
        self.ui.services.show_page("run")
        self.ui.status(words.READY)
        if self.winfo_exists():
            self.cancel()

    def _not_opened(self, error: Exception) -> None:
        if self.winfo_exists():
            self.refresh()
        self.ui.error(error)

    # -- the end ---------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Close. Running work is stopped; what it has finished stays."""
        maker, self._maker = self._maker, None
        if maker is not None:
            self.ui.work(maker.cancel, lambda _result: None)
        self.destroy()

    def destroy(self) -> None:
        if self._maker is not None:  # the program ends
            self._maker.process.end(0.5)
            self._maker = None
        super().destroy()
