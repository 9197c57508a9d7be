"""Captions as read by training: each line is an alternative, with tags separated by commas.

An edit leaves all unrelated characters unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from modules.util.errors import ConfigError

Edit = Callable[[str], str]
"""Maps a caption to its edited text."""


def tags_of(text: str) -> list[str]:
    """The tags of all lines, stripped, in order and without duplicates."""
    return list(dict.fromkeys(tag for line in text.splitlines() for tag in _tags(line)))


def count_tags(texts: Iterable[str]) -> list[tuple[str, int]]:
    """Each tag with the number of captions that have it, most frequent first."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tags_of(text))
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))


def has_tag(text: str, tag: str) -> bool:
    """Return whether any line of a caption has a tag."""
    return tag in text and tag in tags_of(text)


def replacing_text(old: str, new: str) -> Edit:
    """Replace every ``old`` by ``new``.

    Raises:
        ConfigError: there is nothing to search for, or a text has several lines.
    """
    _check(old, "--find")
    _check(new, "--by", may_be_empty=True)
    return lambda text: text.replace(old, new)


def replacing_tag(old: str, new: str) -> Edit:
    """Rename a tag. If a line already has the new tag, or the new tag is empty, the old one is removed.

    Raises:
        ConfigError: one of them is not a single tag.
    """
    old, new = _tag(old, "--find"), _tag(new, "--by", may_be_empty=True)

    def replace(line: str) -> str:
        tags = _tags(line)
        if old not in tags or old == new:
            return line
        if not new or new in tags:
            return _without(line, old)
        first, *later = [place for place, part in enumerate(line.split(",")) if part.strip() == old]
        parts = line.split(",")
        parts[first] = parts[first].replace(old, new)
        return ",".join(part for place, part in enumerate(parts) if place not in later)

    return _in_lines(replace)


def adding(tags: str, at_end: bool) -> Edit:
    """Add missing tags at the start or end of each line.

    Raises:
        ConfigError: there are no tags, or they have several lines.
    """
    _check(tags, "--tag")
    wanted = list(dict.fromkeys(_tags(tags)))
    if not wanted:
        raise ConfigError(f"{tags!r} holds no tag", "--tag")

    def add(line: str) -> str:
        have = _tags(line)
        missing = ", ".join(tag for tag in wanted if tag not in have)
        if not missing:
            return line
        if not have:
            return missing
        return f"{line.rstrip(', ')}, {missing}" if at_end else f"{missing}, {line.lstrip(', ')}"

    return _in_lines(add)


def deleting(tag: str) -> Edit:
    """Remove a tag with its comma. A line without other tags is removed.

    Raises:
        ConfigError: it is not a single tag.
    """
    tag = _tag(tag, "--tag")
    return _in_lines(lambda line: _without(line, tag))


def _tags(line: str) -> list[str]:
    return [part.strip() for part in line.split(",") if part.strip()]


def _without(line: str, tag: str) -> str:
    parts = line.split(",")
    kept = [part for part in parts if part.strip() != tag]
    if len(kept) == len(parts):
        return line
    begins_with_it = parts[0].strip() == tag
    return ",".join(kept).lstrip() if begins_with_it else ",".join(kept)


def _in_lines(change: Edit) -> Edit:
    """Apply a change to each line that is not empty. A caption without such lines becomes what an empty line
    becomes.
    """

    def edit(text: str) -> str:
        if not text.strip():
            made = change("")
            return made or text
        lines = []
        for line in text.splitlines(keepends=True):
            body = line.splitlines()[0]
            made = change(body) if body.strip() else body
            if made == body or made.strip(" ,\t"):
                lines.append(made + line[len(body) :])
        return "".join(lines)

    return edit


def _check(text: str, field: str, may_be_empty: bool = False) -> None:
    if not text.strip() and not (may_be_empty and not text):
        raise ConfigError("is empty", field, "enter a text")
    # with a letter at its end a line end is never the last sign
    if len(f"{text}x".splitlines()) > 1 or "\0" in text:
        raise ConfigError(f"{text!r} has several lines", field, "give one line")
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise ConfigError(f"{text!a} is not UTF-8", field)


def _tag(text: str, field: str, may_be_empty: bool = False) -> str:
    _check(text, field, may_be_empty)
    if "," in text:
        raise ConfigError(f"{text!r} holds a comma, but a tag cannot contain one", field, "give one tag")
    return text.strip()
