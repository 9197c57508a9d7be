"""Any bytes whatever: readers end with a prompt or a listed reason, and never with a traceback."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modules.util.image_metadata.containers.exif import decode_user_comment, parse_exif
from modules.util.image_metadata.containers.xmp import parse_xmp
from modules.util.image_metadata.formats.a1111 import looks_like_a1111, parse_a1111
from modules.util.image_metadata.formats.comfy import is_graph, read_graph
from modules.util.image_metadata.formats.comfy_workflow import is_workflow, read_workflow
from modules.util.image_metadata.formats.found import Found
from modules.util.image_metadata.formats.json_formats import read_json_object
from modules.util.image_metadata.limits import Reason, Unusable
from modules.util.image_metadata.normalise import (
    normalise_prompt,
    plain_unicode,
    strip_angle_bracket_segments,
)
from modules.util.image_metadata_util import read_metadata
from tests.usual import usual
from tests.util.image_metadata import files as f

_REASONS = tuple(reason.value for reason in Reason)
_USER = 0x9286
_FUZZ = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
_TEXT = "a cat\nNegative prompt: bad\nSteps: 20, Sampler: x, Seed: 7, Size: 2x3"
_GRAPH = json.dumps(
    {
        "1": {"class_type": "KSampler", "inputs": {"positive": ["2", 0], "seed": 1}},
        "2": {"class_type": "C", "inputs": {"text": "x"}},
    }
)
_EXIF = f.tiff({0x0110: b"prompt:" + _GRAPH.encode()}, {_USER: f.comment(_TEXT)})

SEEDS = {
    "png": f.png(
        f.text("parameters", _TEXT),
        f.ztext("prompt", _GRAPH.encode()),
        f.itext("Comment", _TEXT.encode(), deflate=True),
        f.chunk(b"eXIf", _EXIF),
    ),
    "jpeg": f.jpeg(f.app1(_EXIF), f.segment(0xFE, _TEXT.encode())),
    "webp": f.webp((b"EXIF", _EXIF), (b"XMP ", b"<dc:description>x</dc:description>")),
    "avif": f.avif(_EXIF, b"<dc:description>x</dc:description>", turn=1),
}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    handle, name = tempfile.mkstemp()
    os.close(handle)
    yield Path(name)
    Path(name).unlink()


def check(path: Path) -> None:
    about = read_metadata(path, sidecar=False, stealth=False)
    if about.error is not None:
        assert about.error.startswith(_REASONS)
        assert about.prompt is None
    else:
        assert about.prompt is not None
        assert about.negative_prompt is not None
        (about.prompt + about.negative_prompt).encode()
        assert about.width > 0
        assert about.height > 0


@pytest.mark.parametrize("kind", usual(sorted(SEEDS), "jpeg"))
@_FUZZ
@given(data=st.data())
def test_damaged_files(kind: str, data: st.DataObject, place: Path) -> None:
    raw = bytearray(SEEDS[kind])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        action = data.draw(st.sampled_from(("set", "cut", "insert", "remove")))
        if action == "set":
            raw[at] = data.draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFE, 0xFF)) | st.integers(0, 255))
        elif action == "cut" and at > 12:
            del raw[at:]
        elif action == "insert":
            raw[at:at] = data.draw(st.binary(max_size=9))
        else:
            del raw[at : at + data.draw(st.integers(1, 9))]
        if not raw:
            raw = bytearray(b"x")
    place.write_bytes(bytes(raw))
    check(place)


@pytest.mark.parametrize("kind", usual(sorted(SEEDS), "jpeg", "png", "webp"))
def test_files_cut_anywhere(kind: str, place: Path) -> None:
    whole = SEEDS[kind]
    for end in range(0, len(whole), 7):
        place.write_bytes(whole[:end])
        check(place)


@pytest.mark.parametrize(
    "start",
    usual(
        [f.SIGNATURE, f.SIGNATURE + f.header(), b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"\0\0\0\x14ftypavif", b""],
        f.SIGNATURE + f.header(),
        b"\0\0\0\x14ftypavif",
    ),
)
@_FUZZ
@given(tail=st.binary(max_size=300))
def test_junk_behind_a_signature(start: bytes, tail: bytes, place: Path) -> None:
    place.write_bytes(start + tail)
    check(place)


@_FUZZ
@given(
    data=st.binary(max_size=300), start=st.sampled_from((b"", b"II*\0", b"MM\0*", b"Exif\0\0II*\0\x08\0\0\0"))
)
def test_exif(data: bytes, start: bytes) -> None:
    try:
        values = parse_exif(start + data)
    except Unusable as error:
        assert error.reason is Reason.BAD_EXIF
    else:
        assert all(isinstance(value, str) for value in values.values())


@_FUZZ
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff"), min_size=1, max_size=80),
    st.sampled_from("><"),
)
def test_user_comments_come_back(text: str, order: str) -> None:
    text = "x" + text + "x"
    code = "utf-16-be" if order == ">" else "utf-16-le"
    assert decode_user_comment(b"UNICODE\0" + ("\ufeff" + text).encode(code), order) == text
    assert decode_user_comment(bytes(8) + text.encode(), order) == text


WORDS = st.text(max_size=20) | st.sampled_from(
    (
        "Steps: 20, Sampler: x",
        "\n",
        "Negative prompt:",
        "Seed: 5",
        "Steps:",
        ": ",
        ", ",
        "Steps: 3",
        "<",
        ">",
        "[",
        "]",
        "A: b, C: d,",
    )
)


@_FUZZ
@given(st.lists(WORDS, max_size=30).map("".join))
def test_a1111_never_fails(text: str) -> None:
    looks_like_a1111(text)
    assert isinstance(parse_a1111(text), Found)


PLAIN = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp")), max_size=60).map(
    str.strip
)


@_FUZZ
@given(PLAIN, PLAIN, st.integers(0, 2**64 - 1))
def test_a1111_comes_back(prompt: str, negative: str, seed: int) -> None:
    text = f"{prompt}\nNegative prompt: {negative}\nSteps: 20, Sampler: Euler, Seed: {seed}, Size: 8x8"
    assert parse_a1111(text) == Found(prompt, negative, "A1111", seed)


KEYS = st.sampled_from(
    (
        "prompt",
        "positive",
        "negative",
        "text",
        "guider",
        "conditioning",
        "image",
        "seed",
        "sui_image_params",
        "nodes",
        "links",
        "class_type",
        "inputs",
        "Comment",
        "uc",
        "c",
        "type",
        "id",
        "link",
        "name",
        "widgets_values",
        "1",
        "2",
        "3",
        "select",
        "v4_prompt",
        "caption",
    )
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | KEYS
    | st.tuples(st.sampled_from(("1", "2", "3", 1)), st.integers(-1, 2)).map(list)
)
JSONS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=40,
)


@_FUZZ
@given(JSONS)
def test_any_json(data: Any) -> None:
    try:
        result = read_json_object(data)
    except Unusable as error:
        assert str(error).startswith(_REASONS)
    else:
        assert result is None or (isinstance(result.prompt, str) and isinstance(result.negative, str))


NODE = st.fixed_dictionaries(
    {
        "class_type": st.sampled_from(
            (
                "KSampler",
                "CLIPTextEncode",
                "Reroute",
                "ConditioningCombine",
                "SaveImage",
                "StringConcatenate",
                "X",
            )
        ),
        "inputs": st.dictionaries(
            st.sampled_from(
                (
                    "positive",
                    "negative",
                    "text",
                    "guider",
                    "conditioning",
                    "conditioning_1",
                    "pipe",
                    "",
                    "string_a",
                    "string_b",
                    "seed",
                    "steps",
                    "select",
                    "input1",
                    "any",
                    "value",
                    "samples",
                    "cond1",
                    "clip",
                )
            ),
            st.tuples(st.sampled_from("123456"), st.integers(-1, 3)).map(list)
            | st.text(max_size=5)
            | st.integers(),
            max_size=6,
        ),
    }
)


@_FUZZ
@given(st.dictionaries(st.sampled_from("123456"), NODE, min_size=1))
def test_any_graph_ends(graph: dict[str, Any]) -> None:
    assert is_graph(graph)
    try:
        result = read_graph(graph)
    except Unusable as error:
        assert error.reason in (Reason.TEXT_TOO_LARGE, Reason.PROMPT_TOO_LONG)
    else:
        assert result is None or isinstance(result, Found)


@pytest.mark.slow
@_FUZZ
@given(st.lists(st.dictionaries(KEYS | st.just("mode"), JSONS, max_size=6), max_size=5), JSONS)
def test_any_workflow(nodes: list[Any], links: Any) -> None:
    nodes.append({"type": "KSampler", "id": 1, "inputs": [{"name": "positive", "link": 1}]})
    data = {"nodes": nodes, "links": links}
    assert is_workflow(data)
    try:
        result = read_workflow(data)
    except Unusable as error:
        assert str(error).startswith(_REASONS)
    else:
        assert result is None or isinstance(result, Found)


@_FUZZ
@given(
    st.lists(
        st.sampled_from(
            (
                "<dc:description",
                ">",
                "</dc:description>",
                "<x:prompt>",
                ' exif:UserComment="',
                "'",
                "/>",
                "&lt;",
                "a",
                "&#0;",
            )
        ),
        max_size=40,
    ).map("".join)
)
def test_any_xmp(packet: str) -> None:
    assert all(one.text.strip() for one in parse_xmp(packet))


@_FUZZ
@given(st.text(st.sampled_from("<> ab\n,:猫-1\x1b[m"), max_size=60))
def test_stripping_leaves_no_segment_and_nothing_new(text: str) -> None:
    stripped = strip_angle_bracket_segments(text)
    assert strip_angle_bracket_segments(stripped) == stripped
    left = iter(text)
    assert all(character in left for character in stripped)


TOKENS = (
    "--ar 1:1",
    "--v 6",
    "--no x",
    "<lora:x>",
    "<",
    ">",
    ",",
    " ",
    "cat",
    "\x1b[3",
    "1m",
    "\n",
    "--",
    "\u200b",
)


@_FUZZ
@given(st.lists(st.sampled_from(TOKENS), max_size=20).map("".join) | st.text(max_size=40))
def test_a_normal_prompt_is_one_line_and_stays_as_it_is(text: str) -> None:
    folded = normalise_prompt(text)
    assert normalise_prompt(folded) == folded
    assert folded == " ".join(folded.split())
    assert not any(character < " " or "\x7f" <= character < "\xa0" for character in folded)


@_FUZZ
@given(st.text())
def test_plain_unicode_can_be_written(text: str) -> None:
    plain = plain_unicode(text)
    plain.encode()
    assert "\0" not in plain
    assert plain_unicode(plain) == plain
