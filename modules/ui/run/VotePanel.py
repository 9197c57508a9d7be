"""The panel for runs rewarded by a person: the images of one prompt at a time, marked by clicks or keys."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tkinter import ttk

from modules.runner.votes.VoteBook import Question, Vote, VoteBook
from modules.ui.curation.SourcePane import SourcePane
from modules.ui.texts import votes as words
from modules.ui.Ui import Ui
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.ImagePrefetcher import Compared, Shown, prefetcher_of
from modules.ui.widgets.ThumbGrid import ThumbGrid
from modules.ui.widgets.tk_support import BAD, FOCUS, GOOD, on_event
from modules.util.display import counted

SMALLEST = 90
BUDGET = 96 * 2**20
LIKE_KEYS, DISLIKE_KEYS, BEST_KEYS, DONE_KEYS = (
    ("space", "l"),
    ("d", "Delete"),
    ("b",),
    ("Return", "KP_Enter"),
)


class VotePanel(ttk.Frame):
    """The open questions of a run, with what their prompts edit. Every mark is on disk before it is drawn.

    Args:
        changed: called with the number of open questions whenever it changes.
    """

    def __init__(self, parent: tk.Misc, ui: Ui, changed: Callable[[int], None]) -> None:
        px = ui.theme.px
        super().__init__(parent, padding=px(8))
        self._ui, self._changed = ui, changed
        self._book: VoteBook | None = None
        self.question: Question | None = None
        self._open = 0
        self.columnconfigure(1, weight=1)
        self.rowconfigure(1, weight=1)
        self.title = ttk.Label(self, text=words.NO_QUESTION, justify="left")
        self.title.grid(row=0, column=0, columnspan=2, sticky="ew", pady=(0, px(4)))
        self.bind(
            "<Configure>", lambda event: self.title.configure(wraplength=max(100, event.width - px(20)))
        )
        self._prefetcher = prefetcher_of(self, ui.pump, self._arrived, BUDGET)
        self.sources = SourcePane(self, self._prefetcher, ui.theme.fonts["text"], "TFrame")
        self.sources.grid(row=1, column=0, sticky="n")
        self.sources.grid_remove()
        self.images = ThumbGrid(
            self, self._prefetcher, on_best=self.like, on_worst=self.dislike, font=ui.theme.fonts["text"]
        )
        self.images.grid(row=1, column=1, sticky="nsew")
        self._keys()
        row = FlowFrame(self, px(4))
        row.grid(row=2, column=0, columnspan=2, sticky="ew", pady=(px(6), 0))
        for text, command, style in (
            (words.LIKE, lambda: self.like(self.images.cursor), "TButton"),
            (words.DISLIKE, lambda: self.dislike(self.images.cursor), "TButton"),
            (words.BEST, lambda: self.prefer(self.images.cursor), "TButton"),
            (words.DONE, self.finish, "Accent.TButton"),
        ):
            row.add(ttk.Button(row, text=text, command=command, style=style, takefocus=0))
        self.note = ttk.Label(row, style="Muted.TLabel")
        row.add(self.note)

    def _keys(self) -> None:
        canvas = self.images.canvas
        canvas.configure(takefocus=1, height=self._ui.theme.px(120), width=self._ui.theme.px(200))
        canvas.bind("<Configure>", lambda _event: self._fit(), add="+")
        canvas.bind("<ButtonPress>", lambda _event: canvas.focus_set(), add="+")
        for keys, act in (
            (LIKE_KEYS, self.like),
            (DISLIKE_KEYS, self.dislike),
            (BEST_KEYS, self.prefer),
        ):
            for key in keys:
                canvas.bind(f"<{key}>" if len(key) > 1 else key, on_event(self._at_cursor, act))
        for key in DONE_KEYS:
            canvas.bind(f"<{key}>", on_event(self.finish))
        for key in ("Left", "Right", "Up", "Down", "Home", "End"):
            canvas.bind(f"<{key}>", on_event(self._move, key))
        for number in range(9):
            canvas.bind(f"<Key-{number + 1}>", on_event(self.like, number))

    def _move(self, key: str) -> str:
        self.images.move_cursor(key)
        return "break"

    def _at_cursor(self, act: Callable[[int], None]) -> str:
        act(self.images.cursor)
        return "break"

    # -- what there is to vote on ------------------------------------------------------------------------------

    def look(self, run: Path | None) -> None:
        """Show the first open question of a run; nothing if there is no run."""
        if run is None or self._book is None or self._book.folder != VoteBook(run).folder:
            self._book = None if run is None else VoteBook(run)
        if self._book is not None:
            with self._ui.errors_shown():
                self._book.refresh()
        waiting = [] if self._book is None else self._book.open_questions()
        first = waiting[0] if waiting else None
        if first is None or first is not self.question:  # another run may have a question of the same key
            self._show(first)
        self.note.configure(text=counted(len(waiting), words.OPEN) if waiting else "")
        if len(waiting) != self._open:
            self._open = len(waiting)
            self._changed(self._open)

    def _show(self, question: Question | None) -> None:
        self.question = question
        if question is None or self._book is None:
            self.title.configure(text=words.NO_QUESTION)
            self.images.show([])
            self.images.set_marks({})
            self.sources.show([], [], self.images.cell)
            return
        self.title.configure(text=words.QUESTION.format(prompt=question.prompt or words.NO_PROMPT))
        self.images.show([self._book.image(question, number) for number in range(question.images)])
        self._mark()
        self._fit()

    def _fit(self) -> None:
        self.images.fit_cells(self._ui.theme.px(SMALLEST))
        self._show_sources()
        self._prefetcher.want([*self.sources.wanted(), *self.images.in_sight()])

    def _show_sources(self) -> None:
        """Show what the prompt edits at the size of the images."""
        question, book = self.question, self._book
        if question is None or book is None:
            return
        first = book.image(question, 0)
        shown = [Compared(first, book.source(question, number)) for number in range(len(question.sources))]
        captions = [words.SOURCE.format(name=Path(name).name) for name in question.sources]
        self.sources.show(shown, captions, self.images.cell)

    def _arrived(self, path: Shown) -> None:
        self.images.arrived(path)
        self.sources.arrived(path)

    def _mark(self) -> None:
        vote = self.question.vote if self.question is not None else Vote()
        marks = dict.fromkeys(vote.likes, GOOD) | dict.fromkeys(vote.dislikes, BAD)
        if vote.best is not None:
            marks[vote.best] = FOCUS
        self.images.set_marks(marks)

    # -- voting ------------------------------------------------------------------------------------------------

    def like(self, number: int) -> None:
        """Like an image. Calling it again removes the mark."""
        self._toggle(number, "likes")

    def dislike(self, number: int) -> None:
        """Dislike an image. Calling it again removes the mark."""
        self._toggle(number, "dislikes")

    def _toggle(self, number: int, kind: str) -> None:
        if self.question is None or number >= self.question.images:
            return
        vote = self.question.vote
        marked = number in getattr(vote, kind)
        likes = [one for one in vote.likes if one != number]
        dislikes = [one for one in vote.dislikes if one != number]
        if not marked:
            (likes if kind == "likes" else dislikes).append(number)
        best = None if vote.best == number and kind == "dislikes" else vote.best
        self._give(replace(vote, likes=tuple(sorted(likes)), dislikes=tuple(sorted(dislikes)), best=best))

    def prefer(self, number: int) -> None:
        """Prefer an image to all others. Calling it again removes the mark."""
        if self.question is None:
            return
        vote = self.question.vote
        dislikes = tuple(one for one in vote.dislikes if one != number)
        self._give(replace(vote, dislikes=dislikes, best=None if vote.best == number else number))

    def finish(self) -> str:
        """Finish the question and show the next one."""
        if self.question is not None:
            self._give(replace(self.question.vote, done=True))
        return "break"

    def _give(self, vote: Vote) -> None:
        if self._book is None or self.question is None:
            return
        with self._ui.errors_shown():
            self._book.give(self.question.key, vote)
        self.look(self._book.folder.parent)
        self._mark()
