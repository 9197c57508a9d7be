"""The folder of images of the latest epochs, with prompt and reward, for review by a person.

The images themselves pass by: here are their places and texts, and the images that they edit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from modules.rollout.generate import RolloutRequest, RolloutSource
from modules.rollout.Rollouts import RolloutSettings
from modules.trainer.evaluate.image_files import save_image
from modules.trainer.online.judge import Judged
from modules.util.errors import UserError, refused_as
from modules.util.jsonio import write_json
from modules.util.owned_files import Owned, shown
from modules.util.pairs.source_files import source_stem

EPOCH = "epoch-"
INDEX = "images.json"
_OWN = re.compile(r"\d{4,}(-source(\.\d)?)?\.png|images\.json|\.tastemaker-[0-9a-f]+\.tmp")


@dataclass(frozen=True)
class Place:
    """Path that an image is written to, and the text that goes with it."""

    path: Path
    text: str


class ReviewFolder:
    """Keeps images of the latest epochs in a folder. An error costs images, never the run.

    Args:
        folder: parent of the epochs' folders.
        images: number of images kept per epoch; 0 keeps none.
        epochs: number of epochs kept.
    """

    def __init__(self, folder: Path, images: int, epochs: int) -> None:
        self._folder, self._images, self._epochs = folder, images, epochs
        self._told_of_old = False
        self._problems: list[str] = []

    @contextmanager
    def keeping(
        self, epoch: int, requests: Sequence[RolloutRequest], judged: Judged, settings: RolloutSettings
    ) -> Iterator[list[Place]]:
        """The block in which the first images of an epoch are written, each to its place. What they edit and a list of
        them are written too, and old epochs are removed afterwards.

        The text of an image holds prompt, seed, reward and advantage in the format that other programs read. What it
        edits is next to it, as the model saw it and under the name by which the pair tool finds it. There are no
        places where none are kept, or where the folder cannot be made ready. ``problems`` returns the failures.

        Args:
            requests: the requests of all images of the epoch.
            judged: the rewards and advantages of these images.
        """
        if not self._images:
            yield []
            return
        target, facts = self._folder / f"{EPOCH}{epoch}", None
        kept = requests[: self._images]
        with self._told(epoch, target):
            # an epoch that is repeated after a resume
            _remove(self._folder, target.name)
            facts = [_facts(number, one, judged) for number, one in enumerate(kept)]
        with self._told(epoch, target):
            if facts is None:
                yield []
            else:
                yield [
                    Place(target / str(fact["file"]), _text(one, fact, settings))
                    for one, fact in zip(kept, facts, strict=True)
                ]
                for number, (one, fact) in enumerate(zip(kept, facts, strict=True)):
                    if one.source is not None:
                        fact["sources"] = _keep_sources(target, f"{number:04d}", one.source)
                write_json(target / INDEX, {"epoch": epoch, "images": facts})
        self._forget_old(epoch)

    @contextmanager
    def _told(self, epoch: int, target: Path) -> Iterator[None]:
        """The block whose failure is a problem to tell."""
        try:
            with refused_as(
                f"the images of epoch {epoch} cannot be kept in {target}",
                field="rlhf_keep_images",
                hint="make room on the disk of the workspace, or keep none",
            ):
                yield
        except UserError as error:
            self._problems.append(str(error))

    def problems(self) -> list[str]:
        """Messages about failures since the last call."""
        found, self._problems = self._problems, []
        return found

    def _forget_old(self, epoch: int) -> None:
        try:
            forget_old(self._folder, self._epochs, epoch)
        except UserError as error:
            if not self._told_of_old:
                self._problems.append(str(error))
            self._told_of_old = True


def _facts(number: int, request: RolloutRequest, judged: Judged) -> dict[str, object]:
    """The entry of an image in the list of an epoch's images."""
    return {
        "file": f"{number:04d}.png",
        "id": request.id,
        "prompt": request.prompt,
        "group": request.group,
        "seed": request.seed,
        "reward": float(judged.reward_N[number]),
        "advantage": float(judged.adv_N[number]),
    }


def _text(request: RolloutRequest, facts: Mapping[str, object], settings: RolloutSettings) -> str:
    """The text of an image in the format that other programs read."""
    height, width = settings.size
    return "\n".join(
        [
            request.prompt,
            *([f"Negative prompt: {request.negative}"] if request.negative else []),
            f"Steps: {len(settings.plan)}, Sampler: {settings.plan.kind}, CFG scale: {settings.cfg:g}, "
            f"Seed: {request.seed}, Size: {width}x{height}, "
            f"Reward: {facts['reward']:.6g}, Advantage: {facts['advantage']:.6g}",
        ]
    )


def _keep_sources(target: Path, stem: str, source: RolloutSource) -> list[dict[str, str]]:
    """Write what an image edits, and return the name and file of each."""
    made = []
    for number, (pixels_CHW, name) in enumerate(zip(source.pixels, source.names, strict=True), start=1):
        file = f"{source_stem(f'{stem}-source', number)}.png"
        save_image(pixels_CHW.float() / 255, target / file, "")
        made.append({"name": name, "file": file})
    return made


def forget_old(folder: Path, keep: int, epoch: int | None = None) -> None:
    """Remove the folders of all but the last ``keep`` epochs.

    Args:
        epoch: the current one. Folders with a higher number were made by an earlier run, or before it was resumed from
            an earlier backup, so they are the oldest. ``None`` for the highest.

    Raises:
        UserError: some of them cannot be removed; the others are.
    """

    def age(path: Path) -> tuple[bool, int]:
        number = int(path.name.removeprefix(EPOCH))
        return epoch is None or number <= epoch, number

    found = [path for path in folder.glob(f"{EPOCH}*") if path.name.removeprefix(EPOCH).isdigit()]
    problems: list[str] = []
    for path in sorted(found, key=age)[:-keep]:
        try:
            _remove(folder, path.name)
        except OSError as error:
            problems.append(f"{error.filename or path}: {error.strerror or error}")
        except UserError as error:
            problems.append(error.message)
    if problems:
        raise UserError(
            f"images of old epochs cannot be removed: {problems[0]}",
            field="rlhf_keep_image_epochs",
            hint="the run continues and tries again; check the permissions, and whether another program uses these "
            "files",
        )


def _remove(folder: Path, epoch: str) -> None:
    """Remove the images of an epoch. If its folder holds other files, they and the folder stay."""
    owned, path = Owned(folder, local=True), folder / epoch
    if not path.is_dir():
        return
    if path.is_symlink():
        raise UserError(f"{shown(path)} is a link: it is left as it is", hint="remove it by hand")
    for name in sorted(found.name for found in path.iterdir()):
        if _OWN.fullmatch(name):
            owned.remove(f"{epoch}/{name}")
    if not any(path.iterdir()):
        owned.remove_tree(epoch)
