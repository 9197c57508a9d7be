from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from modules.curation.intake.duplicates import fingerprint
from modules.pipeline.nodes import images
from modules.pipeline.nodes.images import load_rgb, read_size
from modules.ui.widgets.ImagePrefetcher import load_fitted
from modules.util.errors import DataError


def noise(width: int, height: int, channels: int = 3) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(values.squeeze())


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize("extension", ["png", "jpg", "webp", "bmp", "tiff", "avif"])
def test_formats(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a.{extension}"
    noise(40, 24).save(path)
    assert read_size(path) == (40, 24)
    image = load_rgb(path)
    assert image.mode == "RGB" and image.size == (40, 24)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("extension", ["jpg", "png", "webp"])
def test_orientation_is_the_same_in_header_and_pixels(
    tmp_path: Path, orientation: int, extension: str
) -> None:
    pixels = np.zeros((16, 48, 3), dtype=np.uint8)
    pixels[:8, :16] = 255  # a bright top left corner
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{extension}"
    Image.fromarray(pixels).save(path, exif=exif)
    image = load_rgb(path)
    assert image.size == read_size(path) == ((16, 48) if orientation >= 5 else (48, 16))
    seen = np.asarray(image)[..., 0] > 128
    bright = (seen[:4].mean() > seen[-4:].mean(), seen[:, :4].mean() > seen[:, -4:].mean())
    # where the first row and the first column of the stored pixels belong (EXIF 2.3, tag 0x0112)
    assert bright == {
        1: (True, True), 2: (True, False), 3: (False, False), 4: (False, True),
        5: (True, True), 6: (True, False), 7: (False, False), 8: (False, True),
    }[orientation]  # fmt: skip


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_a_nonsense_orientation_is_upright(tmp_path: Path, value: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    noise(32, 16).save(tmp_path / "a.jpg", exif=exif)
    assert read_size(tmp_path / "a.jpg") == load_rgb(tmp_path / "a.jpg").size == (32, 16)


def test_an_orientation_behind_the_pixels_changes_neither(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    noise(32, 16).save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    end = data.rindex(b"IEND") - 4
    late = data[:end] + png_chunk(b"eXIf", exif.tobytes()[6:]) + data[end:]
    (tmp_path / "a.png").write_bytes(late)
    assert read_size(tmp_path / "a.png") == load_rgb(tmp_path / "a.png").size == (32, 16)


def test_transparency_lies_on_white(tmp_path: Path) -> None:
    clear = np.zeros((16, 16, 4), dtype=np.uint8)
    clear[8:] = (10, 20, 30, 255)
    Image.fromarray(clear).save(tmp_path / "rgba.png")
    grey = np.zeros((16, 16, 2), dtype=np.uint8)
    grey[8:] = (10, 255)
    Image.fromarray(grey, "LA").save(tmp_path / "la.png")
    palette = Image.new("P", (16, 16), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.paste(0, (0, 0, 16, 8))
    palette.save(tmp_path / "p.png", transparency=0)
    for name, low in (("rgba", (10, 20, 30)), ("la", (10, 10, 10)), ("p", (10, 20, 30))):
        image = load_rgb(tmp_path / f"{name}.png")
        assert image.getpixel((0, 0)) == (255, 255, 255), name
        assert image.getpixel((0, 15)) == low, name


def test_other_modes_become_rgb(tmp_path: Path) -> None:
    noise(16, 16, 1).save(tmp_path / "l.png")
    noise(16, 16).convert("P").save(tmp_path / "p.png")
    noise(16, 16).convert("1").save(tmp_path / "one.png")
    noise(16, 16).convert("CMYK").save(tmp_path / "cmyk.jpg")
    noise(16, 16).save(tmp_path / "anim.webp", save_all=True, append_images=[noise(16, 16)])
    for name in ("l.png", "p.png", "one.png", "cmyk.jpg", "anim.webp"):
        assert load_rgb(tmp_path / name).mode == "RGB", name


def test_sixteen_bits_and_floats_keep_their_range(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / "i16.png")
    Image.fromarray(ramp.astype(np.float32) / 65535).save(tmp_path / "f1.tiff")
    Image.fromarray(ramp.astype(np.float32) / 257).save(tmp_path / "f255.tiff")
    broken = ramp.astype(np.float32) / 65535
    broken[0, 0], broken[0, 1] = np.nan, np.inf
    Image.fromarray(broken).save(tmp_path / "nan.tiff")
    Image.fromarray(ramp.astype(np.int32)).save(tmp_path / "i32.tiff")
    Image.fromarray(ramp.astype(np.int32) // 257).save(tmp_path / "i32-255.tiff")
    Image.fromarray(ramp.astype(np.int32) * 1000).save(tmp_path / "i32-large.tiff")
    for name in ("i16.png", "f1.tiff", "f255.tiff", "nan.tiff", "i32.tiff", "i32-255.tiff", "i32-large.tiff"):
        values = np.asarray(load_rgb(tmp_path / name))[..., 0].flatten()[2:]
        assert np.abs(values.astype(int) - np.arange(256)[2:]).max() <= 1, name
        shown = np.asarray(load_fitted(tmp_path / name, None))[..., 0].flatten()[2:]
        assert np.abs(shown.astype(int) - np.arange(256)[2:]).max() <= 1, name
        if name != "nan.tiff":
            assert fingerprint(tmp_path / name) == fingerprint(tmp_path / "i16.png"), name


def hostile_files(folder: Path) -> dict[str, str]:
    """File name -> part of the reason it is refused for."""
    good = folder / "good.png"
    noise(64, 64).save(good)
    data = good.read_bytes()
    noise(64, 64).save(folder / "good.jpg", quality=95)
    jpeg = (folder / "good.jpg").read_bytes()
    noise(64, 64).save(folder / "good.webp")
    webp = (folder / "good.webp").read_bytes()
    middle = len(data) // 2
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(b"\0" * 9999))
    files = {
        "empty.png": (b"", "not an image"),
        "text.png": (b"hello, I am a text file\n" * 50, "not an image"),
        "cut.png": (data[:middle], "cannot be decoded"),
        "cut.jpg": (jpeg[: len(jpeg) // 2], "cannot be decoded"),
        "cut.webp": (webp[: len(webp) // 2], "cut.webp"),
        "flipped.png": (
            data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :],
            "cannot be decoded",
        ),
        "header.png": (data[:20], "header.png"),
        "bomb.png": (bomb + png_chunk(b"IEND", b""), "more than|too large"),
    }
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    noise(4, 64).save(folder / "tiny.png")
    for name in ("good.png", "good.jpg", "good.webp"):
        (folder / name).unlink()
    return {name: reason for name, (_, reason) in files.items()} | {"tiny.png": "too small"}


def test_hostile_files_end_as_errors_that_name_them(tmp_path: Path) -> None:
    for name, reason in hostile_files(tmp_path).items():
        with pytest.raises(DataError, match=reason) as caught:
            load_rgb(tmp_path / name)
        assert name in str(caught.value)
    with pytest.raises(DataError, match="does not exist"):
        read_size(tmp_path / "gone.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(DataError, match=r"folder\.png"):
        load_rgb(tmp_path / "folder.png")


def test_the_size_limit_is_ours_not_pillows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise(64, 64).save(tmp_path / "a.png")
    monkeypatch.setattr(images, "MAX_PIXELS", 64 * 63)
    with pytest.raises(DataError, match="64x64 is too large"):
        load_rgb(tmp_path / "a.png")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["png", "jpg", "webp", "tiff", "bmp", "avif"]), st.data())
def test_damaged_files_never_escape_as_other_errors(
    tmp_path: Path, extension: str, data: st.DataObject
) -> None:
    path = tmp_path / f"a.{extension}"
    noise(24, 16).save(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    for function in (read_size, load_rgb):
        try:
            function(path)
        except DataError as error:
            assert str(path) in str(error)
