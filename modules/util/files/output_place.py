"""The place where a trained model is written. The check before a run, the dry run and the save all use it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modules.spec.registry import FAMILIES
from modules.util.enum.choices import ModelFormat, TrainingMethod
from modules.util.errors import DataError, UserError, refused_as
from modules.util.files.OpenFolder import read_plain
from modules.util.owned_files import Owned, shown

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig

FIELD = "output_model_destination"
_UNSAFE = re.compile(r"[^\w-]+")


@dataclass(frozen=True)
class OutputPlace:
    """Location and layout of a saved model.

    Args:
        path: the file or folder.
        layout: SAFETENSORS or DIFFUSERS; for an adapter as requested, including AUTO.
        folder: whether ``path`` is a folder.
    """

    path: Path
    layout: str
    folder: bool


def output_place(
    destination: str | os.PathLike[str], layout: str, adapter: bool, writes_single_file: bool
) -> OutputPlace:
    """Determine name and layout of the output.

    For a whole model, AUTO means SAFETENSORS if the name has that ending and one file can hold the family's
    whole model. Otherwise it means DIFFUSERS: a folder without that ending, so that it is not mistaken for a
    file.

    Args:
        layout: ``output_model_format``.
        adapter: whether an adapter or embedding is written, which is always a file.
        writes_single_file: whether one file can hold a whole model of the family.
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


def words_folder(saved: Path) -> Path:
    """The folder next to the output that holds embeddings as separate files."""
    return saved.with_name(f"{saved.name.removesuffix('.safetensors')}_embeddings")


def word_files(placeholders: Sequence[str]) -> list[str]:
    """The names of these files, one for each placeholder. They differ in more than upper and lower case."""
    taken: dict[str, None] = {}
    for placeholder in placeholders:
        plain = _UNSAFE.sub("-", placeholder).strip("-") or "embedding"
        name, number = plain, 1
        while name.casefold() in (known.casefold() for known in taken):
            number += 1
            name = f"{plain}-{number}"
        taken[name] = None
    return [f"{name}.safetensors" for name in taken]


def _word_places(config: TrainConfig, place: OutputPlace) -> list[str]:
    """Embedding files that a run writes next to its output, relative to the output's folder."""
    alone = config.training_method is TrainingMethod.EMBEDDING
    bundled = config.training_method is TrainingMethod.LORA and config.bundle_additional_embeddings
    if alone or bundled:
        return []
    folder = words_folder(place.path).name
    return [
        f"{folder}/{name}" for name in word_files([one.placeholder for one in config.additional_embeddings])
    ]


def _check_weights(path: Path) -> None:
    """Refuse to replace a file that holds no weights: a caption, an image, a config. Links are replaced as links."""
    if path.is_symlink() or not path.is_file() or not (size := path.stat().st_size):
        return
    with refused_as(
        f"{shown(path)} already exists and cannot be read", FIELD, "choose another name", kind=DataError
    ):
        head = read_plain(path, 9)
    if head[8:] != b"{" or int.from_bytes(head[:8], "little") > size - 8:
        raise DataError(
            f"{shown(path)} already exists and is not a safetensors file: it is left as it is",
            FIELD,
            "choose another name, or move the existing file away",
        )


def _place_of(config: TrainConfig) -> OutputPlace:
    spec = FAMILIES[config.model_type.value]
    return output_place(
        config.output_model_destination,
        config.output_model_format.value,
        config.training_method.writes_file,
        spec.writes_single_file,
    )


def replaced_output(config: TrainConfig) -> str:
    """A warning that a new run replaces the result of an earlier one; empty if it does not."""
    path = _place_of(config).path
    kept = config.continue_last_backup or config.prevent_overwrites or config.only_cache
    if kept or not os.path.lexists(path):
        return ""
    return (
        f"{FIELD}: {shown(path)} exists, and this run replaces it when it saves. To keep it, choose another name or "
        "switch prevent_overwrites on"
    )


def check_output(config: TrainConfig) -> None:
    """Refuse an output that would replace something the program did not write.

    Raises:
        DataError: the output exists and ``prevent_overwrites`` is on, or it must not be replaced: a folder in
            place of a file, a folder with other files, a device, a file of the base model, or one without weights.
    """
    spec, place = FAMILIES[config.model_type.value], _place_of(config)
    sources = [config.base_model_name]
    sources += [getattr(config, part).model_name for part in spec.module_parts]
    sources += [one.model_name for one in config.embeddings()]
    kept = [source for source in sources if source.strip()]
    words = _word_places(config, place)
    try:
        owned = Owned(place.path.parent, local=True)
        for name in (place.path.name, *words):
            path = owned.path(name)
            if config.prevent_overwrites and os.path.lexists(path):
                raise DataError(
                    f"{shown(path)} already exists",
                    FIELD,
                    "choose another name, or switch prevent_overwrites off",
                )
        if place.folder:
            owned.check_replaceable(place.path.name, kept)
        else:
            owned.check_writable(place.path.name, kept)
            _check_weights(owned.path(place.path.name))
        for name in words:
            folder = owned.path(name).parent
            if os.path.lexists(folder) and not folder.is_dir():
                raise DataError(
                    f"{shown(folder)} is a file, but embeddings are to be written into a folder of this name",
                    FIELD,
                    "choose another name, or move the existing file away",
                )
            owned.check_writable(name, kept)
            _check_weights(owned.path(name))
    except DataError:
        raise
    except UserError as error:
        raise DataError(error.message, FIELD, "choose another name, or move the existing file away") from error


def output_fault(config: TrainConfig) -> DataError | None:
    """The error that ``check_output`` would raise."""
    try:
        check_output(config)
    except DataError as error:
        return error
    return None
