from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.pipeline.cache import FileIndex as module
from modules.pipeline.cache.FileIndex import FileIndex
from modules.util.errors import DataError
from tests.dataLoader.builders import write_image


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is read from images, as it happens."""
    seen: list[str] = []
    for name in ("read_size", "file_digest", "load_rgb"):
        original = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda path, name=name, original=original: (seen.append(name), original(path))[1]
        )
    return seen


def old(path: Path, seconds: float = 60) -> Path:
    """Make a file look ``seconds`` old."""
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def ask(index: FileIndex, path: Path) -> tuple[tuple[int, int], str]:
    index.check_decodes(str(path))
    return index.size(str(path)), index.digest(str(path))


def test_facts_are_right_and_found_out_once(tmp_path: Path, reads: list[str]) -> None:
    path = old(write_image(tmp_path / "a.png", (48, 16)))
    wanted = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    index = FileIndex(tmp_path / "cache" / "files.sqlite")
    assert ask(index, path) == ask(index, path) == ((48, 16), wanted)
    assert sorted(reads) == ["file_digest", "load_rgb", "read_size"]
    index.flush()
    reads.clear()
    assert ask(FileIndex(tmp_path / "cache" / "files.sqlite"), path) == ((48, 16), wanted)
    assert reads == []


def test_a_changed_file_is_looked_at_again(tmp_path: Path, reads: list[str]) -> None:
    path = old(write_image(tmp_path / "a.png", (48, 16)))
    index = FileIndex(tmp_path / "files.sqlite")
    before = ask(index, path)
    index.flush()
    old(write_image(path, (16, 48), seed=1), 50)
    reads.clear()
    after = ask(FileIndex(tmp_path / "files.sqlite"), path)
    assert after[0] == (16, 48) and after[1] != before[1] and len(reads) == 3


def test_a_file_with_other_bytes_and_the_same_length_time_and_inode_is_looked_at_again(
    tmp_path: Path,
) -> None:
    path, other = write_image(tmp_path / "a.bmp", seed=1), write_image(tmp_path / "b.bmp", seed=2)
    before = old(path).stat()
    index = FileIndex(tmp_path / "files.sqlite")
    first = index.digest(str(path))
    index.flush()
    with path.open("r+b") as stream:
        stream.write(other.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ino,
    )
    assert FileIndex(tmp_path / "files.sqlite").digest(str(path)) != first
    with pytest.raises(DataError, match="changed while"):
        index.check_unchanged(str(path))


def test_an_index_of_an_earlier_version_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, path = tmp_path / "files.sqlite", old(write_image(tmp_path / "a.png"))
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE files (path TEXT PRIMARY KEY, length INTEGER, digest TEXT)")
        connection.execute("INSERT INTO files VALUES (?, 1, 'wrong')", (str(path),))
    index = FileIndex(file)
    wanted = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    assert index.digest(str(path)) == wanted
    index.flush()
    assert FileIndex(file).digest(str(path)) == wanted and not caplog.text


def test_a_file_younger_than_the_clock_step_is_not_believed(tmp_path: Path, reads: list[str]) -> None:
    path = write_image(tmp_path / "a.png")
    index = FileIndex(tmp_path / "files.sqlite")
    ask(index, path)
    index.flush()
    ask(index, path)
    assert len(reads) == 3
    ask(FileIndex(tmp_path / "files.sqlite"), path)
    assert len(reads) == 6


def test_a_damaged_index_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = old(write_image(tmp_path / "a.png"))
    file = tmp_path / "files.sqlite"
    file.write_bytes(b"SQLite format 3\0" + b"junk" * 400)
    index = FileIndex(file)
    assert "damaged" in caplog.text
    ask(index, path)
    index.flush()
    assert sqlite3.connect(file).execute("SELECT count(*) FROM facts").fetchone() == (1,)


def test_an_index_that_cannot_be_written_is_only_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    index = FileIndex(tmp_path / "file" / "files.sqlite")
    path = write_image(tmp_path / "a.png")
    index.size(str(path))
    index.flush()
    assert "cannot be written" in caplog.text
    assert index.size(str(path)) == (64, 64)


def test_missing_and_changing_files(tmp_path: Path) -> None:
    index = FileIndex()
    for ask_for in (index.size, index.digest, index.check_decodes):
        with pytest.raises(DataError, match=r"gone\.png: cannot be read"):
            ask_for(str(tmp_path / "gone.png"))
    path = write_image(tmp_path / "a.png")
    index.digest(str(path))
    index.check_unchanged(str(path))
    write_image(path, (16, 16), seed=4)
    with pytest.raises(DataError, match="changed while"):
        index.check_unchanged(str(path))


def test_a_file_that_got_another_name_is_unchanged(tmp_path: Path, reads: list[str]) -> None:
    """A hard link, as the start of another run or a backup makes it, changes the time of the last change."""
    path = old(write_image(tmp_path / "a.png"))
    index = FileIndex()
    index.digest(str(path))
    before = path.stat().st_ctime_ns
    (tmp_path / "b.png").hardlink_to(path)
    while path.stat().st_ctime_ns == before:  # within the clock step of the file system
        path.chmod(0o600)
    reads.clear()
    index.check_unchanged(str(path))
    index.check_unchanged(str(path))
    assert reads == ["file_digest"]


def test_equal_content(tmp_path: Path, reads: list[str]) -> None:
    a, b, c = (write_image(tmp_path / f"{n}.png", seed=s) for n, s in (("a", 1), ("b", 1), ("c", 2)))
    write_image(tmp_path / "d.png", (16, 16))
    index = FileIndex()
    assert index.same_content(str(a), str(b)) and not index.same_content(str(a), str(c))
    reads.clear()
    assert not index.same_content(str(a), str(tmp_path / "d.png")) and reads == []


def test_the_second_start_opens_no_tiff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep, shallow = tmp_path / "deep.TIF", tmp_path / "shallow.tiff"
    Image.fromarray(np.full((16, 16), 40_000, np.int32)).save(deep, "TIFF")
    Image.new("RGB", (16, 16)).save(shallow)
    file, paths = tmp_path / "files.sqlite", [str(old(path)) for path in (deep, shallow)]
    index = FileIndex(file)
    before = [index.content(path) for path in paths]
    index.flush()
    assert before[0] != index.digest(paths[0]) and before[1] == index.digest(paths[1])
    with monkeypatch.context() as patched:
        patched.delattr(Image, "open")
        assert [FileIndex(file).content(path) for path in paths] == before
    Image.fromarray(np.full((16, 16), 4_000, np.uint16)).save(deep, "TIFF")
    assert FileIndex(file).content(paths[0]) == FileIndex().content(paths[0]) == FileIndex().digest(paths[0])


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE editions SET edition = NULL",
        "UPDATE facts SET checked_ns = NULL",
        "UPDATE facts SET width = 'wide'",
        "UPDATE facts SET digest = x'00'",
    ],
)
def test_a_value_of_another_type_is_damage_and_the_index_is_made_again(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, file = tmp_path / "a.tif", tmp_path / "files.sqlite"
    Image.fromarray(np.full((16, 16), 40_000, np.int32)).save(path, "TIFF")
    old(path)

    def facts() -> tuple[object, ...]:
        index = FileIndex(file)
        made = *ask(index, path), index.content(str(path))
        index.flush()
        return made

    before = facts()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(damage)
    assert facts() == before
    assert "is damaged" in caplog.text
    caplog.clear()
    assert facts() == before and not caplog.text
