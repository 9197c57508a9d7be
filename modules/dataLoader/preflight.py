"""Finds all faults of the data and the folders before any model is loaded.

All faults are listed at once. Nothing here needs torch, so that a window can check a run while it is being
set up.
"""

from __future__ import annotations

import collections
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.dataLoader.likes import liked_and_disliked, split_unequal_pairs
from modules.dataLoader.pairing import Pair
from modules.dataLoader.progress import LoadingCancelled, Progress, report
from modules.dataLoader.samplers import BucketBatchSampler
from modules.dataLoader.source import (
    FILE_INDEX,
    BucketTable,
    DataErrors,
    DataSource,
    UnitSet,
    asks_for_untrained_texts,
    check_crops,
    check_files,
    collect_source,
    epoch_faults,
    file_faults,
    leave_out_identical,
    reference_cache_faults,
)
from modules.dataLoader.sources import compare_with_results
from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.loss_masks.finding import CONDITION, mask_faults
from modules.util.device_names import listed
from modules.util.display import counted
from modules.util.enum.choices import StopUnit
from modules.util.errors import DataError, UserError, list_offenders
from modules.util.files.output_place import output_fault
from modules.util.pairs.dpo_pair_files import free_bytes

if TYPE_CHECKING:
    from modules.util.config.embedding.EmbeddingConfig import EmbeddingConfig
    from modules.util.config.section.ModelPartConfig import ModelPartConfig
    from modules.util.config.TrainConfig import TrainConfig

__all__ = ["ConceptSummary", "LoadingCancelled", "PreflightReport", "inspect_data", "preflight"]

# per pixel and per prompt: the needs of the smallest and the largest known families
_LATENT_BYTES = (0.25, 1.0)
_TEXT_BYTES = (240_000, 4_200_000)
# for an image shown to a text encoder: pixels per token, maximum pixels, bytes of a state in 16 and in 32
# bits
_SHOWN_PIXELS, _SHOWN_MOST = 28**2, 1024**2
_SHOWN_BYTES = (3584 * 2, 3584 * 4)
_OUTPUT_BYTES = 256 << 20


@dataclass(frozen=True)
class ConceptSummary:
    """One enabled concept.

    Args:
        used: whether this run uses it.
        images: number of usable images.
        empty_captions: images with an empty caption.
    """

    name: str
    kind: str
    path: str
    used: bool
    images: int
    empty_captions: int


@dataclass
class PreflightReport:
    """The data a run would train on, and its faults.

    Args:
        dpo: whether the units are pairs.
        units, validation_units: images or pairs.
        singles: number of units without a partner, in a run on pairs.
        buckets: number of units by "WIDTHxHEIGHT" at the first resolution, largest first.
        steps_per_epoch: optimizer steps of the first epoch.
        total_steps: of the whole run.
        cache_bytes: (minimum, maximum) growth of the cache; ``free_bytes`` is the free space on its disk.
        faults: what must be fixed.
        warnings: what is allowed but probably not intended.
    """

    dpo: bool = False
    concepts: list[ConceptSummary] = field(default_factory=list)
    units: int = 0
    singles: int = 0
    validation_units: int = 0
    buckets: dict[str, int] = field(default_factory=dict)
    steps_per_epoch: int = 0
    total_steps: int = 0
    cache_bytes: tuple[int, int] = (0, 0)
    free_bytes: int = 0
    faults: list[UserError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The summary as text."""
        what = "pair" if self.dpo else "image"
        made = [
            f"{concept.name} ({concept.kind}): {counted(concept.images, 'image')}"
            + (f", {concept.empty_captions} with an empty caption" if concept.empty_captions else "")
            + ("" if concept.used else ", not used")
            for concept in self.concepts
        ]
        alone = f" and {counted(self.singles, 'single image')}" if self.singles else ""
        units = self.units - self.singles
        made.append(f"{counted(units, what)}{alone} to train on, {self.validation_units} to validate on")
        if self.buckets:
            made.append("buckets: " + ", ".join(f"{name}: {count}" for name, count in self.buckets.items()))
        made.append(f"{counted(self.steps_per_epoch, 'step')} in an epoch, {self.total_steps} in the run")
        low, high = (_readable(size) for size in self.cache_bytes)
        made.append(f"cache: {low} to {high} more needed, {_readable(self.free_bytes)} free")
        return made + [f"warning: {warning}" for warning in self.warnings]


def preflight(
    config: TrainConfig, progress: Progress | None = None, *, world_size: int = 1
) -> PreflightReport:
    """Check a run's data and folders. Every image is decoded; results are stored by content for later runs.

    Args:
        progress: called with the progress; may cancel.
        world_size: processes of the run, for the number of steps.

    Raises:
        DataErrors: all faults together (it is a ``UserErrors``).
        LoadingCancelled: ``progress`` cancelled it.
    """
    result = inspect_data(config, progress, world_size=world_size)
    if result.faults:
        raise DataErrors(result.faults)
    return result


def inspect_data(
    config: TrainConfig, progress: Progress | None = None, *, world_size: int = 1
) -> PreflightReport:
    """As ``preflight``, but faults are reported instead of raised."""
    result = PreflightReport()
    result.faults += _folder_faults(config)
    report(progress, "looking through the concepts", 0, 1)
    try:
        concepts = config.load_concepts()
    except UserError as error:
        result.faults.append(error)
        return result
    source = collect_source(config, concepts)
    result.dpo = source.dpo
    result.faults += source.faults
    if source.dpo and config.rlhf_dpo_reference_cache:
        result.faults += reference_cache_faults(source.rules)
    result.warnings += source.warnings
    result.warnings += _texts_never_kept(config, source)
    files = FileIndex(Path(config.cache_dir) / FILE_INDEX)
    threads = max(1, int(config.dataloader_threads))

    def check(path: str) -> None:
        files.size(path)
        files.check_decodes(path)

    bad = check_files(source, check, threads, progress, "checking images")
    if Path(config.cache_dir).is_dir():
        files.flush()
    result.faults += file_faults(bad)
    if config.takes_single_images:
        _check_likes(source, files, result)
    result.faults += check_crops(source, files, bad)
    result.faults += mask_faults(source.masks, files, bad, decode=True)
    result.faults += mask_faults(source.conditions, files, bad, decode=True, noun=CONDITION)
    if source.dpo:
        _check_sides_differ(source, files, bad, result)
    for units in (source.train, source.validation):
        faults, warnings = compare_with_results([] if units is None else units.entries, files, bad)
        result.faults += faults
        result.warnings += warnings
    _summarise(config, source, files, bad, result, world_size)
    return result


def _check_sides_differ(
    source: DataSource, files: FileIndex, bad: dict[str, DataError], result: PreflightReport
) -> None:
    same_bytes, same_file = leave_out_identical(source, files, bad)
    if same_file:
        result.faults.append(
            DataError(
                f"chosen and rejected are one and the same file in {counted(len(same_file), 'pair')}:\n"
                f"{list_offenders(same_file)}",
                hint="check the folders of the concepts",
            )
        )
    if same_bytes:
        result.warnings.append(
            f"{counted(len(same_bytes), 'pair')} left out, because both sides are the same "
            f"image:\n{list_offenders(same_bytes)}"
        )
        if not source.train.entries:
            result.faults.append(
                DataError("every pair has the same image on both sides", field="concepts", hint="add others")
            )
        elif source.validation is not None and not source.validation.entries:
            result.faults.append(
                DataError(
                    f"nothing is left to validate on: both sides of every validation pair are the same image:\n"
                    f"{list_offenders(same_bytes)}",
                    field="rlhf_dpo_validation",
                    hint="remove these pairs, or switch validation off",
                )
            )


def _check_likes(source: DataSource, files: FileIndex, result: PreflightReport) -> None:
    split_unequal_pairs(source, files)
    both = liked_and_disliked(source, files)
    if both:
        result.warnings.append(
            f"{counted(len(both), 'image is', 'images are')} both liked and disliked; keep each on one side only:\n"
            f"{list_offenders(both)}"
        )


# -- folders and disks -------------------------------------------------------------------------------------


def check_folders(config: TrainConfig) -> None:
    """Check the folders that a run without concepts writes to. It has no cache.

    Raises:
        DataErrors: all faults together.
    """
    faults = [fault for fault in _folder_faults(config) if fault.field != "cache_dir"]
    if faults:
        raise DataErrors(faults)


def _folder_faults(config: TrainConfig) -> list[UserError]:
    wanted = {
        "cache_dir": Path(config.cache_dir),
        "workspace_dir": Path(config.workspace_dir),
        "output_model_destination": Path(config.output_model_destination).parent,
    }
    faults: list[UserError] = []
    for name, folder in wanted.items():
        reason = _unwritable(folder)
        if reason:
            faults.append(DataError(f"{folder} {reason}", field=name, hint="choose another folder"))
        elif name != "cache_dir" and free_bytes(folder) < _OUTPUT_BYTES:
            faults.append(
                DataError(
                    f"only {_readable(free_bytes(folder))} are free on the disk of {folder}",
                    field=name,
                    hint=f"make room: results and backups need {_readable(_OUTPUT_BYTES)} and more",
                )
            )
    fault = output_fault(config)
    return faults if fault is None else [*faults, fault]


def _unwritable(folder: Path) -> str:
    """Return the reason why files cannot be created in a folder that may not exist yet; empty if they can."""
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        if existing.is_symlink():
            return f"cannot be made: {existing} is a link, and what it leads to is missing"
        existing = existing.parent
    if not existing.is_dir():
        return "is not a folder" if existing == folder.absolute() else f"is below {existing}, a file"
    try:
        with tempfile.TemporaryFile(dir=existing):
            return ""
    except OSError as error:
        return f"cannot be written ({error.strerror})"


def _cache_need(
    config: TrainConfig, sizes: Sequence[tuple[int, int]], texts: tuple[int, int]
) -> tuple[int, int]:
    """Minimum and maximum growth of the cache in bytes; 0 if it is off.

    Args:
        sizes: (height, width) of the images.
        texts: minimum and maximum bytes of the prompts.
    """
    if not config.latent_caching:
        return 0, 0
    pixels = sum(height * width for height, width in sizes)
    there = sum(
        path.stat().st_size
        for part in ("latents", "texts")
        for path in Path(config.cache_dir, part).glob("*")
    )
    low, high = (int(pixels * latent) + text for latent, text in zip(_LATENT_BYTES, texts, strict=True))
    return max(0, low - there), max(0, high - there)


def _text_need(
    config: TrainConfig, source: DataSource, files: FileIndex, bad: dict[str, DataError]
) -> tuple[int, int]:
    """Minimum and maximum bytes of all prompts in the cache."""
    trained = _trained_texts(config)
    if trained and (
        asks_for_untrained_texts(config, source.rules)
        or any(one.stop_training_after_unit is StopUnit.NEVER for one in trained.values())
    ):
        return 0, 0
    spec = config.model_type.spec
    if spec.sees_sources:
        entries = _shown_entries(config, source, files, bad)
        shown = sum(
            len(sources)
            * int(spec.shown_area or spec.shown_side**2 * min(_SHOWN_MOST, height * width))
            // _SHOWN_PIXELS
            for sources, _, (height, width), _ in entries
        )
        low, high = shown * _SHOWN_BYTES[0], (shown + len(entries) * spec.prompt_length) * _SHOWN_BYTES[1]
        if not spec.keeps_shown:
            low, high = (len(entries) * size for size in _TEXT_BYTES)
    else:
        low, high = (len(_prompts(source)) * size for size in _TEXT_BYTES)
    # the run may end before their training does
    return 0 if trained else low, high


def _trained_texts(config: TrainConfig) -> dict[str, ModelPartConfig | EmbeddingConfig]:
    """Return the parts that change during training and affect the encoding of prompts, by field."""
    encoders = [part for part in config.trained_parts() if part in config.model_type.text_encoders]
    words = config.places_of_embeddings() if config.trains_words() else {}
    return {
        **{part: getattr(config, part) for part in encoders},
        **{place: one for place, one in words.items() if one.train and not one.is_output_embedding},
    }


def _texts_never_kept(config: TrainConfig, source: DataSource) -> list[str]:
    """A warning if the training of a text encoder or an embedding ends early, which usually makes the rest of
    the run faster, but does not here.
    """
    trained = _trained_texts(config)
    ends = {place: one.stop_training_after_unit is not StopUnit.NEVER for place, one in trained.items()}
    if not (any(ends.values()) and config.latent_caching):
        return []
    if not all(ends.values()):
        why = f"{next(place for place, end in ends.items() if not end)} is trained to the end of the run"
    elif asks_for_untrained_texts(config, source.rules):
        why = f"{_needs_untrained(config)} also needs the text encoders as they were before training"
    else:
        return []
    stops = next(place for place, end in ends.items() if end)
    return [f"prompts are encoded at every step, even after {stops}.stop_training_after: {why}"]


def _needs_untrained(config: TrainConfig) -> str:
    """Name the features that need prompts as before training, until the end of the run."""
    if config.rlhf_enabled:
        return "the reference"
    return "masked prior preservation" if config.masked_prior_preservation_weight > 0 else "prior images"


def _shown_entries(
    config: TrainConfig, source: DataSource, files: FileIndex, bad: dict[str, DataError]
) -> set[tuple[tuple[str, ...], str, tuple[int, int], str]]:
    """(sources, prompt, size of the result, its transform) of each entry of a text encoder that sees images."""
    drops = not source.dpo and config.text_encoder.dropout_probability > 0
    made = set()
    for item in source.items():
        if any(path in bad for path in item.paths):
            continue
        rules, size = source.rules[item.concept], files.size(item.path)
        shown = bool(item.sources)
        for visit in range(math.lcm(rules.variations, rules.prompt_count(item.prompts))):
            variation = visit % rules.variations
            crop = rules.crop(size, item.id, variation)
            prompt = rules.prompt(item.prompts, item.id, visit, cached=True)
            # without augmentation, all variations of one size are the same
            done = rules.transform(crop, item.id, variation, cached=True).text()
            # without images, the transform of the result has no effect
            rest = (crop, done) if shown else ((0, 0), "")
            made |= {(item.sources, text, *rest) for text in ([prompt, ""] if drops else [prompt])}
    return made


def _prompts(source: DataSource) -> set[str]:
    return {prompt for item in source.items() for prompt in item.prompts}


def _readable(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


# -- summary -----------------------------------------------------------------------------------------------


def _summarise(
    config: TrainConfig,
    source: DataSource,
    files: FileIndex,
    bad: dict[str, DataError],
    result: PreflightReport,
    world_size: int,
) -> None:
    for concept, rules, found in zip(source.concepts, source.rules, source.found, strict=False):
        images = [] if found is None else [item for item in found.items if item.path not in bad]
        empty = 0 if found is None else found.empty_captions
        result.concepts.append(
            ConceptSummary(rules.name, rules.kind, concept.path, found is not None, len(images), empty)
        )
    train = _readable_units(source.train, bad)
    validation = None if source.validation is None else _readable_units(source.validation, bad)
    result.units, result.validation_units = len(train), 0 if validation is None else len(validation)
    result.singles = sum(isinstance(entry, Pair) and bool(entry.only) for entry in train.entries)
    table = BucketTable.of(train, files)
    counts: collections.Counter[str] = collections.Counter()
    for group in table.groups:
        counts.update(f"{table.sizes[n][1]}x{table.sizes[n][0]}" for n in group.buckets[:, 0].tolist())
    result.buckets = dict(counts.most_common())
    too_many = epoch_faults(table)
    result.faults += too_many
    if too_many:
        return
    # torchrun may be started with more processes than there are items: some then have none
    if len(listed(config.train_device)) > 1 and 0 < len(train) < world_size:
        result.faults.append(_too_few(len(train), source.dpo, world_size))
    accumulation = config.gradient_accumulation_steps
    sampler = BucketBatchSampler(table.groups, config.batch_size * world_size, accumulation, config.seed)
    result.steps_per_epoch = sampler.steps_in_epoch(0)
    result.total_steps = config.max_steps or sampler.steps_in_epochs(config.epochs)
    if len(train) and sampler.idle:
        result.faults.append(
            DataError("the balancing of every concept is 0", field="concepts", hint="raise it")
        )
    _check_disk(config, source, files, bad, result)


def _too_few(units: int, pairs: bool, world_size: int) -> DataError:
    found, verb = counted(units, "pair" if pairs else "image"), "is" if units == 1 else "are"
    return DataError(
        f"{world_size} devices share each batch, but there {verb} only {found} to train on",
        field="train_device",
        hint="list fewer devices, or add data",
    )


def _readable_units(units: UnitSet, bad: dict[str, DataError]) -> UnitSet:
    def fine(entry: Any) -> bool:
        items = entry.items if isinstance(entry, Pair) else (entry,)
        return not any(path in bad for item in items for path in item.paths)

    return units.only(fine)


def _check_disk(
    config: TrainConfig,
    source: DataSource,
    files: FileIndex,
    bad: dict[str, DataError],
    result: PreflightReport,
) -> None:
    sizes = [
        # a source has about the size of its result
        source.rules[item.concept].crop(files.size(item.path), item.id, visit)
        for item in source.items()
        for path in item.paths
        if item.path not in bad and path not in bad
        for visit in range(source.rules[item.concept].variations)
    ]
    result.cache_bytes = _cache_need(config, sizes, _text_need(config, source, files, bad))
    result.free_bytes = free_bytes(config.cache_dir)
    low, high = result.cache_bytes
    if result.free_bytes < low:
        result.faults.append(
            DataError(
                f"the cache needs at least {_readable(low)}, its disk has {_readable(result.free_bytes)}",
                field="cache_dir",
                hint="make room or choose a folder on another disk",
            )
        )
    elif result.free_bytes < high:
        result.warnings.append(
            f"the cache may need up to {_readable(high)} and its disk has {_readable(result.free_bytes)} left"
        )
