"""Groups of curves that are drawn together. No Tk here."""

from __future__ import annotations

from collections.abc import Iterable

from modules.ui.texts import run as words

_ALSO = {
    "loss/dpo",
    "rl/loss",
    "rl/zero_std_ratio",
    *(f"reward/total/{fact}" for fact in words.REWARD_DIAGRAMS),
}
"""Curves that are logged twice under different names, or implied by others."""


def group_curves(tags: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group tags into diagrams: title to (tag to short name). An unknown tag gets a diagram named by its
    prefix.
    """
    there = sorted(set(tags) - _ALSO)
    made: dict[str, dict[str, str]] = {}
    for title, members in words.DIAGRAMS.items():
        found = {tag: name for tag, name in members.items() if tag in there}
        if found:
            made[title] = found
    known = {tag for members in words.DIAGRAMS.values() for tag in members}
    for tag in there:
        if tag not in known:
            prefix, _, name = tag.rpartition("/")
            if prefix.startswith("reward/") and name in words.REWARD_DIAGRAMS:
                made.setdefault(words.REWARD_DIAGRAMS[name], {})[tag] = prefix.removeprefix("reward/")
                continue
            title = words.DIAGRAMS_BY_PREFIX.get(prefix) or _words(prefix or tag)
            made.setdefault(title, {})[tag] = name or tag
    return made


def _words(name: str) -> str:
    text = name.replace("/", " ").replace("_", " ")
    return text[:1].upper() + text[1:]
