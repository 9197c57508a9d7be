"""Preference pairs of the public data sets in, and a folder other programs read out.

In: Pick-a-Pic (parquet with ``caption, jpg_0, jpg_1, label_0``; Kirstain et al. 2023, arXiv 2305.01569),
HPDv2 and HPDv3 JSON (Wu et al. 2023, arXiv 2306.09341), ImageRewardDB ranks (Xu et al. 2023, arXiv
2304.05977), and a plain JSONL of ``{"prompt", "chosen", "rejected"}``. Out: a folder that Hugging Face
``datasets`` loads as ``imagefolder`` with pairs in ``metadata.jsonl``.

Everything read is hostile: sizes are bounded, image names never leave the folder of their file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.util.dpo_curation_util import UNCONDITIONAL, copy_image, scan_finalized_pairs
from modules.util.errors import DataError, UserError
from modules.util.jsonio import parse_json, read_json, write_text

MAX_LINE_BYTES = 1 << 20
MAX_IMAGE_BYTES = 64 << 20
FORMATS = ("pick-a-pic", "hpd", "imagereward", "jsonl")


@dataclass(frozen=True)
class PublicPair:
    """One preference as a data set states it. Images are files, or bytes where the set holds them itself."""

    prompt: str
    chosen: Path | bytes
    rejected: Path | bytes


def _inside(root: Path, name: Any, where: str) -> Path:
    """The image ``name`` below ``root``; anything else is refused."""
    if not isinstance(name, str) or not name:
        raise DataError(f"{where}: {name!r} is not a file name")
    target = (root / name).resolve()
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
    """Which of ``FORMATS`` a file is, by its ending and first keys.

    Raises:
        UserError: none of them.
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
        f"{path} is not preference data this program knows", hint=f"formats: {', '.join(FORMATS)}"
    )


def read_pairs(path: str | os.PathLike[str], kind: str | None = None) -> Iterator[PublicPair]:
    """Pairs of a file one by one; ties and rows without a winner are left out.

    Args:
        kind: one of ``FORMATS``; found out when not given.

    Raises:
        DataError: a row that cannot be used, with its place. UserError: an unknown format.
    """
    source = Path(path)
    if not source.is_file():
        raise UserError(f"{source} does not exist")
    readers = {"pick-a-pic": _pick_a_pic, "hpd": _hpd, "imagereward": _image_reward, "jsonl": _jsonl}
    name = kind or detect_format(source)
    if name not in readers:
        raise UserError(f"unknown format {name!r}", hint=f"formats: {', '.join(FORMATS)}")
    return readers[name](source)


def _jsonl(path: Path) -> Iterator[PublicPair]:
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            where = f"{path}, line {number}"
            if len(line) > MAX_LINE_BYTES:
                raise DataError(f"{where} is longer than {MAX_LINE_BYTES} bytes")
            if not line.strip():
                continue
            row = parse_json(line, where)
            if not isinstance(row, dict):
                raise DataError(f"{where} is not an object")
            sides = [_inside(path.parent, row.get(side), where) for side in ("chosen", "rejected")]
            # An empty prompt is how ``export_jsonl_folder`` writes pairs that were asked for nothing in words.
            prompt = UNCONDITIONAL if row.get("prompt") == "" else _text(row.get("prompt"), where)
            yield PublicPair(prompt, sides[0], sides[1])


def _pick_a_pic(path: Path) -> Iterator[PublicPair]:
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    wanted = ["caption", "jpg_0", "jpg_1", "label_0"]
    try:
        file = parquet.ParquetFile(path)
        missing = [name for name in wanted if name not in file.schema_arrow.names]
        if missing:
            raise DataError(f"{path} has no column {', '.join(missing)}", hint="is it Pick-a-Pic?")
        number = 0
        for batch in file.iter_batches(batch_size=16, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                where = f"{path}, row {number}"
                if row["label_0"] not in (0, 1, 0.0, 1.0):
                    continue
                images = [row["jpg_0"], row["jpg_1"]]
                for image in images:
                    if not isinstance(image, bytes) or not 0 < len(image) <= MAX_IMAGE_BYTES:
                        raise DataError(
                            f"{where}: an image is missing or larger than {MAX_IMAGE_BYTES} bytes"
                        )
                chosen, rejected = images if row["label_0"] == 1 else reversed(images)
                yield PublicPair(_text(row["caption"], where), chosen, rejected)
    except (ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    data = read_json(path, "preference data")
    if not isinstance(data, list):
        raise DataError(f"{path} is not a list")
    for number, row in enumerate(data):
        if not isinstance(row, dict):
            raise DataError(f"{path}, entry {number} is not an object")
        yield f"{path}, entry {number}", row


def _hpd(path: Path) -> Iterator[PublicPair]:
    """HPDv2: ``prompt, image_path [n], human_preference [n of 0/1]`` or ``rank [n]`` (lower is better).
    HPDv3: ``prompt, path1, path2``, the first preferred.
    """
    root = _image_root(path)
    for where, row in _rows(path):
        prompt = _text(row.get("prompt"), where)
        if "path1" in row:
            yield PublicPair(
                prompt, _inside(root, row["path1"], where), _inside(root, row.get("path2"), where)
            )
            continue
        names = row.get("image_path")
        ranks = row.get("rank")
        if ranks is None:
            ranks = [-v if isinstance(v, (int, float)) else v for v in row.get("human_preference") or []]
        yield from _ranked(prompt, names, ranks, root, where)


def _image_reward(path: Path) -> Iterator[PublicPair]:
    """ImageRewardDB: ``prompt, generations [n], ranking [n]`` (1 is best)."""
    root = _image_root(path)
    for where, row in _rows(path):
        prompt = _text(row.get("prompt"), where)
        yield from _ranked(prompt, row.get("generations"), row.get("ranking"), root, where)


def _image_root(path: Path) -> Path:
    """The folder image names are relative to: ``images`` next to the file if there is one."""
    return path.parent / "images" if (path.parent / "images").is_dir() else path.parent


def _ranked(prompt: str, names: Any, ranks: Any, root: Path, where: str) -> Iterator[PublicPair]:
    """The best image with the worst one; nothing when all are equal."""
    valid = isinstance(names, list) and isinstance(ranks, list) and len(names) == len(ranks) >= 2
    if not valid or not all(isinstance(r, (int, float)) and not isinstance(r, bool) for r in ranks):
        raise DataError(f"{where}: images and ranks do not fit together")
    order = sorted(range(len(names)), key=lambda i: (ranks[i], i))
    if ranks[order[0]] != ranks[order[-1]]:
        yield PublicPair(
            prompt, _inside(root, names[order[0]], where), _inside(root, names[order[-1]], where)
        )


def export_datasets_folder(output_dir: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Write the finalised pairs as a folder ``datasets.load_dataset("imagefolder", ...)`` reads.

    Each split has ``metadata.jsonl`` with ``chosen_file_name, rejected_file_name, prompt, pair_id``; images
    are copied next to it.

    Returns:
        How many pairs were written.

    Raises:
        UserError: the target is not empty, or nothing is finalised. DataError: a pair has lost a side.
    """

    def row(names: dict[str, str], prompt: str, pair_id: str) -> dict[str, str]:
        sides = {f"{side}_file_name": name for side, name in names.items()}
        return {**sides, "prompt": prompt, "pair_id": pair_id}

    return _export_folder(output_dir, Path(target), {"train": "train", "val": "validation"}, "metadata", row)


def export_jsonl_folder(output_dir: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Write the finalised pairs as ``train.jsonl`` and ``val.jsonl`` of ``{"prompt", "chosen", "rejected"}``
    with the images in folders next to them; ``read_pairs`` reads it again.

    Returns:
        How many pairs were written.

    Raises:
        UserError: the target is not empty, or nothing is finalised. DataError: a pair has lost a side.
    """

    def row(names: dict[str, str], prompt: str, pair_id: str) -> dict[str, str]:
        return {"prompt": prompt, **names}

    return _export_folder(output_dir, Path(target), {"train": "", "val": ""}, "", row)


def _export_folder(
    output_dir: str | os.PathLike[str],
    target: Path,
    folders: dict[str, str],
    listing: str,
    row: Callable[[dict[str, str], str, str], dict[str, str]],
) -> int:
    """Copy the finalised pairs below ``target`` and write one list per split, the list last."""
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise UserError(f"{target} is not empty", hint="choose a new folder")
    pairs = scan_finalized_pairs(output_dir)
    if not pairs:
        raise UserError(f"there are no finalised pairs in {output_dir}", hint="finalise first")
    lines: dict[str, list[str]] = {"train": [], "val": []}
    for pair in pairs:
        if pair.chosen is None or pair.rejected is None:
            raise DataError(f"pair {pair.pair_id} has lost a side", hint="open the review window")
        folder = target / folders[pair.split]
        names = {}
        for side, image in (("chosen", pair.chosen), ("rejected", pair.rejected)):
            names[side] = f"{side}/{image.name}"
            copy_image(image, folder / names[side])
        made = row(names, pair.chosen_caption or "", pair.pair_id)
        lines[pair.split].append(json.dumps(made, ensure_ascii=False))
    for split, rows in lines.items():
        if rows:
            write_text(target / folders[split] / f"{listing or split}.jsonl", "\n".join(rows) + "\n")
    return len(pairs)
