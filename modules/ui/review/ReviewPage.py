"""The review of finalised pairs: remove, swap, edit captions, fix faults, each with an undo."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tkinter import ttk

from modules.curation.review.review import PairReview
from modules.curation.review.review_journal import TrashSize
from modules.ui.curation.ChoiceView import Action, action_button
from modules.ui.review.ReviewFolder import ReviewFolder, ReviewState
from modules.ui.texts import review as words
from modules.ui.widgets.ConfirmWindow import ConfirmWindow
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.ImagePrefetcher import ImagePrefetcher, Key
from modules.ui.widgets.ImageView import ImageView, ZoomState
from modules.ui.widgets.SerialWorker import SerialWorker
from modules.ui.widgets.theme import Theme, style_text
from modules.ui.widgets.tk_support import BAD, GOOD, set_text, show_error, show_in_grid
from modules.util.display import counted
from modules.util.dpo_curation_util import UNCONDITIONAL, FinalizedPair
from modules.util.pairs.pair_sources import find_sources

AHEAD = 4
RESOLUTION = 512


class ReviewPage(ttk.Frame):
    """Shows one pair at a time, training and validation together.

    Args:
        output: the folder with finalised pairs.
        back: called on Escape.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        worker: SerialWorker,
        prefetcher: ImagePrefetcher,
        output: Path,
        back: Callable[[], None],
        resolution: int = RESOLUTION,
    ) -> None:
        super().__init__(parent, style="Back.TFrame")
        self.theme, self.output, self.back = theme, output, back
        self._worker, self._prefetcher = worker, prefetcher
        self._resolution = resolution
        self._folder: ReviewFolder | None = None
        self.state_shown: ReviewState | None = None
        self.position = 0
        self.only_faults = False
        self._edited: str | None = None
        self._leaving = ""
        """The pair being removed, which may still be on the screen."""
        self.zoom = ZoomState()
        self.columnconfigure(0, weight=1)
        self.rowconfigure(1, weight=1)
        self.actions = [
            Action(words.BACK, ("Left", "KP_Left"), lambda: self.go(-1)),
            Action(words.NEXT, ("Right", "KP_Right"), lambda: self.go(1), True),
            Action(words.REMOVE, ("Delete", "KP_Delete"), self.remove),
            Action(words.SWAP, ("s",), self.swap),
            Action(words.EDIT, ("e",), self.edit),
            Action(words.FIX, ("x",), self.fix),
            Action(words.FIX_ALL, ("a",), self.mend_all),
            Action(words.ONLY_FAULTS, ("o",), self.toggle_faults),
            Action(words.UNDO, ("Control-z", "BackSpace"), self.undo),
            Action(words.EMPTY_TRASH, ("t",), self.ask_about_trash),
            Action("1:1", ("z",), self.zoom.toggle_actual_size),
            Action(words.DONE, ("Escape",), self.leave),
        ]
        self._build()

    def _build(self) -> None:
        px = self.theme.px
        top = ttk.Frame(self)
        top.grid(row=0, column=0, sticky="ew")
        top.columnconfigure(1, weight=1)
        self.place_label = ttk.Label(top, text=words.READING, style="Bold.TLabel")
        self.place_label.grid(row=0, column=0, padx=px(10), pady=px(4))
        self.fault_label = ttk.Label(top, style="Warning.TLabel", width=1)
        self.fault_label.grid(row=0, column=1, sticky="ew")
        self.check_label = ttk.Label(top, style="Muted.TLabel")
        self.check_label.grid(row=0, column=2, padx=px(10))
        middle = ttk.Frame(self, style="Back.TFrame")
        middle.grid(row=1, column=0, sticky="nsew")
        middle.rowconfigure(0, weight=1)
        self._middle = middle
        self.source_view, *self.views = places = [
            ImageView(middle, self._prefetcher, self.zoom, font=self.theme.fonts["bold"]) for _ in range(3)
        ]
        for column, view in enumerate(places):
            middle.columnconfigure(column, weight=1, uniform="sides")
            view.grid(row=0, column=column, sticky="nsew", padx=2, pady=2)
            view.bind("<Configure>", lambda _event: self._prefetch(), add="+")
        self._make_room_for_source(False)
        self.caption = tk.Text(self, height=2, wrap="word", takefocus=0)
        style_text(self.theme, self.caption)
        self.caption.grid(row=2, column=0, sticky="ew")
        self.caption.bind("<Control-Return>", lambda _event: self._save_caption())
        self.caption.bind("<Return>", lambda _event: self._save_caption())
        bottom = ttk.Frame(self, padding=(px(10), px(6)))
        bottom.grid(row=3, column=0, sticky="ew")
        bottom.columnconfigure(0, weight=1)
        row = FlowFrame(bottom, self.theme.px(6))
        row.grid(row=0, column=0, sticky="ew")
        for action in self.actions:
            row.add(action_button(row, self.theme, action, partial(self._press, action)))

    # --- opening ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the folder, then check for faults."""

        def work() -> ReviewState:
            self._folder = ReviewFolder(self.output, self._resolution)
            return self._folder.state()

        self._worker.submit(work, self._opened, self._cannot_open)

    def _opened(self, state: ReviewState) -> None:
        if self.winfo_exists():
            self._take(state)
            self._check_on(state)

    def _check_on(self, state: ReviewState) -> None:
        """Check in batches, so that the person never has to wait."""
        if not state.complete or not state.pairs:
            self._do(lambda folder: folder.check_some(), self._checked_some)

    def _checked_some(self, state: ReviewState) -> None:
        pair, before = self.pair, self.state_shown
        here = None if pair is None else pair.pair_id
        self.state_shown = state
        self._stay_at(here)
        if self.only_faults or before is None or (here and before.faults.get(here) != state.faults.get(here)):
            self.draw()
        else:
            self._draw_faults()
        if not state.complete:
            self._check_on(state)

    @property
    def checked(self) -> bool:
        """True if every pair has been checked for faults."""
        return self.state_shown is not None and self.state_shown.complete

    def _cannot_open(self, error: Exception) -> None:
        self.back()
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        show_error(self, error)

    def close_folder(self, then: Callable[[], None]) -> None:
        """Save a caption being typed, close the folder, then call ``then``."""
        self._save_typed()
        folder, self._folder = self._folder, None
        self._worker.submit(lambda: None if folder is None else folder.close(), lambda _: then())

    def leave(self) -> None:
        """Return to where the review was opened."""
        self.close_folder(self.back)

    def _do(
        self, work: Callable[[ReviewFolder], ReviewState | None], done: Callable[[ReviewState], None]
    ) -> None:
        folder = self._folder
        if folder is None:
            return

        def finished(state: ReviewState | None) -> None:
            if state is None:
                self.check_label.configure(text=words.NOTHING_TO_UNDO)
            elif self.winfo_exists():
                done(state)

        def failed(error: Exception) -> None:
            self._fail(error)
            if self.winfo_exists():
                self._worker.submit(folder.state, finished)

        self._worker.submit(lambda: work(folder), finished, failed)

    # --- showing ------------------------------------------------------------------------------------------------

    @property
    def listed(self) -> list[FinalizedPair]:
        """The pairs that the keys step through."""
        state = self.state_shown
        if state is None:
            return []
        return [p for p in state.pairs if not self.only_faults or p.pair_id in state.faults]

    @property
    def pair(self) -> FinalizedPair | None:
        """The pair on the screen."""
        listed = self.listed
        return listed[self.position] if self.position < len(listed) else None

    def _take(self, state: ReviewState) -> None:
        self.state_shown = state
        self._stay_at(self._edited)
        self.draw()

    def _stay_at(self, name: str | None) -> None:
        """Show the pair of this name, wherever it now is in the list."""
        places = [place for place, pair in enumerate(self.listed) if pair.pair_id == name]
        self.position = places[0] if places else self.position

    def _take_changed(self, state: ReviewState) -> None:
        """As ``_take``, after files have changed places, when a name may refer to another image."""
        for view in (self.source_view, *self.views):
            view.forget()
        self._prefetcher.forget_all()
        self._take(state)

    def draw(self) -> None:
        """Update the widgets."""
        listed = self.listed
        self.position = max(0, min(self.position, len(listed) - 1))
        pair = self.pair
        state = self.state_shown
        faults = {} if state is None else state.faults
        if pair is None:
            empty = words.NO_FAULTY_PAIR if self.only_faults else words.NO_PAIRS
            self.place_label.configure(text=empty)
        else:
            self.place_label.configure(
                text=words.PLACE.format(
                    place=self.position + 1, count=len(listed), split=pair.split, name=pair.pair_id
                )
            )
        here = faults.get(pair.pair_id, ()) if pair is not None else ()
        self.fault_label.configure(text="; ".join(fault.message for fault in here))
        self._draw_faults()
        self._draw_sides(pair)
        self._prefetch()

    def _draw_faults(self) -> None:
        state = self.state_shown
        if state is None:
            return
        total = sum(len(found) for found in state.faults.values())
        text = counted(total, words.FAULT) if total else words.NO_FAULTS
        if not state.complete:
            text = words.CHECKED.format(faults=text, checked=state.checked, count=len(state.pairs))
        self.check_label.configure(text=text)

    def _make_room_for_source(self, wanted: bool) -> None:
        self._middle.columnconfigure(0, weight=int(wanted), uniform="sides" if wanted else "")
        show_in_grid(self.source_view, wanted)

    def _draw_source(self, pair: FinalizedPair | None) -> None:
        """Show the source of the sides on their left; of several sources, the first."""
        sources = [] if pair is None else find_sources(self.output, pair.pair_id)
        self._make_room_for_source(bool(sources))
        if sources:
            label = words.SOURCE if len(sources) == 1 else words.FIRST_SOURCE.format(count=len(sources))
            self.source_view.show(sources[0], f"{label}  {sources[0].name}")
        else:
            self.source_view.show(None)

    def _draw_sides(self, pair: FinalizedPair | None) -> None:
        self._draw_source(pair)
        sides = (None, None) if pair is None else (pair.chosen, pair.rejected)
        self.zoom.set(None)
        for view, image, label, colour in zip(
            self.views, sides, (words.CHOSEN, words.REJECTED), (GOOD, BAD), strict=True
        ):
            view.show(image, f"{label}  {image.name}" if image is not None else "")
            view.mark(colour if image is not None else None)
        if pair is not None and pair.pair_id == self._edited:
            return  # a person is typing
        self._edited = None
        set_text(self.caption, "" if pair is None else self._caption_text(pair))

    def _caption_text(self, pair: FinalizedPair) -> str:
        captions = [pair.chosen_caption or "", pair.rejected_caption or ""]
        faults = {} if self.state_shown is None else self.state_shown.faults
        if not any(captions) and all(f.kind != "caption_missing" for f in faults.get(pair.pair_id, ())):
            return UNCONDITIONAL
        return "\n".join(dict.fromkeys(captions))

    def _prefetch(self) -> None:
        listed = self.listed
        box = self.views[0].box
        order = [self.position, *(self.position + step for n in range(1, AHEAD + 1) for step in (n, -n))]
        keys: list[Key] = []
        for position in order:
            if 0 <= position < len(listed):
                sides = (listed[position].chosen, listed[position].rejected)
                keys += [(side, view.box) for side, view in zip(sides, self.views, strict=True) if side]
                sources = find_sources(self.output, listed[position].pair_id)[:1]
                keys += [(source, self.source_view.box) for source in sources]
        if box[0] > 1:
            self._prefetcher.want(keys)

    def arrived(self, key: Key) -> None:
        """Handle a decoded image."""
        for view in (self.source_view, *self.views):
            view.arrived(key[0])

    # --- input --------------------------------------------------------------------------------------------------

    def on_key(self, key: str, control: bool = False, shift: bool = False) -> bool:
        """Handle a key press. Return ``True`` if the key is used here."""
        if self.editing:
            if key == "Escape":
                self._stop_editing()
            return key == "Escape"
        name = key.lower() if len(key) == 1 else key
        if control:
            name = f"Control-{name}"
        for action in self.actions:
            if name in action.keys:
                action.run()
                return True
        if key in ("Home", "End"):
            self.position = 0 if key == "Home" else len(self.listed) - 1
            self.draw()
        elif key in ("plus", "equal", "minus", "KP_Add", "KP_Subtract"):
            self.views[0].zoom_by(-1 if key in ("minus", "KP_Subtract") else 1)
        else:
            return False
        return True

    def go(self, step: int) -> None:
        """Show the next or previous pair."""
        self.position += step
        self.draw()

    def toggle_faults(self) -> None:
        """Step through all pairs, or only those with faults."""
        self.only_faults = not self.only_faults
        self.position = 0
        self.draw()

    def _act(self, do: Callable[[PairReview, str], object]) -> None:
        pair = self.pair
        if pair is not None and pair.pair_id != self._leaving:
            name = pair.pair_id
            self._do(lambda folder: folder.act(name, do), self._take_changed)

    def remove(self) -> None:
        """Remove both sides. Keys pressed before the next pair is on the screen do nothing."""
        pair = self.pair
        if pair is None or pair.pair_id == self._leaving:
            return
        self._leaving = name = pair.pair_id

        def gone(state: ReviewState) -> None:
            self._leaving = ""
            self._take_changed(state)

        self._do(lambda folder: folder.act(name, lambda review, one: review.remove(one)), gone)

    def swap(self) -> None:
        """Swap chosen and rejected."""
        self._act(lambda review, name: review.swap(name))

    def fix(self) -> None:
        """Fix the faults of this pair."""
        pair = self.pair
        if pair is not None:
            name = pair.pair_id
            self._do(lambda folder: folder.fix(name), self._take_changed)

    def mend_all(self) -> None:
        """Fix all faults found so far."""
        self._do(lambda folder: folder.fix(), self._take_changed)

    def undo(self) -> None:
        """Undo the last action."""
        self._do(lambda folder: folder.undo(), self._take_changed)

    # --- the trash ----------------------------------------------------------------------------------------------

    def ask_about_trash(self) -> None:
        """Delete the removed pairs for good, after asking."""
        folder = self._folder
        if folder is not None:
            self._worker.submit(folder.trash, self._ask_about_trash, self._fail)

    def _ask_about_trash(self, trash: TrashSize) -> None:
        if not self.winfo_exists():
            return
        if not trash.pairs:
            self.check_label.configure(text=words.TRASH_IS_EMPTY)
            return
        pairs = counted(trash.pairs, words.REMOVED_PAIR)
        question = words.EMPTY_QUESTION.format(pairs=pairs, size=trash.mebibytes)
        ConfirmWindow(self, self.theme, words.EMPTY_TITLE, question, words.DELETE, self._empty_trash)

    def _empty_trash(self) -> None:
        folder = self._folder
        if folder is not None:
            self._worker.submit(folder.empty_trash, self._emptied, self._fail)

    def _emptied(self, trash: TrashSize) -> None:
        if self.winfo_exists():
            pairs = counted(trash.pairs, words.REMOVED_PAIR)
            self.check_label.configure(text=words.DELETED.format(pairs=pairs, size=trash.mebibytes))

    # --- the caption --------------------------------------------------------------------------------------------

    @property
    def editing(self) -> bool:
        """True if the caption is being edited."""
        return self._edited is not None

    def edit(self) -> None:
        """Edit the caption of both sides. Enter and the buttons save, Escape does not."""
        if self.pair is not None:
            self._edited = self.pair.pair_id
            self.caption.configure(state="normal")
            self.caption.focus_set()
            self.check_label.configure(text=words.EDITING)

    def _press(self, action: Action) -> None:
        """Handle a button, possibly pressed while a caption is being edited."""
        if action.run not in (self.edit, self.zoom.toggle_actual_size):
            self._save_typed()
        action.run()

    def _save_typed(self) -> None:
        """Save the caption being edited if it has changed."""
        if self.editing:
            pair, text = self.pair, self.caption.get("1.0", "end").strip()
            if text and pair is not None and text != self._caption_text(pair).strip():
                self._save_caption()
            else:
                self._stop_editing()

    def _save_caption(self) -> str:
        name = self._edited
        if name is not None:
            text = self.caption.get("1.0", "end").strip()
            self._stop_editing()
            self._do(
                lambda folder: folder.act(name, lambda review, pair: review.edit_caption(pair, text)),
                self._take_changed,
            )
        return "break"

    def _stop_editing(self) -> None:
        self._edited = None
        self.winfo_toplevel().focus_set()
        self.draw()
