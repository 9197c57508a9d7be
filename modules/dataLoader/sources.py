"""Source images of edits: found next to a concept's images, and checked before any model is loaded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.dataLoader.pairing import Pair
from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.nodes.collect import Found, image_paths
from modules.pipeline.nodes.sources import same_aspect
from modules.util.display import counted
from modules.util.errors import DataError, UserError, list_offenders
from modules.util.pairs.dpo_pair_files import dpo_pair_key
from modules.util.pairs.source_files import sources_of

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig


def attach_sources(config: TrainConfig, concept: Any, name: str, found: Found) -> None:
    """Attach source images to the images of a concept. Faults are added to those of the concept."""
    folder, label = str(concept.source_path).strip(), config.model_type.label
    most, who = config.model_type.spec.sources, f"concept {name!r}"
    if not folder:
        if config.model_type.spec.edits_only and found.items:
            found.faults.append(
                DataError(
                    f"{who} has no source images, but {label} edits images",
                    field="concepts",
                    hint="set source_path to the folder with the images that were edited",
                )
            )
        return
    if not most:
        found.faults.append(
            DataError(
                f"{who} has source images, but {label} takes none",
                field="concepts",
                hint="choose a model that edits images as model_type, or clear source_path",
            )
        )
        return
    by_key = _by_key(concept, Path(folder), who, found)
    if by_key is None:
        return
    results = {item.key for item in found.items}
    found.items = [
        replace(item, sources=tuple(str(path) for path in sources_of(item.key, by_key, results)))
        for item in found.items
    ]
    _check_counts(found, who, folder, label, most)


def _by_key(concept: Any, folder: Path, who: str, found: Found) -> dict[str, Path] | None:
    """Images of the source folder by their path below it, without extension; ``None`` if it is unusable."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        found.faults.append(
            DataError(f"{who}: the folder of source images {folder} {what}", hint="check source_path")
        )
        return None
    by_key: dict[str, Path] = {}
    doubled: list[str] = []
    try:
        paths = sorted(image_paths(folder, concept.include_subdirectories))
    except OSError as error:
        found.faults.append(DataError(f"{who}: {error.filename} cannot be read ({error.strerror})"))
        return None
    for path in paths:
        key = dpo_pair_key(path, folder)
        if by_key.setdefault(key, path) is not path:
            doubled.append(f"{by_key[key].name} and {path.name}")
    if doubled:
        found.faults.append(
            DataError(
                f"{who}: source images differ only in their extension:\n{list_offenders(doubled)}",
                hint="keep one of them",
            )
        )
    return by_key


def _check_counts(found: Found, who: str, folder: str, label: str, most: int) -> None:
    missing = [item.id for item in found.items if not item.sources]
    many = [f"{item.id}: {len(item.sources)}" for item in found.items if len(item.sources) > most]
    empty = [item.id for item in found.items if "" in item.prompts]
    if missing:
        found.faults.append(
            DataError(
                f"{who}: {counted(len(missing), 'image has', 'images have')} no source image of the same name in "
                f"{folder}:\n{list_offenders(missing)}",
                hint="add the missing source images, or remove these images",
            )
        )
    if many:
        found.faults.append(
            DataError(
                f"{who}: {counted(len(many), 'image has', 'images have')} more than "
                f"{counted(most, 'source image')}, the maximum of {label}:\n{list_offenders(many)}",
                hint="remove those with a number before the extension",
            )
        )
    if empty:
        found.faults.append(
            DataError(
                f"{who}: {counted(len(empty), 'instruction is', 'instructions are')} empty:\n"
                f"{list_offenders(empty)}",
                hint="describe in the caption what is changed in the source image",
            )
        )


def with_chosen_sources(pair: Pair) -> Pair:
    """Give both sides of a pair the same sources, cropped to the chosen side's shape."""
    if not pair.chosen.sources:
        return pair
    rejected = replace(pair.rejected, sources=pair.chosen.sources, source_like=pair.chosen.path)
    return replace(pair, rejected=rejected)


def compare_with_results(
    entries: Collection[Item | Pair], files: FileIndex, bad: Collection[str]
) -> tuple[list[UserError], list[str]]:
    """Faults and warnings about sources and their results.

    Args:
        bad: paths of unreadable images.
    """
    copies: list[str] = []
    kept: list[str] = []
    shapes: list[str] = []
    for entry in entries:
        first = entry.chosen if isinstance(entry, Pair) else entry
        readable = [path for path in first.sources if path not in bad]
        if first.path in bad or not readable:
            continue
        if any(files.same_content(first.path, path) for path in readable):
            copies.append(entry.id)
        if not any(same_aspect(files.size(first.path), files.size(path)) for path in readable):
            shapes.append(entry.id)
        if isinstance(entry, Pair) and entry.rejected.path not in bad:
            kept += [entry.id for path in readable if files.same_content(entry.rejected.path, path)]
    faults: list[UserError] = []
    if copies:
        faults.append(
            DataError(
                f"{counted(len(copies), 'result is', 'results are')} the source image itself:\n"
                f"{list_offenders(copies)}",
                hint="nothing was edited: remove these, or check the folders",
            )
        )
    warnings = []
    if kept:
        warnings.append(
            f"the rejected image of {counted(len(kept), 'pair')} is the source image itself:\n"
            f"{list_offenders(kept)}"
        )
    if shapes:
        warnings.append(
            f"{counted(len(shapes), 'result has', 'results have')} a different shape from the source "
            f"image, which is cropped separately:\n{list_offenders(shapes)}"
        )
    return faults, warnings
