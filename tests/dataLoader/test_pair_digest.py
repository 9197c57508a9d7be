"""The hash of the pairs a run learns from, which its adapters carry."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import torch

from tests.dataLoader.builders import concept, config, dpo_config, loader, write_image, write_pairs

torch.set_num_threads(1)


def digest(root: Path, *folders: Path) -> str:
    """Of pairs in folders with the sides in them."""
    concepts = [
        concept(folder / side, f"DPO_{side.upper()}", name=f"{folder.name}-{side}")
        for folder in folders
        for side in ("chosen", "rejected")
    ]
    return loader(config(root, concepts, rlhf_enabled=True), prepare=False).pair_digest()


def test_what_it_is_made_of(tmp_path: Path) -> None:
    made = loader(dpo_config(tmp_path, 3), prepare=False)

    def contents(side: str, number: int) -> str:
        path = tmp_path / side / f"pair_{number:04d}.png"
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()

    lines = [
        [f"chosen/pair_{n:04d}", contents("chosen", n), contents("rejected", n), f"prompt {n}"]
        for n in range(3)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    expected = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    assert made.pair_digest() == expected == made.pair_digest()


def test_places_and_order_do_not_matter_but_contents_do(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "cats", tmp_path / "a" / "dogs"
    write_pairs(first, 2)
    write_pairs(second, 3)
    known = digest(tmp_path / "one", first, second)
    assert known == digest(tmp_path / "two", second, first)
    elsewhere = Path(shutil.copytree(tmp_path / "a", tmp_path / "b"))
    assert known == digest(tmp_path / "three", elsewhere / "cats", elsewhere / "dogs")
    changes = {
        "a chosen image": lambda at: write_image(at / "chosen" / "pair_0001.png", (64, 64), 77, "prompt 1"),
        "a rejected image": lambda at: write_image(
            at / "rejected" / "pair_0001.png", (64, 64), 77, "prompt 1"
        ),
        "a caption": lambda at: [
            (at / side / "pair_0001.txt").write_text("other", encoding="utf-8")
            for side in ("chosen", "rejected")
        ],
        "a pair more": lambda at: write_pairs(at, 3),
    }
    seen = {known}
    for number, change in enumerate(changes.values()):
        copy = Path(shutil.copytree(tmp_path / "a", tmp_path / f"changed{number}"))
        change(copy / "cats")
        seen.add(digest(tmp_path / f"run{number}", copy / "cats", copy / "dogs"))
    assert len(seen) == 1 + len(changes)


def test_single_images_have_none(tmp_path: Path) -> None:
    write_image(tmp_path / "pets" / "0.png", (64, 64), 0)
    assert loader(config(tmp_path, [concept(tmp_path / "pets")]), prepare=False).pair_digest() == ""
