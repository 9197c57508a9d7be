"""The images and pairs of a run, and all their faults. Needs no torch and no model."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modules.dataLoader.pairing import Matched, Pair, crop_faults, match_pairs, name_faults, split_by_prompt
from modules.dataLoader.progress import Progress, in_threads, report, reported
from modules.dataLoader.samplers import UnitGroup
from modules.dataLoader.sources import attach_sources, with_chosen_sources
from modules.dataLoader.unit_masks import collect_conditions, collect_masks
from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.loss_masks.finding import FoundMask
from modules.pipeline.nodes.collect import Found, collect_items
from modules.pipeline.nodes.prompts import special_tags
from modules.pipeline.nodes.sources import source_size
from modules.pipeline.Rules import Rules
from modules.util.display import counted
from modules.util.enum.choices import DPOConfidence
from modules.util.errors import ConfigError, DataError, UserError, UserErrors, list_offenders
from modules.util.pairs.confidence import read_confidence

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig

FILE_INDEX = "files.sqlite"


class DataErrors(UserErrors, DataError):
    """Several faults in the data, reported together."""


def raise_faults(faults: Sequence[UserError]) -> None:
    """Raise a single fault as it is, several as one ``DataErrors``. Without faults, do nothing."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise DataErrors(faults)


@dataclass
class UnitSet:
    """The images or pairs of one purpose, concept by concept.

    Args:
        entries: items, or pairs when ``dpo``.
        groups: (rules, number of entries) in order; for pairs, the rules of the chosen side.
        dpo: whether the entries are pairs.
    """

    entries: list[Any] = field(default_factory=list)
    groups: list[tuple[Rules, int]] = field(default_factory=list)
    dpo: bool = False

    def add(self, rules: Rules, entries: Sequence[Any]) -> None:
        self.entries.extend(entries)
        self.groups.append((rules, len(entries)))

    def parts(self) -> Iterator[tuple[Rules, list[Any]]]:
        """Yield the rules and the entries of each group."""
        start = 0
        for rules, count in self.groups:
            yield rules, self.entries[start : start + count]
            start += count

    def only(self, wanted: Callable[[Any], bool]) -> UnitSet:
        """The entries that are ``wanted``, in their groups."""
        made = UnitSet(dpo=self.dpo)
        for rules, entries in self.parts():
            made.add(rules, [entry for entry in entries if wanted(entry)])
        return made

    def keep(self, wanted: Callable[[Any], bool]) -> None:
        """Remove the entries that are not ``wanted``."""
        made = self.only(wanted)
        self.entries, self.groups = made.entries, made.groups

    def __len__(self) -> int:
        return len(self.entries)

    def items(self) -> list[Item]:
        """All images, including all images of pairs."""
        if self.dpo:
            return [item for pair in self.entries for item in pair.items]
        return list(self.entries)


@dataclass
class DataSource:
    """The data that a run trains and validates on.

    Args:
        concepts: enabled concepts as configured; the items' concept index points here.
        rules: rules of each of ``concepts``.
        train, validation: the units used; ``validation`` is ``None`` if it is off.
        faults: everything that must be fixed before training.
        warnings: what is allowed but probably not intended.
        found: content of each concept's folder; ``None`` for concepts this run does not use.
        masks: masks by item id, in masked training.
        conditions: by item id, the pictures shown to an inpainting model instead of the masked images.
    """

    concepts: list[Any]
    rules: list[Rules]
    train: UnitSet
    validation: UnitSet | None
    faults: list[UserError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    found: list[Found | None] = field(default_factory=list)
    masks: dict[str, FoundMask] = field(default_factory=dict)
    conditions: dict[str, FoundMask] = field(default_factory=dict)

    @property
    def dpo(self) -> bool:
        return self.train.dpo

    def items(self) -> list[Item]:
        return self.train.items() + (self.validation.items() if self.validation is not None else [])


def kind_of(concept: Any) -> str:
    return str(getattr(concept.type, "value", concept.type))


def pair_concepts(concepts: Sequence[Any], validation: bool = False) -> list[tuple[Any, Any]]:
    """Pair the enabled chosen and rejected concepts in list order.

    Raises:
        DataError: one side is missing, or the counts differ. Nothing at all on either side gives ``[]``.
    """
    ending = "_VAL" if validation else ""
    names = (f"DPO_CHOSEN{ending}", f"DPO_REJECTED{ending}")
    chosen, rejected = ([c for c in concepts if c.enabled and kind_of(c) == name] for name in names)
    for own, other, name, other_name in ((chosen, rejected, *names), (rejected, chosen, *reversed(names))):
        if own and not other:
            raise DataError(
                f"there are {len(own)} enabled concepts of type {name} but none of type {other_name}",
                field="concepts",
                hint=f"add the {other_name} concept with the other side of the pairs",
            )
    if len(chosen) != len(rejected):
        raise DataError(
            f"there are {len(chosen)} enabled concepts of type {names[0]} and {len(rejected)} of type "
            f"{names[1]}",
            field="concepts",
            hint="every chosen concept needs its rejected concept, in the same order",
        )
    return list(zip(chosen, rejected, strict=True))


def concept_tags(concepts: Sequence[Any]) -> list[str]:
    """A unique name for each concept: its own, or its folder's, with a number if it is taken."""
    tags: list[str] = []
    for concept in concepts:
        base = concept.name.strip() or Path(concept.path).name or "concept"
        tag, number = base, 2
        while tag in tags:
            tag, number = f"{base}#{number}", number + 1
        tags.append(tag)
    return tags


def collect_source(config: TrainConfig, concepts: Sequence[Any], multiple: int = 8) -> DataSource:
    """Read the concepts' folders and assemble items and pairs. Faults are collected, not raised.

    Args:
        concepts: the run's concepts.
        multiple: number of pixels that sides must be a multiple of.
    """
    enabled = [concept for concept in concepts if concept.enabled]
    dpo = config.trains_pairs
    source = DataSource(enabled, [], UnitSet(dpo=dpo), None)
    for concept, tag in zip(enabled, concept_tags(enabled), strict=True):
        try:
            rules = Rules.of(
                concept,
                tag,
                config.resolution,
                config.aspect_ratio_bucketing,
                multiple,
                config.source_resolution,
            )
            if rules.text is not None and rules.text.tag_dropout_enable:
                special_tags(rules.text)
        except UserError as error:
            source.faults.append(error)
            return source
        source.rules.append(rules)
    source.found = [None] * len(enabled)
    (_collect_pairs if dpo else _collect_images)(config, source)
    held_back = [] if source.validation is None else source.validation.entries
    source.faults += name_faults(source.train.entries + held_back)
    found = collect_masks(config, source.train.entries + held_back, source.concepts)
    shown = collect_conditions(config, source.items())
    source.masks, source.conditions = found.masks, shown.masks
    source.faults += found.faults + shown.faults
    source.warnings += found.warnings + shown.warnings
    return source


def _find(config: TrainConfig, source: DataSource, index: int, sources: bool = True) -> list[Item]:
    """The items of a concept, read once. Its faults are added to those of the source.

    Args:
        sources: whether to attach source images; the rejected side uses those of the chosen side.
    """
    found = source.found[index]
    if found is None:
        rules = source.rules[index]
        found = collect_items(source.concepts[index], index, rules.name, joined=rules.is_dpo)
        if rules.is_dpo:
            _check_one_prompt_each(found, rules.name)
        if sources:
            attach_sources(config, source.concepts[index], source.rules[index].name, found)
        source.found[index] = found
        source.faults.extend(found.faults)
        source.warnings.extend(found.warnings)
    return found.items


def _check_one_prompt_each(found: Found, name: str) -> None:
    """Add a fault if a pair would have alternatives: it has the single prompt its images were made from."""
    several = next((len(item.prompts) for item in found.items if len(item.prompts) > 1), 0)
    if several:
        found.faults.append(
            DataError(
                f"concept {name!r} has {several} prompts in its prompt file, but a pair has one",
                hint="leave one line in the file, or put a caption file next to each image",
            )
        )


def leave_out_identical(
    source: DataSource, files: FileIndex, ignore: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Remove pairs whose sides are the same image, because they teach nothing.

    Args:
        ignore: paths of images already reported as faults.

    Returns:
        The removed pairs, and pairs whose sides are the very same file, which stay because they are faults.
    """
    same_bytes: list[str] = []
    same_file: list[str] = []

    def differs(pair: Pair) -> bool:
        ours, theirs = pair.chosen.path, pair.rejected.path
        if pair.only or ours in ignore or theirs in ignore:
            return True
        try:
            same = files.same_content(ours, theirs)
        except DataError:
            return True  # reported with the other unreadable files
        # asked only of these, because to follow the links of a path takes longer than to compare two sizes
        if same and os.path.realpath(ours) == os.path.realpath(theirs):
            same_file.append(pair.id)
            return True
        if same:
            same_bytes.append(pair.id)
        return not same

    for units in (source.train, source.validation):
        if units is not None and units.dpo:
            units.keep(differs)
    return same_bytes, same_file


def _of_kind(source: DataSource, *kinds: str) -> list[int]:
    return [index for index, rules in enumerate(source.rules) if rules.kind in kinds]


def _note_unused(source: DataSource, used: set[int], why: str) -> None:
    unused = [rules.name for index, rules in enumerate(source.rules) if index not in used]
    if unused:
        source.warnings.append(
            f"{counted(len(unused), 'concept is', 'concepts are')} not used, {why}: {', '.join(unused[:20])}"
        )


def _collect_images(config: TrainConfig, source: DataSource) -> None:
    train = [
        i
        for i in _of_kind(source, "STANDARD", "PRIOR_PREDICTION")
        if source.rules[i].rate > 0 and source.rules[i].samples != 0
    ]
    validation = _of_kind(source, "VALIDATION") if config.validation else []
    if not train:
        source.faults.append(
            DataError("there is no enabled concept of type STANDARD", field="concepts", hint="add one")
        )
    for index in train:
        source.train.add(source.rules[index], _find(config, source, index))
    if config.validation:
        source.validation = UnitSet()
        if not validation:
            source.faults.append(
                DataError(
                    "validation is on, but there is no enabled concept of type VALIDATION",
                    field="validation",
                    hint="add one or switch validation off",
                )
            )
        for index in validation:
            source.validation.add(source.rules[index], _find(config, source, index))
        _note_trained_images(source)
    _note_unused(source, {*train, *validation}, "this run trains on single images")


def _collect_pairs(config: TrainConfig, source: DataSource) -> None:
    used: set[int] = set()
    for validation in [False, True] if config.rlhf_dpo_validation else [False]:
        try:
            zipped = pair_concepts(source.concepts, validation)
        except DataError as error:
            source.faults.append(error)
            continue
        if not validation and not zipped:
            source.faults.append(
                DataError(
                    "there are no enabled concepts of types DPO_CHOSEN and DPO_REJECTED",
                    field="concepts",
                    hint="add both sides of the pairs; other concepts are not used instead",
                )
            )
        if validation:
            source.validation = UnitSet(dpo=True)
        for chosen, rejected in zipped:
            units = source.validation if validation else source.train
            assert units is not None
            used |= _add_pairs(config, source, units, chosen, rejected)
        if validation and not zipped:
            _hold_back(config, source)
    _note_unused(source, used, "this run trains on pairs" + _without_validation(config))
    _note_leaks(source)
    if config.rlhf_dpo_confidence is not DPOConfidence.OFF:
        _check_certainties(source)


def _idle_settings(
    config: TrainConfig, chosen: Any, rejected: Any, names: tuple[str, str]
) -> list[str]:
    """Warnings about numbers of two concepts that the loss of their pairs does not use."""
    made = []
    for concept, name, used in (
        (chosen, names[0], config.rlhf_supervised_mix > 0),
        (rejected, names[1], False),
    ):
        if not used and concept.loss_weight != 1:
            made.append(
                f"loss_weight {concept.loss_weight:g} of concept {name!r} has no effect: pairs are not weighted"
            )
    own, other = ((one.balancing, one.balancing_strategy) for one in (rejected, chosen))
    if not config.takes_single_images and rejected.balancing != 1 and own != other:
        made.append(
            f"balancing {rejected.balancing:g} of concept {names[1]!r} has no effect: the balancing of the chosen "
            f"concept, {chosen.balancing:g}, applies to both sides of the pairs"
        )
    return made


def _without_validation(config: TrainConfig) -> str:
    return "" if config.rlhf_dpo_validation else " without validation"


def _add_pairs(
    config: TrainConfig, source: DataSource, units: UnitSet, chosen: Any, rejected: Any
) -> set[int]:
    # by identity, because two concepts may be equal
    left = next(i for i, c in enumerate(source.concepts) if c is chosen)
    right = next(i for i, c in enumerate(source.concepts) if c is rejected)
    ours, theirs = _find(config, source, left), _find(config, source, right, sources=False)
    names = (source.rules[left].name, source.rules[right].name)
    if units is not source.validation:
        source.warnings += _idle_settings(config, chosen, rejected, names)
    if rejected.source_path not in ("", chosen.source_path):
        source.faults.append(
            DataError(
                f"concept {names[1]!r} has other source images than {names[0]!r}, but both must edit the same ones",
                field="concepts",
                hint="set source_path only on the chosen concept",
            )
        )
    # an empty folder is already a fault; so is every image without a usable caption
    if ours and theirs:
        broken = {key for i in (left, right) if (found := source.found[i]) for key in found.broken}
        alone = config.takes_single_images and units is not source.validation and not chosen.source_path
        made = match_pairs(ours, theirs, *names, ignore=broken, singles=alone)
        source.faults.extend(made.faults)
    else:
        made = Matched([], [], [], [])
    known = {} if units is source.validation else _known_certainties(config, source, chosen)
    units.add(source.rules[left], [_with_certainty(with_chosen_sources(pair), known) for pair in made.pairs])
    for index, singles in ((left, made.likes), (right, made.dislikes)):
        if singles:
            units.add(source.rules[index], singles)
    return {left, right}


def _known_certainties(config: TrainConfig, source: DataSource, chosen: Any) -> dict[str, float]:
    if config.rlhf_dpo_confidence is DPOConfidence.OFF:
        return {}
    try:
        return read_confidence(Path(chosen.path))
    except UserError as error:
        source.faults.append(error)
        return {}


def _with_certainty(pair: Pair, known: Mapping[str, float]) -> Pair:
    return replace(pair, certainty=known.get(pair.chosen.key)) if known else pair


def certainties(source: DataSource) -> dict[str, float | None]:
    """The person's certainty about the training pairs, by pair id; empty if that does not count."""
    return {unit.id: unit.certainty for unit in source.train.entries if isinstance(unit, Pair)}


def class_counts(source: DataSource) -> tuple[float, float, float]:
    """Average numbers of pairs and single images, liked images, and disliked images trained on per epoch."""
    units = likes = dislikes = Fraction(0)
    for rules, entries in source.train.parts():
        sides = [pair.sides for pair in entries]
        if entries:
            rate = rules.visits_of(len(entries))
            units += rate * len(entries)
            likes += rate * sum(liked for liked, _ in sides)
            dislikes += rate * sum(disliked for _, disliked in sides)
    return float(units), float(likes), float(dislikes)


def _check_certainties(source: DataSource) -> None:
    found = certainties(source)
    if found and not any(one is not None for one in found.values()) and not source.faults:
        source.faults.append(
            DataError(
                f"none of {counted(len(found), 'pair')} says how certain its ranking was",
                "rlhf_dpo_confidence",
                "pick in SMART, ELO or FOUR_UP and finalise the pairs (again), or set it to OFF",
            )
        )


def _hold_back(config: TrainConfig, source: DataSource) -> None:
    """Move the validation pairs out of the training pairs."""
    everything = source.train
    if not everything.entries:
        source.validation = UnitSet(dpo=True)
        return
    alone = [pair.id for pair in everything.entries if pair.only]
    if alone:
        source.faults.append(
            DataError(
                f"validation is measured on pairs, but {counted(len(alone), 'image has', 'images have')} no partner:\n"
                f"{list_offenders(alone)}",
                field="rlhf_dpo_validation",
                hint="add pairs as concepts of types DPO_CHOSEN_VAL and DPO_REJECTED_VAL, or switch validation off",
            )
        )
        return
    try:
        _, held = split_by_prompt(
            everything.entries, float(config.rlhf_dpo_validation_percentage), int(config.seed)
        )
    except DataError as error:
        source.faults.append(error)
        return
    names = {pair.id for pair in held}
    source.train = everything.only(lambda pair: pair.id not in names)
    source.validation = everything.only(lambda pair: pair.id in names)


def _note_leaks(source: DataSource) -> None:
    if source.validation is None:
        return
    trained = {prompt for pair in source.train.entries for prompt in pair.chosen.prompts}
    leaks = sorted({p for pair in source.validation.entries for p in pair.chosen.prompts if p in trained})
    if leaks:
        source.warnings.append(
            f"{counted(len(leaks), 'prompt')} of the validation pairs {'is' if len(leaks) == 1 else 'are'} trained on "
            f"too, so validation will look better than it is:\n{list_offenders(leaks)}"
        )


def _note_trained_images(source: DataSource) -> None:
    held_back = [] if source.validation is None else source.validation.entries
    trained = {os.path.normpath(item.path) for item in source.train.entries}
    leaks = [item.id for item in held_back if os.path.normpath(item.path) in trained]
    if leaks:
        source.warnings.append(
            f"{counted(len(leaks), 'validation image')} {'is' if len(leaks) == 1 else 'are'} trained on too, so "
            f"validation will look better than it is:\n{list_offenders(leaks)}"
        )


def reference_cache_faults(rules: Sequence[Rules]) -> list[UserError]:
    """Return the reasons why reference scores of these pairs cannot be cached: a pair must look the same on
    every visit.
    """
    if not any(len(rule.resolutions) > 1 for rule in rules if rule.is_dpo):
        return []
    hint = "name one, or switch the cache off"
    return [ConfigError("needs one resolution for each pair", "rlhf_dpo_reference_cache", hint)]


def asks_for_untrained_texts(config: TrainConfig, rules: Sequence[Rules]) -> bool:
    """Return whether steps need the output of the untrained text encoders until the end.

    A reference, and the untouched model as a target, read prompts with their own weights.
    """
    by_config = config.rlhf_enabled or config.masked_prior_preservation_weight > 0
    return by_config or any(rule.is_prior for rule in rules)


# -- sizes ---------------------------------------------------------------------------------------------------


def check_files(
    source: DataSource,
    check: Callable[[str], object],
    threads: int,
    progress: Progress | None = None,
    what: str = "reading image headers",
) -> dict[str, DataError]:
    """Call ``check`` for every image. Returns what it raised, by path."""
    paths = list(dict.fromkeys(path for item in source.items() for path in item.paths))

    def one(path: str) -> tuple[str, DataError | None]:
        try:
            check(path)
        except DataError as error:
            return path, error
        return path, None

    report(progress, what, 0, len(paths))
    ahead = 64 * max(1, threads)
    checked = reported(in_threads(one, paths, threads, ahead, TOGETHER), progress, what, len(paths))
    return {path: fault for path, fault in checked if fault is not None}


def file_faults(bad: Mapping[str, DataError]) -> list[UserError]:
    """The findings of ``check_files`` as a single fault."""
    if not bad:
        return []
    listed = list_offenders([fault.message for fault in bad.values()])
    hint = "repair, replace or remove them"
    return [DataError(f"{counted(len(bad), 'image')} cannot be used:\n{listed}", hint=hint)]


def crops_of(
    pair: Pair, source: DataSource, files: FileIndex
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """(height, width) of the chosen and the rejected side after cropping, for each resolution of the pair.

    Raises:
        DataError: an image is unreadable.
    """
    sides = [(source.rules[item.concept], files.size(item.path)) for item in (pair.chosen, pair.rejected)]
    walk = max(len(rules.resolutions) for rules, _ in sides)
    made = [[rules.crop(size, pair.id, visit) for visit in range(walk)] for rules, size in sides]
    return list(zip(made[0], made[1], strict=True))


def check_crops(source: DataSource, files: FileIndex, ignore: Collection[str] = ()) -> list[UserError]:
    """Pairs whose sides would have different sizes.

    Args:
        ignore: paths of images already reported as faults.
    """

    def crops(pair: Pair) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        return [] if any(item.path in ignore for item in pair.items) else crops_of(pair, source, files)

    faults: list[UserError] = []
    for units in (source.train, source.validation):
        if units is not None and units.dpo:
            faults.extend(crop_faults(units.entries, crops))
    return faults


TOGETHER = 16
"""Number of files that a thread checks per call."""
MAX_EPOCH_ITEMS = 10_000_000


def epoch_faults(table: BucketTable) -> list[UserError]:
    """Return the reasons why an epoch cannot be planned: it would take weeks and exceed the memory."""
    largest = max(table.groups, key=lambda group: group.rate * len(group), default=None)
    items = int(sum(group.rate * len(group) for group in table.groups))
    if largest is None or items <= MAX_EPOCH_ITEMS:
        return []
    return [
        DataError(
            f"an epoch would have {items:,} items, more than {MAX_EPOCH_ITEMS:,}; most of them come from concept "
            f"{largest.name!r}, with {float(largest.rate):,.6g} repeats of {len(largest):,}",
            field="concepts",
            hint="lower its balancing, and train more epochs instead",
        )
    ]


@dataclass
class BucketTable:
    """The units of a set in the form the sampler needs.

    Args:
        groups: one group per concept (pair of concepts).
        sizes: (height, width) by bucket number.
    """

    groups: list[UnitGroup]
    sizes: list[tuple[int, int]]

    @staticmethod
    def of(units: UnitSet, files: FileIndex, *, once: bool = False) -> BucketTable:
        """Buckets of every unit at every resolution.

        Args:
            once: use every unit once per epoch, ignoring the concepts' balancing.
        """
        numbers: dict[tuple[tuple[int, int], ...], int] = {}
        groups: list[UnitGroup] = []
        for rules, entries in units.parts():
            walk = len(rules.resolutions)
            table = np.zeros((len(entries), walk), dtype=np.int64)
            for row, entry in enumerate(entries):
                item = entry.chosen if units.dpo else entry
                size = files.size(item.path)
                for visit in range(walk):
                    crop = rules.crop(size, entry.id, visit)
                    # the sources in a batch have one size too
                    shapes = [
                        source_size(files.size(path), size, crop, rules.multiple, rules.source_resolution)
                        for path in item.sources
                    ]
                    table[row, visit] = numbers.setdefault((crop, *shapes), len(numbers))
            if entries:
                rate = Fraction(1) if once else rules.visits_of(len(entries))
                groups.append(UnitGroup(table, rate, rules.name))
        return BucketTable(groups, [shapes[0] for shapes in numbers])
