"""Handles drops onto the Home page: they fill in the form, or go to the open project."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from modules.curation.intake.edit_sources import NO_EDITS, EditOptions
from modules.project.candidates.adding import (
    Added,
    add_images,
    add_prompts,
    can_change_generator,
    use_workflow,
)
from modules.project.Project import Project
from modules.ui.dialogs import ask_buttons, confirm
from modules.ui.home.dropping import Dropped, Kind, look_at
from modules.ui.home.EditsDialog import EditsDialog
from modules.ui.home.ProjectWatch import ProjectWatch
from modules.ui.texts import home as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import run_in_thread
from modules.util.display import counted
from modules.util.errors import UserError


class DropTarget:
    """Handles dropped files.

    Args:
        form: takes images, prompts, a workflow or a model for a new project; ``None`` if a project is open.
        open_config: opens a config.
    """

    def __init__(
        self,
        ui: Ui,
        watch: ProjectWatch,
        form: Callable[[], Callable[[Dropped], None] | None],
        open_config: Callable[[Path], object],
    ) -> None:
        self._ui, self._watch, self._form, self._open_config = ui, watch, form, open_config

    def take(self, paths: list[Path]) -> None:
        """Inspect the files in a thread, because folders may hold thousands of images, then use them."""
        run_in_thread(self._ui.pump, lambda: look_at(paths), self._use, self._ui.error)

    def _use(self, found: Dropped) -> None:
        form = self._form()
        if found.kind is Kind.CONFIG:
            self._open_config(found.paths[0])
        elif found.kind is Kind.PROJECT and not self._watch.busy:
            if not self._watch.open(found.paths[0]):
                self._ui.error(UserError(self._watch.fault))
        elif form is not None:
            form(found)
        elif self._watch.project is not None:
            self._to_project(self._watch.project, found)

    def _to_project(self, project: Project, found: Dropped) -> None:
        if self._watch.job is not None:
            self._ui.error(UserError(words.DROP_BUSY, hint=words.DROP_BUSY_HINT))
        elif found.kind is Kind.PROJECT:
            self._ui.error(UserError(words.DROP_OPEN, hint=words.DROP_OPEN_HINT))
        elif found.kind is Kind.IMAGES:
            self._images(project, found)
        elif found.kind is Kind.PROMPTS:
            self._run(project, lambda: add_prompts(project, found.paths[0]), self._told_prompts)
        elif found.kind is Kind.WORKFLOW:
            self._workflow(project, found.workflow)
        elif found.kind is Kind.FOLDER:
            name = found.paths[0].name
            self._ui.error(UserError(words.DROP_NO_IMAGES.format(name=name), hint=words.DROP_NO_IMAGES_HINT))
        else:
            self._ui.error(UserError(words.DROP_NEW_ONLY, hint=words.DROP_NEW_HINT))

    def _images(self, project: Project, found: Dropped) -> None:
        if found.workflow and can_change_generator(project):
            buttons = (words.DROP_PICK, words.DROP_WORKFLOW, words.DROP_CANCEL)
            said = ask_buttons(
                self._ui, words.DROP_TITLE, words.DROP_WHICH.format(name=found.paths[0].name), buttons
            )
            if said == 1:
                self._run(project, partial(use_workflow, project, found.workflow), self._told_workflow)
            if said != 0:
                return
        self._add(project, found.paths)

    def _add(self, project: Project, paths: Sequence[Path], places: EditOptions = NO_EDITS) -> None:
        """Add images, and ask for the sources of edits that are not found."""

        def told(made: Added) -> str:
            if project.file.edits and made.edits:
                EditsDialog(
                    self._ui,
                    lambda _images, found: self._add(project, paths, found),
                    paths,
                    words.SOURCES_LOST,
                    places,
                )
            return self._told_images(project.file.edits, made)

        self._run(project, lambda: add_images(project, paths, places), told)

    def _workflow(self, project: Project, workflow: Mapping[str, Any]) -> None:
        kind = words.PROGRAMS[project.file.generator["kind"]]
        question = words.DROP_ASK_WORKFLOW.format(program=kind)
        sure = not can_change_generator(project) or confirm(
            self._ui, words.DROP_TITLE, question, words.DROP_WORKFLOW, words.DROP_CANCEL
        )
        if sure:
            self._run(project, partial(use_workflow, project, workflow), self._told_workflow)

    def _run(self, project: Project, work: Callable[[], Any], told: Callable[[Any], str]) -> None:
        def done(result: Any) -> None:
            self._ui.status(told(result))
            if self._watch.project is project:
                self._watch.look()

        run_in_thread(self._ui.pump, work, done, self._ui.error)

    @staticmethod
    def _told_images(edits: bool, made: Added) -> str:
        left_out = words.DROP_NO_SOURCE if edits else words.DROP_EDITS
        said = [words.DROP_ADDED.format(images=counted(made.added, words.IMAGE))]
        for count, text in ((made.known, words.DROP_KNOWN), (made.silent, words.DROP_SILENT),
                            (made.judging, words.DROP_JUDGING), (made.edits, left_out)):  # fmt: skip
            said += [text.format(images=counted(count, words.IMAGE))] if count else []
        return " ".join(said)

    @staticmethod
    def _told_prompts(count: int) -> str:
        return words.DROP_PROMPTS.format(prompts=counted(count, words.PROMPT))

    @staticmethod
    def _told_workflow(_result: None) -> str:
        return words.DROP_USED
