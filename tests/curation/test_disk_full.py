"""A disk that fills up, or another disk: every acknowledged pick stays, nothing half-made, one clear error."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from modules.curation.commands import finalize
from modules.curation.store import CurationStore
from modules.util import jsonio
from modules.util.dpo_curation_util import load_manifest
from modules.util.errors import UserError


@contextlib.contextmanager
def largest_file(limit: int) -> Iterator[None]:
    """The system refuses to let any file grow beyond ``limit`` bytes: what a full disk looks like to a writer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def make_images(folder: Path, size: int, count: int = 4) -> list[Path]:
    folder.mkdir(exist_ok=True)
    files = [folder / f"{i}.png" for i in range(count)]
    for i, file in enumerate(files):
        Image.new("L", (1, 1), i).save(file)
        file.write_bytes(file.read_bytes().ljust(size, b"\0"))  # what follows the last chunk is ignored
    return files


def names(out: Path) -> set[str]:
    return {p.relative_to(out).as_posix() for s in ("chosen", "rejected") for p in (out / s).rglob("*.*")}


def expected(pair_ids: list[str]) -> set[str]:
    return {f"{s}/{name}.{e}" for s in ("chosen", "rejected") for name in pair_ids for e in ("png", "txt")}


@pytest.mark.parametrize(("limit", "size"), [(40_000, 20), (60_000, 59_000), (50_000, 90_000), (120_000, 20)])
def test_no_acknowledged_pick_is_lost_and_room_lets_it_continue(tmp_path, limit, size):
    files = make_images(tmp_path / "in", size)
    out = tmp_path / "out"
    store = CurationStore(out)
    acknowledged: list[str] = []
    if size < limit:
        acknowledged += [p["pair_id"] for p in store.export("g", [(files[2], files[3])], "p", "1:1", {})]
    with largest_file(limit):
        for _ in range(100):
            try:
                store.append("g", "answer", {"words": "x" * 500})
                made = store.export("g", [(files[0], files[1])], "p", "1:1", {"used": []})
            except UserError as error:
                assert "cannot" in str(error)
                break
            acknowledged += [p["pair_id"] for p in made]
        else:
            pytest.fail("the limit was never reached")
        with contextlib.suppress(UserError):
            store.close()
    assert names(out) == expected(acknowledged)
    with CurationStore(out) as store:
        assert [p["pair_id"] for p in store.pairs()] == acknowledged
        store.export("g", [(files[0], files[1])], "p", "1:1", {"used": []})
        assert names(out) == expected([p["pair_id"] for p in store.pairs()])
    assert len(load_manifest(out)["pairs"]) == len(acknowledged) + 1


def test_a_session_resumes_in_the_same_window_once_there_is_room(tmp_path):
    files = make_images(tmp_path / "in", 900_000)
    with CurationStore(tmp_path / "out") as store:
        with largest_file(500_000), pytest.raises(UserError, match="cannot copy"):
            store.export("g", [(files[0], files[1])], "p", "1:1", {"used": []})
        assert (store.events(), store.pair_count(), names(tmp_path / "out")) == ([], 0, set())
        store.export("g", [(files[0], files[1])], "p", "1:1", {"used": []})
        assert names(tmp_path / "out") == expected(["pair_0000"])


def test_a_manifest_that_cannot_be_written_does_not_fail_a_pick(tmp_path, monkeypatch, caplog):
    files = make_images(tmp_path / "in", 50)
    store = CurationStore(tmp_path / "out")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("modules.curation.store.save_manifest", full)
    (pair,) = store.export("g", [(files[0], files[1])], "p", "1:1", {"used": []})
    assert "manifest.json is out of date" in caplog.text
    with pytest.raises(UserError, match="No space left"):
        store.close()
    monkeypatch.undo()
    assert load_manifest(tmp_path / "out")["pairs"] == []
    with CurationStore(tmp_path / "out") as store:
        assert store.pairs() == [pair]
    assert load_manifest(tmp_path / "out")["pairs"] == [pair]


def test_a_disk_that_is_full_at_the_start_is_one_clear_error_and_gives_the_lock_back(tmp_path):
    with largest_file(100), pytest.raises(UserError, match="cannot"):
        CurationStore(tmp_path / "out")
    CurationStore(tmp_path / "out").close()


@pytest.mark.parametrize("stop_at", range(8))
def test_finalising_on_a_full_disk_loses_nothing(tmp_path, monkeypatch, stop_at):
    files = make_images(tmp_path / "in", 50)
    with CurationStore(tmp_path / "out") as store:
        for prompt in ("one", "two"):
            store.export(prompt, [(files[0], files[1])], prompt, "1:1", {"used": []})
    real, calls = os.replace, 0

    def failing(source, target, **kwargs):
        nonlocal calls
        calls += 1
        if calls > stop_at:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        return real(source, target, **kwargs)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises((OSError, UserError)):
        finalize(tmp_path / "out", 50.0)
    monkeypatch.undo()
    assert finalize(tmp_path / "out", 50.0)["train"] == 1
    assert names(tmp_path / "out") == {
        f"{side}/{split}/{pair}.{extension}"
        for side in ("chosen", "rejected")
        for split, pair in zip(*_splits(tmp_path / "out"), strict=True)
        for extension in ("png", "txt")
    }


def _splits(out: Path) -> tuple[list[str], list[str]]:
    pairs = load_manifest(out)["pairs"]
    return [p["chosen_file"].split("/")[1] for p in pairs], [p["pair_id"] for p in pairs]


def test_an_output_on_another_drive(tmp_path, monkeypatch):
    files = make_images(tmp_path / "in", 500)
    out = tmp_path / "out"
    real = os.replace

    def place(path, handle=None):
        return Path(path) if handle is None else Path(f"/proc/self/fd/{handle}").readlink() / path

    def same_drive_only(source, target, **kwargs):
        places = place(source, kwargs.get("src_dir_fd")), place(target, kwargs.get("dst_dir_fd"))
        if {path.is_relative_to(out) for path in places} != {True}:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return real(source, target, **kwargs)

    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, same_drive_only)
    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(OSError, match="cross-device"):
        files[3].replace(out)
    with CurationStore(out) as store:
        store.export("g", [(files[0], files[1])], "p", "1:1", {"used": []})
    finalize(out, 10.0)
    assert (out / "chosen" / "train" / "pair_0000.png").read_bytes() == files[0].read_bytes()
    assert files[0].exists()


def test_an_output_that_really_is_on_another_drive(tmp_path):
    here = tmp_path.stat().st_dev
    places = (Path("/dev/shm"), Path(tempfile.gettempdir()), Path.cwd())
    other = next((one for one in places if one.is_dir() and one.stat().st_dev != here), None)
    if other is None:
        pytest.skip("there is no second file system")
    files = make_images(tmp_path / "in", 500)
    with tempfile.TemporaryDirectory(dir=other) as folder:
        out = Path(folder) / "out"
        with CurationStore(out) as store:
            store.export("g", [(files[0], files[1])], "p", "1:1", {"used": []})
        finalize(out, 10.0)
        assert (out / "rejected" / "train" / "pair_0000.png").read_bytes() == files[1].read_bytes()


def test_temporary_files_are_made_beside_their_target(tmp_path):
    with jsonio.atomic_path(tmp_path / "deep" / "file.png") as temporary:
        assert temporary.parent == tmp_path / "deep"
        temporary.write_bytes(b"x")
