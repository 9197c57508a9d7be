"""Actions on files: opening, saving, importing, presets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from modules.ui.dialogs import ask_buttons, ask_choice, ask_text, confirm, show_notes
from modules.ui.state.PresetStore import Preset, PresetStore
from modules.ui.state.SessionStore import WindowMemory
from modules.ui.texts import files as words
from modules.ui.Ui import Ui
from modules.ui.widgets.Chooser import FOREIGN, JSON
from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.config_list import save_list
from modules.util.config.load import load_layered
from modules.util.config.TrainConfig import TrainConfig
from modules.util.display import counted
from modules.util.errors import UserError


class FileActions:
    """Performs the actions and tracks the path of the open config.

    Args:
        memory: stores the recent files.
        presets: the presets to choose from.
        changed: called when the path or the saved state changed.
    """

    def __init__(
        self, ui: Ui, memory: WindowMemory, presets: PresetStore, changed: Callable[[], None]
    ) -> None:
        self._ui, self._memory, self.presets, self._changed = ui, memory, presets, changed
        self._seen: dict[str, str] = {}
        """Configs that were opened or saved, with a digest of their content."""
        self._of_preset: dict[str, Any] = {}
        """The settings just after the last preset."""

    @property
    def path(self) -> str:
        """The file of the settings; empty if they have none."""
        return self._ui.state.path

    @property
    def recent(self) -> list[str]:
        """The configs opened or saved last, newest first."""
        return self._memory.recent

    @property
    def digest(self) -> str:
        """A digest of the content that the file had when it was opened or saved last; empty if unknown."""
        return self._seen.get(self.path, "")

    def restore(self, path: str, digest: str, saved: bool) -> None:
        """Take up the file of an earlier start of the program: see ``path``, ``digest``."""
        if digest:
            self._seen[path] = digest
        state = self._ui.state
        state.path = path
        (state.mark_saved if saved else state.mark_unsaved)()

    # -- files -----------------------------------------------------------------------------------------------

    def new(self) -> None:
        """Start with the defaults, asking first if there are unsaved changes."""
        changed = self._ui.state.is_modified()
        if not self._may_replace(words.NEW_TITLE, words.NEW_QUESTION):
            return
        self._ui.state.replace(self._ui.state.model(), words.UNDO_NEW, file="", saved=True)
        self._changed()
        self._ui.status(words.NEW_AFTER_CHANGES if changed else words.NEW)

    def _may_replace(self, title: str, question: str) -> bool:
        """If there are unsaved changes, ask what to do with them. Return whether to replace the settings."""
        if not self._ui.state.is_modified():
            return True
        choice = ask_buttons(self._ui, title, question, (words.SAVE, words.DISCARD, words.CANCEL))
        return choice == 1 or (choice == 0 and self.save())

    def ask_load(self) -> None:
        """Ask for a config and open it."""
        path = self._ui.chooser.file(words.OPEN_CONFIG, self.path, JSON)
        if path is not None:
            self.load(path)

    def load(self, path: Path) -> bool:
        """Open a config, asking first if there are unsaved changes. If it is invalid, show why and change nothing."""
        path = path.absolute()  # the next start may be in another folder
        question = words.OPEN_QUESTION.format(name=path.name)
        try:
            self._read(path)
            if not self._may_replace(words.OPEN_CONFIG, question):
                return False
            config, notes = self._read(path)  # again: the changes may have been saved in this file
        except UserError as error:
            if "OneTrainer" in error.message:
                return self.import_from(path)
            self._ui.error(error)
            return False
        self._see(path)
        self._take(config, words.UNDO_OPEN.format(name=path.name), path)
        self._ui.status(". ".join([words.OPENED.format(path=path), *notes]))
        return True

    def _read(self, path: Path) -> tuple[TrainConfig, list[str]]:
        """A config, and what to say about it."""
        notes: list[str] = []
        return load_layered(None, path, check=False, model=self._ui.state.model, notes=notes), notes

    def _take(self, config: TrainConfig, title: str, path: Path | None) -> None:
        self._ui.state.replace(config, title, str(path or ""), saved=path is not None)
        if path is not None:
            self._memory.remember(path)
        self._changed()

    def save(self) -> bool:
        """Save to the config's file, asking for a name the first time."""
        return self.save_to(Path(self.path)) if self.path else self.ask_save()

    def ask_save(self) -> bool:
        """Ask for a name and save."""
        name = "" if self.path else "config.json"
        path = self._ui.chooser.save_file(words.SAVE_CONFIG, self.path, name, JSON)
        return path is not None and self.save_to(path)

    def save_to(self, path: Path) -> bool:
        """Write the config. Texts that are not valid values are left out, and stay on the screen.

        What another program has written into the file since is replaced only after a question.
        """
        question = words.CHANGED_QUESTION.format(path=path)
        if self._has_changed(path) and not self._may_overwrite(words.CHANGED_TITLE, question):
            return False
        try:
            self._ui.state.config.save(os.path.realpath(path))  # a link stays one
        except OSError as error:
            self._ui.error(
                UserError(f"{path} cannot be written: {error.strerror}", hint="choose another folder")
            )
            return False
        self._ui.state.path = str(path)
        self._ui.state.mark_saved()
        self._see(path)
        self._memory.remember(path)
        self._changed()
        unread = len(self._ui.state.typed())
        said = words.SAVED_WITH_UNREADABLE if unread else words.SAVED
        self._ui.status(said.format(path=path, fields=counted(unread, "field")))
        return True

    def _may_overwrite(self, title: str, question: str) -> bool:
        return confirm(self._ui, title, question, words.REPLACE, words.CANCEL)

    def _see(self, path: Path) -> None:
        self._seen[str(path)] = _digest(path)

    def _has_changed(self, path: Path) -> bool:
        """Return whether the config has other content than when it was opened or saved last."""
        seen, now = self._seen.get(str(path)), _digest(path)
        return bool(seen and now) and seen != now

    # -- other programs --------------------------------------------------------------------------------------

    def ask_import(self) -> None:
        """Ask for a file of another program and import it."""
        path = self._ui.chooser.file(words.IMPORT_FILE, kinds=FOREIGN)
        if path is not None:
            self.import_from(path)

    def import_from(self, path: Path) -> bool:
        """Import a config of another program, or a list of concepts or samples, and report what was left out.

        A config replaces unsaved changes only after a question. Return whether something was imported.
        """
        from modules.util.config.foreign.importing import import_file

        try:
            imported = import_file(path)
            made, notes = imported.made, imported.notes.listed()
            if isinstance(made, TrainConfig):
                config = self._ui.state.model.from_dict(made.to_dict())
                if not self._may_replace(words.IMPORT_CONFIG, words.IMPORT_QUESTION.format(name=path.name)):
                    return False
                self._take(config, words.UNDO_IMPORT.format(name=path.name), None)
            else:
                name = "concepts" if made and type(made[0]).__name__ == "ConceptConfig" else "samples"
                self._ui.state.set_values({name: made}, words.UNDO_IMPORT.format(name=path.name))
        except UserError as error:
            self._ui.error(error)
            return False
        self._ui.status(words.IMPORTED.format(path=path))
        if notes:
            head = words.LEFT_BEHIND.format(settings=counted(len(notes), "setting"), name=path.name)
            show_notes(self._ui, words.LEFT_BEHIND_TITLE, head, notes)
        return True

    # -- presets ---------------------------------------------------------------------------------------------

    def apply_preset(self, preset: Preset) -> bool:
        """Use a preset, asking first if there are unsaved changes other than those of the preset before it.

        Return whether it is used.
        """
        state = self._ui.state
        try:
            config = self.presets.load(preset, state)
        except UserError as error:
            self._ui.error(error)
            return False
        question = words.PRESET_QUESTION.format(name=preset.label)
        untouched = not state.typed() and state.config.to_dict() == self._of_preset
        if not untouched and not self._may_replace(words.PRESET_TITLE, question):
            return False
        state.replace(config, words.UNDO_PRESET.format(name=preset.label))
        self._of_preset = state.config.to_dict()
        self._ui.status(words.PRESET_APPLIED.format(name=preset.label))
        self._changed()
        return True

    def keep_preset(self) -> None:
        """Ask for a name and save the settings as a preset. A preset of that name is replaced only after a question."""
        name = ask_text(self._ui, words.KEEP_TITLE, words.KEEP_QUESTION)
        if not name:
            return
        with self._ui.errors_shown():
            path = self.presets.path_for(name)
            question = words.REPLACE_QUESTION.format(name=path.stem)
            if not path.exists() or self._may_overwrite(words.KEEP_TITLE, question):
                made = self.presets.save(name, self._ui.state.config)
                self._ui.status(words.KEPT.format(path=made.path))

    def remove_preset(self) -> None:
        """Ask which of the person's own presets to delete."""
        own = [preset for preset in self.presets.presets() if not preset.built_in]
        if not own:
            self._ui.status(words.NO_OWN_PRESETS)
            return
        labels = [preset.label for preset in own]
        index = ask_choice(self._ui, words.REMOVE_TITLE, words.REMOVE_QUESTION, labels)
        if index is not None:
            with self._ui.errors_shown():
                self.presets.delete(own[index])
                self._ui.status(words.REMOVED.format(path=own[index].path))


def _digest(path: Path) -> str:
    """A digest of the content of a file; empty if it cannot be read."""
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def write_list(ui: Ui, items: Sequence[BaseConfig], what: str, name: str) -> None:
    """Ask for a file and write concepts or samples to it."""
    chosen = ui.chooser.save_file(words.WRITE_LIST.format(what=what), name=name, kinds=JSON)
    if chosen is not None:
        try:
            save_list(items, os.path.realpath(chosen))
        except OSError as error:
            ui.error(UserError(f"{chosen} cannot be written: {error.strerror}"))
            return
        ui.status(words.WROTE.format(path=chosen))
