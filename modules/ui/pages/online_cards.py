"""Widgets of the preference training page, in addition to its rows, for modes that make their own images."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tkinter import ttk
from typing import Any, TypeVar

from modules.ui.form.CardBoard import wrapped_label
from modules.ui.form.SettingsForm import SettingsForm
from modules.ui.items.ItemTable import Column, ItemTable
from modules.ui.items.NamedItemDialog import NamedItemDialog, parameters_text
from modules.ui.pair_windows import open_pair_tool_here
from modules.ui.state.ConfigState import Problem
from modules.ui.state.ItemList import ItemList
from modules.ui.texts import lists
from modules.ui.texts import rlhf as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import Timer, elide_middle
from modules.util.catalog import Entry, accelerators, rewards
from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.section.RewardConfig import AcceleratorConfig, RewardConfig
from modules.util.display import counted
from modules.util.errors import UserError
from modules.util.prompts_file import read_prompt_rows

ROLLOUTS = "rollouts"
FILE, TEXT, LIST = "rlhf_prompts_file", "rlhf_reward", "rlhf_rewards"
SHARED, ROLLOUT = "acceleration.shared", "acceleration.rollout"
COUNT_AFTER_MS = 300
CELL = 36
"""Number of characters that fit the last column of a card's table."""
_COUNTED = {FILE, "rlhf_prompts_per_epoch", "rlhf_group_size"}
T = TypeVar("T", bound=BaseConfig)


class NamedTable(ttk.Frame):
    """A list of named items (rewards, accelerators) with its buttons and errors.

    Args:
        field: field that holds an item's name.
        known: the names that come with the program.
        what: what one item is called.
    """

    def __init__(
        self,
        parent: ttk.Frame,
        ui: Ui,
        items: ItemList[T],
        field: str,
        known: Mapping[str, Entry],
        what: str,
        columns: tuple[Column, ...],
    ) -> None:
        super().__init__(parent)
        self._ui, self.items, self._field, self._known, self._what = ui, items, field, known, what
        self.table = ItemTable(
            self,
            ui,
            items,
            columns,
            self.open_item,
            ((lists.ADD, self.add, words.ADD_TIP.format(what=what)),),
            rows=3,
        )
        self.table.pack(fill="x")
        self.fault = wrapped_label(self, ui.theme, "Error.TLabel", card=parent)
        self.table.refresh()

    def open_item(self, index: int) -> NamedItemDialog:
        """Open the window of an item."""
        return self._dialog(
            f"{self._what.capitalize()} {index + 1}",
            self.items.items()[index],
            lambda item: self.items.replace(index, item),
        )

    def add(self) -> NamedItemDialog:
        """Open the window of a new item. It enters the list on OK."""
        fresh = self.items.kind()
        entry = next(
            (e for e in self._known.values() if e.slot in ("", self.items.field.rpartition(".")[2])), None
        )
        if entry is not None:
            setattr(fresh, self._field, entry.name)
        return self._dialog(words.NEW_ITEM.format(what=self._what), fresh, self.table.append)

    def _dialog(self, title: str, item: BaseConfig, done: Callable[[Any], None]) -> NamedItemDialog:
        window = NamedItemDialog(self._ui, title, item, done, self._field, self._known)
        window.open()
        return window

    def show_problems(self, problems: Mapping[str, Problem]) -> None:
        """Show what is wrong with the list below it."""
        field = self.items.field
        found = [
            p for path, p in problems.items() if path == field or path.startswith((f"{field}[", f"{field}."))
        ]
        if not found:
            self.fault.pack_forget()
            return
        said = [f"{p.message} ({p.hint})" if p.hint else p.message for p in found]
        style = "Warning.TLabel" if all(p.warning for p in found) else "Error.TLabel"
        self.fault.configure(text="\n".join(said), style=style)
        self.fault.pack(anchor="w", pady=(self._ui.theme.px(4), 0))


class OnlineCards:
    """The number of prompts, lists of rewards and accelerators, and the images made.

    Args:
        form: form of the page, whose cards are extended.
    """

    def __init__(self, ui: Ui, form: SettingsForm) -> None:
        self.ui, self.form = ui, form
        self.prompts_fault: Problem | None = None
        self._count: int | None = None
        self.changed: Callable[[], None] = lambda: None
        self._prompts()
        self._rewards()
        self._accelerators()
        self._review()

    # -- prompts ---------------------------------------------------------------------------------------------

    def _prompts(self) -> None:
        self.count = self.form.add_note("Prompts")
        self._counting = Timer(self.count, COUNT_AFTER_MS, self._count_now)

    def _count_now(self) -> None:
        name = str(self.ui.state.value(FILE)).strip()
        if not name:
            self._counted(name, None)
            return
        self.ui.work(
            lambda: len(read_prompt_rows(name)),
            lambda number: self._counted(name, number),
            lambda error: self._counted(name, error),
        )

    def _counted(self, name: str, found: int | Exception | None) -> None:
        if not self.count.winfo_exists() or name != str(self.ui.state.value(FILE)).strip():
            return
        before, self.prompts_fault = self.prompts_fault, None
        self._count = found if isinstance(found, int) else None
        if isinstance(found, UserError):
            self.prompts_fault = Problem(FILE, found.message, found.hint or "")
        elif isinstance(found, Exception):
            self.ui.error(found)
        self._write_count()
        if before != self.prompts_fault:
            self.changed()

    def _write_count(self) -> None:
        config = self.ui.state.config
        made = config.rlhf_prompts_per_epoch * config.rlhf_group_size
        epoch = words.EPOCH_MAKES.format(images=counted(made, "image"))
        if not config.rlhf_prompts_file.strip():
            self.count.configure(text=words.CAPTIONS.format(epoch=epoch))
        elif self._count is None:
            self.count.configure(text=epoch)
        else:
            self.count.configure(
                text=words.IN_FILE.format(prompts=counted(self._count, "prompt"), epoch=epoch)
            )

    # -- lists -----------------------------------------------------------------------------------------------

    def _rewards(self) -> None:
        items: ItemList[RewardConfig] = ItemList(self.ui.state, RewardConfig, LIST)
        frame = self.form.extend_card("Reward")
        self._head(frame, words.REWARDS_HEAD)
        self.rewards = NamedTable(frame, self.ui, items, "reward", rewards(), words.REWARD, (
            Column(words.COLUMN_REWARD, 130, lambda r: r.reward),
            Column(words.COLUMN_WEIGHT, 60, lambda r: f"{r.weight:g}"),
            Column(words.COLUMN_SETTINGS, 150, lambda r: _shortened(reward_text(r)), stretch=True),
        ))  # fmt: skip
        self.rewards.pack(fill="x")

    def _accelerators(self) -> None:
        self.speed_card = self.form.add_card("Acceleration")
        self.speed: dict[str, NamedTable] = {}
        self._speed_frames: dict[str, ttk.Frame] = {}
        for row, path in enumerate((SHARED, ROLLOUT), 1):
            frame = self._speed_frames[path] = ttk.Frame(self.speed_card)
            frame.grid(row=row, column=0, columnspan=4, sticky="ew", pady=(0, self.ui.theme.px(6)))
            setting = self.ui.state.settings[path]
            self._head(frame, words.ITEM_HEAD.format(title=setting.title, tip=setting.tip))
            items: ItemList[AcceleratorConfig] = ItemList(self.ui.state, AcceleratorConfig, path)
            table = self.speed[path] = NamedTable(frame, self.ui, items, "name", accelerators(), words.ACCELERATOR, (
                Column(words.COLUMN_NAME, 150, lambda a: a.name),
                Column(words.COLUMN_PARAMETERS, 200, lambda a: _shortened(parameters_text(a.params)), stretch=True),
            ))  # fmt: skip
            table.pack(fill="x")

    def _head(self, frame: ttk.Frame, text: str) -> None:
        label = wrapped_label(frame, self.ui.theme, "Muted.TLabel", text)
        label.pack(anchor="w", pady=(0, self.ui.theme.px(4)))

    # -- images that were made -------------------------------------------------------------------------------

    def _review(self) -> None:
        px, tips = self.ui.theme.px, self.ui.services.tooltips
        self.review_card = self.form.add_card(words.IMAGES_CARD, first=True)
        self.kind = wrapped_label(self.review_card, self.ui.theme)
        self.kind.grid(row=1, column=0, columnspan=4, sticky="w", pady=(0, px(6)))
        self.buttons: dict[str, ttk.Button] = {}
        for column, (text, command, tip) in enumerate(
            (
                (words.OPEN_IMAGES, self.open_folder, words.OPEN_IMAGES_TIP),
                (words.MAKE_PAIRS, self.make_pairs, words.MAKE_PAIRS_TIP),
            ),
            1,
        ):
            button = self.buttons[text] = ttk.Button(self.review_card, text=text, command=command)
            button.grid(row=2, column=column, sticky="ew", padx=(0, px(6)), pady=px(3))
            tips.add(button, tip)
        self.where = wrapped_label(self.review_card, self.ui.theme, "Muted.TLabel")
        self.where.grid(row=3, column=1, columnspan=3, sticky="w")

    def rollouts(self) -> Path | None:
        """The folder of the images that were kept: of the watched run, or else of the run in the settings."""
        watched = self.ui.services.runs.run
        folders = [watched.path] if watched is not None else []
        for folder in (*folders, Path(self.ui.state.config.workspace_dir)):
            if (folder / ROLLOUTS).is_dir():
                return Path(folder) / ROLLOUTS
        return None

    def show_rollouts(self) -> None:
        """Show whether there are images of the run."""
        folder = self.rollouts()
        for button in self.buttons.values():
            button.state(["disabled" if folder is None else "!disabled"])
        text = words.NO_IMAGES if folder is None else elide_middle(str(folder), 60)
        self.where.configure(text=text)

    def open_folder(self) -> None:
        """Open the folder of the images in the file manager."""
        folder = self.rollouts()
        if folder is not None:
            self.ui.status(str(folder))
            webbrowser.open(folder.absolute().as_uri())

    def make_pairs(self) -> None:
        """Open the pair tool on the images."""
        folder = self.rollouts()
        if folder is not None:
            open_pair_tool_here(self.ui, folder)

    # -- showing ---------------------------------------------------------------------------------------------

    def refresh(self, paths: Iterable[str] | None) -> None:
        """Update after changed settings (``None``: any of them)."""
        config, touched = self.ui.state.config, None if paths is None else set(paths)
        online = config.rlhf_enabled and config.rlhf_mode.online
        self.form.show_card(words.IMAGES_CARD, online)
        lists = config.acceleration
        self.form.show_card("Acceleration", config.rlhf_enabled or bool(lists.shared or lists.rollout))
        for path, wanted in ((SHARED, True), (ROLLOUT, online or bool(lists.rollout))):
            frame = self._speed_frames[path]
            frame.grid() if wanted else frame.grid_remove()
            if touched is None or path in touched:
                self.speed[path].table.refresh()
        if touched is None or LIST in touched:
            self.rewards.table.refresh()
        self.form.rows[TEXT].input.enable(not config.rlhf_rewards)
        if not online:
            return
        if touched is None or not touched.isdisjoint(_COUNTED | {"rlhf_enabled", "rlhf_mode"}):
            self._write_count()
            self._counting.restart()
        self.show_rollouts()

    def show_problems(self, problems: Mapping[str, Problem]) -> dict[str, Problem]:
        """Show what is wrong with the lists. Returns all problems, including those found here."""
        for table in (self.rewards, *self.speed.values()):
            table.show_problems(problems)
        own = {} if self.prompts_fault is None else {FILE: self.prompts_fault}
        return {**own, **problems}


def _shortened(text: str) -> str:
    return text if len(text) <= CELL else f"{text[: CELL - 1]}\u2026"


def reward_text(reward: RewardConfig) -> str:
    """The settings of a reward apart from its name and weight."""
    facts = [reward.name and words.AS_NAME.format(name=reward.name), "normalised" if reward.normalise else ""]
    for label, value in (
        ("from", reward.clip_low),
        ("to", reward.clip_high),
        ("threshold", reward.threshold),
    ):
        facts.append("" if value is None else f"{label} {value:g}")
    return ", ".join(fact for fact in (*facts, parameters_text(reward.params)) if fact)
