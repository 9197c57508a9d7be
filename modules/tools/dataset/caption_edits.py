"""Captions edited by hand or in bulk. Every change can be undone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from modules.tools.dataset.captioning import Tell, captioned_images
from modules.tools.dataset.files import MAX_CAPTION, DataImage, find_images
from modules.tools.dataset.tags import Edit
from modules.tools.Journal import Journal
from modules.util.errors import DataError, UserError
from modules.util.jsonio import read_bytes
from modules.util.owned_files import shown

JOB = "caption-edits"


class Caption(NamedTuple):
    """Content of a caption file.

    Args:
        text: ``None`` if there is no file.
        fault: why it can be neither read nor changed; empty if it can.
    """

    text: str | None
    fault: str = ""

    @property
    def blank(self) -> bool:
        """True if it is empty."""
        return not (self.text or "").strip() and not self.fault


class CaptionChangedError(UserError):
    """A caption has changed since it was read."""

    def __init__(self, name: str, now: Caption) -> None:
        super().__init__(f"{shown(name)} was changed by another program", hint="read it again")
        self.now = now


@dataclass(frozen=True)
class EditPlan:
    """The effect of a bulk edit.

    Args:
        changes: file name, current text and new text.
        left: names of files that cannot be changed, with the reason.
    """

    changes: dict[str, tuple[Caption, str]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def list_captions(root: Path, subfolders: bool, tidy: bool = True) -> list[tuple[DataImage, str]]:
    """The images of a folder that have captions of their own, each with the name of its caption file, whether
    it exists or not. Images of the same name in different formats share one.

    Args:
        tidy: first clean up what a killed tool left half done; otherwise nothing is changed.

    Raises:
        UserError: the folder does not exist, names in it are not UTF-8, or another tool is working in it.
    """
    if tidy:
        Journal(root).put_in_order()
    images = captioned_images(find_images(root, subfolders))
    return [(one, one.caption() or f"{one.stem}.txt") for one in images]


def read_caption(root: Path, name: str) -> Caption:
    """Read a caption file; never fails."""
    try:
        text = read_bytes(root / name, "caption", MAX_CAPTION).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Caption("", f"{shown(name)} is not UTF-8 (byte {error.start})")
    except UserError as error:
        missing = not (root / name).is_symlink() and not (root / name).exists()
        return Caption(None) if missing else Caption("", error.message)
    if "\0" in text:
        return Caption("", f"{shown(name)} holds NUL bytes and is not text")
    return Caption(text)


def save_caption(root: Path, name: str, old: Caption, text: str) -> Caption:
    """Write a caption. ``Journal.undo`` restores the old one.

    Args:
        old: its text when it was read.

    Raises:
        CaptionChangedError: the caption has changed since.
        UserError: another tool is working in the folder, or the file cannot be written.
    """
    if _size(text) > MAX_CAPTION:
        raise DataError(
            f"the caption {shown(name)} would be larger than {MAX_CAPTION} bytes", hint="shorten it"
        )
    if any("\ud800" <= sign <= "\udfff" or sign == "\0" for sign in text):
        raise DataError(f"the caption {shown(name)} would not be UTF-8 text", hint="remove the invalid character")
    with Journal(root).job(JOB) as job:
        now = read_caption(root, name)
        if now != old:
            raise CaptionChangedError(name, now)
        job.replace([] if old.text is None else [name], {name: partial(_write, text)})
    return Caption(text)


def plan_edits(
    root: Path, names: Iterable[str], edit: Edit, only: Callable[[str], bool] | None = None
) -> EditPlan:
    """The effect of an edit on the current captions. Nothing is changed.

    Args:
        only: whether to edit a caption, by its text; all by default.
    """
    plan = EditPlan()
    for name in dict.fromkeys(names):
        old = read_caption(root, name)
        if old.fault:
            plan.left[name] = old.fault
            continue
        before = old.text or ""
        new = edit(before) if only is None or only(before) else before
        if _size(new) > MAX_CAPTION:
            plan.left[name] = f"it would be larger than {MAX_CAPTION} bytes"
        elif new != before:
            plan.changes[name] = (old, new)
    return plan


def carry_out_edits(root: Path, plan: EditPlan, progress: Tell) -> dict[str, Caption]:
    """Apply a plan: all of it, or after a fault or a kill nothing. ``Journal.undo`` undoes it.

    Args:
        progress: called twice per caption, with the progress in captions and a name. An exception from it
            ends the work.

    Returns:
        The new captions by file name.

    Raises:
        CaptionChangedError: a caption was changed since the plan was made.
        UserError: another tool is working in the folder, or a file cannot be written.
    """
    if not plan.changes:
        return {}
    with Journal(root).job(JOB) as job:
        for name, (old, _) in plan.changes.items():
            now = read_caption(root, name)
            if now != old:
                raise CaptionChangedError(name, now)
        there = [name for name, (old, _) in plan.changes.items() if old.text is not None]
        made = {name: partial(_write, new) for name, (_, new) in plan.changes.items()}
        turns = itertools.count()
        # all are written first, then moved into place
        job.replace(there, made, lambda name: progress(next(turns) // 2, name))
    return {name: Caption(new) for name, (_, new) in plan.changes.items()}


def undo_edit(root: Path, *others: str) -> str | None:
    """Undo the last edit of captions. Returns its name; ``None`` if nothing can be undone.

    Args:
        others: names of other commands that may be undone.

    Raises:
        UserError: the last change of the folder is neither, or a file was changed since.
    """
    return Journal(root).undo(JOB, *others)


def _write(text: str, target: Path) -> None:
    target.write_text(text, encoding="utf-8", newline="")


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
