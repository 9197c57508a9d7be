"""Images that are the same."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from modules.curation.intake import duplicates
from modules.curation.intake.duplicates import (
    Fingerprint,
    FingerprintDistance,
    HashCache,
    equal_files,
    file_dhash,
    fingerprint,
    fingerprint_of,
    near_fingerprints,
    without_duplicates,
)
from modules.curation.session import ImageGroup
from modules.util.image_metadata.limits import Reason, Unusable
from modules.util.pairs.decoding import IMAGE_ERRORS
from tests.tools.pictures import damaged_avif


def scene(seed: int, size: int = 256) -> Image.Image:
    """A smooth random picture."""
    coarse = numpy.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=numpy.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


def dhash(image: Image.Image) -> int:
    return fingerprint_of(image).dhash


def bits(first: int, second: int) -> int:
    return (first ^ second).bit_count()


def test_the_hash_is_the_brightness_of_neighbours() -> None:
    falling = Image.fromarray(numpy.tile(numpy.arange(90, 0, -1, dtype=numpy.uint8), (80, 1)))
    assert dhash(falling) == (1 << 64) - 1
    assert dhash(falling.transpose(Image.Transpose.FLIP_LEFT_RIGHT)) == 0
    top = numpy.zeros((80, 90), numpy.uint8)
    top[:10, :10] = 200
    assert dhash(Image.fromarray(top)) == 1 << 63


@pytest.mark.parametrize("seed", range(5))
def test_small_changes_stay_near_and_other_pictures_do_not(seed: int, tmp_path: Path) -> None:
    image = scene(seed)
    whole = dhash(image)
    image.save(tmp_path / "a.jpg", quality=85)
    image.save(tmp_path / "a.webp", quality=85)
    image.save(tmp_path / "a.png")
    assert bits(whole, file_dhash(tmp_path / "a.png")) == 0
    for changed in ("a.jpg", "a.webp"):
        assert bits(whole, file_dhash(tmp_path / changed)) <= 3
    assert bits(whole, dhash(image.resize((200, 200), Image.Resampling.LANCZOS))) <= 3
    assert bits(whole, dhash(ImageEnhance.Brightness(image).enhance(0.9))) <= 3
    assert bits(whole, dhash(scene(seed + 100))) > 10
    assert FingerprintDistance()(tmp_path / "a.png", tmp_path / "a.png") == 0.0


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F", "PA"]
)
def test_every_mode_has_a_hash_near_that_of_its_picture(mode: str) -> None:
    image = scene(3).convert("L")
    if mode == "I;16":
        changed = Image.fromarray(numpy.asarray(image).astype(numpy.uint16) * 257)
    elif mode == "PA":
        changed = image.convert("P").convert("PA")
    else:
        changed = image.convert(mode)
    assert bits(dhash(image), dhash(changed)) <= (20 if mode == "1" else 2)


def test_colours_under_full_transparency_do_not_count() -> None:
    visible = numpy.asarray(scene(1).convert("RGBA")).copy()
    visible[:, 128:, 3] = 0
    hidden = visible.copy()
    hidden[:, 128:, :3] = 255
    assert dhash(Image.fromarray(visible)) == dhash(Image.fromarray(hidden))


def test_files_without_a_picture(tmp_path: Path) -> None:
    whole = tmp_path / "whole.png"
    noise = numpy.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=numpy.uint8)
    Image.fromarray(noise).save(whole)
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole.read_bytes()[:5000])
    words = tmp_path / "words.png"
    words.write_bytes(b"no picture")
    for path, reason in (
        (cut, Reason.UNDECODABLE),
        (words, Reason.UNDECODABLE),
        (damaged_avif(tmp_path / "damaged.avif"), Reason.UNDECODABLE),
        (tmp_path / "none.png", Reason.GONE),
    ):
        with pytest.raises(Unusable) as caught:
            file_dhash(path)
        assert caught.value.reason is reason
        assert FingerprintDistance()(path, whole) == 64.0


@pytest.mark.parametrize("error", IMAGE_ERRORS)
def test_every_error_of_a_decoder_is_that_of_the_image(error: type[Exception], tmp_path: Path, monkeypatch) -> None:
    def fail(_image: Image.Image) -> Fingerprint:
        raise error("damaged")

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    monkeypatch.setattr(duplicates, "fingerprint_of", fail)
    with pytest.raises(Unusable):
        fingerprint(tmp_path / "a.png")


HASHES = st.integers(0, (1 << 64) - 1)
NEAR = st.lists(st.sampled_from([0, 1, 3, 7, 15, 1 << 63, (1 << 64) - 1]) | HASHES, max_size=30)


@given(NEAR, st.integers(0, 64))
def test_what_is_dropped_lies_near_what_stays(hashes: list[int], threshold: int) -> None:
    verdicts = near_fingerprints([Fingerprint(value, bytes(256)) for value in hashes], threshold)
    kept = [i for i, twin in enumerate(verdicts) if twin is None]
    assert len(verdicts) == len(hashes)
    for i, twin in enumerate(verdicts):
        earlier = [k for k in kept if k < i and bits(hashes[k], hashes[i]) <= threshold]
        assert twin == (earlier[0] if earlier else None)


@pytest.mark.parametrize("seed", range(4))
def test_copies_are_near_and_flat_drawings_with_the_same_hash_are_not(seed: int, tmp_path: Path) -> None:
    image = scene(seed)
    image.save(tmp_path / "a.png")
    image.save(tmp_path / "a.jpg", quality=90)
    image.save(tmp_path / "a.webp", quality=80)
    image.resize((192, 192), Image.Resampling.LANCZOS).save(tmp_path / "small.png")
    ImageEnhance.Brightness(image).enhance(0.95).save(tmp_path / "darker.png")
    looks = [fingerprint(tmp_path / name) for name in ("a.png", "a.jpg", "a.webp", "small.png", "darker.png")]
    assert near_fingerprints(looks, 4) == [None, 0, 0, 0, 0]

    def drawing(left: int) -> Fingerprint:
        flat = numpy.full((256, 256), 40, numpy.uint8)
        flat[100:150, left : left + 20] = 220
        return fingerprint_of(Image.fromarray(flat))

    here, there = drawing(60), drawing(70)
    assert bits(here.dhash, there.dhash) <= 2
    assert near_fingerprints([here, there, here], 2) == [None, None, 0]


def test_plain_areas_are_told_apart_by_their_shade() -> None:
    plain = [fingerprint_of(Image.new("L", (64, 64), value)) for value in (10, 10, 200)]
    assert near_fingerprints(plain, 0) == [None, 0, None]


def test_equal_files_are_found_among_those_of_equal_size(tmp_path: Path) -> None:
    contents = [b"abc", b"abd", b"abc", b"abcd", b"", b"", b"abd"]
    paths = []
    for i, content in enumerate(contents):
        paths.append(tmp_path / str(i))
        paths[-1].write_bytes(content)
    sizes = [len(content) for content in contents]
    assert equal_files(paths, sizes) == [None, None, 0, None, None, 4, 1]
    paths[0].unlink()
    assert equal_files(paths, sizes) == [None, None, None, None, None, 4, 1]


def group_of(folder: Path, *names: str) -> ImageGroup:
    return ImageGroup("key", "a cat", "1:1", folder, names)


def test_the_newest_stays_and_the_order_too(tmp_path: Path) -> None:
    for name, seed, age in (
        ("a.png", 1, 3),
        ("b.png", 2, 2),
        ("c.jpg", 1, 1),
        ("d.png", 3, 0),
        ("e.png", 1, 9),
    ):
        scene(seed).save(tmp_path / name)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    (tmp_path / "broken.png").write_bytes(b"x")
    group = group_of(tmp_path, "a.png", "b.png", "c.jpg", "gone.png", "d.png", "e.png", "broken.png")
    kept, left_out = without_duplicates(group, 3)
    assert kept.files == ("b.png", "c.jpg", "d.png")
    assert (kept.key, kept.prompt, kept.aspectratio, kept.root) == ("key", "a cat", "1:1", tmp_path)
    reasons = dict(left_out)
    assert list(reasons) == ["a.png", "gone.png", "e.png", "broken.png"]
    assert reasons["a.png"] == "it looks like c.jpg"
    assert reasons["e.png"] == "the same file as a.png"
    assert reasons["gone.png"] == Reason.GONE.value
    assert reasons["broken.png"].startswith(Reason.UNDECODABLE.value)


def test_a_changed_file_is_hashed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    scene(1).save(path)
    with HashCache(tmp_path / "cache" / "hashes.sqlite") as cache:
        info = path.stat()
        assert cache.get(path, info) is None
        look = Fingerprint((1 << 64) - 1, bytes(range(256)))
        cache.put(path, info, look)
        assert cache.get(path, info) == look
        os.utime(path, (1, 1))
        assert cache.get(path, path.stat()) is None
        other = Fingerprint(0, bytes(256))
        cache.put(path, path.stat(), other)
        assert cache.get(path, path.stat()) == other


def test_a_damaged_cache_is_replaced(tmp_path: Path) -> None:
    place = tmp_path / "hashes.sqlite"
    place.write_bytes(b"this is no database at all" * 100)
    scene(1).save(tmp_path / "a.png")
    info = (tmp_path / "a.png").stat()
    with HashCache(place) as cache:
        cache.put(tmp_path / "a.png", info, Fingerprint(5, bytes(256)))
        assert cache.get(tmp_path / "a.png", info) == Fingerprint(5, bytes(256))


def remembers(cache: HashCache, image: Path) -> bool:
    info = image.stat()
    cache.put(image, info, Fingerprint(7, bytes(256)))
    return cache.get(image, info) == Fingerprint(7, bytes(256))


def test_hashes_are_kept_in_memory_where_no_file_can_be(tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    scene(1).save(image)
    (tmp_path / "folder.sqlite").mkdir()
    for place in (tmp_path / "folder.sqlite", image / "below" / "hashes.sqlite"):
        with HashCache(place) as cache:
            assert remembers(cache, image)
    assert file_dhash(image) == dhash(scene(1))


def test_a_cache_in_use_elsewhere_is_left_alone(tmp_path: Path) -> None:
    image, place = tmp_path / "a.png", tmp_path / "hashes.sqlite"
    scene(1).save(image)
    other = sqlite3.connect(place, isolation_level=None)
    other.execute("CREATE TABLE theirs (x)")
    other.execute("BEGIN EXCLUSIVE")
    with HashCache(place) as cache:
        assert remembers(cache, image)
    other.execute("COMMIT")
    assert other.execute("SELECT count(*) FROM theirs").fetchone() == (0,)
    other.close()


def test_a_cache_that_fails_on_the_way_resumes_in_memory(tmp_path: Path) -> None:
    image, place = tmp_path / "a.png", tmp_path / "hashes.sqlite"
    scene(1).save(image)
    with HashCache(place) as cache:
        assert remembers(cache, image)
        other = sqlite3.connect(place, isolation_level=None)
        other.execute("DROP TABLE looks")
        other.close()
        assert cache.get(image, image.stat()) is None
        assert remembers(cache, image)


def test_looks_of_an_older_kind_are_taken_anew(tmp_path: Path) -> None:
    image, path = tmp_path / "a.png", tmp_path / "hashes.sqlite"
    scene(1).save(image)
    with HashCache(path) as cache:
        cache.put(image, image.stat(), Fingerprint(7, bytes(256)))
        assert cache.get(image, image.stat()) == Fingerprint(7, bytes(256))
    with HashCache(path) as cache:
        assert cache.get(image, image.stat()) == Fingerprint(7, bytes(256)), "of this kind, they stay"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version=0")
    with HashCache(path) as cache:
        assert cache.get(image, image.stat()) is None


@pytest.mark.parametrize("size", [(1000, 1000), (1023, 777), (130, 2000), (64, 64), (40, 90), (3, 2)])
def test_reducing_first_changes_hardly_a_bit_whatever_the_size(size: tuple[int, int]) -> None:
    for seed in range(5):
        image = scene(seed).resize(size, Image.Resampling.BICUBIC)
        plain = numpy.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX)).astype(int)
        clear = numpy.abs(plain[:, :-1] - plain[:, 1:]) > 2
        wanted = plain[:, :-1] > plain[:, 1:]
        seen = numpy.unpackbits(numpy.frombuffer(dhash(image).to_bytes(8, "big"), numpy.uint8)).reshape(8, 8)
        assert (seen.astype(bool) == wanted)[clear].all()


def test_each_image_is_decoded_once_however_often_it_is_compared(tmp_path, monkeypatch):
    names = [tmp_path / f"{i}.png" for i in range(3)]
    for i, path in enumerate(names):
        Image.effect_noise((64, 64), 30.0 + 40 * i).save(path)
    names.append(tmp_path / "broken.png")
    names[3].write_bytes(b"no image")
    decoded: list[Path] = []
    real = duplicates.file_dhash
    monkeypatch.setattr(duplicates, "file_dhash", lambda path: (decoded.append(path), real(path))[1])
    distance = FingerprintDistance()
    assert distance(names[0], names[0]) == 0
    expected = (real(names[0]) ^ real(names[1])).bit_count()
    assert distance(names[0], names[1]) == distance(names[1], names[0]) == expected > 0
    assert distance(names[1], names[2]) > 0
    assert distance(names[0], names[3]) == distance(names[1], names[3]) == 64
    assert decoded == names
