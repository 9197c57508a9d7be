"""The list of concepts of a folder of pairs, ready for training."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.util.enum.ConceptType import ConceptType
from modules.util.errors import UserError
from modules.util.jsonio import read_json, write_json
from modules.util.owned_files import Owned
from modules.util.pairs.dpo_pair_files import SIDES, SOURCE_FOLDER, SPLITS

if TYPE_CHECKING:
    from modules.util.config.ConceptConfig import ConceptConfig

log = logging.getLogger(__name__)

CONCEPTS_NAME = "concepts.json"
DPO_TYPES = {
    ("chosen", "train"): ConceptType.DPO_CHOSEN,
    ("rejected", "train"): ConceptType.DPO_REJECTED,
    ("chosen", "val"): ConceptType.DPO_CHOSEN_VAL,
    ("rejected", "val"): ConceptType.DPO_REJECTED_VAL,
}
_SPLIT_PATH = re.compile(
    rf"(?P<home>.+?)[/\\]+(?P<side>{'|'.join(SIDES)})[/\\]+(?P<split>{'|'.join(SPLITS)})[/\\]*"
)
"""A folder of one side and split."""
_FOLLOWS = ("path", "source_path", "enabled")
"""Values that follow from the place of the folder and the number of its pairs."""


def write_concepts(base: Path, counts: Mapping[str, int], edits: bool) -> None:
    """Write ``concepts.json``. One that a person has changed or brought along is kept under another name.

    Args:
        counts: number of pairs in each split.
        edits: whether the pairs are edits of source images.
    """
    made = _concepts(base, counts, edits)
    if (base / CONCEPTS_NAME).is_file() and not _is_made_here(base, made):
        aside = Owned(base, local=True).put_aside(CONCEPTS_NAME)
        log.warning("%s was not as this program writes it; it is kept as %s", base / CONCEPTS_NAME, aside)
    write_json(base / CONCEPTS_NAME, made)


def _concepts(base: Path, counts: Mapping[str, int], edits: bool) -> list[dict[str, Any]]:
    """The four concepts. The chosen side of edits states the source folder for both sides."""
    from modules.util.config.ConceptConfig import ConceptConfig

    made = []
    sources = str((base / SOURCE_FOLDER).resolve()) if edits else ""
    for split in SPLITS:
        for side in SIDES:
            concept = ConceptConfig(
                name=f"{side} {split}",
                path=str((base / side / split).resolve()),
                type=DPO_TYPES[side, split],
                enabled=counts[split] > 0,
                source_path=sources if side == "chosen" else "",
            )
            made.append(concept.to_dict())
    return made


def concepts_here(folder: Path, concepts: Sequence[ConceptConfig]) -> list[ConceptConfig]:
    """A list of concepts read from a folder of pairs, with this folder's paths.

    The paths differ if the folder was moved or copied after the list was written. A list with pairs of several folders
    stays as it is.
    """
    homes = {match["home"] for one in concepts if (match := _SPLIT_PATH.fullmatch(one.path))}
    if len(homes) != 1 or Path(home := homes.pop()).resolve() == folder.resolve():
        return list(concepts)
    made = []
    for concept in concepts:
        here = concept.copy_of()
        match = _SPLIT_PATH.fullmatch(concept.path)
        if match and (folder / match["side"] / match["split"]).is_dir():
            here.path = str((folder / match["side"] / match["split"]).resolve())
        if _parts(concept.source_path) == [*_parts(home), SOURCE_FOLDER]:
            here.source_path = str((folder / SOURCE_FOLDER).resolve())
        made.append(here)
    return made


def _is_made_here(base: Path, made: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the existing list is one that this program wrote, with pairs as they were then."""
    from modules.util.config.ConceptConfig import ConceptConfig

    try:
        data = read_json(base / CONCEPTS_NAME, "list of concepts")
        found = [ConceptConfig.from_dict(one).to_dict() for one in data] if isinstance(data, list) else []
    except UserError:
        return False
    return [_plain(one) for one in found] == [_plain(one) for one in made]


def _plain(concept: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A concept without what follows from the folder, and the end of its path."""
    rest = {name: value for name, value in concept.items() if name not in _FOLLOWS}
    return rest, tuple(_parts(concept["path"])[-2:])


def _parts(path: str) -> list[str]:
    """The parts of a path, which may be one of another system."""
    return re.split(r"[/\\]+", path.rstrip("/\\"))
