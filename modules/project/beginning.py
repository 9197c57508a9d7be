"""Initial values of a new project: facts read from the base model, and the bundled demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modules.project.candidates.adding import images_in
from modules.project.ProjectFile import ProjectFile
from modules.project.prompts import Prompts, read_rows
from modules.spec.registry import FAMILIES
from modules.util.display import counted
from modules.util.errors import DataError, UserError, list_offenders
from modules.util.files.model_index import index_file, read_index
from modules.util.files.user_path import user_path
from modules.util.owned_files import shown
from modules.util.pairs.source_files import further_sources
from modules.util.program_files import RESOURCES
from modules.util.prompts_file import ENDING, PromptRow, read_prompts_file

DEMO_MODEL = RESOURCES / "demo_model"
DEMO_PROMPTS = 20
DEMO_SETTINGS: dict[str, Any] = {
    "generator": {"kind": "own", "device": "cpu"},
    "image": {"width": 64, "height": 64, "steps": 20, "cfg": 2.5, "sampler": "DDIM"},
    # flat images look the same to a hash made for photographs
    "near_duplicates": -1,
}


def demo_prompts() -> list[str]:
    """Some prompts that the demo model was trained on."""
    return read_prompts_file(RESOURCES / "demo_prompts.txt")[:DEMO_PROMPTS]


def prompts_of_form(text: str) -> Path | str:
    """Prompts as written into a form: a text, or the path of a ``.jsonl`` file, whose prompts edit images."""
    alone = text.strip()
    return user_path(alone, "--prompts") if "\n" not in alone and alone.lower().endswith(ENDING) else text


def on_each_image(prompts: Prompts, place: Path) -> list[PromptRow]:
    """Each prompt as an instruction for each image of a folder, or for one image. Nothing is written.

    Args:
        prompts: prompts without sources.
        place: the folder, with its subfolders, or the image. ``cat.2.png`` is a second source of ``cat.png``.

    Raises:
        DataError: there is no image, or the prompts already name images.
    """
    rows = read_rows(prompts)
    if any(row.sources for row in rows):
        raise DataError(
            "the prompts already name their source images",
            "--to-edit",
            "leave it out, or use a text with one prompt per line",
        )
    if not place.exists():
        raise DataError(f"there is no folder or image {shown(place)}", "--to-edit", "check the path")
    images = images_in([place])
    if not images:
        raise DataError(
            f"there are no images to edit in {shown(place)}",
            "--to-edit",
            "choose a folder of images, or an image",
        )
    sources = [tuple(further_sources(image)) for image in images]
    further = {path for several in sources for path in several[1:]}
    return [PromptRow(row.text, several) for row in rows for several in sources if several[0] not in further]


def rows_of_lines(text: str, rows: Sequence[PromptRow]) -> list[PromptRow]:
    """Those of some instructions with source images that a text still lists, one per line.

    Raises:
        DataError: a line is none of them, so that it has no source image.
    """
    lines = {line.strip(): None for line in text.splitlines() if line.strip()}
    new = [line for line in lines if line not in {row.text for row in rows}]
    if new:
        raise DataError(
            f"the images have no source for {counted(len(new), 'prompt')}:\n"
            f"{list_offenders([shown(line, 60) for line in new])}",
            hint="remove what was added, or clear the list and write all prompts yourself",
        )
    return [row for row in rows if row.text in lines]


def model_types(base: str) -> list[str]:
    """The possible model types of a folder in the diffusers layout; empty if it does not tell."""
    if not base.strip():
        return []
    try:
        index = index_file(user_path(base))
        if index is None:
            return []
        named = read_index(index).get("_class_name")
    except UserError:
        return []
    return [key for key, family in FAMILIES.items() if family.pipeline_class == named]


def demo_settings(base: str) -> dict[str, Any]:
    """The settings that the bundled demo model needs to make good images; none for any other base model.

    Args:
        base: an absolute path, or anything else that names a model.
    """
    return DEMO_SETTINGS if Path(base) == DEMO_MODEL.resolve() else {}


def first_settings(
    base: str, model_type: str, card: int, images: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Initial settings of a project for this model, for ``Project.create``.

    Args:
        base: folder, file or hub name; a path is made absolute.
        card: memory of the graphics card in GB.
        images: ``generator`` and ``image``, if it is known how images are made.
    """
    path = user_path(base, "--base-model")
    place = str(path.resolve()) if path.exists() else base.strip()
    made = {
        "model": {"type": model_type, "base": place},
        "card": card,
        "generator": {"kind": "own"},
        **demo_settings(place),
        **(images or {}),
    }
    ProjectFile.checked({**made, "held_out": []}, "project")
    return made
