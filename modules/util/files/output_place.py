"""Where a trained model is written: one answer for the check before a run, the dry run and the save itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modules.spec.registry import FAMILIES
from modules.util.enum.choices import ModelFormat
from modules.util.errors import DataError, UserError
from modules.util.owned_files import Owned, shown

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig

FIELD = "output_model_destination"


@dataclass(frozen=True)
class OutputPlace:
    """Where and how a whole model is written.

    Args:
        path: the file or folder.
        layout: SAFETENSORS or DIFFUSERS; of an adapter what was asked for, AUTO included.
        folder: whether ``path`` becomes a folder.
    """

    path: Path
    layout: str
    folder: bool


def output_place(
    destination: str | os.PathLike[str], layout: str, adapter: bool, writes_single_file: bool
) -> OutputPlace:
    """Settle name and layout of the output.

    AUTO makes a whole model SAFETENSORS if the name ends so and a file of the family holds all of it, else DIFFUSERS:
    a folder, without that ending, so that it is not mistaken for a file.

    Args:
        layout: ``output_model_format``.
        adapter: an adapter or an embedding is written, always as a file.
        writes_single_file: whether one file holds a whole model of the family.
    """
    path = Path(destination)
    if adapter:
        return OutputPlace(path, layout, False)
    if layout == ModelFormat.AUTO.value:
        wants_file = path.suffix == ".safetensors"
        layout = "SAFETENSORS" if wants_file and writes_single_file else "DIFFUSERS"
        if wants_file and layout == "DIFFUSERS":
            path = path.with_suffix("")
    return OutputPlace(path, layout, layout == "DIFFUSERS")


def check_output(config: TrainConfig) -> None:
    """Refuse an output that would take the place of something the program did not write there.

    Raises:
        DataError: ``prevent_overwrites`` is on and something is there, or what is there must not be replaced: a
            folder where a file is to be written, a folder with other files, a device, a file of the base model.
    """
    spec = FAMILIES[config.model_type.value]
    adapter = config.training_method.writes_file
    place = output_place(
        config.output_model_destination, config.output_model_format.value, adapter, spec.writes_single_file
    )
    sources = [config.base_model_name]
    sources += [getattr(config, part).model_name for part in spec.module_parts]
    try:
        owned = Owned(place.path.parent, local=True)
        path = owned.path(place.path.name)
        if config.prevent_overwrites and os.path.lexists(path):
            raise DataError(
                f"{shown(place.path)} exists already",
                FIELD,
                "choose another name, or switch prevent_overwrites off",
            )
        if place.folder:
            owned.check_replaceable(place.path.name, [source for source in sources if source.strip()])
        else:
            owned.check_writable(place.path.name, [source for source in sources if source.strip()])
    except DataError:
        raise
    except UserError as error:
        raise DataError(error.message, FIELD, "choose another name, or move away what is there") from error


def output_fault(config: TrainConfig) -> DataError | None:
    """What ``check_output`` would raise."""
    try:
        check_output(config)
    except DataError as error:
        return error
    return None
