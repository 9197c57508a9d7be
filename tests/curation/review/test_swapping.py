"""A swap that stops at any point is finished, or taken back, when reviewing begins again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from modules.curation.commands import finalize
from modules.curation.review.review import PairReview
from modules.curation.store import CurationStore
from modules.util.dpo_curation_util import file_sha256, load_manifest
from modules.util.errors import DataError


class Stopped(BaseException):
    """Stands for a kill: nothing catches it."""


def make(tmp_path: Path, extensions: tuple[str, str]) -> Path:
    out = tmp_path / "out"
    files = []
    for shade, extension in zip((0, 200), extensions, strict=True):
        files.append(tmp_path / f"{shade}.{extension}")
        Image.new("RGB", (16, 16), (shade, 0, 0)).save(files[-1])
    with CurationStore(out) as store:
        store.export("g", [(files[0], files[1])], "p", "1:1", {"used": []})
    finalize(out, 0)
    return out


@pytest.mark.parametrize("extensions", [("png", "webp"), ("png", "png")])
@pytest.mark.parametrize("stop_at", range(5))
def test_a_crash_in_the_middle_of_a_swap(tmp_path, monkeypatch, stop_at, extensions):
    out = make(tmp_path, extensions)
    real, calls = os.replace, 0

    def stopping(source, target, **kwargs):
        nonlocal calls
        if calls == stop_at:
            raise Stopped
        calls += 1
        return real(source, target, **kwargs)

    monkeypatch.setattr(os, "replace", stopping)
    swapped = False
    try:
        PairReview(out).swap("pair_0000")
        swapped = True
    except Stopped:
        pass
    monkeypatch.undo()
    assert swapped == (stop_at >= 4)
    (pair,) = PairReview(out).pairs()
    assert pair.chosen is not None
    assert pair.rejected is not None
    (entry,) = load_manifest(out)["pairs"]
    for side, image in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        assert out / entry[f"{side}_file"] == image
        assert entry["hashes"][side] == file_sha256(image)
        assert entry["sources"][side].endswith(image.suffix)
    hashes = [file_sha256(tmp_path / f"{shade}.{e}") for shade, e in zip((0, 200), extensions, strict=True)]
    now = [entry["hashes"]["chosen"], entry["hashes"]["rejected"]]
    assert now == (hashes if stop_at < 2 else hashes[::-1])
    assert not list(out.rglob(".*.swap"))
    with CurationStore(out) as store:
        assert store.pairs() == [entry]


def test_half_a_pair_cannot_be_swapped(tmp_path):
    out = make(tmp_path, ("png", "webp"))
    (out / "rejected" / "train" / "pair_0000.webp").unlink()
    with pytest.raises(DataError, match="lost one side"):
        PairReview(out).swap("pair_0000")
