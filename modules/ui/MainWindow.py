"""The main window: pages on the left, settings in the middle, the run below."""

from __future__ import annotations

import logging
import os
import re
import sys
import tkinter as tk
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tkinter import ttk

import customtkinter as ctk

from modules.runner.RunQueue import QueueRunner, RunQueue
from modules.ui.Actions import Actions
from modules.ui.demo.DemoOffer import offer_demo
from modules.ui.dialogs import confirm
from modules.ui.form.Tooltips import Tooltips
from modules.ui.home.ProjectWatch import ProjectWatch
from modules.ui.keys import bind_keys
from modules.ui.options import parser
from modules.ui.pages.Page import Page
from modules.ui.pages.registry import page_class, page_of, pages_for
from modules.ui.remote.RemoteRuns import RemoteRuns
from modules.ui.run.QueuePanel import QueueWork
from modules.ui.run.RunActions import RunActions
from modules.ui.run.StartCheck import StartCheck
from modules.ui.run.TensorBoard import TensorBoard
from modules.ui.Services import Services
from modules.ui.shell.Autosave import Autosave
from modules.ui.shell.BottomBar import BottomBar
from modules.ui.shell.FileActions import FileActions
from modules.ui.shell.ProblemsPanel import ProblemsPanel
from modules.ui.shell.SideBar import SideBar
from modules.ui.shell.TopBar import TopBar
from modules.ui.shell.ViewDialog import open_view_dialog
from modules.ui.state.ConfigState import ConfigState, Problem
from modules.ui.state.DryRun import DRY_RUN
from modules.ui.state.PresetStore import PresetStore
from modules.ui.state.RunControl import RunControl
from modules.ui.state.SessionStore import Session, SessionStore, WindowMemory
from modules.ui.texts import window as words
from modules.ui.Ui import Ui
from modules.ui.widgets.Chooser import Chooser
from modules.ui.widgets.drop import accept_drops, load_drops, one_config
from modules.ui.widgets.ScrollFrame import ScrollFrame, install_wheel
from modules.ui.widgets.theme import SCALES, Theme, is_dark
from modules.ui.widgets.tk_support import (
    IDLE,
    MAX_SCALE,
    MIN_SCALE,
    Pump,
    Timer,
    bind_own,
    cancel_timer,
    focus_on_click,
    install_error_dialog,
    later,
    select_all_with_ctrl_a,
    set_ui_scale,
)
from modules.util.config.TrainConfig import TrainConfig
from modules.util.display import counted
from modules.util.errors import UserError
from modules.util.files.user_folder import FOLDER_VARIABLE, settings_folder
from modules.util.program_files import RESOURCES

NAME = "Tastemaker"
ICON = RESOURCES / "icons" / "tastemaker.png"
DEFAULT_SIZE = (1240, 780)
MIN_SIZE, ENOUGH = (760, 480), (1260, 660)
"""Minimum size at 100 %, and a size that is enough at any scale."""
FRAME = (4, 30)
"""Pixels around the inside of a window: both sides, title and lower edge."""
_GEOMETRY = re.compile(r"(\d+)x(\d+)(?:\+(-?\d+)\+(-?\d+))?")


class MainWindow(ctk.CTk):  # type: ignore[misc]
    """The main window of the program.

    Args:
        store: the settings folder.
        model: class of the config.
        presets: folder of the presets.
        control: the watched run.
        dry_run: the command line of a dry run, see ``DryRun``.
    """

    def __init__(
        self,
        store: SessionStore,
        model: type[TrainConfig] = TrainConfig,
        presets: PresetStore | None = None,
        control: RunControl | None = None,
        dry_run: Sequence[str] = DRY_RUN,
    ) -> None:
        self.store = store
        self.memory, said = store.load_window()
        # By default, customtkinter asks the desktop for its appearance thirty times a second.
        ctk.set_appearance_mode("Dark" if is_dark(self.memory.appearance) else "Light")
        super().__init__(className=NAME)
        self.withdraw()
        number = store.claim()
        config, session, trouble = store.load_session(model)
        self._messages = [text for text in (said, trouble) if text]
        self.state_ = ConfigState(config if config is not None else model())
        self.theme = Theme(self)
        self.pump = Pump(self)
        self.ui = Ui(
            self, self.theme, self.state_, self.pump, Chooser(self, self.memory), self.say, self.jump
        )
        self.control = control or RunControl()
        self.presets = presets or PresetStore()
        self.pages = pages_for(self.state_.settings)
        self._built: dict[str, Page] = {}
        self._at_fields: dict[str, Problem] = {}
        self.page = ""
        self._problems_open = False
        self._refreshing = Timer(self, IDLE, self._refresh_bars)
        self.files = FileActions(self.ui, self.memory, self.presets, self._file_changed)
        self.autosave = Autosave(
            self, store, self.snapshot, lambda text: self.pump.post(lambda: self._warn(text))
        )
        install_error_dialog(self)
        self.theme.apply(self.memory.appearance, self.memory.scale)
        set_ui_scale(self.memory.scale)
        self.check = StartCheck(self.ui, lambda: self.control.is_live_here, self._refreshing.start, dry_run)
        self.runs = RunActions(self.ui, self.control, self.check, self._refuse_start, self._run_heard)
        runner = QueueRunner(RunQueue(store.queue_path))
        self.queue = QueueWork(self.ui, runner, self.runs.attach)
        self.tensorboard = TensorBoard()
        self.remote = RemoteRuns(self.ui, self.control, self._refuse_start, self._run_heard)
        self.home = ProjectWatch(self, self.pump, self.memory, self.autosave.soon)
        self.ui.services = Services(
            store, self.memory, Tooltips(self.theme), self.control, self.files, self.check, self.runs,
            self.queue, self.tensorboard, self.home, self.remote, self.show_page, self.autosave.soon,
        )  # fmt: skip
        self.actions = self._actions()
        load_drops(self)
        self._build()
        self._listen()
        self._open_where_it_was(session)
        self._telling = later(self, 200, self._tell)
        if number > 1:
            self.say(words.OTHER_WINDOW.format(name=store.session_path.name))

    def _listen(self) -> None:
        focus_on_click(self)
        install_wheel(self)
        select_all_with_ctrl_a(self)
        bind_keys(self, self.actions)
        self.state_.listen(self._changed)
        self.check.soon()
        self.unbind("<Configure>")  # customtkinter's, which needs the window's own events only
        bind_own(self, "<Configure>", self._update_dimensions_event)
        bind_own(self, "<Configure>", lambda _event: self._moved())
        self.unbind("<FocusIn>")
        bind_own(self, "<FocusIn>", lambda _event: self.check.after_absence())

    def _open_where_it_was(self, session: Session | None) -> None:
        if session is not None:
            self._restore(session)
        self.protocol("WM_DELETE_WINDOW", self.ask_quit)
        self._place()
        self.show_page(self.memory.page)
        self._set_icon()

    # CTk would resize the window along with its content. Here only the content is scaled.
    def _set_scaling(self, new_widget_scaling: float, new_window_scaling: float) -> None:
        return

    # -- building --------------------------------------------------------------------------------------------

    def _actions(self) -> Actions:
        files, runs = self.files, self.runs
        return Actions(
            new=files.new, load=files.ask_load, save=files.save, save_as=files.ask_save,
            import_=files.ask_import, undo=self.undo, redo=self.redo, view=self.open_view,
            quit=self.ask_quit, search=lambda: self.top_bar.search.focus_entry(), zoom=self.zoom,
            start=runs.start, order=runs.order, pause_or_resume=runs.pause_or_resume,
            toggle_problems=self.toggle_problems,
            show_pages=tuple(partial(self.show_page, page.key) for page in self.pages if not page.key_name),
            show_by_key={
                page.key_name.replace("+", "-"): partial(self.show_page, page.key)
                for page in self.pages
                if page.key_name
            },
            turn_page=self.turn_page, scroll=lambda step: self.current_page().scroll_by(step),
        )  # fmt: skip

    def _build(self) -> None:
        """Build the frame around the pages at the current scale."""
        ui, actions = self.ui, self.actions
        self.columnconfigure(1, weight=1)
        self.rowconfigure(1, weight=1)
        self.top_bar = TopBar(self, ui, actions, self.files)
        self.top_bar.grid(row=0, column=0, columnspan=2, sticky="ew")
        side = self._side = ScrollFrame(self, self.theme, auto_hide=True)
        self.side_bar = SideBar(side.inside, ui, self.pages, self.show_page)
        self.side_bar.pack(fill="both", expand=True)
        side.grid(row=1, column=0, sticky="ns")
        self.theme.on_change(lambda: side.canvas.configure(background=self.theme.palette.panel), side)
        side.canvas.configure(width=self.side_bar.widest())
        self.middle = ttk.Frame(self, style="Back.TFrame")
        self.middle.grid(row=1, column=1, sticky="nsew")
        self.offer = offer_demo(self.middle, ui)
        self.problems = ProblemsPanel(self, ui, self.close_problems)
        self.bottom_bar = BottomBar(self, ui, actions)
        self.bottom_bar.grid(row=3, column=0, columnspan=2, sticky="ew")
        self._shell = (self.top_bar, side, self.middle, self.problems, self.bottom_bar)
        for part in (self.top_bar, self.middle, self.bottom_bar):
            accept_drops(part, self._dropped)
        self._refresh_bars()
        self.bottom_bar.show_run(self.control, self.runs.waiting)

    def _rebuild(self) -> None:
        page, self.page = self.page, ""
        for part in self._shell:
            part.destroy()
        self._built.clear()
        self._build()
        if self._problems_open:
            self._problems_open = False
            self.toggle_problems()
        self.show_page(page)

    def _place(self) -> None:
        screen = (self.winfo_screenwidth(), self.winfo_screenheight())
        self._limit_size()
        tk.Tk.wm_geometry(self, _on_screen(self.memory.geometry or _first_place(*screen), *screen))
        self.deiconify()
        if self.memory.maximized:
            _maximize(self)

    def _moved(self) -> None:
        if tk.Tk.wm_geometry(self) != self.memory.geometry:
            self.autosave.soon()

    def _limit_size(self) -> None:
        room = _room(self.winfo_screenwidth(), self.winfo_screenheight())
        sizes = zip(map(self.theme.px, MIN_SIZE), ENOUGH, room, strict=True)
        tk.Tk.wm_minsize(self, *(min(one) for one in sizes))

    def _set_icon(self) -> None:
        if ICON.is_file():
            self._icon = tk.PhotoImage(file=ICON, master=self)
            self.iconphoto(True, self._icon)

    # -- pages -----------------------------------------------------------------------------------------------

    def show_page(self, key: str) -> None:
        """Bring a page to the front, building it on first use."""
        specs = {spec.key: spec for spec in self.pages}
        spec = specs.get(key) or self.pages[0]
        if spec.key == self.page:
            return
        if self.page in self._built:
            self._built[self.page].pack_forget()
            self._built[self.page].showing = False
        made = self._built.get(spec.key)
        if made is None:
            made = self._built[spec.key] = page_class(spec)(self.middle, self.ui, spec)
            made.show_problems(self._at_fields)
        self.page = self.memory.page = spec.key
        made.pack(fill="both", expand=True)
        made.showing = True
        made.opened()
        self.side_bar.select(spec.key)
        self._side.see(self.side_bar.buttons[spec.key])
        self.autosave.soon()

    def turn_page(self, step: int) -> None:
        """Move to the next page (1) or the previous one (-1), wrapping around at the ends."""
        keys = [page.key for page in self.pages]
        self.show_page(keys[(keys.index(self.page) + step) % len(keys)])

    def current_page(self) -> Page:
        """The page in front."""
        return self._built[self.page]

    def jump(self, path: str) -> None:
        """Go to the row of a field. If the row is hidden, say what would show it."""
        setting = self.state_.settings.get(path) or self.state_.settings.get(path.partition("[")[0])
        if setting is None:
            self.say(words.NO_ROW.format(path=path))
            return
        self.show_page(page_of(self.pages, setting).key)
        self.update_idletasks()
        if not self.current_page().focus_field(setting.path):
            self.say(words.SHOWN_WHEN.format(title=setting.title, rule=self.state_.shown_when(setting.path)))

    # -- changes ---------------------------------------------------------------------------------------------

    def _changed(self, paths: frozenset[str]) -> None:
        for page in self._built.values():
            page.refresh(paths)
        self.autosave.soon()
        self.check.soon()
        self._refreshing.start()

    def _refresh_bars(self) -> None:
        found = self.check.problems()
        errors = [problem for problem in found if not problem.warning]
        counts: dict[str, int] = {}
        for problem in errors:
            setting = self.state_.settings.get(problem.path)
            if setting is not None:
                key = page_of(self.pages, setting).key
                counts[key] = counts.get(key, 0) + 1
        self.side_bar.mark(counts)
        check = self.check
        self.bottom_bar.show_problems(len(errors), len(found) - len(errors), check.checking, check.checked)
        self.bottom_bar.forecast.show(check.forecast, check.checking)
        self.problems.show(found)
        self._at_fields = {problem.path: problem for problem in reversed(found)}
        for page in self._built.values():
            page.show_problems(self._at_fields)
        self.top_bar.show_undo(self.state_.can_undo(), self.state_.can_redo())
        self._show_title()

    def _file_changed(self) -> None:
        self._show_title()
        self.autosave.soon()

    def _show_title(self) -> None:
        name = Path(self.files.path).name if self.files.path else "untitled"
        self.title(f"{name}{' *' if self.state_.is_modified() else ''} \u2013 {NAME}")

    def undo(self) -> None:
        """Undo the last edit."""
        title = self.state_.undo()
        self.say(words.UNDONE.format(title=title) if title else words.NOTHING_TO_UNDO)

    def redo(self) -> None:
        """Redo the last undone edit."""
        title = self.state_.redo()
        self.say(words.REDONE.format(title=title) if title else words.NOTHING_TO_REDO)

    def _dropped(self, paths: list[Path]) -> None:
        with self.ui.errors_shown():
            path = one_config(paths)
            if self.state_.is_modified():  # the program that the file comes from does not wait for the answer
                later(self, IDLE, self.files.load, path)
            else:
                self.files.load(path)

    # -- messages --------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Show a line at the bottom."""
        self.bottom_bar.say(text)

    def _warn(self, text: str) -> None:
        self.say(text)
        self.ui.error(UserError(text))

    def _tell(self) -> None:
        for text in self._messages:
            self._warn(text)
        self._messages.clear()

    def toggle_problems(self) -> None:
        """Open or close the list of problems."""
        if self._problems_open:
            self.close_problems()
            return
        self._problems_open = True
        self.problems.grid(row=2, column=0, columnspan=2, sticky="ew")
        self.problems.focus_list()

    def close_problems(self) -> None:
        self._problems_open = False
        self.problems.grid_remove()
        self.bottom_bar.problems.focus_set()

    # -- the run ---------------------------------------------------------------------------------------------

    def _refuse_start(self) -> None:
        errors = self.check.errors()
        others = counted(len(errors) - 1, words.MORE_ERROR)
        more = words.AND_MORE.format(errors=others) if len(errors) > 1 else ""
        setting = self.state_.settings.get(errors[0].path)
        where = f"{setting.title}: " if setting is not None and setting.kind not in ("list", "table") else ""
        self.say(words.CANNOT_START.format(problem=f"{where}{errors[0].message}{more}"))
        if not self._problems_open:
            self.toggle_problems()

    def _run_heard(self) -> None:
        self.bottom_bar.show_run(self.control, self.runs.waiting)
        for page in self._built.values():
            page.run_changed()

    # -- view ------------------------------------------------------------------------------------------------

    def open_view(self) -> None:
        """Ask for appearance and size."""
        open_view_dialog(self.ui, self.memory.appearance, self.memory.scale, self.set_view)

    def set_view(self, appearance: str, scale: int) -> None:
        """Change appearance (see ``theme.APPEARANCES``) and scale in percent."""
        scale = max(MIN_SCALE, min(MAX_SCALE, scale))
        rebuild = scale != self.memory.scale
        self.memory.appearance, self.memory.scale = appearance, scale
        self.theme.apply(appearance, scale)
        if rebuild:
            set_ui_scale(scale)
            self._limit_size()
            self._rebuild()
        self.autosave.soon()

    def zoom(self, step: int) -> None:
        """Scale up one level (1), down one level (-1), or back to 100 % (0)."""
        wanted = [size for size in SCALES if (size - self.memory.scale) * step > 0]
        scale = (
            100 if step == 0 else (min(wanted) if step > 0 else max(wanted)) if wanted else self.memory.scale
        )
        self.set_view(self.memory.appearance, scale)
        self.say(words.SIZE_NOW.format(percent=scale))

    # -- the end ---------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[Session, WindowMemory]:
        """The state to restore at the next start."""
        self.memory.maximized = _is_maximized(self)
        if not self.memory.maximized:
            self.memory.geometry = tk.Tk.wm_geometry(self)
        session = Session(
            self.state_.config.to_dict(), self.files.path, not self.state_.is_modified(), self.state_.typed(),
            str(self.control.run.path) if self.control.run is not None else "", self.files.digest,
        )  # fmt: skip
        return session, self.memory

    def _restore(self, session: Session) -> None:
        self.files.restore(session.path, session.digest, session.saved)
        self.state_.restore_typed(session.typed)
        self._refresh_bars()
        if session.run and Path(session.run).is_dir():
            self.runs.attach(session.run)

    def ask_quit(self) -> None:
        """Close the window. If training is running, first say that it will continue."""
        run = self.control.run if self.control.is_live else self.home.run_in_training
        if run is not None:
            question = words.CLOSE_WHILE_TRAINING.format(folder=run.path)
            if not confirm(
                self.ui, words.TRAINING_CONTINUES, question, words.CLOSE_WINDOW, words.KEEP_WINDOW
            ):
                return
        if self.remote.doing:
            title, question = self.remote.on_closing
            if not confirm(self.ui, title, question, words.CLOSE_WINDOW, words.KEEP_WINDOW):
                return
        self._close_tools()

    def _close_tools(self) -> None:
        """Close the tool windows, then this one. Tools first save what was typed or painted in them. A tool
        that stays open because it cannot save keeps this window open too.
        """
        from modules.ui.widgets.ToolHost import ToolHost

        inside = (one for window in self.winfo_children() for one in window.winfo_children())
        tool = next((one for one in inside if isinstance(one, ToolHost)), None)
        if tool is None:
            self.quit_window()
        else:
            tool.close(lambda: later(self, IDLE, self._close_tools))

    def quit_window(self) -> None:
        """Save the session and close. A run continues on its own."""
        self.autosave.now()
        cancel_timer(self, self._telling)
        self.check.close()
        self.runs.close()
        self.remote.close()
        self.queue.close()
        self.tensorboard.close()
        self.home.close()
        self.pump.close()
        self.store.release()
        self.destroy()


def _maximize(window: tk.Tk) -> None:
    try:
        window.state("zoomed")
    except tk.TclError:  # X11
        window.attributes("-zoomed", True)


def _is_maximized(window: tk.Tk) -> bool:
    if window.tk.call("tk", "windowingsystem") == "x11":
        return bool(window.attributes("-zoomed"))
    return window.state() == "zoomed"


def _room(width: int, height: int) -> tuple[int, int]:
    """Largest size of a window inside its frame, on a screen of that size."""
    return width - 20, height - 60


def _first_place(width: int, height: int) -> str:
    """The geometry of a window that was never open, on a screen of that size.

    It names a place, because Tk on X11 does not learn where else a window is until it is moved. Of screens side by
    side, it is on the left one.
    """
    wide, high = (min(one) for one in zip(DEFAULT_SIZE, _room(width, height), strict=True))
    return f"{wide}x{high}+{(min(width, 2 * height) - wide) // 2}+{(height - high) // 3}"


def _on_screen(geometry: str, width: int, height: int) -> str:
    """Shrink and move a remembered geometry so that the window and its title fit on a screen of that size."""
    found = _GEOMETRY.fullmatch(geometry)
    size = DEFAULT_SIZE if found is None else (int(found[1]), int(found[2]))
    wide, high = (min(one) for one in zip(size, _room(width, height), strict=True))
    if found is None or found[3] is None:
        return f"{wide}x{high}"
    left, top = int(found[3]), int(found[4])
    farthest = (width - wide - FRAME[0], height - high - FRAME[1])
    return f"{wide}x{high}+{max(0, min(left, farthest[0]))}+{max(0, min(top, farthest[1]))}"


def main(argv: Sequence[str] | None = None) -> int:
    """Open the window. Return when it is closed."""
    options = parser().parse_args(argv)
    if options.settings_dir is not None:  # also for the trainers started from here
        os.environ[FOLDER_VARIABLE] = str(Path(options.settings_dir).absolute())
    store = SessionStore(settings_folder())
    _log_to(store.log_path)
    try:
        window = MainWindow(store)
    except tk.TclError as error:
        if "display" not in str(error):
            raise
        sys.stderr.write(f"there is no screen to open a window on: {error}\n")
        return 2
    if options.config is not None:
        later(window, 50, lambda: window.files.load(options.config))
    try:
        window.mainloop()
    except BaseException:
        window.autosave.now()
        raise
    return 0


def _log_to(path: Path) -> None:
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, encoding="utf-8"))
    except OSError:
        pass
    logging.basicConfig(level=logging.INFO, handlers=handlers, format="%(asctime)s %(levelname)s %(message)s")


if __name__ == "__main__":
    sys.exit(main())
