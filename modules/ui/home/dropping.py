"""Recognises files dropped onto the Home page: images, a list of prompts, a workflow, a config, a project or
a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

from modules.project.candidates.adding import images_in
from modules.project.ProjectFile import NAME
from modules.ui.texts import home as words
from modules.ui.widgets.drop import names_of
from modules.util.dpo_curation_util import IMAGE_EXTENSIONS
from modules.util.errors import UserError
from modules.util.files.model_index import index_file
from modules.util.image_metadata.formats.comfy import is_graph
from modules.util.image_metadata.making import read_making
from modules.util.jsonio import read_json
from modules.util.prompts_file import ENDING

MOST_JSON = 64 * 2**20


class Kind(Enum):
    """Kinds of dropped content."""

    IMAGES = auto()
    PROMPTS = auto()
    WORKFLOW = auto()
    CONFIG = auto()
    PROJECT = auto()
    MODEL = auto()
    FOLDER = auto()


@dataclass(frozen=True)
class Dropped:
    """The content of a drop.

    Args:
        paths: the images, or the single file or folder.
        workflow: workflow of the file or of the only image.
    """

    kind: Kind
    paths: list[Path]
    workflow: Mapping[str, Any] = field(default_factory=dict)


def look_at(paths: list[Path]) -> Dropped:
    """Find out what was dropped.

    Raises:
        UserError: the files do not exist, cannot be read, or are of mixed or unsupported kinds.
    """
    gone = [path for path in paths if not path.exists()]
    if gone:
        raise UserError(
            f"{names_of(gone)}: not a file or folder of this computer",
            hint="save the file first, then drop it",
        )
    if len(paths) == 1:
        found = _folder(paths[0]) if paths[0].is_dir() else _file(paths[0])
        if found is not None:
            return found
    others = [path for path in paths if not path.is_dir() and path.suffix.lower() not in IMAGE_EXTENSIONS]
    if others:
        raise UserError(f"{names_of(others)} cannot be used here", hint=words.DROP_KINDS)
    images = images_in(paths)
    if not images:
        raise UserError(f"there are no images in {names_of(paths)}", hint=words.DROP_KINDS)
    graph = read_making(images[0]).graph if len(images) == 1 else None
    return Dropped(Kind.IMAGES, images, graph or {})


def _folder(path: Path) -> Dropped | None:
    if (path / NAME).is_file():
        return Dropped(Kind.PROJECT, [path])
    if index_file(path):
        return Dropped(Kind.MODEL, [path])
    return Dropped(Kind.FOLDER, [path]) if not any(path.iterdir()) else None


def _file(path: Path) -> Dropped | None:
    suffix = path.suffix.lower()
    if suffix in (".txt", ENDING):
        return Dropped(Kind.PROMPTS, [path])
    if suffix == ".safetensors":
        return Dropped(Kind.MODEL, [path])
    if suffix != ".json":
        return None
    if path.name == NAME:
        return Dropped(Kind.PROJECT, [path.parent])
    data = read_json(path, "file", MOST_JSON)
    if is_graph(data):
        return Dropped(Kind.WORKFLOW, [path], data)
    if isinstance(data, dict) and isinstance(data.get("nodes"), list) and "links" in data:
        raise UserError(
            f"{path.name} is a workflow in the format of ComfyUI's editor",
            hint="in ComfyUI, choose Export (API), and drop that file",
        )
    return Dropped(Kind.CONFIG, [path])
