"""Captions: reading them, choosing an alternative, and the text augmentations of standard concepts."""

from __future__ import annotations

import codecs
import random
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from modules.pipeline.nodes.Pattern import Pattern
from modules.util.config.ConceptConfig import names_tag_file
from modules.util.errors import DataError
from modules.util.files.OpenFolder import read_plain
from modules.util.files.user_path import user_path
from modules.util.owned_files import fault_of_path, shown
from modules.util.rng import python_random

MAX_CAPTION_BYTES = 1 << 20
MAX_CONCEPT_PROMPT_BYTES = 16 << 20


def read_lines(path: str | Path, max_bytes: int = MAX_CAPTION_BYTES) -> tuple[str, ...]:
    """The alternatives of a caption file: its lines, stripped, without the empty ones.

    An empty file is one empty prompt, because somebody put it there on purpose.

    Raises:
        FileNotFoundError: the file does not exist.
        DataError: the file is unreadable, too large, or not UTF-8.
    """
    try:
        data = read_plain(path, max_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"the caption {path} cannot be read ({error.strerror})") from error
    if len(data) > max_bytes:
        raise DataError(f"the caption {path} is larger than {max_bytes} bytes")
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"the caption {path} is not UTF-8 text (byte {error.start})", hint="save it as UTF-8"
        ) from error
    if "\0" in text:
        raise DataError(f"the caption {path} contains NUL bytes and is not text")
    return tuple([stripped for line in text.splitlines() if (stripped := line.strip())]) or ("",)


def complete_prompt(prompt: str, settings: Any) -> str:
    """A prompt with the concept's trigger word, prefix and suffix."""
    word = settings.trigger_word
    if word:
        wanted = "[trigger]" in prompt or _contains(prompt, word)
        prompt = prompt.replace("[trigger]", word) if wanted else f"{word} {prompt}".strip()
    framed = (settings.caption_prefix, prompt, settings.caption_suffix)
    return " ".join(part for part in framed if part) if any(framed[::2]) else prompt


def _contains(prompt: str, word: str) -> bool:
    """Return whether a prompt has a word, or a longer one that begins with it: ``foxes`` has ``fox``, but ``desks``
    does not have ``sks``. Only Latin letters and digits count, because other scripts may have no spaces between words.
    """
    edge = r"(?<![A-Za-z0-9])" if word[0].isascii() and word[0].isalnum() else ""
    return re.search(edge + re.escape(word), prompt) is not None


def text_variations(prompts: Sequence[str], wanted: int, augmented: bool) -> int:
    """Number of prompts that an item uses in turn: all its alternatives, or more if the concept says so and
    its augmentations can produce more.
    """
    if not augmented:
        return len(prompts)
    return max(len(prompts), wanted)


def choose_line(prompts: Sequence[str], seed: int, item: str, variation: int) -> str:
    """The alternative for a variation: all of them in turn, in an order specific to the item."""
    if len(prompts) == 1:
        return prompts[0]
    order = list(range(len(prompts)))
    python_random("caption/order", seed, item).shuffle(order)
    return prompts[order[variation % len(order)]]


def augments_text(settings: Any | None) -> bool:
    """Return whether a concept's text settings vary captions randomly."""
    return settings is not None and bool(
        settings.enable_tag_shuffling or settings.tag_dropout_enable or settings.caps_randomize_enable
    )


def augment_text(prompt: str, settings: Any, seed: int, item: str, variation: int) -> str:
    """Apply tag dropout, tag shuffling and random capitals, as set in the concept's text settings."""
    if not augments_text(settings):
        return prompt
    delimiter = settings.tag_delimiter or ","
    if settings.tag_dropout_enable:
        prompt = _drop_tags(prompt, delimiter, settings, python_random("tags/drop", seed, item, variation))
    if settings.enable_tag_shuffling:
        kept, tags = _split(prompt, delimiter, settings.keep_tags_count)
        python_random("tags/shuffle", seed, item, variation).shuffle(tags)
        prompt = _join([*kept, *tags], delimiter)
    if settings.caps_randomize_enable:
        prompt = _recase(prompt, delimiter, settings, python_random("tags/caps", seed, item, variation))
    return prompt


def _split(prompt: str, delimiter: str, keep: int) -> tuple[list[str], list[str]]:
    tags = [tag.strip() for tag in prompt.split(delimiter)]
    tags = [tag for tag in tags if tag]
    return tags[:keep], tags[keep:]


def _join(tags: Sequence[str], delimiter: str) -> str:
    return (delimiter.rstrip() + " ").join(tags)


def _drop_tags(prompt: str, delimiter: str, settings: Any, source: random.Random) -> str:
    kept, tags = _split(prompt, delimiter, settings.keep_tags_count)
    chance, mode = float(settings.tag_dropout_probability), str(settings.tag_dropout_mode)
    listed = [_droppable(tag, settings) for tag in tags]
    if mode == "FULL":
        drop_all = source.random() < chance
        dropped = [drop_all] * len(tags)
    else:
        # RANDOM_WEIGHTED: later tags are more likely to be dropped, up to the full probability
        weights = [(i + 1) / len(tags) if mode == "RANDOM_WEIGHTED" else 1.0 for i in range(len(tags))]
        dropped = [source.random() < chance * weight for weight in weights]
    left = [tag for tag, gone, may in zip(tags, dropped, listed, strict=True) if not (gone and may)]
    return _join([*kept, *left], delimiter)


def _droppable(tag: str, settings: Any) -> bool:
    """Return whether a tag may be dropped. Whitelisted tags are never dropped; with a blacklist, only the listed
    ones are.
    """
    mode = str(settings.tag_dropout_special_tags_mode)
    if mode == "NONE":
        return True
    hit = any(_matches(tag, special, settings) for special in _special_tags_once(*_special_key(settings)))
    return hit if mode == "BLACKLIST" else not hit


def _matches(tag: str, special: str, settings: Any) -> bool:
    if settings.tag_dropout_special_tags_regex:
        return _pattern(special).matches(tag)
    return tag == special


_pattern = lru_cache(maxsize=1024)(Pattern)


def special_tags(settings: Any) -> list[str]:
    """The special tags of a concept: a list in the field, or the lines of the text file it names.

    Raises:
        DataError: the file is missing or a pattern is not valid.
    """
    return list(_special_tags_once.__wrapped__(*_special_key(settings)))


def _special_key(settings: Any) -> tuple[str, str, bool]:
    return (
        str(settings.tag_dropout_special_tags),
        settings.tag_delimiter or ",",
        bool(settings.tag_dropout_special_tags_regex),
    )


@lru_cache(maxsize=256)
def _special_tags_once(text: str, delimiter: str, patterns: bool) -> tuple[str, ...]:
    if names_tag_file(text):
        fault = fault_of_path(text)
        if fault:
            raise DataError(f"the list of special tags {shown(text)} {fault}")
        try:
            text = delimiter.join(read_lines(user_path(text), MAX_CONCEPT_PROMPT_BYTES))
        except FileNotFoundError:
            raise DataError(f"the list of special tags {text} does not exist") from None
    tags = [tag.strip() for tag in text.split(delimiter) if tag.strip()]
    if patterns:
        for tag in tags:
            try:
                _pattern(tag)
            except ValueError as error:
                raise DataError(
                    f"the special tag {shown(tag)!r} is not a valid pattern: {error}",
                    hint="letters, classes, groups, alternatives, repeats and anchors are supported",
                ) from error
    return tuple(tags)


_CASES = {
    "capslock": str.upper,
    "title": str.title,
    "first": str.capitalize,
}


def _recase(prompt: str, delimiter: str, settings: Any, source: random.Random) -> str:
    modes = [mode.strip() for mode in str(settings.caps_randomize_mode).split(",") if mode.strip()]
    if settings.caps_randomize_lowercase:
        prompt = prompt.lower()
    kept, tags = _split(prompt, delimiter, settings.keep_tags_count)
    made = []
    for tag in tags:
        if modes and source.random() < float(settings.caps_randomize_probability):
            mode = source.choice(modes)
            if mode in _CASES:
                tag = _CASES[mode](tag)
            else:
                tag = "".join(letter.upper() if source.random() < 0.5 else letter.lower() for letter in tag)
        made.append(tag)
    return _join([*kept, *made], delimiter)
