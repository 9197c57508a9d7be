"""Facts about published models: which are distilled to few denoising steps, and what to train instead.

A model is recognised by its hub name, a folder by the name in its ``model_index.json`` or in the hub cache, a file by
being a link into that cache. The words of a file name, those of the title inside the file, and the class of a folder's
scheduler only allow a guess.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.util.errors import UserError
from modules.util.files.model_index import index_file, read_index
from modules.util.files.titles import title_of
from modules.util.jsonio import read_json
from modules.util.program_files import RESOURCES

ROWS = RESOURCES / "bases.json"
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NUMBERED = re.compile(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Z][a-z])")
"""Boundaries between words and numbers: ``klein4b``, ``hyper8step``, ``flux2Klein``."""
_WORDS = re.compile(r"[A-Za-z0-9]+")
_PART_FOLDERS = ("transformer", "unet")
_MOST_BYTES = 1 << 20
_MOST_LEVELS = 1000
_OF_FEW_STEPS = {"LCMScheduler": "lcm", "TCDScheduler": "hyper", "SCMScheduler": "sprint"}
"""Schedulers that only models distilled in a certain way are sampled with: the word for them in names."""


@dataclass(frozen=True)
class PublishedModel:
    """A row of ``resources/bases.json``.

    Args:
        name: name on the hub. If it publishes files for several families, each of them has a row.
        family: model type.
        steps, cfg: usual values for its images; ``cfg`` 1 means no guidance.
        distilled: whether it was distilled to these steps.
        base: the undistilled model to train instead.
        adapter: a training adapter for it.
        shift: factor by which the noise levels of its images are shifted; 0 if it is that of its family, or none.
        words: words that all names of its copies contain.
        not_words: words that none of these names contain.
        guessed: whether it was recognised only by such words.
    """

    name: str
    family: str
    steps: int
    cfg: float
    distilled: bool = False
    base: str = ""
    adapter: str = ""
    shift: float = 0.0
    words: tuple[str, ...] = ()
    not_words: tuple[str, ...] = ()
    guessed: bool = False

    @property
    def label(self) -> str:
        """The name without its owner."""
        return self.name.rpartition("/")[2]

    def advice(self) -> str:
        """Say what training would do to it, and what to do instead; empty if there is no objection."""
        if not self.distilled:
            return ""
        what = f"seems to be {self.label}, which is" if self.guessed else f"{self.label} is"
        return (
            f"{what} distilled for {self.steps} steps, and training removes this ability. "
            f"Train {self.base} instead"
            + (f", or set training_adapter.model_name to {self.adapter}" if self.adapter else "")
        )


@functools.cache
def published_models() -> tuple[PublishedModel, ...]:
    """All rows in file order."""
    return tuple(
        PublishedModel(
            **row
            | {
                "words": tuple(row.get("words", ())),
                "not_words": tuple(row.get("not_words", ())),
            }
        )
        for row in read_json(ROWS, "list of published models")
    )


def find_published(family: str, source: str) -> PublishedModel | None:
    """The published model that a source is, or is a copy of by its name; ``None`` if unknown.

    Args:
        family: model type.
        source: a hub name, a folder or a file.
    """
    path = _path(source)
    if path.name in _PART_FOLDERS:
        # what it is a copy of stands one level up
        path = path.parent
    index = _index(path)
    hub_name = source.partition("@")[0]
    for name in (hub_name, cached_name(path), cached_name(_target(path)), index.get("_name_or_path")):
        found = _named(name, family)
        if found is not None:
            return found
    mine = _distilled_of(family)
    named = _words(path.name)
    # pipelines of some families state it themselves, but not their size
    if index.get("is_distilled") is True and mine:
        return next((row for row in mine if row.words and _fits(row, named, named)), mine[0])
    # what is inside stays when a file gets another name
    for words in (named, _words(title_of(path)), _scheduler_words(path)):
        found = next((row for row in mine if row.words and _fits(row, words, named)), None)
        if found is not None:
            return replace(found, guessed=True)
    return None


def family_of(name: str) -> str:
    """The model type of a hub name; empty if it is unknown, or publishes files for several."""
    families = {row.family for row in _rows_of(name)}
    return families.pop() if len(families) == 1 else ""


def shift_of(family: str, source: str) -> float:
    """The shift of noise levels that images of a model are made with, as far as its name tells; that of the family's
    base for an unknown model. 0 for the one in the family's scheduler config.
    """
    known = known_shift(family, source)
    if known is not None:
        return known
    bases = (one for one in published_models() if one.family == family and not one.distilled)
    row = next(bases, None)
    return 0.0 if row is None else row.shift


def known_shift(family: str, source: str) -> float | None:
    """As ``shift_of``, but ``None`` for an unknown model. Files of models without few-step distillation are told
    apart by the words of their names here only, because nothing else follows from these words.
    """
    row = find_published(family, source)
    if row is None:
        words = _words(_path(source).name)
        rows = (one for one in published_models() if one.family == family and not one.distilled and one.words)
        row = next((one for one in rows if _fits(one, words, words)), None)
    return None if row is None else row.shift


def sample_levels(source: str) -> list[float]:
    """The noise levels, decreasing from at most 1, that a folder's pipeline samples with; empty if it sets none."""
    levels = _index(_path(source)).get("sample_sigmas")
    if not isinstance(levels, list) or not 1 <= len(levels) <= _MOST_LEVELS:
        return []
    if not all(isinstance(level, (int, float)) and 0.0 < level <= 1.0 for level in levels):
        return []
    falling = all(high > low for high, low in itertools.pairwise(levels))
    return [float(level) for level in levels] if falling else []


@functools.cache
def _distilled_of(family: str) -> tuple[PublishedModel, ...]:
    """Distilled models of a family, and those that were made from one of it and are a family of their own."""
    bases = {row.name for row in published_models() if row.family == family}
    return tuple(row for row in published_models() if row.distilled and (row.family == family or row.base in bases))


def _path(source: str) -> Path:
    """Return the path of a source that is not on the hub; ``~`` is the folder of the user."""
    try:
        return Path(source).expanduser()
    except RuntimeError:
        # of a user there is not
        return Path(source)


def _rows_of(name: object) -> list[PublishedModel]:
    wanted = str(name or "").strip().strip("/").lower()
    return [row for row in published_models() if row.name.lower() == wanted]


def _named(name: object, family: str) -> PublishedModel | None:
    """The row of a hub name: that of the family if it publishes files for several."""
    rows = _rows_of(name)
    if len(rows) == 1:
        return rows[0]
    return next((row for row in rows if row.family == family or row in _distilled_of(family)), None)


def cached_name(path: Path) -> str:
    """The hub name of a snapshot folder in the cache; empty for other paths."""
    cached = next((part for part in path.parts if part.startswith("models--")), "")
    return cached.removeprefix("models--").replace("--", "/", 1)


def _target(path: Path) -> Path:
    """Return the target of a link; the path itself if it is none."""
    try:
        return Path(os.path.realpath(path)) if path.is_symlink() else path
    except (OSError, ValueError):
        # a name that no file can have
        return path


def _scheduler_words(path: Path) -> frozenset[str]:
    """The word that the scheduler of a folder stands for, if it is one of distilled models."""
    place = path / "scheduler" / "scheduler_config.json"
    try:
        config = read_json(place, "scheduler config", _MOST_BYTES) if place.is_file() else None
    except (OSError, ValueError, UserError):
        # no path at all, or a file that loading reports
        return frozenset()
    kind = config.get("_class_name") if isinstance(config, dict) else None
    return (
        frozenset([_OF_FEW_STEPS[kind]]) if isinstance(kind, str) and kind in _OF_FEW_STEPS else frozenset()
    )


def _index(path: Path) -> Mapping[str, Any]:
    """A folder's ``model_index.json``; empty if it is missing or unreadable, which loading reports."""
    place = index_file(path)
    try:
        return {} if place is None else read_index(place, _MOST_BYTES)
    except UserError:
        return {}


def _words(name: str) -> frozenset[str]:
    apart = _CAMEL.sub(" ", name)
    words = frozenset(word.lower() for text in (apart, _NUMBERED.sub(" ", apart)) for word in _WORDS.findall(text))
    return words | {"deturbo"} if words.issuperset(("de", "turbo")) else words


def _fits(row: PublishedModel, words: frozenset[str], named: frozenset[str]) -> bool:
    """Return whether words are those of a model, and neither they nor those of its name speak against it."""
    return words.issuperset(row.words) and (words | named).isdisjoint(row.not_words)
