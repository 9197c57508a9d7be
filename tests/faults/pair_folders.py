"""Output folders of the pair tool, small and finished, for cases that meddle with them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from PIL import Image

from modules.curation.commands import finalize
from modules.curation.store import STORE_NAME, CurationStore
from modules.util.dpo_curation_util import file_sha256
from modules.util.pairs.source_files import SourceImage

SIZE = (16, 16)
Json = dict[str, Any]


def write_images(folder: Path, count: int) -> list[Path]:
    """Images that differ."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number}.png" for number in range(count)]
    for number, file in enumerate(files):
        Image.new("RGB", SIZE, (20 * number % 256, 255 - 20 * number % 256, number)).save(file)
    return files


def make_pairs(base: Path, pairs: int = 3, finalised: bool = False, sources: int = 0) -> Path:
    """``base/out`` with pairs of images from ``base/in``, each with a prompt of its own; returns ``base/out``.

    Args:
        sources: each pair is an edit of this many images, its own ones.
    """
    files = write_images(base / "in", 2 * pairs + sources * pairs)
    given = [SourceImage(path, file_sha256(path)) for path in files[2 * pairs :]]
    with CurationStore(base / "out") as store:
        for number in range(pairs):
            pick = (files[2 * number], files[2 * number + 1])
            own = given[sources * number : sources * (number + 1)]
            store.export(f"g{number}", [pick], f"prompt {number}", "1:1", {"used": []}, sources=own)
    if finalised:
        finalize(base / "out", 0.0)
    return base / "out"


def entry(pair_id: str, chosen: str, rejected: str = "rejected/x.png") -> Json:
    """What the store and the manifest keep of a pair."""
    return {
        "pair_id": pair_id, "prompt": "p", "aspectratio": "1:1", "chosen_file": chosen, "rejected_file": rejected,
        "sources": {}, "hashes": {},
    }  # fmt: skip


def put_row(out: Path, table: str, pair_id: str, made: object) -> None:
    """Write a row into the store of a folder as a stranger would."""
    with sqlite3.connect(out / STORE_NAME) as db:
        text = made if isinstance(made, (str, bytes, int)) else json.dumps(made)
        if table == "pairs":
            db.execute("INSERT INTO pairs (pair_id, group_key, entry) VALUES (?, 'g', ?)", (pair_id, text))
        else:
            db.execute("INSERT INTO intents VALUES (?, ?)", (pair_id, text))
    db.close()


def change_manifest(out: Path, number: int, **values: Any) -> None:
    """Write other values into an entry of the manifest."""
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["pairs"][number].update(values)
    (out / "manifest.json").write_text(json.dumps(manifest))


def contents(out: Path) -> dict[str, bytes]:
    """Every file of a folder but the database and the lock, which are opened to look into them."""
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and not path.name.startswith((STORE_NAME, ".curation.lock"))
    }
