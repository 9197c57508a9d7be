"""Settings for a new project read from existing images: base model, resolution, sampler and prompts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from modules.curation.intake.edit_sources import NO_EDITS, EditOptions
from modules.generator.registry import make_generator
from modules.project.beginning import DEMO_MODEL, model_types
from modules.project.candidates.Origins import Origins
from modules.project.candidates.SourceShelf import name_of_sources
from modules.project.share.metadata import read_header
from modules.spec.registry import FAMILIES
from modules.util.display import counted
from modules.util.dpo_curation_util import IMAGE_EXTENSIONS
from modules.util.enum.choices import NoiseScheduler
from modules.util.errors import DataError, UserError
from modules.util.files.model_index import index_file
from modules.util.files.user_path import user_path
from modules.util.image_metadata.formats.found import A1111, COMFYUI, SWARMUI
from modules.util.image_metadata.making import TASTEMAKER, Making, read_making
from modules.util.image_metadata_util import UNCONDITIONAL, ImageMetadata, normalise_prompt, read_metadata
from modules.util.owned_files import shown
from modules.util.prompts_file import PromptRow
from modules.util.published_models import family_of, published_models

MOST_IMAGES = 5000
MOST_PROMPTS = 500
_MOST_FILES = 20_000
_PROGRAMS = {A1111: "a1111", COMFYUI: "comfyui", SWARMUI: "swarmui", TASTEMAKER: "own"}
_MODEL_FOLDERS = (
    "models/checkpoints", "models/diffusion_models", "models/unet", "models/Stable-diffusion",
    "Models/Stable-Diffusion", "Models/diffusion_models",
)  # fmt: skip
"""Folders in which programs keep models, below the folder that also holds their outputs."""
_LEVELS = 6
_SAMPLERS = {
    "ddim": "DDIM", "euler": "EULER", "eulera": "EULER_A", "eulerancestral": "EULER_A", "dpmpp2m": "DPMPP",
    "dpm++2m": "DPMPP", "dpmpp2msde": "DPMPP_SDE", "dpmpp2msdegpu": "DPMPP_SDE", "dpm++2msde": "DPMPP_SDE",
    "unipc": "UNIPC", "unipcbh2": "UNIPC",
}  # fmt: skip
"""The built-in sampler's names for samplers of other programs (lower case, without spaces)."""
_Some = TypeVar("_Some", bound=Hashable)


@dataclass(frozen=True)
class Proposal:
    """Settings found in images.

    Args:
        images: number of images read; ``used`` were made like most of them, the others are ignored.
        model: name of the model in the images.
        base: location of the model: a folder, a file or a hub name; empty if not found.
        model_type: a key of ``FAMILIES``; empty if unknown.
        generator: ``kind`` and the settings of that generator.
        image: as in ``project.json``.
        prompts: prompts of the images, most frequent first.
        edits: what the images are edits of, with these prompts; empty if they were made from prompts alone.
        notes: what could not be used, in sentences.
    """

    images: int
    used: int
    model: str
    base: str
    model_type: str
    generator: dict[str, Any]
    image: dict[str, Any]
    prompts: Sequence[str]
    notes: Sequence[str]
    edits: Sequence[PromptRow] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The project settings that determine how images are made."""
        return {"generator": self.generator, "image": self.image}

    def to_dict(self) -> dict[str, Any]:
        """A summary for people and programs: the number of prompts, and only whether there is a workflow."""
        generator = {name: value for name, value in self.generator.items() if name != "workflow"}
        return {
            "images": self.images, "used": self.used, "model": self.model, "base_model": self.base,
            "model_type": self.model_type, "generator": generator, "workflow": "workflow" in self.generator,
            **self.image, "prompts": len(self.prompts), "notes": list(self.notes),
            **({"sources": len({row.sources for row in self.edits})} if self.edits else {}),
        }  # fmt: skip


class SourcesNotFound(DataError):
    """The images are edits, and none of their sources is found. With other places, they may be."""


@dataclass(frozen=True)
class _Seen:
    path: Path
    about: ImageMetadata
    made: Making
    sources: tuple[Path, ...] = ()

    @property
    def program(self) -> str:
        return self.made.program or self.about.generator or ""


def propose(
    source: Path | Sequence[Path],
    kind: str = "",
    base: str = "",
    model_type: str = "",
    places: EditOptions = NO_EDITS,
) -> Proposal:
    """Read some images, or those of a folder and its subfolders. Nothing is written.

    Args:
        source: the folder, or files.
        kind: the generator chosen by the person; by default that of the program that made the images.
        base, model_type: values chosen by the person.
        places: where the sources of edits are, if they are not next to the images.

    Raises:
        DataError: the folder does not exist, or no image has a prompt.
        SourcesNotFound: those that have one are edits whose sources are not found.
    """
    if isinstance(source, Path):
        if not source.is_dir():
            raise DataError(f"there is no folder {shown(source)}", "--images", "check the path")
        files, place = list(islice(_images(source), MOST_IMAGES + 1)), shown(source)
    else:
        files = list(source[: MOST_IMAGES + 1])
        place = shown(files[0].parent) if files else "this list"
    folder = source if isinstance(source, Path) else files[0].parent if files else Path()
    notes = [f"Only the first {MOST_IMAGES:,} images were read."] if len(files) > MOST_IMAGES else []
    seen = _readable(files[:MOST_IMAGES], place, notes, places)
    setup = most_common((one.program, one.made.model) for one in seen)
    used = [one for one in seen if (one.program, one.made.model) == setup]
    program, model = setup
    if len(used) < len(seen):
        notes.append(
            f"{counted(len(seen) - len(used), 'image')} made by another program or model were ignored."
        )
    if any(one.made.adapted for one in used):
        notes.append("Some were made with a LoRA, which the project starts without.")
    edits = _rows_of_edits(used)
    kind = kind or _program_for(program, used, notes)
    base = base or _find_model(model, folder)
    if not base:
        notes.append(
            f"The base model {model!r} was not found here." if model else "The images do not name their model."
        )
    generator, more = _generator(kind, program, used)
    image, others = _image(kind, used)
    prompts = [row.text for row in edits]
    prompts = prompts or [prompt for prompt, _ in Counter(_prompts(used)).most_common()]
    if len(prompts) > MOST_PROMPTS:
        others.append(f"Of {len(prompts):,} prompts the {MOST_PROMPTS} most frequent are used.")
    return Proposal(
        len(files[:MOST_IMAGES]), len(used), model, base, model_type or type_of(base), generator, image,
        prompts[:MOST_PROMPTS], [*notes, *more, *others], edits[:MOST_PROMPTS],
    )  # fmt: skip


def _readable(files: Sequence[Path], place: str, notes: list[str], places: EditOptions) -> list[_Seen]:
    """The images that name their prompt: those made from prompts alone, or edits with their sources, whichever are
    more. Notes give the numbers of the others.

    Raises:
        DataError: there are none.
        SourcesNotFound: there are only edits without their sources.
    """
    origins = Origins(places)
    results = [path for path in files if not origins.is_source(path)]
    if files and not results:
        raise DataError(
            f"all images in {place} are inside the folder of source images",
            "--input-dir",
            "name ComfyUI's input folder itself, not a folder that also contains the edits",
        )
    named = [(path, about) for path in results if (about := read_metadata(path)).prompt is not None]
    if not named:
        raise DataError(
            f"none of the {counted(len(files), 'image')} in {place} names its prompt",
            "--images",
            "use images as the generating program saved them",
        )
    found = [(path, about, origins.of(path, about)) for path, about in named]
    plain, edits = [one for one in found if one[2] == ()], [one for one in found if one[2]]
    lost = len(found) - len(plain) - len(edits)
    wants_edits = places.all_edited or len(edits) > len(plain)
    used = edits if wants_edits else plain
    if not used:
        raise SourcesNotFound(
            f"the images in {place} that name their prompt were made from other images, which are not found",
            "--images",
            "name ComfyUI's input folder with --input-dir, or one source for all images with --source, or put each "
            "source next to its edit, as NAME-source.png",
        )
    ignored = [(lost + len(edits), "made from other images")]
    if wants_edits:
        ignored = [(lost, "without a usable source image"), (len(plain), "made from prompts alone")]
    for count, what in ignored:
        notes += [f"{counted(count, 'image')} {what} were ignored."] if count else []
    return [_Seen(path, about, read_making(path), sources or ()) for path, about, sources in used]


def _rows_of_edits(used: Sequence[_Seen]) -> list[PromptRow]:
    """Instructions with what they edit, most frequent first; empty of images made from prompts alone."""
    rows: dict[tuple[str, str], PromptRow] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for one in used:
        if one.sources:
            prompt = normalise_prompt(one.about.prompt or "")
            key = prompt, name_of_sources(one.sources)
            rows.setdefault(key, PromptRow(prompt, one.sources))
            counts[key] += 1
    return [rows[key] for key, _ in counts.most_common()]


def _program_for(program: str, used: Sequence[_Seen], notes: list[str]) -> str:
    """The generator for more images like these: the program that made them, if it can be given what they edit."""
    kind = _PROGRAMS.get(program, "own")
    if used[0].sources and kind != "own":
        settings, _ = _generator(kind, program, used)
        try:
            make_generator(kind, {**settings, "model_type": "", "base": ""}).refuse_sources()
        except UserError as error:
            notes.append(f"The built-in sampler makes the images: {error.message}.")
            return "own"
    return kind


def _images(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if Path(name).suffix.lower() in IMAGE_EXTENSIONS:
                yield Path(place) / name


def most_common(values: Iterable[_Some]) -> _Some:
    """The most frequent value, or the first of equally frequent ones."""
    return Counter(values).most_common(1)[0][0]


def _prompts(used: Sequence[_Seen]) -> Iterator[str]:
    for one in used:
        prompt = normalise_prompt(one.about.prompt or "")
        if prompt != UNCONDITIONAL and not prompt.startswith("#"):
            yield prompt


# --- the model ---


def _find_model(name: str, folder: Path) -> str:
    """Find a model by name: its own path, a program's model folder, or the hub; empty if not found."""
    if not name:
        return ""
    path = Path(name)
    if path.is_absolute() and path.exists():
        return str(path)
    if name == DEMO_MODEL.name:
        return str(DEMO_MODEL)
    stem = _stem(name)
    above = [folder.resolve(), *folder.resolve().parents][:_LEVELS]
    for place in (one / models for one in above for models in _MODEL_FOLDERS):
        for found in islice(place.rglob("*"), _MOST_FILES) if place.is_dir() else ():
            whole = found.suffix == ".safetensors" or index_file(found)
            if whole and _stem(found.name) == stem:
                return str(found)
    known = [row.name for row in published_models() if stem in (row.name.lower(), row.label.lower())]
    return known[0] if known else ""


def _stem(name: str) -> str:
    last = name.replace("\\", "/").rpartition("/")[2].lower()
    return last.removesuffix(".safetensors").removesuffix(".ckpt")


def type_of(base: str) -> str:
    """The model type indicated by a folder, a file or a hub name; empty if unknown."""
    found = model_types(base)
    if found:
        return found[0]
    named = [family_of(base)]
    path = user_path(base, "--base-model")
    if path.suffix == ".safetensors" and path.is_file():
        said = _architecture(path)
        named = [key for key, family in FAMILIES.items() if said and family.model_architecture == said]
    return named[0] if named else ""


def _architecture(path: Path) -> object:
    """The model named in a file of weights; ``None`` if there is no name or it is unreadable (loading reports
    why).
    """
    try:
        about = read_header(path)[0].get("__metadata__")
    except UserError:
        return None
    return about.get("modelspec.architecture") if isinstance(about, dict) else None


# --- how the images are made ---


def _generator(kind: str, program: str, used: Sequence[_Seen]) -> tuple[dict[str, Any], list[str]]:
    """Settings of the generator, and what could not be used."""
    made: dict[str, Any] = {"kind": kind}
    if kind == "own" or _PROGRAMS.get(program) != kind:
        return made, []
    if used[0].made.model:
        made["checkpoint"] = used[0].made.model
    graphs = [one.made for one in used if one.made.graph is not None]
    if not graphs:
        return made, []
    first = min(graphs, key=lambda one: one.adapted)
    try:
        make_generator(kind, {**made, "workflow": first.graph, "model_type": "", "base": ""})
    except UserError as error:
        return made, [f"The workflow of the images cannot be used ({error}); a plain one is used instead."]
    stays = ["The LoRA in the workflow of the images stays in it."] if first.adapted else []
    return {**made, "workflow": first.graph}, stays


def _image(kind: str, used: Sequence[_Seen]) -> tuple[dict[str, Any], list[str]]:
    """Size, sampler and its settings, as used for most images."""
    notes: list[str] = []
    width, height = most_common(one.about.seen_size for one in used)
    sides = [min(8192, max(64, round(side / 8) * 8)) for side in (width, height)]
    if sides != [width, height]:
        notes.append(f"The images have {width} x {height} pixels, but sides must be multiples of 8 here.")
    made: dict[str, Any] = {"width": sides[0], "height": sides[1]}
    for name in ("steps", "cfg"):
        said = [value for one in used if (value := getattr(one.made, name)) is not None]
        if said:
            made[name] = most_common(said)
    negative = most_common(one.about.negative_prompt or "" for one in used)
    sampler, schedule = most_common((one.made.sampler, one.made.schedule) for one in used)
    if sampler and kind == "own":
        known = own_sampler(sampler, schedule)
        if known:
            made["sampler"] = known
        else:
            notes.append(f"The built-in sampler has no {sampler!r}; the model's usual one is used.")
    elif sampler:
        made["sampler"] = sampler
    return made | ({"negative": negative} if negative else {}), notes


def own_sampler(name: str, schedule: str) -> str:
    """The built-in sampler's name for a sampler of another program; empty if there is no equivalent."""
    if name in NoiseScheduler.__members__:
        return name
    plain = name.lower().removeprefix("sample_").removeprefix("k_").replace(" ", "").replace("_", "")
    karras = plain.endswith("karras") or schedule.lower() == "karras"
    found = _SAMPLERS.get(plain.removesuffix("karras"), "")
    with_karras = f"{found}_KARRAS"
    return with_karras if found and karras and with_karras in NoiseScheduler.__members__ else found
