"""Finds models from the hub that are already downloaded, without going online."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modules.spec.FamilySpec import FamilySpec, PartSpec
from modules.util.errors import UserError
from modules.util.files.hub_names import at_revision, repository
from modules.util.files.model_index import index_file, read_index
from modules.weights.loading import is_hub_name, left_out
from modules.weights.shards import variant_files, weights_files

_PIECES = re.compile(r"-\d{5}-of-(\d{5})\.")


def downloaded(
    name: str,
    spec: FamilySpec,
    parts: Sequence[str],
    configs: Sequence[str] = (),
    alone: bool = False,
    weights: bool = True,
    variant: str = "",
) -> Path | None:
    """The folder of a hub name in the local cache; ``None`` if it is missing or incomplete.

    Args:
        parts: parts that must exist.
        configs: parts of which only the config is needed.
        alone: whether a repository with a single part is accepted too.
        weights: whether the parts' weights must exist too.
        variant: the variant of weights that a run reads, see ``find_source``.
    """
    if not is_hub_name(name):
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                repository(name), revision=at_revision(name).get("revision"), local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        return None
    path = index_file(folder)
    if path is None:
        return folder if alone and _is_whole(folder, weights) else None
    try:
        index = read_index(path)
    except UserError:
        # refused on loading
        return folder
    # parts the model lacks are refused on loading
    asked = [spec.part(part) for part in parts]
    wanted = [part for part in asked if _has(index, part.place) and not left_out(part, index)]
    small = [spec.part(part).place for part in configs]
    there = all(_is_there(folder / part.place, part, weights, variant) for part in wanted)
    there = there and all((folder / place / "config.json").is_file() for place in small if _has(index, place))
    return folder if there else None


def _has(index: Mapping[str, Any], place: str) -> bool:
    """Return whether a model has a part. An index may list parts that it lacks."""
    entry = index.get(place)
    return all(entry) if isinstance(entry, list) else bool(entry)


def _is_there(place: Path, part: PartSpec, weights: bool, variant: str) -> bool:
    if part.kind in ("tokenizer", "processor", "scheduler"):
        return place.is_dir()
    if variant and weights and part.kind == "denoiser" and not variant_files(place, variant):
        return False
    return _is_whole(place, weights, variant)


def _is_whole(place: Path, weights: bool, variant: str = "") -> bool:
    """Return whether there is a config and, if requested, all pieces of the weights; a download may have been
    interrupted.
    """
    if not (place / "config.json").is_file():
        return False
    files = weights_files(place, variant)
    counts = {int(match[1]) for file in files if (match := _PIECES.search(file.name))}
    return bool(files or not weights) and (not counts or len(files) in counts)
