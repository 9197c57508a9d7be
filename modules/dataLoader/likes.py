"""Liked and disliked images without a partner: which of them stay pairs, and which contradict each other."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from modules.dataLoader.pairing import Pair
from modules.dataLoader.source import DataSource, UnitSet, crops_of
from modules.pipeline.cache.FileIndex import FileIndex
from modules.util.errors import DataError


def split_unequal_pairs(source: DataSource, files: FileIndex) -> None:
    """Split every training pair whose sides are cropped to different sizes into a like and a dislike.

    Pairs of edits stay, and so do pairs with an unreadable image, which are reported as faults.
    """

    def unequal(pair: Pair) -> bool:
        if pair.only or pair.chosen.sources:
            return False
        try:
            return any(ours != theirs for ours, theirs in crops_of(pair, source, files))
        except DataError:
            return False

    single: dict[tuple[int, str], list[Pair]] = defaultdict(list)
    made = UnitSet(dpo=True)
    for pair in source.train.entries:
        if unequal(pair):
            like = replace(pair, rejected=pair.chosen, certainty=None, only="chosen")
            single[pair.chosen.concept, "chosen"].append(like)
            single[pair.rejected.concept, "rejected"].append(_dislike(source, pair))
    if not single:
        return
    gone = {one.id for (_, side), found in single.items() if side == "chosen" for one in found}
    for rules, entries in source.train.parts():
        kept = [one for one in entries if one.only or one.id not in gone]
        first = next((one for one in kept if one.only), None)
        more = [] if first is None else single.pop((first.chosen.concept, first.only), [])
        made.add(rules, [*kept, *more])
    for (concept, _), found in single.items():
        made.add(source.rules[concept], found)
    source.train.entries, source.train.groups = made.entries, made.groups


def _dislike(source: DataSource, pair: Pair) -> Pair:
    # the id of a pair begins with the name of its chosen concept
    name = f"{source.rules[pair.rejected.concept].name}/{pair.rejected.key}"
    return replace(pair, id=name, chosen=pair.rejected, certainty=None, only="rejected")


def liked_and_disliked(source: DataSource, files: FileIndex) -> list[str]:
    """Identical images that are trained on both as a like and as a dislike, at least one of them without a
    partner; each as ``liked/a.png and disliked/b.png``.
    """
    sides: dict[int, tuple[list[tuple[str, str, bool]], list[tuple[str, str, bool]]]] = {}
    for pair in source.train.entries:
        for place, item in enumerate((pair.chosen, pair.rejected)):
            if pair.sides[place]:
                try:
                    length = Path(item.path).stat().st_size
                except OSError:
                    continue  # reported with the other unreadable files
                sides.setdefault(length, ([], []))[place].append((item.path, item.id, bool(pair.only)))
    found = []
    for liked, disliked in sides.values():
        if not liked or not disliked:
            continue
        known = defaultdict(list)
        for path, name, alone in liked:
            known[_digest(files, path)].append((name, alone))
        for path, name, alone in disliked:
            same = [one for one, single in known.get(_digest(files, path), ()) if single or alone]
            found += [f"{one} and {name}" for one in same[:1]]
    return sorted(found)


def _digest(files: FileIndex, path: str) -> str:
    try:
        return files.digest(path)
    except DataError:
        return path  # reported with the other unreadable files
