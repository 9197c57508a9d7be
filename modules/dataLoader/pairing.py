"""Matches chosen and rejected images. Nothing is guessed: anything that does not match is an error, unless
single images are wanted too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from modules.pipeline.Item import Item
from modules.util.display import counted
from modules.util.errors import DataError, list_offenders
from modules.util.rng import digest64


@dataclass(frozen=True, slots=True)
class Pair:
    """Two images of one prompt, the first preferred; or a single image, which is then on both sides.

    Args:
        certainty: probability that the first one really is better, if a ranking gives it.
        only: the side of a single image.
    """

    id: str
    chosen: Item
    rejected: Item
    certainty: float | None = None
    only: Literal["", "chosen", "rejected"] = ""

    @property
    def sides(self) -> tuple[bool, bool]:
        """True if there is a chosen and a rejected image."""
        return self.only != "rejected", self.only != "chosen"

    @property
    def items(self) -> tuple[Item, ...]:
        """Its images."""
        return (self.chosen,) if self.only else (self.chosen, self.rejected)


@dataclass(frozen=True)
class Matched:
    """The result of matching the images of two concepts, sorted by key."""

    pairs: list[Pair]
    likes: list[Pair]
    dislikes: list[Pair]
    faults: list[DataError]


def match_pairs(
    chosen: Sequence[Item],
    rejected: Sequence[Item],
    chosen_name: str,
    rejected_name: str,
    ignore: Collection[str] = (),
    singles: bool = False,
) -> Matched:
    """Match the images of two concepts by their path below the concept folder, without extension.

    Args:
        chosen_name, rejected_name: names of the concepts, for messages; the first is part of the pairs' ids.
        ignore: keys already reported as faults.
        singles: whether images without a partner are likes and dislikes, as are two of the same name with
            different captions.

    Returns:
        The pairs, and every fault: images without a partner, two files of the same stem, different captions,
            and captions of several lines, of which the sides would use different ones.
    """
    faults: list[DataError] = []
    left = _by_key([item for item in chosen if item.key not in ignore], chosen_name, faults)
    right = _by_key([item for item in rejected if item.key not in ignore], rejected_name, faults)
    keys = sorted(left.keys() & right.keys())
    if singles:
        keys = [key for key in keys if left[key].prompts == right[key].prompts]
        likes = _singles(left, keys, chosen_name, "chosen")
        dislikes = _singles(right, keys, rejected_name, "rejected")
    else:
        likes, dislikes = [], []
        faults += _partner_faults(left, right, chosen_name, rejected_name)
    # the key alone is not a valid id, because two pairs of concepts may use the same file names
    pairs = [Pair(f"{chosen_name}/{key}", left[key], right[key]) for key in keys]
    faults += _caption_faults(pairs, chosen_name, rejected_name)
    return Matched(pairs, likes, dislikes, faults)


def _singles(
    known: dict[str, Item], paired: Collection[str], name: str, side: Literal["chosen", "rejected"]
) -> list[Pair]:
    alone = sorted(known.keys() - set(paired))
    return [Pair(f"{name}/{key}", known[key], known[key], only=side) for key in alone]


def _partner_faults(
    left: dict[str, Item], right: dict[str, Item], chosen_name: str, rejected_name: str
) -> list[DataError]:
    faults: list[DataError] = []
    for own, other, name, other_name in (
        (left, right, chosen_name, rejected_name),
        (right, left, rejected_name, chosen_name),
    ):
        alone = [own[key].id for key in sorted(own.keys() - other.keys())]
        if alone:
            faults.append(
                DataError(
                    f"{counted(len(alone), 'image')} of concept {name!r} {'has' if len(alone) == 1 else 'have'} no "
                    f"partner of the same name in {other_name!r}:\n{list_offenders(alone)}",
                    hint="add the missing images or remove these, or set rlhf_dpo_objective to KTO, which learns from "
                    "single images too",
                )
            )
    return faults


def _by_key(items: Sequence[Item], name: str, faults: list[DataError]) -> dict[str, Item]:
    known: dict[str, Item] = {}
    doubled: list[str] = []
    for item in items:
        if item.key in known:
            doubled.append(f"{known[item.key].id} and {item.id}")
        known.setdefault(item.key, item)
    if doubled:
        faults.append(
            DataError(
                f"concept {name!r} has files that differ only in their extension:\n{list_offenders(doubled)}",
                hint="pairs are matched by name without extension; keep one of them",
            )
        )
    return known


def _caption_faults(pairs: Sequence[Pair], chosen_name: str, rejected_name: str) -> list[DataError]:
    differing, lines = [], []
    for pair in pairs:
        ours, theirs = pair.chosen.prompts, pair.rejected.prompts
        if ours == theirs:
            continue
        if len(ours) == len(theirs) == 1:
            differing.append(f"{pair.id}: {_short(ours[0])} / {_short(theirs[0])}")
        else:
            lines.append(f"{pair.id}: {len(ours)} lines / {len(theirs)} lines")
    faults = []
    between = f"between {chosen_name!r} and {rejected_name!r}"
    if differing:
        faults.append(
            DataError(
                f"the prompts of {counted(len(differing), 'pair')} differ {between}:\n{list_offenders(differing)}",
                hint="both images of a pair need the same caption",
            )
        )
    if lines:
        faults.append(
            DataError(
                f"the captions of {counted(len(lines), 'pair')} have several lines that differ {between}, so the two "
                f"sides could get different prompts:\n{list_offenders(lines)}",
                hint="give both images the same caption file, or one line each",
            )
        )
    return faults


def _short(prompt: str, limit: int = 60) -> str:
    return repr(prompt if len(prompt) <= limit else prompt[: limit - 3] + "...")


def name_faults(units: Sequence[Pair | Item]) -> list[DataError]:
    """Images or pairs of different concepts that would have one id, so that one would get the mask or the reference
    scores of the other. The same file in two concepts is not a fault.
    """
    known: dict[str, str] = {}
    doubled = []
    for unit in units:
        path = unit.chosen.path if isinstance(unit, Pair) else unit.path
        first = known.setdefault(unit.id, path)
        if first != path and os.path.realpath(first) != os.path.realpath(path):
            doubled.append(f"{unit.id}: {first} and {path}")
    if not doubled:
        return []
    what = counted(len(doubled), "name belongs", "names belong")
    return [
        DataError(
            f"{what} to two images, because a concept is named like a subfolder of another one:\n"
            f"{list_offenders(doubled)}",
            field="concepts",
            hint="rename one of the two concepts",
        )
    ]


def crop_faults(
    pairs: Sequence[Pair], crops: Callable[[Pair], Sequence[tuple[tuple[int, int], tuple[int, int]]]]
) -> list[DataError]:
    """Pairs whose sides would be cropped to different sizes.

    Args:
        crops: the (height, width) of the chosen and the rejected side, for each resolution of the pair.
    """
    offenders = []
    for pair in pairs:
        for (h, w), (other_h, other_w) in crops(pair):
            if (h, w) != (other_h, other_w):
                offenders.append(f"{pair.id}: {w}x{h} / {other_w}x{other_h}")
                break
    if not offenders:
        return []
    return [
        DataError(
            f"the crop resolutions of {counted(len(offenders), 'pair')} differ between chosen and rejected:\n"
            f"{list_offenders(offenders)}",
            hint="both images of a pair need the same shape; crop them alike, or remove the pair",
        )
    ]


def split_by_prompt(pairs: Sequence[Pair], percentage: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Split pairs into train and validation so that no prompt is on both sides.

    Pairs that share any alternative of their captions stay together. The groups held back depend only on the
    seed and the prompts. With two groups or more, at least one is held back and one remains. In the order of the seed,
    groups are held back as long as at least half of the next one is missing. A group larger than the percentage is
    skipped if it does not fit, or would leave less than half of the pairs; if nothing fits, the smallest group is held
    back. So at most one and a half times the percentage is held back, or half of the pairs.

    Raises:
        DataError: all pairs share one prompt.
    """
    groups = _prompt_groups(pairs)
    if len(groups) < 2:
        raise DataError(
            "validation needs pairs of at least two prompts, to hold one of them back",
            field="rlhf_dpo_validation_percentage",
            hint="add pairs of other prompts, add DPO_CHOSEN_VAL and DPO_REJECTED_VAL concepts, or switch "
            "validation off",
        )
    target = len(pairs) * percentage / 100
    order = sorted(groups, key=lambda name: (digest64("validation-split", seed, name), name))
    held: set[int] = set()
    for name in order:
        size = len(groups[name])
        most = len(pairs) / 2 if size > target else len(pairs) - 1
        if len(held) + size / 2 <= target and len(held) + size <= most:
            held.update(groups[name])
        elif size <= target:
            break
    held = held or set(groups[min(order, key=lambda name: len(groups[name]))])
    train = [pair for index, pair in enumerate(pairs) if index not in held]
    return train, [pair for index, pair in enumerate(pairs) if index in held]


def _prompt_groups(pairs: Sequence[Pair]) -> dict[str, list[int]]:
    """Indices of pairs that share a prompt, directly or through others, by their smallest prompt."""
    parent: dict[str, str] = {}

    def root(prompt: str) -> str:
        while parent.setdefault(prompt, prompt) != prompt:
            parent[prompt] = parent[parent[prompt]]
            prompt = parent[prompt]
        return prompt

    for pair in pairs:
        roots = sorted({root(prompt) for prompt in pair.chosen.prompts})
        for other in roots:
            parent[other] = roots[0]
    groups: dict[str, list[int]] = {}
    for index, pair in enumerate(pairs):
        groups.setdefault(root(pair.chosen.prompts[0]), []).append(index)
    return groups
