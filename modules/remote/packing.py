"""Packing of what a run needs on the other computer: its files, and its settings with remote paths."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig, ConceptTextConfig, names_tag_file
from modules.util.config.faults import raise_all
from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.display import counted
from modules.util.enum.choices import MaskSource, PairMasks, PromptSource
from modules.util.errors import UserError, list_offenders, refused_as
from modules.util.files.caption_list import is_absolute, names_below, read_entries
from modules.util.files.hub_names import HUB_NAME, file_on_hub
from modules.util.files.user_path import user_path
from modules.util.owned_files import shown
from modules.util.pairs.source_files import further_sources
from modules.util.prompts_file import read_prompt_rows
from modules.util.tensors.peft_config import config_next_to

PATHS = ("file", "folder", "model", "save_file")
"""Widgets of settings that name files."""
NOT_READ = ("workspace_dir", "cache_dir", "output_model_destination", "concept_file_name",
            "sample_definition_file_name")  # fmt: skip
"""Paths of a run that are only written, or whose content is in the settings themselves."""
OPTIONAL = ("tag_dropout_special_tags",)
"""Settings that name a file or contain what it would list."""
ON_HUB = ("training_adapter.model_name",)
"""Settings that name a file, which may be on the hub: the other computer downloads it."""
ADAPTERS = ("lora_model_name", "training_adapter.model_name")
"""Settings whose file may have peft's settings next to it, which hold its alpha."""
PROMPTS = "rlhf_prompts_file"
"""The setting whose file may name images next to it."""
SOURCE = "source_path"
"""The setting of a sample whose image may have further ones next to it."""
LOOPBACK = ("person",)
"""Rewards that only work on the person's own computer."""


@dataclass(frozen=True)
class Parcel:
    """The files and settings to copy for a run.

    Args:
        config: its settings, with remote paths.
        files: names in its input folder, with the local files.
    """

    config: TrainConfig
    files: dict[str, Path]


@dataclass(frozen=True)
class Place:
    """A setting that names a file.

    Args:
        path: the setting, for messages.
        owner: the object or table that contains it.
        name: its name in the owner.
        widget: its widget, which tells the kind of file.
        used: whether the run uses it: not if it belongs to a concept or a sample that is switched off.
    """

    path: str
    owner: BaseConfig | dict[str, Any]
    name: str
    value: str
    widget: str
    used: bool = True

    def set(self, value: str) -> None:
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)


def places_of_files(config: BaseConfig, prefix: str = "", used: bool = True) -> Iterator[Place]:
    """All settings that name files, including those in lists, and parameters whose value is an existing local
    file.

    Args:
        prefix: begins the names of the settings.
        used: whether the run uses the object.
    """
    for name, field in type(config).model_fields.items():
        value, path = getattr(config, name), f"{prefix}{name}"
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        widget = str(extra.get("widget", ""))
        if isinstance(value, RemoteConfig):
            continue
        if isinstance(value, BaseConfig):
            yield from places_of_files(value, f"{path}.", used)
        elif isinstance(value, list):
            for number, one in enumerate(value):
                if isinstance(one, BaseConfig):
                    on = used and getattr(one, "enabled", True)
                    yield from places_of_files(one, f"{path}[{number}].", on)
        elif isinstance(value, dict):
            for key, one in value.items():
                if isinstance(one, str) and ("/" in one or os.sep in one) and _is_there(one):
                    yield Place(f"{path}.{key}", value, key, one, "model", used)
        elif isinstance(value, str) and value.strip() and widget in PATHS:
            yield Place(path, config, name, value, widget, used)


def _is_there(text: str) -> bool:
    try:
        return user_path(text).exists()
    except UserError:
        return False


def pack(config: TrainConfig, directory: str, run: str, there: Mapping[str, str]) -> Parcel:
    """Find the files of a run and convert its settings for the other computer.

    Args:
        config: the local settings.
        directory: the program's folder on the other computer.
        there: settings whose files already exist on the other computer, with their remote paths.

    Raises:
        UserError: a file is missing, or something works only on this computer.
    """
    # a copy, because `packed` shares lists of concepts
    made, root = TrainConfig.from_dict(config.packed().to_dict()), PurePosixPath(directory)
    made.remote = RemoteConfig()
    files: dict[str, Path] = {}
    faults: list[UserError] = []
    given = dict(there)
    tokenizers = [part.place for part in made.model_type.spec.of_kind("tokenizer")]
    faults += _bound_to_this_computer(made, there)
    for number, place in enumerate(list(places_of_files(made))):
        if place.path in given:
            place.set(given.pop(place.path))
        elif place.used and place.name not in NOT_READ:
            try:
                _take(place, root / "inputs" / run, f"{number}", files, tokenizers)
            except UserError as error:
                if _is_read(made, place):
                    faults.append(error)
    faults += [UserError("is not a setting of this run that names a file", name) for name in given]
    raise_all(faults)
    made.workspace_dir = str(root / "runs" / run)
    made.cache_dir = str(root / "cache")
    made.output_model_destination = str(
        root / "runs" / run / "model" / Path(config.output_model_destination).name
    )
    return Parcel(made, files)


def _is_read(config: TrainConfig, place: Place) -> bool:
    """Return whether a run with these settings reads the file. If not, it may be missing, as for a run here."""
    if place.name == "prompt_path" and isinstance(place.owner, ConceptTextConfig):
        return place.owner.prompt_source in (PromptSource.CONCEPT, PromptSource.METADATA)
    if place.name == "mask_path":
        masked = config.rlhf_dpo_mask is PairMasks.FILE if config.trains_pairs else config.masked_training
        return masked and config.mask_source is MaskSource.FOLDER
    return True


def _bound_to_this_computer(config: TrainConfig, there: Mapping[str, str]) -> list[UserError]:
    faults = [
        UserError(
            f"the reward {one.reward} works only on this computer",
            f"rlhf_rewards[{number}].reward",
            "choose another reward",
        )
        for number, one in enumerate(config.rlhf_rewards if config.trains_online else [])
        if one.reward in LOOPBACK
    ]
    for number, concept in enumerate(config.load_concepts()):
        setting = f"concepts[{number}].text.prompt_path"
        if concept.enabled and concept.text.prompt_source == PromptSource.METADATA and setting not in there:
            faults += _full_paths(concept, setting)
    return faults


def _full_paths(concept: ConceptConfig, setting: str) -> list[UserError]:
    """A fault if a file of captions names images with paths that exist only on this computer."""
    try:
        listed = read_entries(concept.text.prompt_path)
    except UserError:
        return []  # reported by the check of the run
    full = [
        shown(entry.name)
        for entry, name in names_below(listed, concept.path)
        if name is not None and is_absolute(entry.name)
    ]
    if not full:
        return []
    return [
        UserError(
            f"{shown(concept.text.prompt_path)} gives {counted(len(full), 'image')} a full path, which the other "
            f"computer does not have:\n{list_offenders(full)}",
            setting,
            "write names relative to the folder of the concept, or use --there",
        )
    ]


def _take(
    place: Place, inputs: PurePosixPath, number: str, files: dict[str, Path], tokenizers: Sequence[str]
) -> None:
    if place.name in OPTIONAL and not names_tag_file(place.value):
        return
    source = user_path(place.value, place.path)
    if not source.exists():
        on_hub = place.widget == "model" and HUB_NAME.fullmatch(place.value)
        if place.name in OPTIONAL or on_hub or (place.path in ON_HUB and file_on_hub(place.value)[0]):
            return
        raise UserError(f"{shown(place.value)} does not exist", place.path, "check the path, or use --there")
    source = source.absolute()
    if source.is_file():
        files[f"{number}/{source.name}"] = source
        if place.name == PROMPTS:
            files.update((f"{number}/{name}", path) for name, path in _edited(source, place.path))
        elif place.name == SOURCE:
            files.update((f"{number}/{path.name}", path) for path in further_sources(source))
        elif place.path in ADAPTERS:
            if (settings := config_next_to(source)) is not None:
                files[f"{number}/{settings.name}"] = settings
        elif place.widget == "model":
            # a model's file is read with its configs and tokenizers, which are in folders next to it
            for folder in (f"{source.name}.config", *tokenizers):
                if (source.parent / folder).is_dir():
                    below = files_below(source.parent / folder, True)
                    files.update((f"{number}/{folder}/{name}", path) for name, path in below)
    else:
        owner = place.owner
        deep = (
            owner.include_subdirectories
            if isinstance(owner, ConceptConfig) and place.name == "path"
            else True
        )
        for name, path in files_below(source, deep):
            files[f"{number}/{source.name}/{name}"] = path
    place.set(str(inputs / number / source.name))


def _edited(prompts: Path, setting: str) -> Iterator[tuple[str, Path]]:
    """The images that prompts of a file edit, with their names from the file's folder on."""
    folder = Path(os.path.realpath(prompts.parent))
    for path in dict.fromkeys(path for row in read_prompt_rows(prompts) for path in row.sources):
        if not path.is_file():
            raise UserError(
                f"the source image {shown(path)} does not exist", setting, "add it, or remove its line"
            )
        yield path.relative_to(folder).as_posix(), path


def files_below(folder: Path, deep: bool) -> Iterator[tuple[str, Path]]:
    """Yield files in a folder, except hidden ones. Links are followed, but no folder is entered twice.

    Raises:
        UserError: a folder is unreadable.
    """
    seen: set[str] = set()
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        real = os.path.realpath(place)
        if real in seen:
            continue
        seen.add(real)
        with refused_as(f"{shown(place)} cannot be read"):
            entries = sorted(os.scandir(place), key=lambda one: one.name)
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            if entry.is_file():
                yield path.relative_to(folder).as_posix(), path
            elif entry.is_dir() and deep:
                waiting.append(path)
