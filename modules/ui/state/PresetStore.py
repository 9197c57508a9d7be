"""Built-in presets (names begin with ``#``) and the person's own. No Tk here."""

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
"""Settings that belong to a project, not to a way of training. A preset changes them only if it sets them."""
_BAD = re.compile(r'[<>:"/\\|?*\x00-\x1f]')


@dataclass(frozen=True)
class Preset:
    """One preset.

    Args:
        name: file name without the mark of built-in presets.
        family: its folder; empty for presets in no folder.
        built_in: whether it is part of the program.
    """

    path: Path
    name: str
    family: str
    built_in: bool

    @property
    def label(self) -> str:
        """The displayed name: the folder, then the name, with ``# `` in front of built-in presets."""
        label = f"{self.family} / {self.name}" if self.family else self.name
        return f"# {label}" if self.built_in else label


class PresetStore:
    """The presets in a folder and its subfolders.

    Args:
        folder: usually ``training_presets`` of the program.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder

    def presets(self) -> list[Preset]:
        """All presets: the person's own first, then built-in ones by family."""
        found = [
            self._preset(path) for path in sorted(self.folder.glob("**/*.json")) if path.name != "#.json"
        ]
        return sorted(found, key=lambda preset: (preset.built_in, preset.label.lower()))

    def _preset(self, path: Path) -> Preset:
        family = path.parent.relative_to(self.folder).as_posix()
        name = path.stem.lstrip("#").strip()
        return Preset(path, name, "" if family == "." else family, path.name.startswith("#"))

    def load(self, preset: Preset, state: ConfigState) -> TrainConfig:
        """Apply the preset to the defaults. Settings that belong to the project are kept from ``state``.

        Raises:
            UserError, UserErrors: the file cannot be read or used.
        """
        data = read_json(preset.path, "preset")
        made = load_layered(preset.path, None, check=False, model=state.model)
        for name in KEPT:
            if name not in data:
                setattr(made, name, state.value(name))
        return made

    def path_for(self, name: str) -> Path:
        """The file in which a preset of this name is saved.

        Raises:
            UserError: the name is invalid.
        """
        clean = _BAD.sub("-", name).strip(" .#")
        if not clean:
            raise UserError("a preset needs a name", hint="use letters and digits")
        return self.folder / f"{clean}.json"

    def save(self, name: str, config: TrainConfig) -> Preset:
        """Save what differs from the defaults under a name, replacing an older preset of that name.

        Raises:
            UserError: the name is invalid, or the folder is not writable.
        """
        path = self.path_for(name)
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
        """Delete one of the person's own presets.

        Raises:
            UserError: it is built in, or cannot be deleted.
        """
        if preset.built_in:
            raise UserError(f"{preset.label} comes with the program and cannot be removed")
        try:
            name = preset.path.relative_to(self.folder).as_posix()
            Owned(self.folder, local=True).remove(name)
        except OSError as error:
            raise UserError(f"{preset.path} cannot be removed: {error.strerror}") from error
