"""Search for settings by a few letters of their title, name, tip or choices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import takewhile

from modules.util.config.settings import Setting

MAX_FOUND = 30


def search_settings(
    settings: Iterable[Setting],
    words: str,
    limit: int = MAX_FOUND,
    shown: Callable[[str], bool] = lambda path: True,
) -> list[Setting]:
    """Settings that contain every word, best match first.

    A word at the start of a title counts most, then elsewhere in the title, in the name, in the tip. Among
    equal matches, settings of the whole run come before those of one model part. Settings that never have a
    row are left out.

    Args:
        shown: whether a setting has a row now. Others come last, unless their full name was typed.
    """
    wanted = [word for word in re.split(r"[\s_.]+", words.lower()) if word]
    if not wanted:
        return []
    whole = words.strip().lower()
    found = []
    for place, setting in enumerate(settings):
        if setting.hidden:
            continue
        scores = list(takewhile(bool, (_score(setting, word) for word in wanted)))
        if len(scores) == len(wanted):
            named = whole == setting.path.lower()
            score = sum(scores) + 2000 * named + 1000 * (whole == setting.title.lower())
            last = not named and not shown(setting.path)
            found.append(((last, -score, setting.path.count("."), place), setting))
    return [setting for _, setting in sorted(found, key=lambda item: item[0])[:limit]]


def _score(setting: Setting, word: str) -> int:
    if word not in setting.texts:
        return 0
    title, path = setting.title.lower(), setting.path.lower()
    names = re.split(r"[_.]+", path)
    if title == word or path == word:
        return 100
    if title.startswith(word):
        return 60
    if any(part.startswith(word) for part in re.split(r"[\s-]+", title)):
        return 40
    if any(part.startswith(word) for part in names):
        return 30
    if word in title or word in path:
        return 20
    if word in setting.group.lower() or word in setting.section.lower():
        return 10
    if any(word in choice.label.lower() or word in choice.value.lower() for choice in setting.choices):
        return 8
    return 5
