"""The Home page without a project: create one, or open one."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tkinter import ttk
from typing import Any

from modules.curation.intake.edit_sources import NO_EDITS, EditOptions
from modules.generator.registry import make_generator
from modules.project.beginning import (
    DEMO_MODEL,
    demo_prompts,
    first_settings,
    model_types,
    on_each_image,
    prompts_of_form,
    rows_of_lines,
)
from modules.project.from_images import Proposal, SourcesNotFound, propose
from modules.project.ProjectFile import CARDS, NAME
from modules.project.prompts import Prompts
from modules.spec.registry import FAMILIES
from modules.ui.dialogs import confirm
from modules.ui.form.CardBoard import CardBoard, wrapped_label
from modules.ui.form.inputs import choice_box
from modules.ui.form.PathRow import PathRow
from modules.ui.home.dropping import Dropped, Kind
from modules.ui.home.EditsDialog import EditsDialog
from modules.ui.home.ProjectWatch import ProjectWatch
from modules.ui.texts import home as words
from modules.ui.Ui import Ui
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.theme import style_text
from modules.ui.widgets.tk_support import IDLE, fit_middle, later, run_in_thread, show_in_grid
from modules.util.display import counted
from modules.util.errors import UserError
from modules.util.files.user_path import user_path
from modules.util.prompts_file import PromptRow, read_prompts_file

USUAL_CARD = 16
PROMPT_LINES, FEWER_LINES = 7, 4
RECENT_WIDTH = 380


class StartView(CardBoard):
    """A form for a new project, next to the recently opened projects.

    Args:
        foot: the part that does not scroll: buttons and errors.
    """

    def __init__(self, parent: tk.Misc, foot: tk.Misc, ui: Ui, watch: ProjectWatch) -> None:
        super().__init__(parent, ui.theme)
        self.ui, self.watch = ui, watch
        self.entries: dict[str, ttk.Entry] = {}
        self.values: dict[str, tk.StringVar] = {}
        self.edits: Sequence[PromptRow] = ()
        """The images that the prompts edit, if known from edits."""
        self.images: dict[str, Any] | None = None
        """Settings of the images, if known from images or a workflow."""
        self._labels = {family.label: key for key, family in FAMILIES.items()}
        self._new()
        self._buttons(foot)
        self._open()
        self.values["base"].trace_add("write", lambda *_: self._look_at_base())
        later(self, IDLE, self.entries["folder"].focus_set)

    # --- a new one ----------------------------------------------------------------------------------------------

    def _new(self) -> None:
        theme = self.ui.theme
        card = self._card = self.add(words.NEW)
        self._path_row(1, "folder", words.FOLDER, folder=words.ASK_FOLDER)
        self._path_row(2, "base", words.BASE, folder=words.ASK_BASE, file=words.ASK_FILE)
        self.type = self._choice(3, words.TYPE, list(self._labels), 26)
        self.type_text = tk.StringVar(self, self.type.get())
        self.type.configure(textvariable=self.type_text)
        self.card = self._choice(4, words.CARD, [words.GB.format(size=size) for size in CARDS], 8)
        self.card.set(words.GB.format(size=USUAL_CARD))
        self.to_edit = self._path_row(
            5, "to_edit", words.TO_EDIT, folder=words.ASK_TO_EDIT, file=words.ASK_TO_EDIT_FILE
        )
        self._prompts_row(6)
        self.tip = wrapped_label(card, theme, "Small.TLabel", words.PROMPTS_TIP, taken=160)
        self.tip.grid(row=7, column=2, sticky="w")
        self.proposed = wrapped_label(card, theme, "Small.TLabel")
        self.proposed.grid(row=8, column=1, columnspan=2, sticky="w")
        self.proposed.grid_remove()
        self.type_text.trace_add("write", lambda *_: self._show_edits())
        self._show_edits()

    def _prompts_row(self, row: int) -> None:
        px = self.ui.theme.px
        head = ttk.Frame(self._card)
        head.grid(row=row, column=1, sticky="nw", pady=px(4))
        ttk.Label(head, text=words.PROMPTS).pack(anchor="w")
        self.prompts_button = ttk.Button(head, text=words.FILE, command=self._browse_prompts)
        self.prompts_button.bind("<Return>", lambda _event: self.prompts_button.invoke())
        self.prompts_button.pack(anchor="w", pady=px(4))
        self.prompts = tk.Text(self._card, height=PROMPT_LINES, width=20, wrap="word", undo=True)
        style_text(self.ui.theme, self.prompts)
        self.prompts.bind("<Tab>", self._leave_prompts)
        self.prompts.bind("<<Modified>>", lambda _event: self._prompts_changed())
        self.prompts.grid(row=row, column=2, sticky="ew", pady=px(4))

    def _buttons(self, foot: tk.Misc) -> None:
        px = self.ui.theme.px
        self._foot = ttk.Frame(foot, padding=(px(14), px(6)))
        self._foot.pack(fill="x")
        self.error = wrapped_label(self._foot, self.ui.theme, "Error.TLabel")
        row = FlowFrame(self._foot, px(6))
        row.pack(side="bottom", fill="x")
        self.create_button = row.add_button(words.CREATE, self.create, "Accent.TButton")
        self.images_button = row.add_button(words.FROM_IMAGES, self._ask_images)
        self.edits_button = row.add_button(words.FROM_EDITS, self._ask_edits)
        self.demo_button = row.add_button(words.FILL_DEMO, self.fill_demo)

    def _fault(self, text: str) -> None:
        self.error.configure(text=text)
        if text:
            self.error.pack(side="top", fill="x", pady=(0, self.ui.theme.px(6)))
        else:
            self.error.pack_forget()

    def destroy(self) -> None:
        self._foot.destroy()
        super().destroy()

    def _path_row(self, row: int, name: str, title: str, folder: str, file: str = "") -> PathRow:
        made = PathRow(self._card, row, self.ui, title, self.create, folder, file)
        self.entries[name], self.values[name] = made.entry, made.value
        return made

    def _choice(self, row: int, title: str, values: list[str], width: int) -> ttk.Combobox:
        ttk.Label(self._card, text=title).grid(row=row, column=1, sticky="w")
        box = choice_box(self._card, self.ui.theme, values, width)
        box.set(values[0])
        box.grid(row=row, column=2, sticky="w", pady=self.ui.theme.px(3))
        return box

    def _leave_prompts(self, _event: object) -> str:
        self.create_button.focus_set()
        return "break"

    def _browse_prompts(self) -> None:
        found = self.ui.chooser.file(words.ASK_PROMPTS, parent=self)
        if found is not None:
            self.take_dropped(Dropped(Kind.PROMPTS, [found]))

    def _prompts_changed(self) -> None:
        """Forget what the prompts edit once the list is empty."""
        if self.edits and not self.prompts.get("1.0", "end").strip():
            self._hold(())
        self.prompts.edit_modified(False)

    def _hold(self, edits: Sequence[PromptRow]) -> None:
        self.edits = edits
        self._show_edits()

    def _show_edits(self) -> None:
        """Offer images to edit to a model that can, unless the prompts have theirs."""
        can_edit = bool(FAMILIES[self._labels[self.type.get()]].sources)
        self.to_edit.show(can_edit and not self.edits)
        said = f"{words.PROMPTS_TIP} {words.TO_EDIT_TIP}" if can_edit else words.PROMPTS_TIP
        self.tip.configure(text=words.EDITS_TIP if self.edits else said)
        self._fit_prompts()

    def _fit_prompts(self) -> None:
        """Leave the rest of the form its room."""
        crowded = self.to_edit.shown or self.proposed.cget("text")
        self.prompts.configure(height=FEWER_LINES if crowded else PROMPT_LINES)

    def _look_at_base(self) -> None:
        found = model_types(self.values["base"].get())
        if found:
            self.type.set(FAMILIES[found[0]].label)

    def fill_demo(self) -> None:
        """Fill in the demo model and prompts it knows; a folder too if none is given."""
        if not self.values["folder"].get().strip():
            base = Path.home() / words.DEMO_FOLDER
            number = 1
            while (place := base if number == 1 else base.with_name(f"{base.name}-{number}")).exists():
                number += 1
            self.values["folder"].set(str(place))
        self.images = None
        self._say("")
        self.values["base"].set(str(DEMO_MODEL))
        self._fill_prompts(demo_prompts())
        self.create_button.focus_set()

    def _ask_images(self) -> None:
        found = self.ui.chooser.folder(words.ASK_IMAGES, parent=self)
        if found is not None:
            self.take_images(found)

    def _ask_edits(self) -> None:
        EditsDialog(self.ui, self.take_images)

    def take_images(self, source: Path | Sequence[Path], places: EditOptions = NO_EDITS) -> None:
        """Fill in the settings found in images or a folder of them. A base model that was typed stays.

        Args:
            places: where the sources of edits are. If they are needed and not found, a dialog asks.
        """
        base = self.values["base"].get().strip()
        self._say(words.READING_IMAGES)

        def failed(error: Exception) -> None:
            if not self.winfo_exists():
                return
            self._say("")
            if isinstance(error, SourcesNotFound):
                EditsDialog(self.ui, self.take_images, source, words.SOURCES_LOST, places)
            else:
                self._fault(said_of_form(error))

        read = partial(propose, source, base=base, places=places)
        run_in_thread(self.ui.pump, read, self._proposed, failed)

    def take_dropped(self, found: Dropped) -> None:
        """Fill in what was dropped, or say why it cannot be used."""
        self._fault("")
        try:
            self._take_dropped(found)
        except UserError as error:
            self._fault(said_of_form(error))

    def _take_dropped(self, found: Dropped) -> None:
        if found.kind is Kind.IMAGES:
            self.take_images(found.paths)
        elif found.kind is Kind.PROMPTS:
            self._take_prompts(found.paths[0])
        elif found.kind is Kind.WORKFLOW:
            self._take_workflow(found)
        elif found.kind is Kind.MODEL:
            self.values["base"].set(str(found.paths[0]))
        else:
            self.values["folder"].set(str(found.paths[0]))

    def _take_prompts(self, path: Path) -> None:
        """Fill in the prompts of a file. One with source images is named instead, because a text holds no images."""
        edits = isinstance(prompts_of_form(str(path)), Path)
        self._fill_prompts([str(path)] if edits else read_prompts_file(path))

    def _take_workflow(self, found: Dropped) -> None:
        settings = {"kind": "comfyui", "workflow": found.workflow, "model_type": "", "base": ""}
        make_generator("comfyui", settings)
        self.images = {"generator": {"kind": "comfyui", "workflow": dict(found.workflow)}, "image": {}}
        self._say(words.BY_DROPPED_WORKFLOW.format(name=found.paths[0].name))

    def _fill_prompts(self, prompts: Sequence[str], edits: Sequence[PromptRow] = ()) -> None:
        self._hold(edits)
        self.prompts.delete("1.0", "end")
        self.prompts.insert("1.0", "\n".join(prompts))

    def _proposed(self, found: Proposal) -> None:
        if not self.winfo_exists():
            return
        self.images = found.settings
        self.values["base"].set(found.base)
        if found.model_type:
            self.type.set(FAMILIES[found.model_type].label)
        self._fill_prompts(list(dict.fromkeys(found.prompts)), found.edits)
        said = [proposal_in_words(found), *found.notes]
        self._say("\n".join(said if found.model_type else [*said, words.NO_TYPE]))
        self._fault("")

    def _say(self, text: str) -> None:
        self.proposed.configure(text=text)
        self._fit_prompts()
        show_in_grid(self.proposed, bool(text))

    def refresh(self) -> None:
        """Show whether a project is being created, and why that failed."""
        busy = self.watch.creating
        self.create_button.configure(text=words.CREATING if busy else words.CREATE)
        self.create_button.state(["disabled" if busy else "!disabled"])
        fault, self.watch.create_fault = self.watch.create_fault, None
        if fault is not None:
            self._fault(said_of_form(fault))

    def create(self) -> None:
        """Create the project, or say what is missing."""
        if self.watch.creating:
            return
        folder, base = (self.values[name].get().strip() for name in ("folder", "base"))
        prompts = self.prompts.get("1.0", "end")
        for value, said in ((folder, words.NO_FOLDER), (base, words.NO_BASE), (prompts, words.NO_PROMPTS)):
            if not value.strip():
                self._fault(said)
                return
        try:
            card = int(self.card.get().split()[0])
            settings = first_settings(base, self._labels[self.type.get()], card, self.images)
            place, given = user_path(folder), self._given(prompts)
            exists = (place / NAME).is_file()
        except (UserError, OSError) as error:
            self._fault(said_of_form(error))
            return
        self._fault("")
        if not exists:
            self.watch.create(place, settings, given)
        elif confirm(self.ui, words.OPEN, words.IS_PROJECT.format(folder=place), words.OPEN_IT, words.OPEN_NOT):
            self._take(place)

    def _given(self, text: str) -> Callable[[], Prompts]:
        """Return the function that reads the prompts, with what they edit."""
        if self.edits:
            rows = rows_of_lines(text, self.edits)
            return lambda: rows
        given = prompts_of_form(text)
        if not self.to_edit.text:
            return lambda: given
        return partial(on_each_image, given, user_path(self.to_edit.text))

    # --- one that exists ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        px, theme = self.ui.theme.px, self.ui.theme
        card = self.add(words.OPEN)
        self.recent_buttons: list[ttk.Button] = []
        for row, name in enumerate(self.watch.memory.projects, 1):
            text = fit_middle(name, px(RECENT_WIDTH), theme.fonts["text"])
            button = ttk.Button(
                card, text=text, style="Side.TButton", command=partial(self._take, Path(name))
            )
            button.bind("<Return>", lambda event: event.widget.invoke())
            button.grid(row=row, column=1, columnspan=2, sticky="ew")
            self.recent_buttons.append(button)
        if not self.recent_buttons:
            label = ttk.Label(card, text=words.NO_RECENT, style="Muted.TLabel")
            label.grid(row=1, column=1, columnspan=2, sticky="w")
        other = ttk.Button(card, text=words.OPEN_OTHER, command=self._open_other)
        other.grid(row=100, column=1, sticky="w", pady=(px(8), 0))
        self.open_error = wrapped_label(card, theme, "Error.TLabel", self.watch.fault)
        self.open_error.grid(row=101, column=1, columnspan=2, sticky="w")

    def _open_other(self) -> None:
        found = self.ui.chooser.folder(words.ASK_FOLDER, parent=self)
        if found is not None:
            self._take(found)

    def _take(self, folder: Path) -> None:
        if not self.watch.open(folder):
            self.open_error.configure(text=self.watch.fault)


def said_of_form(error: Exception) -> str:
    """The text of an error, with the title of the field in place of the argument of ``taste.py``."""
    if isinstance(error, UserError) and error.field in words.FIELDS:
        return str(UserError(error.message, words.FIELDS[error.field], error.hint))
    return str(error)


def proposal_in_words(found: Proposal) -> str:
    """Say how the images were made, in one sentence."""
    text = words.BY_WORKFLOW if "workflow" in found.generator else words.BY_PROGRAM
    sources = counted(len({row.sources for row in found.edits}), words.SOURCE)
    facts = [words.EDITS_OF.format(sources=sources)] if found.edits else []
    facts += [text.format(program=words.PROGRAMS[found.generator["kind"]]), words.SIZE.format(**found.image)]
    facts += [str(found.image["sampler"])] if "sampler" in found.image else []
    facts += [words.STEPS_FACT.format(**found.image)] if "steps" in found.image else []
    facts += [words.SCALE.format(**found.image)] if "cfg" in found.image else []
    return words.PROPOSED.format(images=counted(found.used, words.IMAGE), facts=", ".join(facts))
