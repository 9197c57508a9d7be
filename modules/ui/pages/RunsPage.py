"""The page of all runs on this computer: overlaid curves, differences in settings, samples side by side."""

from __future__ import annotations

import time
import tkinter as tk
import webbrowser
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tkinter import ttk

from modules.remote.records import folder_here
from modules.runner.known_runs import known_runs
from modules.runner.run_list import RunSummary, list_runs
from modules.runner.RunDirectory import RunDirectory
from modules.runner.trash import delete_run, empty_trash, restore_run, trashed_runs
from modules.ui.dialogs import confirm
from modules.ui.form.inputs import choice_box
from modules.ui.home.CompareDialog import CompareDialog
from modules.ui.home.HomeActions import HomeActions
from modules.ui.pages.Page import Page
from modules.ui.pages.PageSpec import PageSpec
from modules.ui.run.CurvePlot import Curve, CurvePlot
from modules.ui.run.SampleGrid import SampleGrid
from modules.ui.run.StrengthsPanel import StrengthsPanel
from modules.ui.state.curve_groups import group_curves
from modules.ui.state.RunHistory import RunHistory
from modules.ui.state.runs.comparing import differences, history_of, sample_grid
from modules.ui.texts import runs as words
from modules.ui.Ui import Ui
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.ui.widgets.tk_support import bind_row_keys, pack_with_bar
from modules.util.config.load import load_layered
from modules.util.display import counted
from modules.util.errors import UserError, UserErrors

ROWS = 5
SMOOTHING = 0.85
MOST_CHECKPOINTS = 8
FIRST_GROUP = "Loss"
CHANGING = ("running", "remote")
"""States of runs that can still change."""


class RunsPage(Page):
    """A list of runs, and below it a comparison of the selected ones."""

    def __init__(self, parent: tk.Misc, ui: Ui, spec: PageSpec) -> None:
        super().__init__(parent, ui, spec)
        px = ui.theme.px
        self.runs: list[RunSummary] = []
        self._histories: dict[Path, RunHistory] = {}
        self._deleted: list[list[tuple[Path, Path]]] = []
        self._looked = 0
        self.scroll = ScrollFrame(self, ui.theme, auto_hide=True, fill=True)
        self.scroll.pack(fill="both", expand=True)
        self.inside = self.scroll.inside
        self.inside.columnconfigure(0, weight=1)
        self.inside.rowconfigure(3, weight=1, minsize=px(240))
        head = ttk.Frame(self.inside, style="Back.TFrame")
        head.grid(row=0, column=0, sticky="ew")
        self.add_head(head)
        self.tree = self._list()
        self._buttons().grid(row=2, column=0, sticky="ew", padx=px(14), pady=px(6))
        self.tabs = ttk.Notebook(self.inside, takefocus=True)
        self.tabs.grid(row=3, column=0, sticky="nsew", padx=px(12), pady=(0, px(8)))
        self.plot = self._curves()
        self.table = self._differences()
        self.grid_ = SampleGrid(self.tabs, ui)
        self.grid_.configure(padding=px(8))
        self.tabs.add(self.grid_, text=words.SAMPLES_TAB)
        self.strengths = StrengthsPanel(self.tabs, ui, self._one, self._prompts)
        self.tabs.add(self.strengths, text=words.STRENGTHS_TAB)
        self._enable()

    # -- building --------------------------------------------------------------------------------------------

    def _list(self) -> ttk.Treeview:
        px = self.ui.theme.px
        frame = ttk.Frame(self.inside)
        frame.grid(row=1, column=0, sticky="ew", padx=px(12))
        columns = {
            "date": (words.COLUMN_DATE, 130), "mode": (words.COLUMN_MODE, 100), "steps": (words.COLUMN_STEPS, 100),
            "state": (words.COLUMN_STATE, 120),
        }  # fmt: skip
        tree = ttk.Treeview(frame, columns=tuple(columns), height=ROWS, selectmode="extended")
        tree.heading("#0", text=words.COLUMN_RUN, anchor="w")
        tree.column("#0", width=px(160), stretch=True)
        for name, (title, width) in columns.items():
            tree.heading(name, text=title, anchor="w")
            tree.column(name, width=px(width), minwidth=px(60), stretch=True)
        pack_with_bar(tree)
        tree.bind("<<TreeviewSelect>>", lambda _event: self._selected())
        bind_row_keys(tree)
        tree.bind("<Delete>", lambda _event: self.delete())
        tree.bind("<Return>", lambda _event: self.watch())
        tree.bind("<Control-a>", lambda _event: tree.selection_set(tree.get_children()))
        self.ui.services.tooltips.add(tree, self._path_under_pointer)
        return tree

    def _path_under_pointer(self) -> str:
        row = self.tree.identify_row(self.tree.winfo_pointery() - self.tree.winfo_rooty())
        return str(self.runs[int(row)].path) if row else ""

    def _buttons(self) -> FlowFrame:
        px, tips = self.ui.theme.px, self.ui.services.tooltips
        frame = FlowFrame(self.inside, px(6), style="Back.TFrame")
        self.buttons: dict[str, ttk.Button] = {}
        commands: tuple[tuple[str, Callable[[], object], str], ...] = (
            (words.WATCH, self.watch, words.WATCH_TIP),
            (words.SETTINGS, self.load_settings, words.SETTINGS_TIP),
            (words.RESUME, self.resume, words.RESUME_TIP),
            (words.FOLDER, self.open_folder, words.FOLDER_TIP),
            (words.ADAPTER, self.open_adapter, words.ADAPTER_TIP),
            (words.COPY, self.copy_adapter, words.COPY_TIP),
            (words.ARENA, self.compare, words.ARENA_TIP),
            (words.DELETE, self.delete, words.DELETE_TIP),
            (words.UNDELETE, self.undelete, words.UNDELETE_TIP),
            (words.EMPTY, self.empty_trash, words.EMPTY_TIP),
            (words.OTHER, self.watch_other, words.OTHER_TIP),
            (words.REFRESH, self.look, words.REFRESH_TIP),
        )
        for text, command, tip in commands:
            self.buttons[text] = frame.add_button(text, command, "Back.TButton")
            tips.add(self.buttons[text], tip)
        return frame

    def _curves(self) -> CurvePlot:
        px, theme = self.ui.theme.px, self.ui.theme
        card = ttk.Frame(self.tabs)
        plot = CurvePlot(card, theme, height=120, reserved=170)
        plot.pack(fill="both", expand=True)
        self.picker = choice_box(card, theme, [FIRST_GROUP], 14)
        self.picker.set(FIRST_GROUP)
        self.picker.bind("<<ComboboxSelected>>", lambda _event: self._draw_curves())
        self.picker.place(x=px(6), y=px(5))
        self.tabs.add(card, text=words.CURVES_TAB)
        return plot

    def _differences(self) -> ttk.Treeview:
        frame = ttk.Frame(self.tabs, padding=self.ui.theme.px(8))
        self.said = ttk.Label(frame, style="Muted.TLabel", text=words.SELECT_TWO)
        self.said.pack(anchor="w")
        table = ttk.Treeview(frame, show="headings", height=4, selectmode="browse")
        pack_with_bar(table)
        self.tabs.add(frame, text=words.SETTINGS_TAB)
        return table

    # -- the list --------------------------------------------------------------------------------------------

    def opened(self) -> None:
        self.look()

    def look(self) -> None:
        """Look for runs in the background, keeping the selection."""
        self._looked += 1
        turn, workspace = self._looked, Path(self.ui.state.config.workspace_dir)
        if not self.runs:
            self.ui.status(words.LOADING)
        self.ui.work(lambda: list_runs(workspace), lambda found: self._found(turn, found))

    def _found(self, turn: int, found: list[RunSummary]) -> None:
        if turn != self._looked or not self.winfo_exists():
            return
        chosen = {run.path for run in self.selected()}
        self.runs = found
        self._histories = {run.path: h for run in found if (h := self._histories.get(run.path)) is not None}
        self.tree.delete(*self.tree.get_children())
        names = _names(found)
        for index, run in enumerate(found):
            steps = words.STEPS_OF.format(steps=run.steps, total=run.total_steps) if run.total_steps else ""
            when = time.strftime(words.DATE, time.localtime(run.when))
            state = words.STATES.get(run.state, run.state)
            self.tree.insert(
                "", "end", str(index), text=names[run.path], values=(when, run.mode, steps, state)
            )
        again = [str(index) for index, run in enumerate(found) if run.path in chosen]
        self.tree.selection_set(again or (["0"] if found else []))
        self.ui.status("" if found else words.NO_RUNS)
        if not found:
            self._selected()

    def selected(self) -> list[RunSummary]:
        """The runs being compared, newest first."""
        return [self.runs[int(row)] for row in self.tree.selection() if int(row) < len(self.runs)]

    def _enable(self) -> None:
        chosen = self.selected()
        one = len(chosen) == 1
        adapter = one and chosen[0].adapter is not None
        resumable = one and chosen[0].state not in CHANGING and chosen[0].has_backup
        resumable = resumable and not RunDirectory(chosen[0].path).is_mirror  # its own computer resumes it
        wanted = {
            words.RESUME: resumable, words.WATCH: one, words.SETTINGS: one, words.FOLDER: one, words.ADAPTER: adapter,
            words.ARENA: any(run.adapter is not None for run in chosen),
            words.COPY: adapter, words.DELETE: bool(chosen), words.UNDELETE: bool(self._deleted),
        }  # fmt: skip
        for name, on in wanted.items():
            self.buttons[name].state([("!" if on else "") + "disabled"])
        self.strengths.enable()

    # -- comparing -------------------------------------------------------------------------------------------

    def _selected(self) -> None:
        self._enable()
        self._show_differences()
        chosen = self.selected()
        missing = [run.path for run in chosen if run.path not in self._histories or run.state in CHANGING]
        if not missing:
            self._draw()
            return
        self.ui.work(lambda: {path: history_of(path) for path in missing}, self._heard)

    def _heard(self, found: dict[Path, RunHistory]) -> None:
        self._histories.update(found)
        if self.winfo_exists():
            self._draw()

    def _draw(self) -> None:
        self._draw_curves()
        chosen = [run for run in self.selected() if run.path in self._histories]
        names = _names(self.runs)
        shown = [(names[run.path], run.path, self._histories[run.path].samples) for run in chosen]
        self.grid_.show(sample_grid(shown, words.AT_STEP), words.NO_SAMPLES if chosen else words.SELECT_ONE)

    def _prompts(self) -> list[str]:
        """The sample prompts of the selected runs."""
        found = [h.samples for run in self.selected() if (h := self._histories.get(run.path)) is not None]
        return list(dict.fromkeys(sample.prompt for samples in found for sample in samples))

    def _draw_curves(self) -> None:
        self.picker.selection_clear()
        names, groups = _names(self.runs), set[str]()
        curves: list[Curve] = []
        chosen = [run for run in self.selected() if run.path in self._histories]
        for run in chosen:
            series = self._histories[run.path].series
            found = group_curves(series)
            groups |= found.keys()
            for tag, name in found.get(self.picker.get(), {}).items():
                title = words.CURVE.format(run=names[run.path], curve=name) if len(chosen) > 1 else name
                curves.append(Curve(title, series[tag].steps, series[tag].values))
        self.picker.configure(values=sorted(groups | {self.picker.get()}))
        self.plot.show("", curves, SMOOTHING)

    def _show_differences(self) -> None:
        chosen, table, px = self.selected(), self.table, self.ui.theme.px
        found = differences([run.config for run in chosen]) if len(chosen) > 1 else []
        self.said.configure(text=words.SELECT_TWO if len(chosen) < 2 else "" if found else words.SAME)
        table.delete(*table.get_children())
        names = _names(self.runs)
        columns = ("setting", *(str(index) for index in range(len(chosen))))
        table.configure(columns=columns)
        table.heading("setting", text=words.COLUMN_SETTING, anchor="w")
        table.column("setting", width=px(240), stretch=False)
        for index, run in enumerate(chosen):
            table.heading(str(index), text=names[run.path], anchor="w")
            table.column(str(index), width=px(160), stretch=True)
        for one in found:
            setting = self.ui.state.settings.get(one.path)
            table.insert("", "end", values=(setting.title if setting else one.path, *one.values))

    # -- buttons ---------------------------------------------------------------------------------------------

    def _one(self) -> RunSummary | None:
        chosen = self.selected()
        return chosen[0] if len(chosen) == 1 else None

    def watch(self) -> None:
        """Show the selected run on the Run page."""
        run = self._one()
        if run is not None:
            self.ui.services.run_actions.attach(str(run.path))
            self.ui.services.show_page("run")

    def watch_other(self) -> None:
        """Ask for the folder of a run and show the run on the Run page."""
        folder = self.ui.chooser.folder(words.ASK_RUN_FOLDER)
        if folder is not None:
            self.ui.services.run_actions.attach(str(folder))
            self.ui.services.show_page("run")

    def load_settings(self) -> None:
        """Edit a copy of the selected run's settings; the run's own file stays as it is."""
        self._take_settings(words.SETTINGS_LOADED, resume=False)

    def resume(self) -> None:
        """Load the selected run's settings so that Start resumes it."""
        self._take_settings(words.RESUME_LOADED, resume=True)

    def _take_settings(self, said: str, resume: bool) -> None:
        run = self._one()
        if run is None:
            return
        with self.ui.errors_shown():
            config = load_layered(None, run.path / "config.json", check=False, model=self.ui.state.model)
            if RunDirectory(run.path).is_mirror:  # training there would mix both runs
                folder = folder_here(run.path)
                destination = folder / "model" / Path(config.output_model_destination).name
                config.workspace_dir, config.output_model_destination = str(folder), str(destination)
            elif resume:
                config.continue_last_backup, config.workspace_dir = True, str(run.path)
            self.ui.state.replace(config, words.SETTINGS_UNDO.format(name=run.path.name), file="")
            self.ui.status(said.format(name=run.path.name))

    def open_folder(self) -> None:
        """Show the run's folder in the file manager."""
        run = self._one()
        if run is not None:
            webbrowser.open(run.path.as_uri())

    def open_adapter(self) -> None:
        """Show the folder of the run's adapter in the file manager."""
        run = self._one()
        if run is not None and run.adapter is not None:
            webbrowser.open(run.adapter.parent.as_uri())

    def copy_adapter(self) -> None:
        """Copy the path of the run's adapter to the clipboard."""
        run = self._one()
        if run is not None and run.adapter is not None:
            self.clipboard_clear()
            self.clipboard_append(str(run.adapter))
            self.ui.status(words.COPIED.format(path=run.adapter))

    def compare(self) -> None:
        """Choose among the adapters and checkpoints of the selected runs, and vote on them."""
        watch = self.ui.services.home
        if watch.project is None or watch.job is not None or watch.tool is not None:
            self.ui.status(words.NO_PROJECT if watch.project is None else words.PROJECT_BUSY)
            return
        adapters = [run.adapter for run in self.selected() if run.adapter is not None]
        saved = [
            path for run in self.selected() for path in sorted((run.path / "save").glob("*.safetensors"))
        ]

        def take(between: str, count: int) -> None:
            self.ui.services.show_page("home")
            HomeActions(self.ui, watch).compare(between, count)

        CompareDialog(self.ui, watch.project, take, saved[-MOST_CHECKPOINTS:], adapters)

    def delete(self) -> None:
        """Move the selected runs to a trash. Those that cannot be deleted are reported; the others are moved."""
        chosen = self.selected()
        if chosen:
            self.ui.work(lambda: _delete([run.path for run in chosen]), self._gone)

    def _gone(self, found: tuple[list[tuple[Path, Path]], list[UserError]]) -> None:
        moved, errors = found
        if moved:
            self._deleted.append(moved)
            count = counted(len(moved), words.ONE_RUN)
            self.ui.status(words.DELETED.format(runs=count, folder=moved[0][1].parent))
        self._enable()
        self.look()
        if errors:
            self._tell(errors)

    def empty_trash(self) -> None:
        """Delete the runs in the trash for good, after asking."""
        found = trashed_runs(_parents(self.runs, Path(self.ui.state.config.workspace_dir)))
        count = counted(len(found), words.ONE_RUN)
        if not found:
            self.ui.status(words.EMPTY_NOTHING)
        elif confirm(self.ui, words.EMPTY, words.EMPTY_ASK.format(runs=count), words.EMPTY_YES, loses=True):
            self._deleted.clear()
            self._enable()
            self.ui.work(
                lambda: empty_trash(found), lambda _r: self.ui.status(words.EMPTIED.format(runs=count))
            )

    def undelete(self) -> None:
        """Restore what was deleted last. What cannot be restored yet can be tried again, after earlier deletions."""
        if not self._deleted:
            return
        moved = self._deleted.pop()

        def done(failed: list[tuple[tuple[Path, Path], UserError]]) -> None:
            kept = [one for one, _ in failed if one[1].exists()]
            self._deleted[:0] = [kept] if kept else []
            restored = len(moved) - len(failed)
            if restored:
                self.ui.status(words.RESTORED.format(runs=counted(restored, words.ONE_RUN)))
            self._enable()
            self.look()
            if failed:
                self._tell([error for _, error in failed])

        self.ui.work(lambda: _restore(moved), done)

    def _tell(self, errors: list[UserError]) -> None:
        self.ui.error(errors[0] if len(errors) == 1 else UserErrors(errors))


def _parents(runs: list[RunSummary], workspace: Path) -> list[Path]:
    return [
        *(run.path.parent for run in runs),
        *(path.parent for path in known_runs()),
        workspace.absolute().parent,
    ]


def _delete(folders: list[Path]) -> tuple[list[tuple[Path, Path]], list[UserError]]:
    moved: list[tuple[Path, Path]] = []
    errors: list[UserError] = []
    for folder in folders:
        try:
            moved.append((folder, delete_run(folder)))
        except UserError as error:
            errors.append(error)
    return moved, errors


def _restore(moved: list[tuple[Path, Path]]) -> list[tuple[tuple[Path, Path], UserError]]:
    """Restore runs of which the original and the present folder are given. Returns those that cannot be, with the
    reasons.
    """
    failed: list[tuple[tuple[Path, Path], UserError]] = []
    for folder, trashed in moved:
        try:
            restore_run(trashed, folder)
        except UserError as error:
            failed.append(((folder, trashed), error))
        except OSError as error:
            reason = UserError(f"{folder} cannot be restored: {error.strerror or error}")
            failed.append(((folder, trashed), reason))
    return failed


def _names(runs: list[RunSummary]) -> dict[Path, str]:
    """A short name for each run: its folder, with as many parent folders as tell it apart from the others."""
    depth, left = 1, [run.path for run in runs]
    names: dict[Path, str] = {}
    while left:
        counts = Counter(path.parts[-depth:] for path in left)
        for path in left:
            if counts[path.parts[-depth:]] == 1 or depth >= len(path.parts):
                names[path] = Path(*path.parts[-depth:]).as_posix()
        left, depth = [path for path in left if path not in names], depth + 1
    return names
