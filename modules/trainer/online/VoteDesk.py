"""Shows images of a run to a person and waits for the votes."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from modules.model.noising.sampling import SamplingCancelled
from modules.reward.person import Judged, Shown
from modules.runner.votes.VoteBook import Question, VoteBook, source_file
from modules.trainer.callbacks import Callback
from modules.trainer.evaluate.image_files import encode_image
from modules.util.display import counted
from modules.util.errors import UserError
from modules.util.jsonio import write_bytes

POLL_SECONDS, TELL_SECONDS = 0.2, 30.0
SAME = 4.0
"""Images with a mean difference up to this (of 255) are the same, because devices round differently after a
resume.
"""


@dataclass(frozen=True)
class Asking:
    """The means of asking a person: a callback, and whether the run is to end."""

    callback: Callback
    stop_wanted: Callable[[], bool]


NOBODY = Asking(Callback(), lambda: False)


class VoteDesk:
    """The desk of one run, see ``modules.reward.person.Desk``.

    Args:
        run: the run's folder.
        callback: notified of questions, counted votes and waiting time.
        stop_wanted: whether the run is to end.
        timeout: seconds without any vote after which open questions are dropped; 0 waits forever.
    """

    def __init__(
        self, run: Path, callback: Callback, stop_wanted: Callable[[], bool], timeout: float = 0.0
    ) -> None:
        self._callback, self._stop_wanted, self._timeout = callback, stop_wanted, timeout
        self._book = VoteBook(run)
        self._book.refresh()
        self._book.begin()
        self._keys: dict[int, str] = {}

    def show(self, shown: Shown) -> None:
        """Write the images and ask about them. In a resumed run, they keep their earlier votes. A question that nobody
        answered in time is asked again.
        """
        place = f"{shown.epoch}-{shown.group}"
        files = [encode_image(one, ".png", shown.prompt) for one in shown.images_KCHW]
        sources = [encode_image(one.float() / 255, ".png", "") for one in shown.sources]
        before = self._book.at(place)
        if before is not None and before.prompt == shown.prompt and self._are_same(before, files, sources):
            key, known = before.key, before.vote.done
            # a question from before sources were shown stays one without
            names = shown.source_names if before.sources else []
        else:
            known, names = False, shown.source_names
            key = _key_of([*files, *sources], place)
            for number, data in enumerate(files):
                write_bytes(self._book.folder / place / f"{number}.png", data)
            for number, data in enumerate(sources):
                write_bytes(self._book.folder / place / source_file(number), data)
        question = self._book.ask(key, place, shown.prompt, len(files), names)
        self._keys[shown.group] = key
        if not known:
            self._callback.votes_wanted(
                question.key,
                shown.prompt,
                self._book.folder / place,
                question.images,
                len(self._book.open_questions()),
                [(name, self._book.source(question, n)) for n, name in enumerate(question.sources)],
            )

    def _are_same(self, before: Question, files: Sequence[bytes], sources: Sequence[bytes]) -> bool:
        sources = sources if before.sources else ()
        if (before.images, len(before.sources)) != (len(files), len(sources)):
            return False
        paths = [self._book.image(before, number) for number in range(len(files))]
        paths += [self._book.source(before, number) for number in range(len(sources))]
        try:
            kept = [path.read_bytes() for path in paths]
            if _key_of(kept, before.place) != before.key:
                # a trainer replaced them and ended before it asked about the new ones
                return False
            old = [_pixels(data) for data in kept]
        except (OSError, ValueError):
            return False
        new = [_pixels(data) for data in (*files, *sources)]
        return all(a.shape == b.shape and np.abs(a - b).mean() <= SAME for a, b in zip(old, new, strict=True))

    def wait(self, groups: Sequence[int]) -> dict[int, tuple[int, ...] | None]:
        """Wait for the votes.

        Raises:
            SamplingCancelled: the run is to end. Votes are kept.
        """
        last_vote, told, done_before = time.monotonic(), -TELL_SECONDS, -1
        while True:
            if self._book.refresh():
                last_vote = time.monotonic()
            asked = [self._book.questions[self._keys[one]] for one in groups]
            done = sum(one.answered for one in asked)
            if done == len(asked):
                return {
                    group: None if one.dropped else one.vote.levels(one.images)
                    for group, one in zip(groups, asked, strict=True)
                }
            now = time.monotonic()
            if done != done_before or now - told >= TELL_SECONDS:
                self._callback.phase("waiting for votes", done, len(asked))
                told, done_before = now, done
            if self._stop_wanted():
                raise SamplingCancelled
            if self._timeout and now - last_vote >= self._timeout:
                self._drop([one for one in asked if not one.answered])
            time.sleep(POLL_SECONDS)

    def _drop(self, late: Sequence[Question]) -> None:
        for one in late:
            self._book.drop(one.key)
        self._callback.warning(
            f"no vote came within {self._timeout:g} s: nothing is learned from {counted(len(late), 'prompt')}"
        )

    def earlier(self, epoch: int) -> list[Judged]:
        """Votes of earlier epochs, with the images as shown."""
        # the images of an earlier question about the same place, of another run, are no longer on the disk
        latest = {one.place: one for one in self._book.questions.values()}
        told = [one for one in latest.values() if one.vote.done and one.epoch < epoch]
        return [self._judged(one) for one in sorted(told, key=lambda one: (one.epoch, one.group))]

    def _judged(self, question: Question) -> Judged:
        images = []
        for number in range(question.images):
            path = self._book.image(question, number)
            try:
                images.append(torch.from_numpy(_pixels(path.read_bytes()) / 255).permute(2, 0, 1))
            except (OSError, ValueError) as error:
                raise UserError(
                    f"the image {path}, which was voted on, cannot be read: {error}",
                    hint="the head learns from it: put it back, or set rlhf_person_share to 1",
                ) from error
        return Judged(
            question.key, question.prompt, torch.stack(images).float(), question.vote.levels(question.images)
        )

    def voted(self, group: int, levels: Sequence[int] | None, teaches: bool) -> None:
        """Report that the votes of a group were counted."""
        if levels is None:
            self._callback.votes_counted(group, "head", (), teaches)
            return
        self._callback.votes_counted(group, "person" if levels else "nobody", levels, teaches)
        if levels and not teaches:
            self._callback.warning(
                f"all images of prompt {group} were rated the same: nothing is learned from them. Mark "
                "which are better or worse"
            )


def _key_of(files: Sequence[bytes], place: str) -> str:
    """The key of a question about the images in these files, its sources last."""
    return hashlib.blake2b(b"".join(files) + place.encode(), digest_size=8).hexdigest()


def _pixels(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"), dtype=np.float64)
