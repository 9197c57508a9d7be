"""A folder of everything that has gone wrong with image files, each kind with what reading it must say."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from modules.util.image_metadata.limits import MAX_PROMPT, Reason
from tests.util.image_metadata import files as f

GOOD = "a good cat\nSteps: 20, Sampler: Euler, Seed: 7, Size: 2x3"
PROMPT = "a good cat"


class Hazard(NamedTuple):
    """A kind of bad file.

    Args:
        name: the file it makes.
        make: its bytes, or a function that puts something at a path.
        reason: what reading it ends in, or ``None``: it gives a prompt.
        prompt: the prompt, where there is one.
    """

    name: str
    make: bytes | Callable[[Path], object]
    reason: Reason | None
    prompt: str = PROMPT

    def put(self, folder: Path) -> Path:
        path = folder / self.name
        if callable(self.make):
            self.make(path)
        else:
            path.write_bytes(self.make)
        return path


def node(kind: str, **inputs: object) -> dict[str, object]:
    return {"class_type": kind, "inputs": inputs}


def graph_png(graph: object) -> bytes:
    return f.png(f.text("prompt", graph if isinstance(graph, str) else json.dumps(graph)))


def cycle() -> dict[str, object]:
    """A sampler whose positive side runs in a circle, and a text next to it."""
    return {
        "1": node("KSampler", positive=["2", 0], negative=["3", 0], seed=1, steps=2),
        "2": node("ConditioningCombine", conditioning_1=["3", 0], conditioning_2=["2", 0]),
        "3": node("FluxGuidance", conditioning=["2", 0]),
        "4": node("CLIPTextEncode", text=PROMPT, clip=["1", 0]),
    }


def doubling() -> dict[str, object]:
    """Texts that are each the one before twice over."""
    graph: dict[str, object] = {
        "s": node("KSampler", positive=["e", 0], seed=1, steps=2),
        "e": node("CLIPTextEncode", text=["n40", 0]),
        "n0": node("String", string="ab"),
    }
    for i in range(40):
        graph[f"n{i + 1}"] = node("StringConcatenate", string_a=[f"n{i}", 0], string_b=[f"n{i}", 0])
    return graph


def _mesh() -> dict[str, object]:
    """Layers of combining nodes, each fed by the whole layer before: more ways through than there is time for."""
    graph: dict[str, object] = {"s": node("KSampler", positive=["60", 0], seed=1, steps=2)}
    for i in range(61):
        below = [str(i - 1), 0] if i else ["x", 0]
        graph[str(i)] = node("ConditioningCombine", conditioning_1=below, conditioning_2=below)
    return graph


def _many_pictures() -> dict[str, object]:
    """Thousands of pictures, each saved and with a sampler of its own."""
    graph: dict[str, object] = {"p": node("CLIPTextEncode", text=PROMPT)}
    for i in range(5000):
        graph[f"k{i}"] = node("KSampler", positive=["p", 0], seed=i, steps=1)
        graph[f"s{i}"] = node("SaveImage", images=[f"k{i}", 0])
    return graph


def _endless_boxes() -> bytes:
    """Boxes that hold thirty boxes each, ten deep."""
    boxes = [
        {"id": f"b{i}", "nodes": [{"id": n, "type": f"b{i + 1}"} for n in range(30)], "links": []}
        for i in range(10)
    ]
    data = {"nodes": [{"id": 1, "type": "b0"}], "links": [], "definitions": {"subgraphs": boxes}}
    return f.png(f.text("workflow", json.dumps(data)))


def _loop_link(path: Path) -> None:
    path.symlink_to(path.name)


def _dead_link(path: Path) -> None:
    path.symlink_to("nowhere.png")


_USER = 0x9286
_BAD_IFD = (
    b"MM\0*" + struct.pack(">IHHHII", 8, 2, 0x8769, 4, 1, 8) + struct.pack(">HHII", _USER, 7, 99999, 2**31)
)
_SELF_IFD = b"MM\0*" + struct.pack(">IH", 8, 1) + struct.pack(">HHII", 0x8769, 4, 1, 8) + bytes(4)
_NO_META = f.box(b"ftyp", b"avif\0\0\0\0") + f.box(b"mdat", b"x")
_SHORT_META = f.box(b"ftyp", b"avif\0\0\0\0") + f.box(b"meta", bytes(40), 4000)
_HUGE_META = f.box(b"ftyp", b"avif\0\0\0\0") + f.box(b"meta", bytes(40), 1 << 31)

HAZARDS = (
    Hazard("empty.png", b"", Reason.EMPTY),
    Hazard("one_byte.jpg", b"\xff", Reason.NOT_AN_IMAGE),
    Hazard("words.png", b"this is no image at all", Reason.NOT_AN_IMAGE),
    Hazard("signature_only.png", f.SIGNATURE, Reason.TRUNCATED),
    Hazard("cut_in_header.png", f.png()[:20], Reason.TRUNCATED),
    Hazard("wrong_first_chunk.png", f.SIGNATURE + f.text("a", "b" * 40), Reason.BAD_HEADER),
    Hazard("no_size.png", f.png(f.text("parameters", GOOD), width=0), Reason.BAD_HEADER),
    Hazard(
        "too_many_pixels.png",
        f.png(f.text("parameters", GOOD), width=60000, height=60000),
        Reason.TOO_MANY_PIXELS,
    ),
    Hazard("huge_canvas.webp", f.webp(width=1 << 24, height=1 << 24), Reason.TOO_MANY_PIXELS),
    Hazard("cut_in_text.png", f.png(f.text("parameters", GOOD))[:70], Reason.TRUNCATED),
    Hazard("no_end.png", f.png(f.text("parameters", GOOD))[:-30], None),
    Hazard(
        "length_lies.png",
        f.SIGNATURE + f.header() + f.chunk(b"tEXt", b"parameters\0x", 2**32 - 1),
        Reason.TEXT_TOO_LARGE,
    ),
    Hazard("ztxt_bomb.png", f.png(f.ztext("parameters", f.bomb(), True)), Reason.TEXT_TOO_LARGE),
    Hazard("itxt_bomb.png", f.png(f.itext("parameters", f.bomb(), True)), Reason.TEXT_TOO_LARGE),
    Hazard(
        "prompt_beside_bomb.png",
        f.png(f.ztext("parameters", f.bomb(), True), f.text("parameters", GOOD)),
        None,
    ),
    Hazard(
        "prompt_behind_bomb.png",
        f.png(f.ztext("prompt", f.bomb(), True), after=f.text("parameters", GOOD)),
        None,
    ),
    Hazard(
        "many_bombs.png", f.png(*[f.ztext("parameters", f.bomb(1 << 24), True)] * 100), Reason.TEXT_TOO_LARGE
    ),
    Hazard("broken_ztxt.png", f.png(f.ztext("parameters", b"not zlib", True)), Reason.BAD_TEXT),
    Hazard("broken_software.png", f.png(f.ztext("Software", b"not zlib", True)), Reason.NO_PROMPT),
    Hazard("cut_ztxt.png", f.png(f.ztext("parameters", f.bomb(1 << 20)[:40], True)), Reason.BAD_TEXT),
    Hazard("thousands_of_chunks.png", f.png(*[f.text(f"k{i}", "x") for i in range(20000)]), Reason.NO_PROMPT),
    Hazard(
        "prompt_behind_thousands.png",
        f.png(*[f.chunk(b"teSt", b"")] * 20000, f.text("parameters", GOOD)),
        None,
    ),
    Hazard("deep.png", graph_png('{"a":' * 50000), Reason.BAD_JSON),
    Hazard("deep_lists.png", graph_png('{"a":' + "[" * 90000), Reason.BAD_JSON),
    Hazard("wide.png", graph_png('{"a":[' + "{}," * 1_000_000 + "{}]}"), Reason.TEXT_TOO_LARGE),
    Hazard("not_quite.png", graph_png('{"1": {"class_type": '), Reason.BAD_JSON),
    Hazard("big_number.png", graph_png('{"seed":' + "9" * 5000 + "}"), Reason.BAD_JSON),
    Hazard(
        "nan.png",
        graph_png('{"4":{"class_type":"CLIPTextEncode","is_changed":[NaN],"inputs":{"text":"a good cat"}}}'),
        None,
    ),
    Hazard("half_character.png", graph_png('{"prompt": "a cat \\ud83d"}'), None, "a cat \ufffd"),
    Hazard("zero_character.png", graph_png('{"prompt": "a \\u0000cat"}'), None, "a cat"),
    Hazard("raw_utf8.png", f.png(f.text("parameters", "naïve 猫\nSteps: 2, Sampler: x")), None, "naïve 猫"),
    Hazard("not_utf8.png", f.png(f.text("parameters", b"na\xefve\nSteps: 2, Sampler: x")), None, "naïve"),
    Hazard("behind_pixels.png", f.png(after=f.text("parameters", GOOD)), None),
    Hazard("cyclic.png", graph_png(cycle()), None),
    Hazard("doubling.png", graph_png(doubling()), Reason.PROMPT_TOO_LONG),
    Hazard("mesh.png", graph_png(_mesh()), Reason.TEXT_TOO_LARGE),
    Hazard("many_pictures.png", graph_png(_many_pictures()), None),
    Hazard("endless_boxes.png", _endless_boxes(), Reason.TEXT_TOO_LARGE),
    Hazard("endless_prompt.png", f.png(f.text("parameters", "x" * (MAX_PROMPT + 1))), Reason.PROMPT_TOO_LONG),
    Hazard("jpeg_called.png", f.jpeg(f.app1(f.tiff({}, {_USER: f.comment(GOOD)}))), None),
    Hazard("png_called.jpg", f.png(f.text("parameters", GOOD)), None),
    Hazard("webp_called.avif", f.webp((b"EXIF", f.tiff({}, {_USER: f.comment(GOOD)}))), None),
    Hazard(
        "no_frame.jpg",
        b"\xff\xd8" + f.app1(f.tiff({}, {_USER: f.comment(GOOD)})) + b"\xff\xd9\0\0",
        Reason.BAD_HEADER,
    ),
    Hazard("cut_in_exif.jpg", f.jpeg(f.app1(f.tiff({}, {_USER: f.comment(GOOD)})))[:60], Reason.TRUNCATED),
    Hazard("only_fill.jpg", b"\xff\xd8" + b"\xff" * 200_000, Reason.BAD_HEADER),
    Hazard("no_marker.jpg", b"\xff\xd8\xff\xe0\0\4xx" + bytes(50), Reason.BAD_HEADER),
    Hazard("zero_segment.jpg", b"\xff\xd8\xff\xe1\0\0" + bytes(50), Reason.BAD_HEADER),
    Hazard("exif_outside.jpg", f.jpeg(f.app1(_BAD_IFD)), Reason.NO_PROMPT),
    Hazard("exif_circle.webp", f.webp((b"EXIF", _SELF_IFD)), Reason.NO_PROMPT),
    Hazard("exif_junk.webp", f.webp((b"EXIF", b"\x99" * 50)), Reason.BAD_EXIF),
    Hazard("no_image_chunk.webp", f.riff((b"EXIF", bytes(10))), Reason.BAD_HEADER),
    Hazard("chunk_lies.webp", f.webp()[:30] + b"EXIF\xff\xff\xff\xff", Reason.TEXT_TOO_LARGE),
    Hazard("unclosed_xmp.webp", f.webp((b"XMP ", b"<dc:description>" * 100_000)), Reason.NO_PROMPT),
    Hazard("no_meta.avif", _NO_META, Reason.BAD_HEADER),
    Hazard("cut_meta.avif", _SHORT_META, Reason.TRUNCATED),
    Hazard("huge_meta.avif", _HUGE_META, Reason.TEXT_TOO_LARGE),
    Hazard("folder.png", Path.mkdir, Reason.NOT_A_FILE),
    Hazard("pipe.png", os.mkfifo, Reason.NOT_A_FILE),
    Hazard("loop.png", _loop_link, Reason.LINK_LOOP),
    Hazard("dead_link.png", _dead_link, Reason.GONE),
)
