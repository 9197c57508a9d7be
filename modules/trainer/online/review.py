"""Stores images of an epoch in the run's folder, with prompt and reward, for review by a person."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from modules.rollout.generate import RolloutSource
from modules.trainer.evaluate.image_files import save_image
from modules.trainer.online.batch import OnlineBatch
from modules.util.errors import UserError, refused_as
from modules.util.jsonio import write_json
from modules.util.owned_files import Owned, shown
from modules.util.pairs.source_files import source_stem

EPOCH = "epoch-"
INDEX = "images.json"
_OWN = re.compile(r"\d{4,}(-source(\.\d)?)?\.png|images\.json|\.tastemaker-[0-9a-f]+\.tmp")


class ReviewFolder:
    """Stores images of the latest epochs in a folder. An error costs images, never the run.

    Args:
        folder: parent of the epochs' folders.
        images: number of images kept per epoch; 0 keeps none.
        epochs: number of epochs kept.
    """

    def __init__(self, folder: Path, images: int, epochs: int) -> None:
        self._folder, self._images, self._epochs = folder, images, epochs
        self._told_of_old = False

    def keep(
        self,
        epoch: int,
        rgb_NCHW: torch.Tensor,
        batch: OnlineBatch,
        edited: Sequence[RolloutSource | None],
    ) -> list[str]:
        """Write the first images of an epoch, with what they edit, and remove old epochs. Returns what failed."""
        if not self._images:
            return []
        problems = []
        try:
            keep_images(self._folder, epoch, rgb_NCHW, batch, edited[: self._images])
        except UserError as error:
            problems.append(str(error))
        try:
            forget_old(self._folder, self._epochs, epoch)
        except UserError as error:
            if not self._told_of_old:
                problems.append(str(error))
            self._told_of_old = True
        return problems


def keep_images(
    folder: Path,
    epoch: int,
    rgb_NCHW: torch.Tensor,
    batch: OnlineBatch,
    edited: Sequence[RolloutSource | None],
) -> Path:
    """Write the first images as ``epoch-N/*.png`` and a list of them. Returns the epoch's folder.

    The PNG metadata holds prompt, seed, reward and advantage in the format that other programs read. What an image
    edits is next to it, as the model saw it and under the name by which the pair tool finds it.

    Args:
        edited: of each image to write, what it edits.

    Raises:
        UserError: the disk is full or not writable.
    """
    target, rollouts = folder / f"{EPOCH}{epoch}", batch.rollouts
    settings = rollouts.settings
    entries = []
    with refused_as(
        f"the images of epoch {epoch} cannot be kept in {target}",
        field="rlhf_keep_images",
        hint="make room on the disk of the workspace, or keep none",
    ):
        # an epoch that is repeated after a resume
        _remove(folder, target.name)
        for number, source in enumerate(edited):
            name = f"{number:04d}.png"
            reward, advantage = float(batch.reward_B[number]), float(batch.adv_B[number])
            facts: dict[str, object] = {
                "file": name,
                "id": rollouts.ids[number],
                "prompt": rollouts.prompts[number],
                "group": int(rollouts.group_N[number]),
                "seed": rollouts.seeds[number],
                "reward": reward,
                "advantage": advantage,
            }
            text = "\n".join(
                [
                    rollouts.prompts[number],
                    *([f"Negative prompt: {n}"] if (n := rollouts.negatives[number]) else []),
                    f"Steps: {len(settings.plan)}, Sampler: {settings.plan.kind}, CFG scale: {settings.cfg:g}, "
                    f"Seed: {rollouts.seeds[number]}, Size: {settings.size[1]}x{settings.size[0]}, "
                    f"Reward: {reward:.6g}, Advantage: {advantage:.6g}",
                ]
            )
            save_image(rgb_NCHW[number], target / name, text)
            if source is not None:
                facts["sources"] = _keep_sources(target, f"{number:04d}", source)
            entries.append(facts)
        write_json(target / INDEX, {"epoch": epoch, "images": entries})
    return target


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
