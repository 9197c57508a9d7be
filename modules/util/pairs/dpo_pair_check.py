"""Compares a chosen with a rejected folder, pair by pair."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from modules.util.errors import DataError
from modules.util.pairs.decoding import undecodable
from modules.util.pairs.dpo_pair_files import dpo_pair_key, file_sha256, image_files, read_caption

_NO_FAULTS = ("matched", "empty_captions")


@dataclass
class PairCheck:
    """Differences between a chosen and a rejected folder. Empty lists mean that there are no faults.

    ``empty_captions`` is not a fault: these pairs train the empty prompt.
    """

    matched: list[str] = field(default_factory=list)
    only_chosen: list[str] = field(default_factory=list)
    only_rejected: list[str] = field(default_factory=list)
    shared_stems: list[str] = field(default_factory=list)
    missing_captions: list[str] = field(default_factory=list)
    differing_captions: list[str] = field(default_factory=list)
    multiline_captions: list[str] = field(default_factory=list)
    identical_images: list[str] = field(default_factory=list)
    empty_captions: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if these folders can be trained on as pairs."""
        return bool(self.matched) and not any(
            getattr(self, name) for name in self.__dataclass_fields__ if name not in _NO_FAULTS
        )


def check_dpo_pairs(chosen_dir: str | os.PathLike[str], rejected_dir: str | os.PathLike[str]) -> PairCheck:
    """Compare two concept folders pair by pair, subfolders included.

    Raises:
        DataError: one of the folders does not exist.
    """
    check = PairCheck()
    sides = {}
    for name, folder in (("chosen", Path(chosen_dir)), ("rejected", Path(rejected_dir))):
        if not folder.is_dir():
            raise DataError(f"the {name} folder {folder} does not exist")
        files: dict[str, Path] = {}
        for path in image_files(sorted(folder.rglob("*"))):
            key = dpo_pair_key(path, folder)
            if key in files:
                check.shared_stems.append(f"{name}: {files[key].name}, {path.name}")
            files[key] = path
        sides[name] = files
    chosen, rejected = sides["chosen"], sides["rejected"]
    check.only_chosen = sorted(chosen.keys() - rejected.keys())
    check.only_rejected = sorted(rejected.keys() - chosen.keys())
    for key in sorted(chosen.keys() & rejected.keys()):
        check.matched.append(key)
        _check_pair(check, key, chosen[key], rejected[key])
    images = [side[key] for key in check.matched for side in (chosen, rejected)]
    check.unreadable = [fault.message for fault in undecodable(images) if fault is not None]
    return check


def _check_pair(check: PairCheck, key: str, chosen: Path, rejected: Path) -> None:
    captions = [read_caption(chosen), read_caption(rejected)]
    if None in captions:
        check.missing_captions.append(key)
    elif captions[0] != captions[1]:
        check.differing_captions.append(key)
    elif captions[0] == "":
        check.empty_captions.append(key)
    if any(text is not None and len(text.splitlines()) > 1 for text in captions):
        check.multiline_captions.append(key)
    if chosen.stat().st_size == rejected.stat().st_size and file_sha256(chosen) == file_sha256(rejected):
        check.identical_images.append(key)
