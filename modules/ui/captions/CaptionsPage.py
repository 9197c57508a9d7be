"""The caption editor: a grid of images, the caption of one image, and bulk changes."""

from __future__ import annotations

import threading
import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from tkinter import ttk

from modules.tools.dataset.caption_edits import (
    Caption,
    CaptionChangedError,
    carry_out_edits,
    plan_edits,
    read_caption,
    save_caption,
    undo_edit,
)
from modules.tools.dataset.files import DataImage
from modules.tools.dataset.mask_painting import JOB as PAINTING
from modules.tools.dataset.tags import Edit, count_tags
from modules.ui.captions.CaptionField import CaptionField
from modules.ui.captions.CaptionGrid import CaptionGrid
from modules.ui.captions.CaptionList import CaptionList, Listing, list_folder
from modules.ui.captions.ChangePanel import ChangePanel
from modules.ui.captions.FindBar import FindBar
from modules.ui.captions.MaskWindow import MaskWindow
from modules.ui.captions.TagTable import TagTable
from modules.ui.texts import captions as words
from modules.ui.widgets.ConfirmWindow import ConfirmWindow
from modules.ui.widgets.ImagePrefetcher import ImagePrefetcher, Key
from modules.ui.widgets.KeysWindow import show_keys
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.ui.widgets.SerialWorker import SerialWorker
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import Timer, later, show_error
from modules.util.display import counted
from modules.util.errors import UserError

SIDE = 350
AT_ONCE = 500
"""Captions read before the window is notified."""
GATHER_MS = 30
SHOW_SECONDS = 0.1
LONGEST_QUOTE = 300


class CaptionsPage(ttk.Frame):
    """The page of the caption editor. All file operations run on the worker, in the order requested.

    Args:
        root: the folder with the images.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        worker: SerialWorker,
        prefetcher: ImagePrefetcher,
        root: Path,
        close: Callable[[], None],
        subfolders: bool = False,
    ) -> None:
        super().__init__(parent, style="Back.TFrame")
        self.theme, self.root, self._close = theme, root, close
        self._worker, self._prefetcher = worker, prefetcher
        self._subfolders = subfolders
        self.list = CaptionList()
        self._stop = threading.Event()
        self._busy = False
        self._told: tuple[int, int] | None = None
        self._generation = 0
        self.read = False
        self.columnconfigure(0, weight=1)
        self.rowconfigure(1, weight=1)
        self.painter: MaskWindow | None = None
        self.find = FindBar(self, theme, self.look_for, self.set_masks, self.paint, self._show_keys)
        self.find.grid(row=0, column=0, columnspan=2, sticky="ew")
        self.grid_of_images = CaptionGrid(self, theme, prefetcher, self.list, self.go, self.edit)
        self.grid_of_images.grid(row=1, column=0, sticky="nsew")
        self._gathering = Timer(self, GATHER_MS, self.grid_of_images.renew)
        self.grid_of_images.canvas.bind("<Configure>", lambda _event: self._want(), add="+")
        self._build_side()

    def _build_side(self) -> None:
        px = self.theme.px
        scroll = ScrollFrame(self, self.theme, auto_hide=True, fill=True)
        scroll.grid(row=1, column=1, sticky="nsew")
        scroll.canvas.configure(width=px(SIDE))
        side = scroll.inside
        side.configure(style="TFrame", padding=(px(12), px(8)))
        side.columnconfigure(0, weight=1)
        self.field = CaptionField(side, self.theme, self.save, self._step, self._leave)
        self.field.grid(row=0, column=0, sticky="ew")
        self.change = ChangePanel(side, self.theme, self.change_many, self.say, self._draw_counts)
        self.change.grid(row=1, column=0, sticky="ew", pady=(px(10), 0))
        row = ttk.Frame(side)
        row.grid(row=2, column=0, sticky="ew", pady=(px(6), 0))
        self.undo_button = ttk.Button(row, text=words.UNDO, command=self.undo, style="Small.TButton")
        self.undo_button.pack(side="left")
        self.stop_button = ttk.Button(row, text=words.STOP, command=self._stop.set, style="Small.TButton")
        self.stop_button.pack(side="left", padx=px(6))
        self.stop_button.state(["disabled"])
        self.status = ttk.Label(row, text=words.READING, wraplength=px(SIDE - 180), justify="left")
        self.status.pack(side="left")
        self.tags = TagTable(side, self.theme, self.change.fill, self.find.by_tag)
        self.tags.grid(row=3, column=0, sticky="nsew", pady=(px(6), 0))
        side.rowconfigure(3, weight=1)

    # --- reading --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the folder. Images are shown before their captions are read."""
        self.save()
        self._worker.submit(lambda: list_folder(self.root, self._subfolders), self._listed)

    def _listed(self, folder: Listing) -> None:
        self._prefetcher.forget_all()
        self.save()
        self.list.take(folder)
        self.find.clear()
        self.say("" if folder.images else words.NO_IMAGES)
        self._put_up()
        self._read(0)

    def _read(self, start: int, generation: int | None = None) -> None:
        """Read captions in batches, so that the person never waits for all of them."""
        if generation is None:
            self._generation = generation = self._generation + 1
            self.read = False
        names = list(dict.fromkeys(self.list.names[start : start + AT_ONCE]))

        def work() -> None:
            for name in names:
                self.list.captions[name] = read_caption(self.root, name)

        def done(_: None) -> None:
            if not self.winfo_exists() or generation != self._generation:
                return
            visible = self.grid_of_images.on_screen()
            if self.field.name is None or any(self.list.name_at(place) in names for place in visible):
                self._draw()
            if start + AT_ONCE < len(self.list.names):
                self._read(start + AT_ONCE, generation)
            else:
                self.read = True
                self.list.forget_others()
                if not self.field.changed:
                    self._show_field()
                self._count()

        self._worker.submit(work, done)

    def _count(self) -> None:
        """Count tags on the worker, because a large folder would block the window."""
        self._worker.submit(
            # a list, because the window may drop captions meanwhile
            lambda: count_tags([one.text or "" for one in list(self.list.captions.values())]),
            self.tags.show,
        )

    # --- showing --------------------------------------------------------------------------------------------------

    def _put_up(self) -> None:
        """Show other images."""
        self.grid_of_images.put_up()
        self._show_field()
        self._draw_counts()
        self._want()

    def _draw(self) -> None:
        self.grid_of_images.renew()
        self._draw_counts()
        if not self.field.changed:
            self._show_field()

    def _draw_counts(self) -> None:
        images = counted(len(self.list.names), words.IMAGE)
        chosen = len(self.list.chosen)
        self.find.say(
            words.PLACE.format(shown=f"{len(self.list.shown):,}", images=images, chosen=f"{chosen:,}")
        )
        self.change.count(len(self.list.shown) if self.change.means_all else chosen)

    def _show_field(self) -> None:
        image, name = self.list.image, self.list.name
        if image is None or name is None:
            self.field.show(None, "", None)
            return
        found = self.list.captions.get(name)
        text = None if found is None else self.list.text(name) or ""
        self.field.show(name, image.name, text, "" if found is None else found.fault)

    def _want(self) -> None:
        self._prefetcher.want(self.grid_of_images.in_sight())

    def arrived(self, key: Key) -> None:
        """Handle a decoded image. Images that arrive together are drawn together."""
        self._gathering.start()

    def say(self, text: str) -> None:
        """Show a line below the buttons."""
        self.status.configure(text=text)

    # --- one caption ----------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Save the typed text in the background."""
        name = self.field.name
        if name is None or not self.field.changed:
            return
        typed = self.field.typed
        self.field.saved(typed)
        self.list.drafts[name] = typed
        self._save(name)

    def _save(self, name: str) -> None:
        typed = self.list.drafts[name]

        def work() -> None:
            old = self.list.captions[name]
            end = "\n" if (old.text or "").endswith("\n") and typed else ""
            if (old.text or "").strip() != typed:
                self.list.captions[name] = save_caption(self.root, name, old, typed + end)

        def done(_: None) -> None:
            if self.list.drafts.get(name) == typed:
                del self.list.drafts[name]
            if self.winfo_exists():
                self._draw()
                self._count()

        def failed(error: Exception) -> None:
            if isinstance(error, CaptionChangedError):
                self._ask_about(name, error.now)
            else:
                self._fail(error)
            self.grid_of_images.renew()

        self._worker.submit(work, done, failed)

    def _ask_about(self, name: str, now: Caption) -> None:
        """Ask what to do with a caption that another program has changed too. Without an answer the typed text stays
        unsaved, and the next save asks again.
        """
        if self._is_asking():
            return
        mine = self.list.drafts.get(name, "")

        def write_mine() -> None:
            self.list.captions[name] = now
            self.list.drafts[name] = mine
            self._save(name)

        def keep_theirs() -> None:
            self.list.captions[name] = now
            self.list.drafts.pop(name, None)
            self._draw()
            self._count()

        says = (now.fault or (now.text or "").strip() or words.NO_CAPTION)[:LONGEST_QUOTE]
        question = words.CHANGED_QUESTION.format(name=name, now=says, mine=mine[:LONGEST_QUOTE])
        ConfirmWindow(
            self, self.theme, words.CHANGED_TITLE, question, words.WRITE_MINE, write_mine, keep_theirs
        )

    def _is_asking(self) -> bool:
        """Return whether a question is open. There is one at a time: what was not asked is asked at the next save."""
        return any(isinstance(child, ConfirmWindow) for child in self.winfo_toplevel().winfo_children())

    def _fail(self, error: Exception) -> None:
        show_error(self, error)

    def finish(self, then: Callable[[], None], stay: Callable[[], None]) -> None:
        """Save everything, then close.

        Args:
            stay: called if something could not be saved and the person does not want to lose it.
        """
        if self.painter is not None and self.painter.winfo_exists():
            self.painter.close(lambda: self.finish(then, stay), stay)
            return
        self.save()
        for name in list(self.list.drafts):
            self._save(name)

        def saved(_: None) -> None:
            if not self.list.drafts:
                then()
                return
            stay()
            if self._is_asking():
                return
            captions = counted(len(self.list.drafts), words.CAPTION)
            question = words.UNSAVED_QUESTION.format(captions=captions)
            ConfirmWindow(self, self.theme, words.UNSAVED_TITLE, question, words.CLOSE, then)

        self._worker.submit(lambda: None, saved)

    # --- many captions --------------------------------------------------------------------------------------------

    def change_many(self, edit: Edit) -> None:
        """Change the captions of the selected images, or of all images shown."""
        self.save()
        names = self.list.meant(self.change.means_all)
        self._begin()

        def work() -> tuple[int, dict[str, str]]:
            plan = plan_edits(self.root, names, edit)
            total = len(plan.changes)
            done = carry_out_edits(self.root, plan, lambda number, name: self._tell(number, total))
            self.list.captions.update(done)
            return total, plan.left

        self._worker.submit(work, self._changed, self._not_changed)

    def _begin(self) -> None:
        self._stop.clear()
        self._busy, self._told = True, None
        self.field.lock(True)
        self.change.enable(False)
        self.undo_button.state(["disabled"])
        self.stop_button.state(["!disabled"])
        self.say(words.READING)
        self._watch()

    def _tell(self, done: int, total: int) -> None:
        """Report the number of captions written; called from the worker."""
        if self._stop.is_set():
            raise UserError(words.STOPPED)
        self._told = (done, total)

    def _watch(self) -> None:
        if self._busy and self.winfo_exists():
            if self._told is not None:
                done, total = self._told
                self.say(words.WORKING.format(done=f"{done:,}", total=f"{total:,}"))
            later(self, round(SHOW_SECONDS * 1000), self._watch)

    def _end(self) -> None:
        self._busy = False
        self.field.lock(False)
        self.change.enable(True)
        self.undo_button.state(["!disabled"])
        self.stop_button.state(["disabled"])

    def _changed(self, outcome: tuple[int, dict[str, str]]) -> None:
        count, left = outcome
        if not self.winfo_exists():
            return
        self._end()
        said = [words.CHANGED.format(captions=counted(count, words.CAPTION))]
        if left:
            reason = next(iter(left.values()))
            said.append(words.LEFT.format(captions=counted(len(left), words.CAPTION), reason=reason))
        self.say("; ".join(said))
        self._draw()
        self._count()

    def _not_changed(self, error: Exception) -> None:
        self._end()
        if self._stop.is_set() and isinstance(error, UserError):
            self.say(words.STOPPED)
            return
        self.say("")
        self._fail(error)
        self._read(0)

    def undo(self) -> None:
        """Undo the last change of one or many captions."""
        if self._busy:
            return
        self.save()
        self._begin()
        self.stop_button.state(["disabled"])

        def done(undone: str | None) -> None:
            if self.winfo_exists():
                self._end()
                self.say(words.UNDONE if undone else words.NOTHING_TO_UNDO)
                if undone and undone.endswith(PAINTING):
                    self.open()
                else:
                    self._read(0)

        self._worker.submit(lambda: undo_edit(self.root, PAINTING), done, self._not_changed)

    # --- input ----------------------------------------------------------------------------------------------------

    def go(self, place: int, extend: bool = False, toggle: bool = False, editing: bool = False) -> None:
        """Show another image. The text typed for the current one is saved.

        Args:
            extend: extend the selection to this image.
            toggle: add the image to the selection or remove it.
            editing: keep the focus in the text field.
        """
        self.save()
        self.list.go(place, extend, toggle)
        self.grid_of_images.follow()
        self._show_field()
        self._draw_counts()
        self._want()
        if not editing or self.field.name is None:
            self._leave()

    def _step(self, places: int) -> None:
        self.go(self.list.cursor + places, editing=True)

    def _leave(self) -> None:
        self.winfo_toplevel().focus_set()

    def edit(self) -> None:
        """Edit the caption of the image at the cursor."""
        if self.field.name is not None:
            self.field.box.focus_set()
            self.field.box.mark_set("insert", "end")

    def look_for(self, by: str, wanted: str) -> None:
        """Show the images that match a search."""
        self.save()
        if by == words.WITHOUT:
            self.list.show(self.list.without_caption())
        elif not wanted.strip():
            self.list.show(range(len(self.list.names)))
        elif by == words.BY_TAG:
            self.list.show(self.list.with_tag(wanted))
        else:
            self.list.show(self.list.with_text(wanted))
        self.say("" if self.list.shown else words.NOTHING_FOUND)
        self._put_up()

    def set_masks(self, on: bool) -> None:
        """Show images with or without their masks."""
        self.grid_of_images.masks = on
        self.grid_of_images.put_up(keep_place=True)
        self._want()

    def paint(self) -> None:
        """Paint the mask of the image at the cursor."""
        if self.painter is not None and self.painter.winfo_exists():
            self.painter.lift()
            self.painter.focus_set()
        elif self.list.shown:
            self.save()
            self.painter = MaskWindow(
                self,
                self.theme,
                self._worker,
                self.root,
                self.list.all_shown,
                self.list.cursor,
                self._painted,
            )

    def _painted(self, image: DataImage) -> None:
        """Handle a changed mask."""
        self.list.has_mask(image, self.root)
        self._prefetcher.forget_all()
        self.grid_of_images.put_up(keep_place=True)
        self._want()

    def _show_keys(self) -> None:
        show_keys(self, self.theme, words.KEYS)

    def _all(self) -> None:
        self.list.choose_all()
        self._draw()

    def on_key(self, key: str, control: bool = False, shift: bool = False) -> bool:
        """Handle a key pressed outside text fields. Return ``True`` if the key is used here."""
        name = key.removeprefix("KP_")
        name = name.lower() if len(name) == 1 else name
        with_control: dict[str, Callable[[], object]] = {
            "a": self._all, "f": self.find.focus, "h": self.change.old.focus_set, "z": self.undo, "w": self._close,
        }  # fmt: skip
        alone: dict[str, Callable[[], object]] = {
            "Return": self.edit, "Enter": self.edit, "F2": self.edit, "F5": self.open, "F1": self._show_keys,
            "m": self.find.toggle_masks, "b": self.paint,
            "plus": lambda: self._resize(1), "equal": lambda: self._resize(1),
            "Add": lambda: self._resize(1), "minus": lambda: self._resize(-1), "Subtract": lambda: self._resize(-1),
            "space": lambda: self.go(self.list.cursor, toggle=True),
        }  # fmt: skip
        action = (with_control if control else alone).get(name)
        if action is not None:
            action()
            return True
        before = self.grid_of_images.cursor
        if control or not self.grid_of_images.move_cursor(name):
            return False
        if self.grid_of_images.cursor != before:
            self.go(self.grid_of_images.cursor, extend=shift)
        return True

    def _resize(self, step: int) -> None:
        self.grid_of_images.resize_cells(step)
        self.grid_of_images.see_cursor()
