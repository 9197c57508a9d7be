"""Resizes, turns or converts images, or removes their metadata, one by one. Each change can be undone."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image, ImageOps, PngImagePlugin, TiffImagePlugin

from modules.tools.dataset.files import DataImage, check_links
from modules.tools.dataset.renaming import check_taken
from modules.tools.Journal import Journal
from modules.util.errors import ConfigError, DataError, list_offenders
from modules.util.image_metadata.containers.png import XMP_KEY
from modules.util.image_metadata.limits import MAX_PIXELS
from modules.util.jsonio import read_bytes
from modules.util.pairs.decoding import IMAGE_ERRORS

ORIENTATION, BITS_PER_SAMPLE = 0x0112, 258
ENDINGS = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp"}
PLAIN_MODES = {"L", "LA", "RGB", "RGBA"}
SWAPPED = (5, 6, 7, 8)
MAX_SIDE = 16384
MAX_BYTES = 1 << 30
STRIPPED = "without metadata"
MOST_IN_SEGMENT = 65502 - len(b"http://ns.adobe.com/xap/1.0/\0")
"""Bytes of an XMP packet that fit into one segment of a JPEG file."""
START_OF_SCAN, END_OF_IMAGE, COMMENT = 0xDA, 0xD9, 0xFE
# after any fill bytes; FF 00 and FF D0 to D7 are part of the pixels
MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")
NEEDED_INFO = {
    "icc_profile", "gamma", "transparency", "dpi", "jfif", "jfif_version", "jfif_unit", "jfif_density",
    "progressive", "progression", "adobe", "adobe_transform", "loop", "background", "timestamp", "duration",
}  # fmt: skip
"""Fields in Pillow's info that affect how pixels are read and shown."""
NEEDED_APPLICATIONS = {0xE0: b"JFIF\0", 0xE2: b"ICC_PROFILE\0", 0xEE: b"Adobe"}


@dataclass(frozen=True)
class Wanted:
    """Options of rewriting.

    Args:
        edge: pixels of the longer side; 0 for any.
        area: side in pixels of the square whose area an image is scaled to; 0 for any.
        enlarge: whether to enlarge small images too.
        format: PNG, JPEG or WEBP; empty keeps the format.
        quality: quality of written JPEG and WebP files; 100 is lossless for WebP.
        turn: whether to turn the pixels according to EXIF.
        strip: whether to remove metadata, except colour profiles.
    """

    edge: int = 0
    area: int = 0
    enlarge: bool = False
    format: str = ""
    quality: int = 95
    turn: bool = False
    strip: bool = False

    def check(self) -> None:
        """Raises:
        ConfigError: values that contradict each other or are out of range.
        """
        if self.edge and self.area:
            raise ConfigError(
                "an image can be resized to an edge or to an area", "--edge, --area", "leave one out"
            )
        for name, value in (("--edge", self.edge), ("--area", self.area)):
            if value and not 16 <= value <= MAX_SIDE:
                raise ConfigError(f"{value} is not between 16 and {MAX_SIDE}", name)
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"{self.quality} is not between 1 and 100", "--quality")
        if self.format and self.format not in ENDINGS:
            raise ConfigError(f"{self.format} is not known", "--to", f"known: {', '.join(ENDINGS)}")

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The new size of an image, preserving its shape."""
        if self.edge:
            factor = self.edge / max(width, height)
        elif self.area:
            factor = self.area / math.sqrt(width * height)
        else:
            return width, height
        if factor >= 1 and not self.enlarge:
            return width, height
        return max(1, round(width * factor)), max(1, round(height * factor))


@dataclass(frozen=True)
class Rewrite:
    """The change of one file.

    Args:
        old, new: names; equal if the format is kept.
        size: its new width and height.
        what: description of the change.
        skip: why it is left unchanged, if it is.
        format: PNG, JPEG or WEBP.
    """

    old: str
    new: str
    size: tuple[int, int]
    what: str = ""
    skip: str = ""
    format: str = ""


def plan_rewriting(root: Path, images: list[DataImage], wanted: Wanted) -> Iterator[list[Rewrite]]:
    """Plan the changes of each image and its masks from their headers. Nothing is changed. Unchanged images
    are left out.

    Masks get the size of their image and are turned with it; their format is kept.
    """
    wanted.check()
    for image in images:
        first = _plan_one(root, image.name, wanted, None)
        if first is None:
            continue
        made = [first]
        if not first.skip:
            of_masks = replace(wanted, format="", strip=False)
            masks = [_plan_one(root, name, of_masks, first.size) for name in image.masks]
            made += [mask for mask in masks if mask is not None]
        yield made


def _plan_one(root: Path, name: str, wanted: Wanted, size: tuple[int, int] | None) -> Rewrite | None:
    try:
        with Image.open(root / name) as image:
            return _plan_opened(name, image, wanted, size)
    except IMAGE_ERRORS as error:
        return Rewrite(name, name, (0, 0), skip=f"it cannot be read: {error}")


def _plan_opened(
    name: str, image: Image.Image, wanted: Wanted, size: tuple[int, int] | None
) -> Rewrite | None:
    # reading EXIF may read the pixels, after which the depth of a PNG file is unknown
    deep = _is_deep(image)
    kind = "JPEG" if image.format == "MPO" else image.format or ""
    turned = image.getexif().get(ORIENTATION, 1)
    width, height = image.size[::-1] if turned in SWAPPED else image.size
    said = []
    target = size or wanted.size(width, height)
    if target != (width, height):
        said.append(f"{width}x{height} -> {target[0]}x{target[1]}")
    if wanted.format and wanted.format != kind:
        said.append(f"{kind} -> {wanted.format}")
    if wanted.strip and _has_metadata(image):
        said.append(STRIPPED)
    # a file written without its orientation would be rotated
    if turned != 1 and (wanted.turn or said):
        said.append("turned")
    if not said:
        return None
    made = wanted.format or kind
    new = name if made == kind else PurePosixPath(name).with_suffix(ENDINGS[made]).as_posix()
    return Rewrite(name, new, target, ", ".join(said), _why_not(image, made, deep), made)


def _has_metadata(image: Image.Image) -> bool:
    # for a JPEG file, which may hold more than Pillow reports in info
    markers = {"COM": COMMENT} | {f"APP{i}": 0xE0 + i for i in range(16)}
    segments: list[tuple[int, bytes]] = [
        (markers[name], body) for name, body in getattr(image, "applist", [])
    ]
    return (
        bool(set(image.info) - NEEDED_INFO)
        or bool(image.getexif())
        or not all(_needed_segment(marker, body) for marker, body in segments)
    )


def _is_deep(image: Image.Image) -> bool:
    """Return whether the file stores more than 8 bits per channel. Its pixels must not have been read yet."""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return bool(max(image.tag_v2.get(BITS_PER_SAMPLE, (1,))) > 8)
    return image.format == "PNG" and any(";16" in str(tile.args) for tile in image.tile)  # type: ignore[attr-defined]


def _why_not(image: Image.Image, made: str, deep: bool) -> str:
    if made not in ENDINGS:
        return f"files of {f'the format {made}' if made else 'its format'} are not written: convert it with --to"
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
        return "it has several frames"
    if image.width * image.height > MAX_PIXELS:
        return "it has too many pixels"
    if deep:
        return "pixels with more than 8 bits per colour would lose precision"
    if image.mode not in PLAIN_MODES and image.mode not in ("1", "P", "CMYK"):
        return f"pixels of the kind {image.mode} would lose precision"
    if made == "JPEG" and (image.mode in ("LA", "RGBA", "PA") or "transparency" in image.info):
        return "JPEG has no transparency"
    return ""


def rewrite(
    root: Path,
    images: list[DataImage],
    plan: list[list[Rewrite]],
    wanted: Wanted,
    overwrite: bool,
    progress: Callable[[int, str], None],
) -> None:
    """Apply a plan, image by image. Finished images stay after a kill. ``Journal.undo`` undoes it.

    Args:
        images: all images of the folder.
        overwrite: whether files with the name of a converted one may be removed.
        progress: called with the number of images done and the name of the next.

    Raises:
        UserError: names are taken, or links lead to files that get other names. Nothing was changed.
    """
    plan = [files for files in plan if not files[0].skip]
    converted = {one.old: one.new for files in plan for one in files if one.new != one.old}
    follow = _named_after(images, converted)
    check_links(root, images, {*converted, *(name for names in follow.values() for name in names)})
    needed = [*converted.values()]
    _check_twice(plan)
    needed += [target for names in follow.values() for target in names.values()]
    taken = [name for name in needed if os.path.lexists(root / name)]
    check_taken(sorted(set(taken)), overwrite)
    with Journal(root).job("rewrite") as job:
        for number, files in enumerate(plan):
            progress(number, files[0].old)
            done = [one for one in files if not one.skip]
            others = follow.get(files[0].old, {})
            old = [one.old for one in done] + [one.new for one in done if one.new in taken]
            for name, target in others.items():
                if target in taken:
                    job.keep(target)
                job.move(name, target)
            job.replace(old, {one.new: partial(_write, root / one.old, one, wanted) for one in done})


def _named_after(images: list[DataImage], converted: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Files that other programs name after the whole name of a converted image, ``a.png.xmp``, with their new names.

    Args:
        converted: old to new names of the converted images.

    Returns:
        Old to new names, by image.
    """
    return {
        image.name: {
            name: converted[image.name] + name[len(image.name) :]
            for name in image.others
            if name.startswith(f"{image.name}.")
        }
        for image in images
        if image.name in converted
    }


def _check_twice(plan: list[list[Rewrite]]) -> None:
    """Refuse to write two files with the same name: ``a.jpg`` and ``a.webp`` as ``a.png``."""
    sources: dict[str, list[str]] = defaultdict(list)
    for files in plan:
        for one in files:
            if one.new != one.old:
                sources[one.new].append(one.old)
    twice = [f"{' and '.join(old)} -> {new}" for new, old in sources.items() if len(old) > 1]
    if twice:
        raise DataError(
            f"files would get the same name:\n{list_offenders(twice)}",
            hint="rename all but one of them first",
        )


def _write(source: Path, one: Rewrite, wanted: Wanted, target: Path) -> None:
    if one.what == STRIPPED and one.format in WITHOUT_METADATA:
        with target.open("wb") as stream:
            stream.write(WITHOUT_METADATA[one.format](read_bytes(source, "image", MAX_BYTES)))
        return
    with Image.open(source) as opened:
        profile = opened.info.get("icc_profile")
        image: Image.Image = ImageOps.exif_transpose(opened)
        extra = {} if wanted.strip else _metadata(opened, one.format, _packet(image))
        clear = "transparency" in opened.info
        if clear or image.mode not in PLAIN_MODES:
            profile = None if image.mode == "CMYK" else profile
            mode = "L" if image.mode in ("1", "L") else "RGB"
            image = image.convert(f"{mode}A" if clear else mode)
        if image.size != one.size:
            image = image.resize(one.size, Image.Resampling.LANCZOS)
        image.info = {}
        if profile:
            extra["icc_profile"] = profile
        if one.format == "JPEG":
            extra |= {"quality": wanted.quality, "subsampling": 0}
        elif one.format == "WEBP":
            extra |= {"quality": wanted.quality, "lossless": wanted.quality == 100, "exact": True}
        image.save(target, one.format, **extra)


def _needed_segment(marker: int, body: bytes) -> bool:
    """Return whether a segment of a JPEG file affects how its pixels are read and shown."""
    if marker in NEEDED_APPLICATIONS:
        return body.startswith(NEEDED_APPLICATIONS[marker])
    return not 0xE0 <= marker <= 0xEF and marker != COMMENT


def _jpeg_without_metadata(data: bytes) -> bytes:
    """Remove EXIF, XMP, IPTC, comments and trailing data. The pixels are unchanged, byte for byte."""
    made, at, pixels = bytearray(data[:2]), 2, False
    while found := MARKER.search(data, at):
        if pixels:
            made += data[at : found.start()]
        marker, begin = found[0][-1], found.end()
        if marker == END_OF_IMAGE:
            return bytes(made + b"\xff\xd9")
        at = begin + max(2, int.from_bytes(data[begin : begin + 2], "big"))
        if _needed_segment(marker, data[begin + 2 : at]):
            made += bytes((0xFF, marker)) + data[begin:at]
        pixels = marker == START_OF_SCAN
    return bytes(made + data[at:])


def _webp_without_metadata(data: bytes) -> bytes:
    """Remove EXIF and XMP. The pixels are unchanged."""
    made, at = bytearray(data[:12]), 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        end = at + 8 + size + size % 2
        chunk = bytearray(data[at:end])
        if chunk[:4] == b"VP8X":
            chunk[8] &= ~0b1100
        if bytes(chunk[:4]) not in (b"EXIF", b"XMP "):
            made += chunk
        at = end
    made[4:8] = (len(made) - 8).to_bytes(4, "little")
    return bytes(made)


WITHOUT_METADATA = {"JPEG": _jpeg_without_metadata, "WEBP": _webp_without_metadata}


def _packet(image: Image.Image) -> bytes:
    """The XMP packet of an image, which holds ratings, without its orientation once the pixels are turned."""
    packet = image.info.get("xmp") or image.info.get(XMP_KEY) or b""
    return packet.encode() if isinstance(packet, str) else packet if isinstance(packet, bytes) else b""


def _metadata(opened: Image.Image, made_format: str, packet: bytes) -> dict[str, Any]:
    """Metadata of a file in the form of ``save`` arguments. Texts of PNG files are the prompt of a generated
    image.

    Args:
        packet: its XMP packet; empty if there is none.
    """
    exif = opened.getexif()
    exif.pop(ORIENTATION, None)
    texts = {str(key): value for key, value in opened.info.items() if isinstance(value, str)}
    texts.pop(XMP_KEY, None)
    remark = opened.info.get("comment")
    remark = remark if isinstance(remark, bytes) else b""
    found: dict[str, Any] = {}
    if made_format == "PNG":
        if not texts and 0x9286 in exif.get_ifd(0x8769):
            texts = {"parameters": _comment(exif.get_ifd(0x8769)[0x9286])}
        texts |= {"Comment": remark.decode("utf-8", "replace")} if remark else {}
        texts |= {XMP_KEY: packet.decode("utf-8", "replace")} if packet else {}
        chunks = PngImagePlugin.PngInfo()
        for key, value in texts.items():
            chunks.add_itxt(key, value)
        found["pnginfo"] = chunks
    else:
        known = texts.get("parameters") or ("" if made_format == "JPEG" else remark.decode("utf-8", "replace"))
        if known and 0x9286 not in exif.get_ifd(0x8769):
            exif.get_ifd(0x8769)[0x9286] = b"UNICODE\0" + known.encode("utf-16-be")
        if packet and (made_format != "JPEG" or len(packet) <= MOST_IN_SEGMENT):
            found["xmp"] = packet
        if remark and made_format == "JPEG":
            found["comment"] = remark
    if len(exif) or exif.get_ifd(0x8769):
        found["exif"] = exif.tobytes()
    return found


def _comment(value: object) -> str:
    """The text of an EXIF comment, which begins with the name of its encoding."""
    if not isinstance(value, bytes):
        return str(value)
    head, text = value[:8], value[8:]
    return text.decode("utf-16-be" if head.startswith(b"UNICODE") else "utf-8", "replace")
