"""Cleans up on start what a killed run left in its folders."""

from __future__ import annotations

from pathlib import Path

from modules.runner.RunDirectory import RunDirectory
from modules.spec.registry import FAMILIES
from modules.util.config.TrainConfig import TrainConfig
from modules.util.files.output_place import output_place
from modules.util.files.user_folder import settings_folder
from modules.util.owned_files import TEMPORARY, Owned


def clear_leftovers(config: TrainConfig, run: RunDirectory) -> None:
    """Restore a model whose replacement was interrupted, and remove temporary files that no process is writing."""
    place = output_place(
        config.output_model_destination,
        config.output_model_format.value,
        config.training_method.writes_file,
        FAMILIES[config.model_type.value].writes_single_file,
    )
    owned = Owned(place.path.parent, local=True)
    if place.folder:
        owned.restore_folder(place.path.name)
    owned.sweep(TEMPORARY)
    cache = Path(config.cache_dir)
    inside = ("", "samples", "save", "best", "backup", "commands")
    made = ("", "latents", "texts", "reference")
    for folder in [
        *(run.path / name for name in inside),
        *(cache / name for name in made),
        settings_folder(),
    ]:
        Owned(folder, local=True).sweep(TEMPORARY)
    for folder in (run.samples_dir, run.path / "rollouts"):
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                Owned(path, local=True).sweep(TEMPORARY)
