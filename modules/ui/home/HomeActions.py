"""The actions behind the buttons on the Home page's cards."""

from __future__ import annotations

import tkinter as tk
from dataclasses import replace
from pathlib import Path

from modules.project.picking import settings_of
from modules.project.proving import USUAL_QUESTIONS
from modules.ui.curation.PairToolMemory import PairToolMemory
from modules.ui.home.ProjectWatch import ProjectWatch
from modules.ui.texts import home as words
from modules.ui.Ui import Ui


class HomeActions:
    """The steps of the open project."""

    def __init__(self, ui: Ui, watch: ProjectWatch) -> None:
        self.ui, self.watch = ui, watch

    @staticmethod
    def step_of(verb: str) -> str:
        """The card that a ``taste.py`` command belongs to."""
        return "new-round" if verb == "next" else verb

    def take(self, key: str) -> None:
        """Take a step."""
        if key == "pick":
            self.pick()
        elif key == "compare":
            self.compare()
        elif key == "new-round":
            self.next_round()
        else:
            self.watch.run(key)

    def pick(self) -> None:
        """Open the pair tool on the round, or return the one already open."""
        from modules.ui.curation.StartPage import picking_options
        from modules.ui.curation.windows import open_pair_tool

        if self.watch.tool is not None:
            self.watch.tool.lift()
            self.watch.tool.focus_force()
            return
        project = self.watch.project
        if project is None:
            return
        settings = self.ui.services.store.folder
        one, alike = project.round, project.file.near_duplicates
        memory = replace(
            PairToolMemory.load(settings), source=str(one.candidates), output=str(one.pairs), near_duplicates=alike,
            ask_to_continue=False, sources="", edits=False,
        )  # fmt: skip
        options = replace(
            picking_options(memory), session=settings_of(project), held_back=self.watch.held_back
        )
        self._opened(
            open_pair_tool(self.ui.root, self.ui.theme, settings=settings, train=self._train, options=options)
        )

    def next_round(self) -> None:
        """Begin the next round."""
        self.watch.run("next", step="new-round")

    def compare(self, between: str = "", count: int = USUAL_QUESTIONS) -> None:
        """Make the missing images of these contestants, then open the arena."""
        who = ("--between", between) if between else ()
        self.watch.run(
            "compare",
            *who,
            "--images",
            str(count),
            "--prepare",
            then=lambda _result: self.vote(between, count),
        )

    def vote(self, between: str, count: int) -> None:
        """Open the arena. Its images must already exist."""
        from modules.ui.arena.ArenaWindow import open_arena_window

        project = self.watch.project
        if project is None or self.watch.tool is not None:
            return
        self._opened(
            open_arena_window(self.ui.root, self.ui.theme, project.folder, between, count, self.next_round)
        )

    def _opened(self, tool: tk.Toplevel) -> None:
        self.watch.tool = tool
        tool.bind("<Destroy>", lambda event: self._closed(tool) if event.widget is tool else None, add="+")
        self.watch.look()

    def _closed(self, tool: tk.Toplevel) -> None:
        if self.watch.tool is tool:
            self.watch.tool = None
            self.watch.look()

    def _train(self, _pairs: Path) -> None:
        """Start training once the pairs are finalised and the pair tool has closed."""
        self.ui.services.show_page("home")
        self.ui.root.lift()
        self.ui.root.focus_force()
        if self.watch.job is None:
            self.watch.run("train")
        else:
            self.watch.faults["train"] = words.NOT_STARTED.format(work=words.WORK[self.watch.job.verb])
            self.watch.look()
