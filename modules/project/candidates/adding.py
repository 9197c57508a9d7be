"""Additions to an existing project: images to pick from, prompts, and a workflow that makes the images."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.curation.intake.edit_sources import NO_EDITS, EditOptions
from modules.project.candidates.Origins import Origins
from modules.project.candidates.SourceShelf import name_of_sources
from modules.project.Project import ARENA, Project, lines_of_edits, lines_of_prompts
from modules.project.prompts import Task, check_tasks, read_tasks
from modules.project.Round import Candidate, Round
from modules.spec.FamilySpec import FamilySpec
from modules.spec.registry import FAMILIES
from modules.util.errors import DataError, refused_as
from modules.util.files.OpenFolder import read_plain
from modules.util.image_metadata.formats.comfy import is_graph, read_graph
from modules.util.image_metadata.limits import Unusable
from modules.util.image_metadata_util import UNCONDITIONAL, normalise_prompt, read_metadata
from modules.util.owned_files import shown
from modules.util.pairs.dpo_pair_files import image_files
from modules.util.prompts_file import PromptRow

MOST_BYTES = 256 * 2**20
_PLACE = ("url", "remote", "lora_folder")
"""Generator settings that hold its location."""


@dataclass(frozen=True)
class Added:
    """Outcome of adding images.

    Args:
        added: new candidates of the round.
        known: images that are or were candidates, of any round: no image is shown in two rounds.
        silent: images without a prompt in their metadata.
        judging: images of held-out prompts, which are never used for picking.
        edits: images made from other images that cannot be compared with those of the project: of edits in a project of
            prompts alone, and of edits whose source is not next to them in a project of edits.
    """

    added: int = 0
    known: int = 0
    silent: int = 0
    judging: int = 0
    edits: int = 0


def add_images(project: Project, files: Sequence[Path], places: EditOptions = NO_EDITS) -> Added:
    """Copy images that name their prompt to the candidates of the current round. Existing ones stay.

    After a kill, the copied images are candidates, and adding the images again adds the others.

    Args:
        places: where the sources of edits are, if they are not next to the images.

    Raises:
        UserError: the round is trained, a file is unreadable, or another process is working on the project.
    """
    with project.busy():
        one = project.round
        if one.trained:
            raise DataError(
                f"{one.name} is already trained", hint="begin the next round, then add the images"
            )
        judging = {task.key for task in project.file.held_out_tasks}
        origins, family = _origins(project, places), FAMILIES[project.file.model.type]
        shown_before, names = _Candidates(project.rounds()), {image.file for image in one.added()}
        counts = dict.fromkeys(("added", "known", "silent", "judging", "edits"), 0)
        new: list[tuple[Path, Candidate, bool]] = []
        for path in files:
            if origins.is_source(path):
                continue
            about = read_metadata(path, sidecar=False)
            unnamed = about.prompt is None
            about = read_metadata(path) if unnamed else about
            prompt = normalise_prompt(about.prompt or "")
            if not prompt or prompt == UNCONDITIONAL:
                counts["silent"] += 1
                continue
            sources = origins.of(path, about)
            if sources is None:
                counts["edits"] += 1
                continue
            _check_count(path, sources, family)
            task = Task(prompt, name_of_sources(sources) if sources else "")
            if task.key in judging:
                counts["judging"] += 1
                continue
            data = _read(path)
            name = _name_for(path, data)
            if name in names or data in shown_before:
                counts["known"] += 1
                continue
            if sources:
                project.shelf.keep(sources)
            new.append((path, Candidate(name, prompt, about.seed or 0, task.source), unnamed))
            names.add(name)
            counts["added"] += 1
        if new:
            # all are recorded at once and may together exceed the memory, so they are read again
            one.expect([image for _, image, _ in new])
        for path, image, unnamed in new:
            _take_in(one, path, image, unnamed)
        return Added(**counts)


class _Candidates:
    """The images of rounds, including the surplus. Files are read once, and only if a given image has their size."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        self._by_size: dict[int, list[Path]] = {}
        self._digests: dict[Path, bytes] = {}
        files = (file for one in rounds for place in (one.candidates, one.surplus) for file in place.glob("*"))
        for path in image_files(files):
            self._by_size.setdefault(path.stat().st_size, []).append(path)

    def __contains__(self, data: bytes) -> bool:
        alike = self._by_size.get(len(data), [])
        own = hashlib.sha256(data).digest() if alike else b""
        return any(self._digest(path) == own for path in alike)

    def _digest(self, path: Path) -> bytes:
        if path not in self._digests:
            self._digests[path] = hashlib.sha256(_read(path)).digest()
        return self._digests[path]


def _origins(project: Project, places: EditOptions) -> Origins:
    """Return the object that finds the sources of images for a project.

    Raises:
        UserError: the project has none, or a place cannot hold them.
    """
    if not project.file.edits and places.all_edited:
        raise DataError(
            "this project makes images from prompts alone",
            "--edits, --input-dir, --source",
            "leave them out; begin another project for edits",
        )
    places.check()
    return Origins(replace(places, edits=True) if project.file.edits else None)


def _take_in(one: Round, path: Path, image: Candidate, unnamed: bool) -> None:
    data = _read(path)
    if _name_for(path, data) != image.file:
        raise DataError(f"{shown(path)} was changed while it was read", "images", "add the images again")
    one.take_in(image, data, unnamed)


def _check_count(path: Path, sources: Sequence[Path], family: FamilySpec) -> None:
    """Raise ``DataError`` if an image was made from more sources than the model takes."""
    if len(sources) > (most := family.sources):
        raise DataError(
            f"{shown(path)} was made from {len(sources)} source images, but {family.label} takes {most}",
            "images",
            "leave this image out",
        )


def _name_for(path: Path, data: bytes) -> str:
    """The file name of an image's copy, which depends only on its content."""
    return f"own-{hashlib.sha256(data).hexdigest()[:16]}{path.suffix.lower()}"


def _read(path: Path) -> bytes:
    with refused_as(f"{shown(path)} cannot be read", "images", kind=DataError):
        data = read_plain(path, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise DataError(f"{shown(path)} is larger than {MOST_BYTES >> 20} MiB", "images", "leave it out")
    return data


def images_in(paths: Sequence[Path]) -> list[Path]:
    """Images among these files and folders, including subfolders, in order, without duplicates."""
    found: dict[Path, None] = {}
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        found |= dict.fromkeys(image_files(inside))
    return list(found)


def add_prompts(project: Project, given: Path | str) -> int:
    """Add the prompts of a file or a text that the project does not have, with what they edit. Return their number.

    Raises:
        UserError: they are unreadable, or another process is working on the project.
    """
    with project.busy():
        known = {one.task.key: one for one in project.given()}
        found = read_tasks(given)
        kind = "with" if project.file.edits else "without"
        if any(bool(one.sources) is not project.file.edits for one in found):
            raise DataError(
                f"the prompts of this project are {kind} source images, but some of the new prompts are not",
                "--prompts",
                "leave these out, or begin another project for them",
            )
        check_tasks([*known.values(), *found], FAMILIES[project.file.model.type])
        new = [one for one in found if one.task.key not in known]
        if new:
            before = project.prompts_path.read_bytes()
            end = b"" if before.endswith(b"\n") else b"\n"
            rows = [PromptRow(one.task.prompt, one.sources) for one in new]
            edits = project.file.edits
            lines = lines_of_edits(project.shelf, rows) if edits else lines_of_prompts(rows)
            with project.owned.write(project.prompts_path.name) as temporary:
                temporary.write_bytes(before + end + lines.encode())
        return len(new)


def can_change_generator(project: Project) -> bool:
    """Return whether no images were made yet: images of two programs in one project could not be compared."""
    made = any(any(one.candidates.glob("*")) for one in project.rounds())
    return not made and not (project.folder / ARENA / "images").is_dir()


def use_workflow(project: Project, workflow: Mapping[str, Any]) -> None:
    """Set a ComfyUI workflow for the images of this project.

    Raises:
        UserError: images were made in another way, the workflow does not fit, or another process is working
            on the project.
    """
    with project.busy():
        if not can_change_generator(project):
            raise DataError(
                "the images of this project were made in another way, and only images made in the same way can "
                "be compared",
                "workflow",
                "begin a new project with the workflow",
            )
        if not project.file.edits:
            _check_no_edit(workflow)
        made: dict[str, Any] = {"kind": "comfyui", "workflow": dict(workflow)}
        before = project.file.generator
        if before["kind"] == "comfyui":
            made |= {name: before[name] for name in _PLACE if name in before}
        project.change_generator(made)


def _check_no_edit(workflow: Mapping[str, Any]) -> None:
    try:
        found = read_graph(dict(workflow)) if is_graph(workflow) else None
    except Unusable as error:
        raise DataError(f"the workflow cannot be used: {error}", "workflow") from error
    if found is not None and found.sources:
        raise DataError(
            f"the workflow edits images ({shown(found.sources[0])}), but this project makes images from prompts alone",
            "workflow",
            "use a workflow without source images, or begin a project of edits with it",
        )
