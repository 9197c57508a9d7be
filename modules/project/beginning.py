"""Initial values of a new project: facts read from the base model, and the bundled demo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.project.ProjectFile import ProjectFile
from modules.spec.registry import FAMILIES
from modules.util.errors import UserError
from modules.util.files.model_index import index_file, read_index
from modules.util.files.user_path import user_path
from modules.util.program_files import RESOURCES
from modules.util.prompts_file import ENDING, read_prompts_file

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
    usual: dict[str, Any] = {"generator": {"kind": "own"}}
    more = DEMO_SETTINGS if Path(place) == DEMO_MODEL.resolve() else usual
    made = {"model": {"type": model_type, "base": place}, "card": card, **more, **(images or {})}
    ProjectFile.checked({**made, "held_out": []}, "project")
    return made
