"""Damaged and hostile files through every reader of image metadata: no crash, no long wait, bounded memory.

Each input follows from its reader's name and a number, so that one that fails can be made again. The usual part takes
300 inputs for each reader; the slow one as many as ``FUZZ_INPUTS`` says.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from modules.util.image_metadata.limits import Reason
from modules.util.image_metadata_util import extract_metadata
from tests.util.image_metadata import files as f
from tests.util.image_metadata.test_fuzz import SEEDS

INPUTS = 300
SLOW_INPUTS = int(os.environ.get("FUZZ_INPUTS", "15000"))
LONGEST_S = 2.0
MOST_MIB = 256
_SHARED = Path(__file__).parents[2] / "shared" / "data"
_REASONS = tuple(reason.value for reason in Reason)
_USER = 0x9286
_HEAD = 48 * 1024
_TOKENS = (
    b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"[", b"{", b'"', b"]}", b"<", b">", b",", b"--ar 1:1",
    b"Steps: 1,", b"Negative prompt:", b'["1", 0]', b'{"a":' * 40, b"[" * 200, b"\\ud800", b"NaN", b"1e999", b"9" * 400,
    b"positive", b"prompt", b"<rdf:li>", b"</dc:description>", b"II*\0", b"tEXt", b"iTXt", b"IEND",
)  # fmt: skip
_PROMPT = "a cat, <lora:x:1>\nNegative prompt: bad\nSteps: 20, Sampler: x, Seed: 7, Size: 2x3"
_XMP = "<dc:description><rdf:li>a red cat</rdf:li></dc:description><exif:UserComment>x</exif:UserComment>"
_GRAPH = {
    "1": {
        "class_type": "KSampler",
        "inputs": {"positive": ["2", 0], "negative": ["3", 0], "seed": 1, "steps": 2},
    },
    "2": {"class_type": "CLIPTextEncode", "inputs": {"text": ["4", 0], "clip": ["9", 1]}},
    "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "bad", "clip": ["9", 1]}},
    "4": {
        "class_type": "StringConcatenate",
        "inputs": {"string_a": "a", "string_b": ["5", 0], "delimiter": " "},
    },
    "5": {"class_type": "PrimitiveString", "inputs": {"value": "cat"}},
    "6": {"class_type": "LumaImageNode", "inputs": {"prompt": ["4", 0], "seed": 3, "image": ["1", 0]}},
    "7": {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}},
}
_BOX = {
    "id": "box",
    "nodes": [{"id": 1, "type": "box"}, {"id": 2, "type": "SaveImage"}],
    "links": [[1, -10, 0, 2, 0, "X"]],
}
_WORKFLOW = {
    "nodes": [
        {"id": 1, "type": "KSampler", "inputs": [{"name": "positive", "link": 1}], "widgets_values": [5, "fixed"]},
        {"id": 2, "type": "CLIPTextEncode", "widgets_values": ["a cat"], "outputs": [{"type": "CONDITIONING"}]},
        {"id": 3, "type": "box", "properties": {"proxyWidgets": [["1", "text"]]}, "widgets_values": ["x"]},
        {"id": 4, "type": "workflow/g", "widgets_values": ["y"]},
    ],
    "links": [[1, 2, 0, 1, 0, "CONDITIONING"]],
    "definitions": {"subgraphs": [_BOX]},
    "extra": {"groupNodes": {"g": {"nodes": [{"type": "X"}], "links": [[0, 0, 0, 0]], "external": [[0, 0]]}}},
}  # fmt: skip
_PLAIN = {"nodes": _WORKFLOW["nodes"][:2], "links": _WORKFLOW["links"]}
_NOVELAI = {
    "v4_prompt": {"caption": {"base_caption": "a", "char_captions": [{"char_caption": "b"}]}},
    "seed": 3,
}


def _text(key: str) -> Callable[[bytes], bytes]:
    return lambda data: f.png(f.chunk(b"tEXt", key.encode() + b"\0" + data[:400_000]))


def _exif(data: bytes) -> bytes:
    return f.png(f.chunk(b"eXIf", data))


def _whole(data: bytes) -> bytes:
    return data


class Reader(NamedTuple):
    """What is fuzzed: sound inputs, and how an input becomes a file."""

    seeds: tuple[bytes, ...]
    wrap: Callable[[bytes], bytes]


def _readers() -> dict[str, Reader]:
    samples = sorted((_SHARED / "metadata_samples").glob("*.*")) if _SHARED.is_dir() else []
    heads = [path.read_bytes()[:_HEAD] for path in samples if path.suffix in (".png", ".jpg", ".webp")]
    graphs = [p.read_bytes() for p in sorted((_SHARED / "comfyui_graphs").glob("*.json"))] if heads else []
    tiff = f.tiff({0x010E: b"a red cat\0", 0x0131: b"x\0"}, {_USER: f.comment(_PROMPT)})
    sized = io.BytesIO()
    Image.new("L", (5, 5)).save(sized, "TIFF", tiffinfo={0x010E: _PROMPT, 700: _XMP.encode()})
    texts = (_PROMPT.encode(), b"a cat --ar 1:1 --v 6", b"portrait, <wildcard:x>, light", b"\x1b[31m<a<b>>")
    return {
        **{name: Reader((data, *heads), _whole) for name, data in SEEDS.items()},
        "tiff and bmp": Reader((sized.getvalue(), tiff, b"BM" + bytes(40)), _whole),
        "exif": Reader((tiff, f.tiff({}, {_USER: f.comment(_PROMPT, "utf-8")}, "<")), _exif),
        "xmp": Reader((_XMP.encode(),), lambda data: f.png(f.itext("XML:com.adobe.xmp", data))),
        "graph": Reader((json.dumps(_GRAPH).encode(), *graphs), _text("prompt")),
        "workflow": Reader(
            (json.dumps(_WORKFLOW).encode(), *[json.dumps(_PLAIN).encode()] * 2), _text("workflow")
        ),
        "json": Reader((json.dumps(_NOVELAI).encode(), b'{"prompt": "a"} junk {"c": "b"}'), _text("Comment")),
        "text": Reader(texts, _text("parameters")),
    }


def mutated(reader: Reader, name: str, number: int) -> bytes:
    """The input of a number: a seed, damaged in a few places, or spliced with another."""
    draw = random.Random(f"{name} {number}")
    data = bytearray(draw.choice(reader.seeds))
    for _ in range(draw.choice((1, 1, 2, 3, 8, 30))):
        at = draw.randrange(len(data) + 1)
        action = draw.randrange(7)
        if action == 0 and data:
            data[at % len(data)] = draw.randrange(256)
        elif action == 1:
            data[at:at] = draw.choice(_TOKENS)
        elif action == 2:
            token = draw.choice(_TOKENS)
            data[at : at + len(token)] = token
        elif action == 3:
            del data[at : at + draw.choice((1, 2, 4, 16, 300))]
        elif action == 4:
            piece = data[at : at + draw.choice((4, 40, 400))]
            data[at:at] = piece * draw.choice((2, 3, 50))
        elif action == 5:
            other = draw.choice(reader.seeds)
            start = draw.randrange(len(other))
            data[at:at] = other[start : start + 400]
        elif draw.random() < 0.2:
            del data[max(at, 12) :]
        if len(data) > 1 << 20:
            del data[1 << 20 :]
    return reader.wrap(bytes(data))


class Tally(NamedTuple):
    """What a reader did with its inputs."""

    inputs: int
    crashes: list[str]
    slow: list[str]
    prompts: int


def fuzz(folder: Path, name: str, reader: Reader, inputs: int) -> Tally:
    """Read every input through the door of the package; what went wrong, by number."""
    path = folder / "image.bin"
    crashes, slow, prompts = [], [], 0
    for number in range(inputs):
        path.write_bytes(mutated(reader, name, number))
        start = time.process_time()
        try:
            about = extract_metadata(path)
            (json.dumps(about, ensure_ascii=False)).encode()
            sound = about["error"] is None or about["error"].startswith(_REASONS)
            fault = (
                ""
                if sound and (about["prompt"] is None) == (about["error"] is not None)
                else f"odd answer {about}"
            )
        except Exception as error:  # noqa: BLE001 - anything at all is what is looked for
            fault = repr(error)
        else:
            prompts += about["prompt"] is not None
        if fault:
            crashes.append(f"{name} {number}: {fault}")
        if (took := time.process_time() - start) > LONGEST_S:
            slow.append(f"{name} {number}: {took:.1f} s")
    return Tally(inputs, crashes, slow, prompts)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


READERS = _readers()


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_short_run(name: str, tmp_path: Path) -> None:
    before = peak_mib()
    tally = fuzz(tmp_path, name, READERS[name], INPUTS)
    assert (tally.crashes, tally.slow) == ([], [])
    assert peak_mib() - before < MOST_MIB
    # Damage that nothing survives would look at error paths alone.
    assert tally.prompts > INPUTS // 50


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(READERS))
def test_a_long_run(name: str, tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    before, start = peak_mib(), time.process_time()
    tally = fuzz(tmp_path, name, READERS[name], SLOW_INPUTS)
    record_property("inputs", tally.inputs)
    record_property("inputs_a_second", round(tally.inputs / (time.process_time() - start)))
    assert (tally.crashes, tally.slow) == ([], [])
    assert peak_mib() - before < MOST_MIB


def test_the_same_number_gives_the_same_input_and_crashes_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = READERS["text"]
    assert mutated(reader, "text", 5) == mutated(reader, "text", 5) != mutated(reader, "text", 6)

    def broken(path: Path) -> dict[str, object]:
        raise ZeroDivisionError

    monkeypatch.setattr(f"{__name__}.extract_metadata", broken)
    assert len(fuzz(tmp_path, "text", reader, 3).crashes) == 3
