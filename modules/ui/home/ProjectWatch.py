"""The project open in the window: its state and its running step."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from modules.project.overview import Overview, overview, unfinished
from modules.project.Project import Project
from modules.project.prompts import Prompts
from modules.runner.RunDirectory import RunDirectory
from modules.ui.home.ProjectJob import ProjectJob
from modules.ui.state.SessionStore import WindowMemory
from modules.ui.texts import home as words
from modules.ui.widgets.tk_support import Pump, Timer, cancel_timer, later, listen_while_alive, run_in_thread
from modules.util.errors import UserError

POLL_MS = 600


class ProjectWatch:
    """Watches the project. It outlives its page, which is rebuilt when the scale changes.

    Args:
        pump: calls from worker threads.
        memory: stores the list of projects.
        remember: schedules saving ``memory``.
    """

    def __init__(self, root: tk.Tk, pump: Pump, memory: WindowMemory, remember: Callable[[], None]) -> None:
        self._root, self._pump, self.memory, self._remember = root, pump, memory, remember
        self.project: Project | None = None
        self.seen: Overview | None = None
        self.job: ProjectJob | None = None
        self.fault = ""
        """The reason why the project as a whole cannot be shown."""
        self.faults: dict[str, str] = {}
        """The reason why a step failed, by its key."""
        self.creating = False
        """True if a new project is being written."""
        self.create_fault: Exception | None = None
        """The reason why that failed, until the form has taken it."""
        self.tool: tk.Toplevel | None = None
        """A window that changes the project. While it is open, the project is read continuously."""
        self._listeners: list[Callable[[], None]] = []
        self._looking = False
        self._beginning = later(root, 0, self._begin)
        self._polling = Timer(root, POLL_MS, self.look)

    def _begin(self) -> None:
        if self.memory.project:
            self.open(Path(self.memory.project))

    def listen(self, call: Callable[[], None], widget: tk.Misc) -> None:
        """Call ``call`` after every change as long as ``widget`` exists."""
        listen_while_alive(self._listeners, call, widget)

    def _tell(self) -> None:
        for call in list(self._listeners):
            call()

    # --- which project ------------------------------------------------------------------------------------------

    def open(self, folder: Path) -> bool:
        """Show the project in a folder. Return whether there is one. The present one must not be ``busy``."""
        try:
            self._show(Project(folder))
        except (UserError, OSError) as error:
            self.fault = words.CANNOT_OPEN.format(folder=folder, reason=error)
            self._tell()
            return False
        return True

    def create(self, folder: Path, settings: dict[str, Any], prompts: Callable[[], Prompts]) -> None:
        """Create a project in a thread, because its source images may be large, then show it.

        If that fails, ``create_fault`` says why. Nothing happens while one is being created.

        Args:
            prompts: reads them, in that thread.
        """
        if self.creating:
            return
        self.creating, self.create_fault = True, None
        run_in_thread(
            self._pump,
            lambda: Project.create(folder, settings, prompts(), None),
            self._created,
            self._not_created,
        )
        self._tell()

    def _created(self, project: Project) -> None:
        self.creating = False
        if self.project is None:
            self._show(project)
        else:  # another one was opened meanwhile, and stays
            self.memory.remember_project(project.folder)
            self.memory.remember_project(self.project.folder)
            self._remember()

    def _not_created(self, error: Exception) -> None:
        self.creating, self.create_fault = False, error
        self._tell()
        if not isinstance(error, (UserError, OSError)):
            raise error

    def _show(self, project: Project) -> None:
        self.project, self.seen, self.fault, self.faults = project, None, "", {}
        self.memory.remember_project(project.folder)
        self._remember()
        self.look()

    @property
    def busy(self) -> bool:
        """True while a step is running or a window changes the project: what they do next is meant for this one."""
        return self.job is not None or self.tool is not None

    @property
    def run_in_training(self) -> RunDirectory | None:
        """The project's run that is being trained and continues when the window is closed."""
        trains = self.job is not None and self.job.verb == "train" and not self.job.stopped
        return self.project.round.run if trains and self.project is not None else None

    def leave(self) -> None:
        """Show no project. It must not be ``busy``."""
        self.project, self.seen, self.fault, self.faults = None, None, "", {}
        self.memory.project = ""
        self._tell()

    # --- how it stands ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read the state of the project in a thread, unless that is already happening."""
        project = self.project
        if project is None or self._looking:
            return
        self._looking = True
        run_in_thread(
            self._pump,
            lambda: overview(Project(project.folder)),
            lambda found: self._looked(project, found),
            lambda error: self._looked(project, None, error),
        )

    def _looked(self, project: Project, found: Overview | None, error: Exception | None = None) -> None:
        self._looking = False
        if project is not self.project:
            self.look()
            return
        if found is not None:
            self.seen, self.fault = found, ""
        else:
            self.fault = str(error)
        self._tell()
        if found is not None and found.live and self.job is None:
            self.run("train")  # its result must be taken
        if self.busy:
            self._polling.start()

    def held_back(self) -> frozenset[str] | None:
        """Images of prompts that are not complete yet, for the search of the pair tool. May be called from
        any thread.
        """
        job, project = self.job, self.project
        if job is None or job.verb != "generate" or project is None:
            return None
        return unfinished(project)

    # --- steps --------------------------------------------------------------------------------------------------

    def run(
        self, verb: str, *arguments: str, step: str = "", then: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        """Start or resume a step. Nothing happens while one is running.

        Args:
            verb: command of ``taste.py``.
            step: the card it belongs to, if that is not the command.
            then: called with its result.
        """
        project = self.project
        if self.job is not None or project is None:
            return
        key = step or verb
        self.faults.pop(key, None)
        try:
            job = self.job = ProjectJob(verb, project.folder, words.WORK[verb], arguments)
        except UserError as error:
            self.faults[key] = str(error)
            self._tell()
            return
        run_in_thread(
            self._pump,
            job.wait,
            lambda result: self._ended(project, key, result, None, then),
            lambda error: self._ended(project, key, {}, error, then),
        )
        self._tell()
        self.look()

    def _ended(
        self,
        project: Project,
        key: str,
        result: dict[str, Any],
        error: Exception | None,
        then: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        job, self.job = self.job, None
        if error is not None and (job is None or not job.stopped):
            self.faults[key] = str(error)
        self._tell()
        self.look()
        if error is None and then is not None and project is self.project:
            then(result)

    def stop(self) -> None:
        """Stop the running step. Training saves a backup first; a second call ends it immediately. Other
        steps end at once.
        """
        job, project = self.job, self.project
        if job is None or project is None:
            return
        run = project.round.run
        if job.verb == "train" and not job.stopped and run.trainer() is not None:
            job.stopped = True
            run.post("stop")
        else:
            run_in_thread(self._pump, job.stop, lambda _result: None, partial(self._not_stopped, job))
        self._tell()

    def _not_stopped(self, job: ProjectJob, error: Exception) -> None:
        self.faults[job.verb] = str(error)
        self._tell()

    def close(self) -> None:
        """Handle the closing of the window. Training continues; other steps end, and what they finished
        stays.
        """
        cancel_timer(self._root, self._beginning)
        self._polling.stop()
        job, self.job, self.project = self.job, None, None
        if job is not None and job.verb != "train":
            job.stop()
