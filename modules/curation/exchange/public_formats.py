"""Imports pairs from public preference data sets, and exports folders for other programs.

Input: Pick-a-Pic (parquet with ``caption, jpg_0, jpg_1, label_0``; Kirstain et al. 2023, arXiv 2305.01569),
HPDv2 and HPDv3 JSON (Wu et al. 2023, arXiv 2306.09341), ImageRewardDB ranks (Xu et al. 2023, arXiv
2304.05977), and a plain JSONL of ``{"prompt", "chosen", "rejected"}``. Output: a folder that Hugging Face
``datasets`` loads as ``imagefolder`` with pairs in ``metadata.jsonl``.

All input is untrusted: sizes are bounded, and image names never lead out of the folder of their file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.curation.exchange.parquet_child import parquet_rows
from modules.curation.exchange.parquet_rows import MAX_IMAGE_BYTES
from modules.util.dpo_curation_util import UNCONDITIONAL, FinalizedPair, copy_image, scan_finalized_pairs
from modules.util.errors import DataError, UserError, list_offenders
from modules.util.jsonio import parse_json, read_json, write_text
from modules.util.owned_files import Owned, fault_of_path, shown
from modules.util.pairs.dpo_pair_files import SOURCE_FOLDER
from modules.util.pairs.pair_sources import find_sources
from modules.util.pairs.source_files import MOST_SOURCES

MAX_LINE_BYTES = 1 << 20
FORMATS = ("pick-a-pic", "hpd", "imagereward", "jsonl")


@dataclass(frozen=True)
class PublicPair:
    """One preference of a data set. Images are files, or bytes if the data set embeds them.

    Args:
        sources: the images that both sides are edits of.
    """

    prompt: str
    chosen: Path | bytes
    rejected: Path | bytes
    sources: tuple[Path, ...] = ()


@dataclass(frozen=True)
class BadRow:
    """An unusable row: its location and its fault, in one sentence."""

    reason: str


def _inside(root: Path, name: Any, where: str) -> Path:
    """The image ``name`` below ``root``. Anything else is refused."""
    if not isinstance(name, str) or not name:
        raise DataError(f"{where}: {name!r} is not a file name")
    if fault := fault_of_path(name):
        raise DataError(f"{where}: the name {shown(name)!r} {fault}")
    try:
        target = (root / name).resolve()
    except (OSError, RuntimeError) as error:  # circular links
        raise DataError(f"{where}: {shown(name)!r} leads nowhere: {error}") from error
    if not target.is_relative_to(root.resolve()):
        raise DataError(f"{where}: {name!r} leaves the folder {root}")
    if not target.is_file():
        raise DataError(f"{where}: the image {target} does not exist")
    return target


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: there is no prompt")
    return " ".join(value.split())


def detect_format(path: Path) -> str:
    """Detect which of ``FORMATS`` a file has, by its extension and first keys.

    Raises:
        UserError: it has none of them.
    """
    if path.suffix == ".parquet":
        return "pick-a-pic"
    if path.suffix == ".jsonl":
        return "jsonl"
    if path.suffix == ".json":
        data = read_json(path, "preference data")
        first = data[0] if isinstance(data, list) and data else data
        if isinstance(first, dict) and "generations" in first:
            return "imagereward"
        if isinstance(first, dict) and ("image_path" in first or "path1" in first):
            return "hpd"
    raise UserError(
        f"{path} is not in a known format of preference data", hint=f"formats: {', '.join(FORMATS)}"
    )


class PublicFile:
    """The pairs of a file. Can be iterated repeatedly. Ties and rows without a winner are skipped.

    Args:
        kind: one of ``FORMATS``; detected if not given.

    Raises:
        UserError: the file does not exist or has an unknown format.
    """

    def __init__(self, path: str | os.PathLike[str], kind: str | None = None) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise UserError(f"{self.path} does not exist")
        self.kind = kind or detect_format(self.path)
        if self.kind not in FORMATS:
            raise UserError(f"unknown format {self.kind!r}", hint=f"formats: {', '.join(FORMATS)}")

    def __iter__(self) -> Iterator[PublicPair | BadRow]:
        """Yield pairs and unusable rows in file order.

        Raises:
            DataError: the file as a whole is unreadable.
        """
        rows, pair_of = _READERS[self.kind]
        root = self.path.parent if self.kind == "jsonl" else _image_root(self.path)
        for where, row in rows(self.path):
            try:
                pair = pair_of(row, root, where)
            except UserError as error:
                yield BadRow(error.message)
                continue
            if pair is not None:
                yield pair


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield lines that are not empty. A line that is too long is truncated just beyond the limit."""
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if line.strip():
                yield f"{path}, line {number}", line
            rest = line
            while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
                rest = stream.readline(MAX_LINE_BYTES + 1)


def _jsonl(line: bytes, root: Path, where: str) -> PublicPair:
    if len(line) > MAX_LINE_BYTES:
        raise DataError(f"{where} is longer than {MAX_LINE_BYTES} bytes")
    try:
        row = parse_json(line, "row")
    except UserError as error:
        raise DataError(f"{where}: {error.message}", hint=error.hint) from error
    if not isinstance(row, dict):
        raise DataError(f"{where} is not an object")
    chosen, rejected = (_inside(root, row.get(side), where) for side in ("chosen", "rejected"))
    # An empty prompt is how ``export_jsonl_folder`` writes pairs that were made without a prompt.
    prompt = UNCONDITIONAL if row.get("prompt") == "" else _text(row.get("prompt"), where)
    names = row.get("sources", [])
    if not isinstance(names, list) or len(names) > MOST_SOURCES:
        raise DataError(f'{where}: "sources" is not a list of up to {MOST_SOURCES} images')
    return PublicPair(prompt, chosen, rejected, tuple(_inside(root, name, where) for name in names))


def _pick_a_pic(row: dict[str, Any], root: Path, where: str) -> PublicPair | None:
    if "fault" in row:
        raise DataError(f"{where} cannot be read: {row['fault']}")
    label, images = row["label_0"], [row["jpg_0"], row["jpg_1"]]
    if label not in (0, 1, 0.0, 1.0):
        return None
    for image in images:
        if not image:
            raise DataError(f"{where}: an image is missing or larger than {MAX_IMAGE_BYTES} bytes")
    chosen, rejected = images if label == 1 else reversed(images)
    return PublicPair(_text(row["caption"], where), chosen, rejected)


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    data = read_json(path, "preference data")
    if not isinstance(data, list):
        raise DataError(f"{path} is not a list")
    for number, row in enumerate(data):
        yield f"{path}, entry {number}", row


def _hpd(row: Any, root: Path, where: str) -> PublicPair | None:
    """HPDv2: ``prompt, image_path [n], human_preference [n of 0/1]`` or ``rank [n]`` (lower is better).
    HPDv3: ``prompt, path1, path2``, the first preferred.
    """
    if not isinstance(row, dict):
        raise DataError(f"{where} is not an object")
    prompt = _text(row.get("prompt"), where)
    if "path1" in row:
        return PublicPair(prompt, _inside(root, row["path1"], where), _inside(root, row.get("path2"), where))
    ranks, liked = row.get("rank"), row.get("human_preference")
    if ranks is None and isinstance(liked, list):
        ranks = [-v if isinstance(v, (int, float)) and not isinstance(v, bool) else v for v in liked]
    return _ranked(prompt, row.get("image_path"), ranks, root, where)


def _image_reward(row: Any, root: Path, where: str) -> PublicPair | None:
    """ImageRewardDB: ``prompt, generations [n], ranking [n]`` (1 is best)."""
    if not isinstance(row, dict):
        raise DataError(f"{where} is not an object")
    prompt = _text(row.get("prompt"), where)
    return _ranked(prompt, row.get("generations"), row.get("ranking"), root, where)


def _image_root(path: Path) -> Path:
    """The folder that image names are relative to: ``images`` next to the file if it exists."""
    return path.parent / "images" if (path.parent / "images").is_dir() else path.parent


def _ranked(prompt: str, names: Any, ranks: Any, root: Path, where: str) -> PublicPair | None:
    """The best image with the worst one; ``None`` if all are equal."""
    valid = isinstance(names, list) and isinstance(ranks, list) and len(names) == len(ranks) >= 2
    if not valid or not all(_is_rank(rank) for rank in ranks):
        raise DataError(f"{where}: images and ranks do not fit together")
    order = sorted(range(len(names)), key=lambda i: (ranks[i], i))
    if ranks[order[0]] == ranks[order[-1]]:
        return None
    return PublicPair(prompt, _inside(root, names[order[0]], where), _inside(root, names[order[-1]], where))


def _is_rank(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


_Rows = Callable[[Path], Iterator[tuple[str, Any]]]
_READERS: dict[str, tuple[_Rows, Callable[[Any, Path, str], PublicPair | None]]] = {
    "pick-a-pic": (parquet_rows, _pick_a_pic),
    "hpd": (_json_rows, _hpd),
    "imagereward": (_json_rows, _image_reward),
    "jsonl": (_lines, _jsonl),
}


def export_datasets_folder(output_dir: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Write the finalised pairs as a folder ``datasets.load_dataset("imagefolder", ...)`` reads.

    Each split has ``metadata.jsonl`` with ``chosen_file_name, rejected_file_name, prompt, pair_id``, for
    edits also ``source_file_names``. Images are copied next to it.

    Returns:
        Number of written pairs.

    Raises:
        UserError: the target is not empty, or nothing is finalised. DataError: a pair has lost a side.
    """

    def row(names: dict[str, str], sources: list[str], prompt: str, pair_id: str) -> dict[str, Any]:
        sides = {f"{side}_file_name": name for side, name in names.items()}
        edits = {"source_file_names": sources} if sources else {}
        return {**sides, **edits, "prompt": prompt, "pair_id": pair_id}

    return _export_folder(output_dir, Path(target), {"train": "train", "val": "validation"}, "metadata", row)


def export_jsonl_folder(output_dir: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Write the finalised pairs as ``train.jsonl`` and ``val.jsonl`` of ``{"prompt", "chosen", "rejected"}``,
    for edits also ``"sources"``, with the images in folders next to them. ``PublicFile`` can read it.

    Returns:
        Number of written pairs.

    Raises:
        UserError: the target is not empty, or nothing is finalised. DataError: a pair has lost a side.
    """

    def row(names: dict[str, str], sources: list[str], prompt: str, pair_id: str) -> dict[str, Any]:
        return {"prompt": prompt, **names, **({"sources": sources} if sources else {})}

    return _export_folder(output_dir, Path(target), {"train": "", "val": ""}, "", row)


def _export_folder(
    output_dir: str | os.PathLike[str],
    target: Path,
    folders: dict[str, str],
    listing: str,
    row: Callable[[dict[str, str], list[str], str, str], dict[str, Any]],
) -> int:
    """Copy the finalised pairs to ``target`` and write one list per split; after a fault or a kill, nothing."""
    owned = Owned(target, local=True)
    if not owned.is_vacant():
        raise UserError(f"{target} is not empty", hint="choose a new folder")
    pairs = scan_finalized_pairs(output_dir)
    _check_pairs(output_dir, pairs, len(set(folders.values())) == 1)
    lines: dict[str, list[str]] = {"train": [], "val": []}
    lists = {split: f"{folders[split]}/{listing or split}.jsonl".removeprefix("/") for split in lines}
    with owned.filled_at_once(last=lists["val"].partition("/")[0]) as fresh:
        for pair in pairs:
            folder = fresh.root / folders[pair.split]
            names = {}
            for side, image in (("chosen", pair.chosen), ("rejected", pair.rejected)):
                assert image is not None  # checked above
                names[side] = f"{side}/{image.name}"
                copy_image(image, folder / names[side])
            sources = find_sources(Path(output_dir), pair.pair_id)
            for image in sources:
                copy_image(image, folder / SOURCE_FOLDER / image.name)
            places = [f"{SOURCE_FOLDER}/{image.name}" for image in sources]
            made = row(names, places, pair.chosen_caption or "", pair.pair_id)
            lines[pair.split].append(json.dumps(made, ensure_ascii=False))
        for split, rows in lines.items():
            if rows:
                write_text(fresh.root / lists[split], "\n".join(rows) + "\n")
    return len(pairs)


def _check_pairs(
    output_dir: str | os.PathLike[str], pairs: Sequence[FinalizedPair], together: bool
) -> None:
    """Raise ``UserError`` unless all pairs can be exported.

    Args:
        together: whether train and val are written to one folder.
    """
    if not pairs:
        raise UserError(f"there are no finalised pairs in {output_dir}", hint="finalise first")
    for pair in pairs:
        if pair.chosen is None or pair.rejected is None:
            raise DataError(f"pair {pair.pair_id} has lost a side", hint="open the review window")
    twice = {pair.pair_id for pair in pairs if pair.split == "train"} & {
        pair.pair_id for pair in pairs if pair.split == "val"
    }
    if together and twice:
        raise DataError(
            f"pairs are in train and in val:\n{list_offenders(sorted(twice))}",
            hint="remove one of the two files of each side, and finalise again",
        )
