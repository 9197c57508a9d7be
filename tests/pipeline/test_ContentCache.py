from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.pipeline.cache import ContentCache as module
from modules.pipeline.cache.CacheShard import CacheShard
from modules.pipeline.cache.ContentCache import ContentCache
from modules.util.errors import DataError
from tests.children.warm import start_warm

torch.set_num_threads(1)


def entry(number: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(number)
    half = torch.randn(5, generator=made).to(torch.bfloat16)
    return {"latents": torch.randn(4, 2, 3, generator=made), "half": half, "one": torch.tensor(number)}


def key(number: int) -> str:
    return f"{number:032x}"


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def filled(folder: Path, count: int, shard: int = 4) -> ContentCache:
    cache = ContentCache(folder)
    for number in range(count):
        cache.put(key(number), entry(number))
        if number % shard == shard - 1:
            cache.flush()
    cache.close()
    return cache


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def test_what_is_put_comes_back(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path / "c")
    assert len(cache) == 0 and key(1) not in cache
    with pytest.raises(KeyError):
        cache.get(key(1))
    cache.put(key(1), entry(1))
    assert key(1) in cache and same(cache.get(key(1)), entry(1))
    assert not shards(tmp_path / "c")
    cache.close()
    for reader in (cache, ContentCache(tmp_path / "c")):
        assert len(reader) == 1 and same(reader.get(key(1)), entry(1))
        assert reader.missing([key(1), key(2), key(2), key(3)]) == [key(2), key(3)]


@pytest.mark.skipif(sys.platform != "linux", reason="names are text elsewhere")
def test_a_folder_whose_name_is_no_text_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff\xfe")
    filled(folder, 2)
    assert same(ContentCache(folder).get(key(1)), entry(1))


def test_a_view_is_stored_alone_and_later_changes_do_not_reach_it(tmp_path: Path) -> None:
    cache, whole = ContentCache(tmp_path), torch.randn(64, 8)
    cache.put(key(1), {"row": whole[3]})
    wanted = whole[3].clone()
    whole.zero_()
    cache.close()
    assert torch.equal(ContentCache(tmp_path).get(key(1))["row"], wanted)
    assert shards(tmp_path)[0].stat().st_size < 1000


def test_a_second_put_changes_nothing(tmp_path: Path) -> None:
    cache = filled(tmp_path, 1)
    cache.put(key(0), entry(7))
    cache.close()
    assert same(ContentCache(tmp_path).get(key(0)), entry(0)) and len(shards(tmp_path)) == 1


def test_shards_are_written_by_size_count_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD_ENTRIES", 3)
    filled(tmp_path / "count", 7, 100)
    assert len(shards(tmp_path / "count")) == 3
    monkeypatch.setattr(module, "SHARD_ENTRIES", 100)
    monkeypatch.setattr(module, "SHARD_BYTES", 250)
    filled(tmp_path / "bytes", 6, 100)
    assert len(shards(tmp_path / "bytes")) == 2 + (6 % 3 > 0)
    monkeypatch.setattr(module, "SHARD_BYTES", 1 << 20)
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0.0)
    filled(tmp_path / "time", 3, 100)
    assert len(shards(tmp_path / "time")) == 3


def test_several_writers_share_a_folder(tmp_path: Path) -> None:
    one, two = ContentCache(tmp_path), ContentCache(tmp_path)
    for number in range(10):
        (one if number % 2 else two).put(key(number), entry(number))
    one.close()
    two.close()
    for cache in (one, two):
        cache.rescan()
        assert all(same(cache.get(key(number)), entry(number)) for number in range(10))


DAMAGE = {
    "cut short": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "only a length": lambda data: data[:8],
    "huge header": lambda data: b"\xff" * 8 + data[8:],
    "header is no json": lambda data: data[:8] + b"\0" * 64 + data[72:],
    "a flipped bit in a tensor": lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    "longer": lambda data: data + b"more",
    "other format": lambda data: data.replace(b'"format":"1"', b'"format":"0"'),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_shard_is_set_aside_with_a_warning(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, 12)
    victim = shards(tmp_path)[1]
    before = victim.read_bytes()
    damaged = DAMAGE[what](before)
    assert damaged != before
    victim.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        cache = ContentCache(tmp_path)
    assert victim.name in caplog.text and "damaged" in caplog.text
    assert len(cache) == 8 and not victim.exists()
    missing = cache.missing(key(number) for number in range(12))
    assert len(missing) == 4
    for name in missing:
        cache.put(name, entry(int(name, 16)))
    assert all(same(cache.get(key(number)), entry(number)) for number in range(12))


def with_header(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(next(facts for name, facts in header.items() if name != "__metadata__"))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


HEADERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "unknown type": lambda facts: facts.update(dtype="F31"),
    "type of another size": lambda facts: facts.update(dtype="F16"),
    "no type": lambda facts: facts.pop("dtype"),
    "no offsets": lambda facts: facts.pop("data_offsets"),
    "negative shape": lambda facts: facts.update(shape=[-1, *facts["shape"][1:]]),
    "shape of words": lambda facts: facts.update(shape="ab"),
    "not aligned": lambda facts: facts.update(data_offsets=[at + 1 for at in facts["data_offsets"]]),
    "before the file": lambda facts: facts.update(data_offsets=[at - 900 for at in facts["data_offsets"]]),
    "behind the file": lambda facts: facts.update(data_offsets=[at + 900 for at in facts["data_offsets"]]),
}


@pytest.mark.parametrize("what", HEADERS)
@pytest.mark.parametrize("known", [True, False])
def test_an_invalid_header_is_noticed_and_the_entries_are_made_again(
    tmp_path: Path, what: str, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, 2)
    victim, verified = shards(tmp_path)[0], tmp_path / "verified.json"
    victim.write_bytes(with_header(victim.read_bytes(), HEADERS[what]))
    if known:
        stat = victim.stat()
        verified.write_text(json.dumps({victim.name: [stat.st_size, stat.st_mtime_ns]}), encoding="utf-8")
        with pytest.raises(DataError, match="damaged while"):
            cache = ContentCache(tmp_path)
            for number in range(2):
                cache.get(key(number))
    else:
        verified.unlink()
        assert len(ContentCache(tmp_path)) == 0
    assert "damaged" in caplog.text and not victim.exists()
    filled(tmp_path, 2)
    assert all(same(ContentCache(tmp_path).get(key(number)), entry(number)) for number in range(2))


def test_a_shard_that_cannot_be_read_is_an_error_and_stays(tmp_path: Path) -> None:
    filled(tmp_path, 4)
    victim = tmp_path / f"cache-20260101-{0:032x}.safetensors"
    (victim / "inner").mkdir(parents=True)
    with pytest.raises(DataError, match="cannot be read") as caught:
        ContentCache(tmp_path)
    assert str(victim) in str(caught.value) and (victim / "inner").is_dir()


def test_reading_keeps_no_memory(tmp_path: Path) -> None:
    cache = filled(tmp_path, 4)
    for number in range(8):
        cache.get(key(number % 4))
    before = sys.getallocatedblocks()
    for number in range(4000):
        cache.get(key(number % 4))
    assert sys.getallocatedblocks() - before < 400


def test_tensors_outlive_their_cache(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    cache = ContentCache(tmp_path)
    found = cache.get(key(0))
    cache.close()
    del cache
    shards(tmp_path)[0].unlink()
    assert same(found, entry(0))


@pytest.mark.parametrize(
    "name", ["cache-mine.safetensors", "cache-20260101-x.safetensors", "model.safetensors"]
)
def test_a_file_of_a_person_is_not_taken_for_a_damaged_shard(tmp_path: Path, name: str) -> None:
    filled(tmp_path, 4)
    (tmp_path / name).write_text("mine")
    assert len(ContentCache(tmp_path)) == 4
    assert (tmp_path / name).read_text() == "mine"


def test_damage_while_in_use_is_noticed_on_first_touch(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    cache = ContentCache(tmp_path)
    victim = shards(tmp_path)[0]
    data = bytearray(victim.read_bytes())
    data[-20] ^= 255
    with victim.open("r+b") as stream:
        stream.write(data)
    with pytest.raises(DataError, match="damaged while"):
        for number in range(2):
            cache.get(key(number))
    assert len(ContentCache(tmp_path)) == 0


def test_unchanged_shards_are_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 4)
    looked: list[Path] = []
    original = module.verify
    monkeypatch.setattr(module, "verify", lambda path, e: (looked.append(path), original(path, e))[1])
    ContentCache(tmp_path)
    assert looked == []
    (tmp_path / "verified.json").unlink()
    ContentCache(tmp_path).close()
    assert len(looked) == 1
    (tmp_path / "verified.json").write_text('{"broken', encoding="utf-8")
    ContentCache(tmp_path)
    assert len(looked) == 2


def test_a_list_of_verified_shards_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "verified.json").mkdir()
    filled(tmp_path, 4)
    assert "verified.json cannot be written" in caplog.text and len(ContentCache(tmp_path)) == 4


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tmp_path.joinpath("other.txt").write_text("x", encoding="utf-8")
    save_file({"a": torch.zeros(3)}, tmp_path / "model.safetensors")
    cache = ContentCache(tmp_path)
    cache.put(key(1), entry(1))
    cache.close()
    assert len(cache) == 1 and (tmp_path / "model.safetensors").exists()


def test_small_shards_are_joined(tmp_path: Path) -> None:
    filled(tmp_path, 40, 2)
    assert len(shards(tmp_path)) == 20
    cache = ContentCache(tmp_path)
    other = ContentCache(tmp_path)
    cache.compact()
    cache.close()
    assert len(shards(tmp_path)) == 1 and len(cache) == 40
    for reader in (cache, ContentCache(tmp_path)):
        assert all(same(reader.get(key(number)), entry(number)) for number in range(40))
    other.rescan()
    assert all(same(other.get(key(number)), entry(number)) for number in range(40))


def test_two_processes_may_join_shards_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 40, 2)
    first, second, third = (ContentCache(tmp_path) for _ in range(3))
    first.compact()
    second.compact()  # all of its shards are gone
    assert len(second) == 40 and len(shards(tmp_path)) == 1
    filled(tmp_path, 80, 2)
    first, second, third = (ContentCache(tmp_path) for _ in range(3))
    opened: list[Path] = []

    def opening(path: Path, entries: Any) -> CacheShard:
        opened.append(path)
        if len(opened) == 3:
            first.compact()
        return CacheShard(path, entries)

    monkeypatch.setattr(module, "CacheShard", opening)
    third.compact()  # they disappear while it reads them
    for reader in (third, ContentCache(tmp_path)):
        assert all(same(reader.get(key(number)), entry(number)) for number in range(80))


def test_a_damaged_shard_is_not_joined_with_others(tmp_path: Path) -> None:
    filled(tmp_path, 40, 2)
    cache = ContentCache(tmp_path)
    damaged = shards(tmp_path)[0]
    before, data = damaged.stat(), bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    # as by a disk that has lost a bit
    os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, match="damaged"):
        cache.compact()
    left = ContentCache(tmp_path)
    assert len(left) == 38
    assert all(same(left.get(key(number)), entry(number)) for number in range(40) if key(number) in left)


def test_shards_that_another_process_joined_are_read_from_the_new_file(tmp_path: Path) -> None:
    filled(tmp_path, 40, 2)
    reader, other = ContentCache(tmp_path), ContentCache(tmp_path)
    other.compact()
    other.close()
    assert all(same(reader.get(key(number)), entry(number)) for number in range(40))
    shards(tmp_path)[0].unlink()
    reader = ContentCache(tmp_path)
    with pytest.raises(KeyError):
        reader.get(key(0))


def test_a_shard_deleted_while_in_use_is_an_error_that_names_it(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    cache = ContentCache(tmp_path)
    gone = shards(tmp_path)[0]
    gone.unlink()
    with pytest.raises(DataError, match="cannot be read") as caught:
        cache.get(key(0))
    assert str(gone) in str(caught.value)


def test_many_shards_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_SHARDS", 3)
    filled(tmp_path, 12, 1)
    cache = ContentCache(tmp_path)
    for number in [*range(12), *range(12)]:
        assert same(cache.get(key(number)), entry(number))
    assert len(cache._open) == 3


def test_threads_may_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_SHARDS", 2)
    filled(tmp_path, 20)
    cache = ContentCache(tmp_path)
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(n for _ in range(5) for n in range(20) if not same(cache.get(key(n)), entry(n)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    cache = ContentCache(tmp_path)
    cache.put(key(1), entry(1))
    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(DataError, match="No space left"):
        cache.flush()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    cache.flush()
    assert same(ContentCache(tmp_path).get(key(1)), entry(1))


ROOT = Path(__file__).resolve().parents[2]
SHARD = 2
FILLING = f"""
    import sys
    sys.path.insert(0, sys.argv[1])
    import torch
    torch.set_num_threads(1)
    from modules.pipeline.cache import ContentCache as module
    from tests.pipeline.test_ContentCache import ContentCache, entry, key
    module.SHARD_ENTRIES = {SHARD}
    cache = ContentCache(sys.argv[2])
    for number in range(5000):
        if key(number) not in cache:
            cache.put(key(number), entry(number))
            print(end=".", flush=True)
    """


@pytest.mark.child
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_killed_at_any_moment_it_resumes_with_what_is_written(tmp_path: Path) -> None:
    script = tmp_path / "fill.py"
    script.write_text(textwrap.dedent(FILLING), encoding="utf-8")
    folder, output, known = tmp_path / "cache", tmp_path / "output", 0
    delays = random.Random(5)
    for _ in range(6):
        output.write_bytes(b"")
        child = start_warm(script, [str(ROOT), str(folder)], output, tmp_path / "errors")
        # however slow the machine is, each attempt writes something
        while output.stat().st_size < 2 * SHARD:
            assert child.poll() is None, (tmp_path / "errors").read_text(encoding="utf-8")
            time.sleep(0.005)
        time.sleep(delays.uniform(0.0, 0.3))
        child.kill()
        assert child.wait(60) == -signal.SIGKILL
        cache = ContentCache(folder)
        assert all(same(cache.get(key(number)), entry(number)) for number in range(len(cache)))
        assert len(cache) > known
        known = len(cache)
