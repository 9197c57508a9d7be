"""The pair tool without a window: one function per command, each returning plain values for JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from modules.curation.exchange.favourites import LIKE, Favourites
from modules.curation.exchange.importing import ImportCount, import_pairs
from modules.curation.exchange.public_formats import PublicFile, export_datasets_folder, export_jsonl_folder
from modules.curation.group_state import SessionSettings
from modules.curation.GroupsAhead import SearchStatus, search_folder
from modules.curation.GroupWalk import GroupWalk
from modules.curation.intake.duplicates import FingerprintDistance
from modules.curation.intake.edit_sources import EditOptions
from modules.curation.intake.folders import check_folders
from modules.curation.intake.groups import ScanOptions
from modules.curation.intake.image_size import image_size
from modules.curation.intake.scan_report import ScanCount, scan_rows, write_rows
from modules.curation.marking.Marks import Marks
from modules.curation.PairServer import PairServer
from modules.curation.review.review import PairReview, pairs_per_bucket
from modules.curation.review.review_fixes import fix_faults
from modules.curation.session import CurationSession
from modules.curation.statistics import answer_statistics, score_agreement, valid_answers
from modules.curation.store import CurationStore, existing_store
from modules.util.bucket import bucket_of
from modules.util.display import counted
from modules.util.dpo_curation_util import (
    CONCEPTS_NAME,
    SIDES,
    FinalizedPair,
    check_dpo_pairs,
    dpo_pair_key,
    finalize_export,
    load_manifest,
    unconditional_pairs,
    unconditional_warning,
)
from modules.util.errors import DataError, UserError, list_offenders
from modules.util.jsonio import read_json, write_json
from modules.util.pairs.dpo_pair_files import image_files
from modules.util.pairs.pair_sources import check_sources

Progress = Callable[[str], None]
Json = dict[str, Any]


def scan(
    source: Path, stream: IO[str], recursive: bool, stealth: bool, edits: EditOptions, progress: Progress
) -> ScanCount:
    """Write the metadata of every image in a folder as a JSON list."""
    edits.check()
    return write_rows(scan_rows(source, recursive, stealth, edits), stream, progress)


def serve_pairs(
    source: Path,
    output_dir: Path,
    settings: SessionSettings,
    options: ScanOptions,
    requests: IO[bytes],
    replies: IO[str],
    progress: Progress,
) -> None:
    """Pick pairs over two streams of lines; see ``PairServer``."""
    check_folders(source, output_dir)
    options.edits.check()

    def news(status: SearchStatus) -> None:
        progress(f"{status.faults} files left out")

    with CurationStore(output_dir) as store:
        session = CurationSession(store, settings, FingerprintDistance())
        finished = session.finished_groups()
        with search_folder(source, output_dir, options, finished, news) as ahead:
            PairServer(GroupWalk(session, ahead), requests, replies, ahead.faults).serve()


def finalize(output_dir: Path, val_percentage: float) -> Json:
    """Split all pairs into train and val and write ``concepts.json``."""
    with existing_store(output_dir) as store:
        manifest = store.manifest()
        train, val = finalize_export(output_dir, manifest, val_percentage)
        store.sync_from_manifest(manifest)
        Marks(store.events()).write(output_dir)
    count = unconditional_pairs(manifest)
    warning = unconditional_warning(count)
    return {
        "train": train,
        "val": val,
        "concepts": str(output_dir / CONCEPTS_NAME),
        "unconditional": count,
        "warnings": [] if warning is None else [warning],
    }


def import_file(source: Path, output_dir: Path, kind: str | None, progress: Progress) -> Json:
    """Import public preference data into the folder, as if it had been picked there."""
    pairs = PublicFile(source, kind)
    with CurationStore(output_dir) as store:
        count = import_pairs(store, pairs, str(source), lambda done: progress(f"{done} pairs"))
        return {**asdict(count), "pairs": store.pair_count(), "warnings": _import_warnings(count)}


def import_marks(
    source: Path, output_dir: Path, favourites: Path | None, likes: Path | None, progress: Progress
) -> Json:
    """Import stars, ratings and favourites of a folder of images into the output folder, as pairs.

    Args:
        favourites: folder with copies of liked images.
        likes: file in which every like and dislike is listed as JSON.
    """
    check_folders(source, output_dir)
    found = Favourites(source, output_dir, favourites)
    with CurationStore(output_dir) as store:
        count = import_pairs(store, found, str(source), lambda done: progress(f"{done} pairs"))
        pairs = store.pair_count()
    if likes is not None:
        write_json(likes, [asdict(one) for one in found.marks])
    liked = sum(one.mark == LIKE for one in found.marks)
    return {
        **asdict(count),
        "pairs": pairs,
        "likes": liked,
        "dislikes": len(found.marks) - liked,
        "without_prompt": found.without_prompt,
        "warnings": _import_warnings(count),
    }


def _import_warnings(count: ImportCount) -> list[str]:
    made = []
    if count.contradictory:
        made.append(
            f"{counted(count.contradictory, 'pair')} left out: the same two images also occur the other way round"
        )
    if count.identical:
        made.append(f"{counted(count.identical, 'pair')} left out: both sides are the same image")
    if count.left_out:
        rows = counted(count.left_out, "row")
        made.append(f"{rows} left out:\n{list_offenders(count.faults)}")
    return made


def export_folder(output_dir: Path, target: Path, kind: str) -> Json:
    """Copy the finalised pairs to a folder in a format of other programs."""
    writer = {"datasets": export_datasets_folder, "jsonl": export_jsonl_folder}[kind]
    with existing_store(output_dir):
        return {"pairs": writer(output_dir, target), "format": kind, "target": str(target)}


def likes(output_dir: Path) -> Json:
    """Every image liked or disliked in a session, with its prompt."""
    with existing_store(output_dir) as store:
        marks = Marks(store.events())
    counts = {"likes": marks.count(True), "dislikes": marks.count(False), "seen": marks.judged}
    return {**counts, "marks": marks.listed()}


def statistics(output_dir: Path, scores_file: Path | None = None) -> Json:
    """Counts of a session, the consistency of its answers, and their agreement with scores of a reward model.

    Args:
        scores_file: JSON object of scores by file name relative to the source folder; higher is better.
    """
    scores = None if scores_file is None else _read_scores(scores_file)
    with existing_store(output_dir) as store:
        events = store.events()
        return {
            "pairs": store.pair_count(),
            "groups_finished": len(store.groups_with("done")),
            "groups_seen": len({event.group_key for event in events}),
            "events": dict(Counter(event.kind for event in events)),
            "undone": len(store.events(undone=True)),
            "answers": asdict(answer_statistics(events)),
            "scores": None if scores is None else asdict(score_agreement(valid_answers(events), scores)),
        }


def _read_scores(path: Path) -> dict[str, float]:
    scores = read_json(path, "score file")
    if not isinstance(scores, dict):
        raise UserError(f"{path} is not a score file", hint='it must be {"image.png": 0.7, ...}')
    for name, value in scores.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise UserError(f"{path}: the score of {name!r} is not a number: {value!r}")
    return scores


def check(chosen: Path, rejected: Path, resolution: int, batch_size: int) -> Json:
    """Compare two folders pair by pair, and count the pairs per aspect bucket."""
    found = check_dpo_pairs(chosen, rejected)
    result: Json = {"ok": found.ok, **{k: v for k, v in asdict(found).items() if k != "matched"}}
    pairs, mixed = _buckets(chosen, rejected, found.matched, resolution)
    counts = pairs_per_bucket(pairs, resolution, batch_size, image_size)
    result["pairs"] = len(found.matched)
    result["different_buckets"] = mixed
    result["buckets"] = [
        {"width": w, "height": h, "pairs": n, "missing_to_full_batch": missing}
        for (h, w), (n, missing) in counts.items()
    ]
    result["ok"] = found.ok and not mixed
    return result


def check_edits(output_dir: Path) -> Json:
    """Faults of the sources of the pairs in an output folder; empty if they are not edits."""
    found = check_sources(output_dir, load_manifest(output_dir)["pairs"])
    return {} if found is None else {"ok": found.ok, **asdict(found)}


def _buckets(
    chosen: Path, rejected: Path, keys: Sequence[str], resolution: int
) -> tuple[list[FinalizedPair], list[str]]:
    """The pairs with readable sizes, and those whose sides have different shapes."""
    files = [
        {dpo_pair_key(path, folder): path for path in image_files(folder.rglob("*"))} for folder in (chosen, rejected)
    ]
    pairs, mixed = [], []
    for key in keys:
        try:
            buckets = {bucket_of(*image_size(side[key]), resolution) for side in files}
        except DataError:
            continue  # already listed as unreadable
        if len(buckets) > 1:
            mixed.append(key)
        pairs.append(FinalizedPair(key, "", files[0][key], files[1][key], None, None))
    return pairs, mixed


@dataclass(frozen=True)
class ReviewOrder:
    """Changes to the pairs of a folder, in this order.

    Args:
        undo: undo this many steps, including those of earlier calls and of the window.
        remove: pairs to remove (they stay in the trash folder until it is emptied).
        swap: pairs whose sides are to be swapped.
        captions: (pair, new caption).
        fix: fix every fault that has an automatic fix.
        empty_trash: delete removed pairs for good.
    """

    undo: int = 0
    remove: Sequence[str] = ()
    swap: Sequence[str] = ()
    captions: Sequence[tuple[str, str]] = ()
    fix: bool = False
    empty_trash: bool = False


def review(output_dir: Path, resolution: int, order: ReviewOrder) -> Json:
    """Apply ``order``, then list the pairs and their faults.

    Raises:
        UserError: there are no pairs, there is nothing to undo, or a named pair does not exist (then only the
            undo has been done).
    """
    with existing_store(output_dir):
        walk = PairReview(output_dir)
        undone = _undo(walk, order.undo)
        known = walk.names()
        if not known and not undone and not order.empty_trash:
            raise UserError(f"there are no pairs in {output_dir}", hint="pick or import some first")
        named = [*order.remove, *order.swap, *(pair_id for pair_id, _ in order.captions)]
        unknown = [pair_id for pair_id in dict.fromkeys(named) if pair_id not in known]
        if unknown:
            raise UserError(f"these pairs are not in {output_dir}:\n{list_offenders(unknown)}")
        for pair_id in order.swap:
            walk.swap(pair_id)
        for pair_id, caption in order.captions:
            walk.edit_caption(pair_id, caption)
        for pair_id in dict.fromkeys(order.remove):
            walk.remove(pair_id)
        fixed = fix_faults(walk, walk.faults(resolution, image_size)) if order.fix else []
        emptied = walk.empty_trash() if order.empty_trash else None
        return {
            "pairs": [_pair_row(pair, output_dir) for pair in walk.pairs()],
            "faults": [asdict(fault) for fault in walk.faults(resolution, image_size)],
            "fixed": [asdict(fault) for fault in fixed],
            "undone": undone,
            "emptied": None if emptied is None else {"pairs": emptied.pairs, "bytes": emptied.size},
            "trash": {"pairs": walk.trash().pairs, "bytes": walk.trash().size},
        }


def _undo(walk: PairReview, steps: int) -> list[str | None]:
    """Undo steps and return their pairs."""
    undone: list[str | None] = []
    while len(undone) < steps and walk.undo():
        undone.append(walk.undone)
    if steps and not undone:
        raise UserError(f"there is nothing to undo in {walk.output_dir}")
    return undone


def _pair_row(pair: FinalizedPair, output_dir: Path) -> Json:
    files = {
        side: None if image is None else image.relative_to(output_dir).as_posix()
        for side, image in zip(SIDES, (pair.chosen, pair.rejected), strict=True)
    }
    return {"pair_id": pair.pair_id, "split": pair.split, **files, "caption": pair.chosen_caption}
