"""Presets: those that come with the program (names begin with ``#``) and the person's own. No Tk here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from modules.ui.state.ConfigState import ConfigState
from modules.util.config.load import load_layered
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from modules.util.jsonio import read_json, write_json
from modules.util.owned_files import Owned
from modules.util.program_files import PRESETS

FOLDER = PRESETS
KEPT = (
    "workspace_dir", "cache_dir", "concept_file_name", "concepts", "sample_definition_file_name", "samples",
    "output_model_destination", "train_device", "tensorboard_port",
)  # fmt: skip
"""What belongs to a project, not to a way of training: a preset changes it only where it names it."""
_BAD = re.compile(r'[<>:"/\\|?*\x00-\x1f]')


@dataclass(frozen=True)
class Preset:
    """One preset.

    Args:
        path: its file.
        name: of the file, without the mark of built-in ones.
        family: its folder; empty for those in no folder.
        built_in: whether it came with the program.
    """

    path: Path
    name: str
    family: str
    built_in: bool

    @property
    def label(self) -> str:
        """What people read: ``# `` in front of built-in ones, the folder before the name."""
        label = f"{self.family} / {self.name}" if self.family else self.name
        return f"# {label}" if self.built_in else label


class PresetStore:
    """The presets in a folder and the folders in it.

    Args:
        folder: usually ``training_presets`` of the program.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder

    def presets(self) -> list[Preset]:
        """All of them: the person's own first, then built-in ones by family."""
        found = [
            self._preset(path) for path in sorted(self.folder.glob("**/*.json")) if path.name != "#.json"
        ]
        return sorted(found, key=lambda preset: (preset.built_in, preset.label.lower()))

    def _preset(self, path: Path) -> Preset:
        family = path.parent.relative_to(self.folder).as_posix()
        name = path.stem.lstrip("#").strip()
        return Preset(path, name, "" if family == "." else family, path.name.startswith("#"))

    def load(self, preset: Preset, state: ConfigState) -> TrainConfig:
        """The preset over the defaults, with what belongs to the project kept from ``state``.

        Raises:
            UserError, UserErrors: the file cannot be read or used.
        """
        data = read_json(preset.path, "preset")
        made = load_layered(preset.path, None, check=False, model=state.model)
        for name in KEPT:
            if name not in data:
                setattr(made, name, state.value(name))
        return made

    def save(self, name: str, config: TrainConfig) -> Preset:
        """Keep what differs from the defaults under a name; an older preset of that name is replaced.

        Raises:
            UserError: the name is none, or the folder cannot be written.
        """
        clean = _BAD.sub("-", name).strip(" .#")
        if not clean:
            raise UserError("a preset needs a name", hint="letters and digits")
        path = self.folder / f"{clean}.json"
        data = {key: value for key, value in config.sparse_dict().items() if key not in KEPT}
        try:
            write_json(path, data)
        except OSError as error:
            raise UserError(
                f"the preset {path} cannot be written: {error.strerror}",
                hint="use Save as to keep the settings in another folder",
            ) from error
        return self._preset(path)

    def delete(self, preset: Preset) -> None:
        """Remove one of the person's own.

        Raises:
            UserError: it came with the program, or cannot be removed.
        """
        if preset.built_in:
            raise UserError(f"{preset.label} comes with the program and stays")
        try:
            name = preset.path.relative_to(self.folder).as_posix()
            Owned(self.folder, local=True).remove(name)
        except OSError as error:
            raise UserError(f"{preset.path} cannot be removed: {error.strerror}") from error
