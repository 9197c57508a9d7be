"""Places that hold prompts besides those of the large programs, and the same places when they say nothing."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.curation.intake.image_size import image_size
from modules.pipeline.nodes.images import load_rgb, read_size
from modules.util.image_metadata_util import ImageMetadata, extract_metadata, read_metadata
from tests.util.image_metadata import files as f

_DESCRIPTION, _MAKE, _MODEL, _SOFTWARE, _ARTIST, _USER = 0x010E, 0x010F, 0x0110, 0x0131, 0x013B, 0x9286
XMP = "<x:xmpmeta><rdf:Description {attributes}>{elements}</rdf:Description></x:xmpmeta>"
ALT = (
    '<dc:description><rdf:Alt><rdf:li xml:lang="x-default">{}</rdf:li><rdf:li xml:lang="de">Hallo</rdf:li>'
    "</rdf:Alt></dc:description>"
)


def read(folder: Path, data: bytes) -> ImageMetadata:
    path = folder / "image.bin"
    path.write_bytes(data)
    return read_metadata(path)


def exif(**values: str) -> bytes:
    tags = {
        "description": _DESCRIPTION,
        "make": _MAKE,
        "model": _MODEL,
        "software": _SOFTWARE,
        "artist": _ARTIST,
    }
    return f.tiff(
        {
            tags[name]: value.encode() + b"\0"
            for name, value in sorted(values.items(), key=lambda v: tags[v[0]])
        }
    )


def xmp(elements: str = "", attributes: str = "") -> bytes:
    return f.itext("XML:com.adobe.xmp", XMP.format(elements=elements, attributes=attributes).encode())


def novelai(*characters: str, base: str = "two foxes", **more: Any) -> dict[str, Any]:
    captions = [{"char_caption": one, "centers": [{"x": 0.5, "y": 0.5}]} for one in characters]
    unwanted = [{"char_caption": f"no {one}"} for one in characters]
    return {
        "v4_prompt": {"caption": {"base_caption": base, "char_captions": captions}, "use_coords": False},
        "v4_negative_prompt": {"caption": {"base_caption": "bad", "char_captions": unwanted}},
        "seed": 9,
        **more,
    }


@pytest.mark.parametrize("more", [{}, {"prompt": "two foxes", "uc": "bad"}], ids=["alone", "with a prompt"])
@pytest.mark.parametrize("place", ["comment", "with description", "whole"])
def test_characters_of_novelai_are_part_of_the_prompt(
    place: str, more: dict[str, Any], tmp_path: Path
) -> None:
    def made(*characters: str) -> bytes:
        comment = json.dumps(novelai(*characters, **more))
        software, description = f.text("Software", "NovelAI"), f.text("Description", "two foxes")
        if place == "whole":
            whole = json.dumps({"Software": "NovelAI", "Description": "two foxes", "Comment": comment})
            return f.webp((b"EXIF", f.tiff({}, {_USER: f.comment(whole, "utf-8")})))
        chunks = [software, f.text("Comment", comment)]
        return f.png(*chunks, *([description] if place == "with description" else []))

    first, second = read(tmp_path, made("a red one", "")), read(tmp_path, made("a red one", "a grey one"))
    assert (first.prompt, first.generator, first.seed) == ("two foxes, a red one", "NovelAI", 9)
    assert second.prompt == "two foxes, a red one, a grey one"
    if place != "whole":
        assert second.negative_prompt == "bad, no a red one, no a grey one"
    assert read(tmp_path, made()).prompt == "two foxes"


@pytest.mark.parametrize("captions", [None, 5, [5, {"char_caption": 5}, {}], {"a": 1}])
def test_odd_characters_are_passed_over(captions: Any, tmp_path: Path) -> None:
    data = novelai()
    data["v4_prompt"]["caption"]["char_captions"] = captions
    assert read(tmp_path, f.png(f.text("Comment", json.dumps(data)))).prompt == "two foxes"


STABILITY_MATRIX = json.dumps(
    {"PositivePrompt": "a fox", "NegativePrompt": "bad", "Steps": 20, "Seed": 9, "Sampler": {}}
)
GRAPH = json.dumps(
    {
        "1": {"class_type": "KSampler", "inputs": {"positive": ["2", 0], "seed": 9, "steps": 1}},
        "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a fox"}},
    }
)


@pytest.mark.parametrize(
    ("data", "prompt", "generator"),
    [
        (f.png(f.text("parameters-json", STABILITY_MATRIX)), "a fox", "Stability Matrix"),
        (f.png(f.text("DiffusionBee", '{"prompt": "a fox", "seed": 9, "num_steps": 25}')), "a fox", "unknown"),
        (f.png(f.itext("x-params", b"a fox\nSteps: 20, Sampler: x, Seed: 1")), "a fox", "A1111"),
        (f.png(f.text("parameters", '{"a": 1} junk {"prompt": "a fox"}')), "a fox", "unknown"),
        (f.png(f.text("prompt", GRAPH + ' junk {"extra": {}}')), "a fox", "ComfyUI"),
        (f.webp((b"EXIF", f.tiff({}, {_USER: f.comment('{"x": {}}\n\n' + GRAPH)}))), "a fox", "ComfyUI"),
        (f.jpeg(f.app1(exif(description="A fox in the snow"))), "A fox in the snow", "unknown"),
        (f.jpeg(f.app1(exif(description="fox", software="Leonardo.Ai"))), "fox", "Leonardo"),
        (f.jpeg(f.app1(exif(description="a fox", make="SeaArt"))), "a fox", "SeaArt"),
        (f.jpeg(f.app1(exif(description="a fox", artist="Grok"))), "a fox", "Grok"),
        (f.jpeg(f.app1(exif(description="Prompt: a fox"))), "a fox", "unknown"),
        (f.webp((b"EXIF", exif(description="雪の中の狐"))), "雪の中の狐", "unknown"),
        (f.png(f.chunk(b"eXIf", exif(description="a red fox"))), "a red fox", "unknown"),
        (f.png(xmp(ALT.format("A fox &amp; a cat"))), "A fox & a cat", "unknown"),
        (f.png(xmp(attributes='dc:description="a red fox"')), "a red fox", "unknown"),
        (f.avif(xmp=XMP.format(elements=ALT.format("a red fox"), attributes="").encode()), "a red fox", "unknown"),
        (f.png(xmp(ALT.format("a fox\n-ugly\nSteps: 8, Sampler: x, Seed: 4"))), "a fox", "A1111"),
        (
            f.png(xmp(ALT.format("a fox\n-ugly") + '<exif:UserComment>{"c": "a fox", "uc": ""}</exif:UserComment>')),
            "a fox",
            "Draw Things",
        ),
    ],
    ids=range(18),
)  # fmt: skip
def test_further_places(data: bytes, prompt: str, generator: str, tmp_path: Path) -> None:
    about = read(tmp_path, data)
    assert (about.prompt, about.generator, about.error) == (prompt, generator, None)


def camera() -> bytes:
    """EXIF of a camera that says how long it exposed, and a description by a person."""
    entries = struct.pack(">HHII", _DESCRIPTION, 2, 22, 38) + struct.pack(">HHII", 0x829A, 5, 1, 60)
    return (
        b"MM\0*"
        + struct.pack(">IH", 8, 2)
        + entries
        + bytes(4)
        + b"My dog on the beach.\0\0"
        + struct.pack(">II", 1, 60)
    )


SILENT = {
    "camera": f.jpeg(f.app1(camera())),
    "maker": f.jpeg(f.app1(exif(description="My dog on the beach", make="Canon", model="EOS 5D"))),
    "olympus": f.jpeg(f.app1(exif(description="OLYMPUS DIGITAL CAMERA"))),
    "sony": f.jpeg(f.app1(exif(description="SONY DSC"))),
    "path": f.jpeg(f.app1(exif(description="DCIM\\100MEDIA\\DJI_0001.JPG"))),
    "file": f.jpeg(f.app1(exif(description="my holiday/IMG 0001.jpg"))),
    "editor": f.png(f.chunk(b"eXIf", exif(description="Created with GIMP"))),
    "screen": f.png(xmp(ALT.format("Screenshot 2024-01-01 at 10.00"))),
    "signature": f.jpeg(f.app1(exif(description="Signature: aGVsbG8gd29ybGQ=", artist="Grok"))),
    "copyright": f.jpeg(f.app1(exif(description="Copyright 2024 Somebody Else"))),
    "one word": f.jpeg(f.app1(exif(description="holidays"))),
    "number": f.jpeg(f.app1(exif(description="12345"))),
    "blank": f.jpeg(f.app1(exif(description="   "))),
    "lightroom": f.png(xmp(ALT.format("My dog on the beach"), 'xmp:CreatorTool="Adobe Photoshop Lightroom 6"')),
    "raw": f.png(xmp(ALT.format("My dog on the beach"), 'crs:Version="9.1"')),
    "exif in xmp": f.png(xmp(ALT.format("My dog on the beach") + "<exif:FNumber>4/1</exif:FNumber>")),
    "title": f.png(f.text("Title", "My dog on the beach"), f.text("Author", "A person")),
    "comment": f.png(f.text("Comment", "Created with GIMP")),
    "date": f.png(f.text("date:create", "2024-01-01T00:00:00+00:00"), f.text("Software", "gnome-screenshot")),
    "json": f.png(f.text("anything", '{"a": {"b": [1, 2]}} and {"c": "d"}')),
    "broken json": f.png(f.text("workflow", '{"nodes": [{"id": {"a": 1}')),
    "history": f.jpeg(f.segment(0xFE, b"File written by Adobe Photoshop 5.2")),
    "nothing": f.png(),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SILENT))
def test_a_file_that_says_nothing_gives_none(name: str, tmp_path: Path) -> None:
    about = read(tmp_path, SILENT[name])
    assert about.prompt is None
    assert about.error


def test_a_description_gives_way_to_a_prompt_behind_the_pixels(tmp_path: Path) -> None:
    data = f.png(
        f.chunk(b"eXIf", exif(description="a title of it")),
        after=f.text("parameters", "a fox\nSteps: 2, Sampler: x"),
    )
    assert read(tmp_path, data).prompt == "a fox"


@pytest.mark.parametrize(
    ("suffix", "text", "prompt"),
    [
        (".txt", "a fox", "a fox"),
        (".txt", "{red|grey} fox", "{red|grey} fox"),
        (".caption", "a fox\n", "a fox"),
        (".json", '{"prompt": "a fox", "seed": 3}', "a fox"),
        (".json", '{"meta": {"prompt": "a fox"}}', "a fox"),
        (".json", '{"caption": "a fox"}', "a fox"),
        (".json", GRAPH, "a fox"),
        (".swarm.json", '{"sui_image_params": {"prompt": "a fox"}}', "a fox"),
        (".json", '{"width": 5}', None),
        (".json", "[1, 2]", None),
        (".json", "{broken", None),
        (".caption", "", None),
        (".md", "a fox", None),
    ],
)  # fmt: skip
def test_files_next_to_the_image(suffix: str, text: str, prompt: str | None, tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(f.png())
    (tmp_path / f"image{suffix}").write_text(text, encoding="utf-8")
    assert read_metadata(tmp_path / "image.png").prompt == prompt


def test_a_broken_file_next_to_the_image_does_not_hide_another(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(f.png())
    (tmp_path / "image.json").write_text("{broken")
    assert read_metadata(tmp_path / "image.png").error == "its text is damaged JSON"
    (tmp_path / "image.swarm.json").write_text('{"sui_image_params": {"prompt": "a fox"}}')
    assert read_metadata(tmp_path / "image.png").prompt == "a fox"


@pytest.mark.parametrize("kind", ["TIFF", "BMP"])
@pytest.mark.parametrize("suffix", [".txt", ".caption"])
def test_kinds_without_a_prompt_of_their_own_take_one_from_a_file(
    kind: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"image.{kind[:3].lower()}"
    Image.new("RGB", (60, 40)).save(path, kind)
    assert read_metadata(path).error == "no prompt found"
    path.with_suffix(suffix).write_text("a fox")
    about = extract_metadata(path)
    assert (about["prompt"], about["width"], about["height"], about["aspectratio"]) == (
        "a fox",
        60,
        40,
        "3:2",
    )


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_tiff_file_with_a_prompt(order: str, tmp_path: Path) -> None:
    path = tmp_path / "image.tif"
    info = {
        _DESCRIPTION: "a fox\nSteps: 2, Sampler: x, Seed: 7",
        700: XMP.format(elements="", attributes="").encode(),
    }
    Image.new("RGB", (6, 4)).save(path, "TIFF", tiffinfo=info)
    about = read_metadata(path)
    assert (about.prompt, about.seed, about.kind) == ("a fox", 7, "TIFF")
    data = f.tiff({_DESCRIPTION: b"a red fox\0"}, order=order)
    assert read(tmp_path, data).error == "damaged header: 0x0 pixels"


def test_bmp_files_from_the_top_down_and_old_ones(tmp_path: Path) -> None:
    head = b"BM" + bytes(12)
    assert read(tmp_path, head + struct.pack("<Iii", 40, 6, -4)).width == 6
    about = read(tmp_path, head + struct.pack("<IHH", 12, 6, 4) + bytes(8))
    assert (about.width, about.height, about.kind) == (6, 4, "BMP")
    assert read(tmp_path, head + struct.pack("<Iii", 40, -6, 4)).error == "damaged header: 0x4 pixels"
    assert read(tmp_path, head).error == "the file ends inside its header"


@pytest.mark.parametrize("turned", range(1, 9))
def test_a_turned_tiff_file_is_seen_as_it_is_trained_on(turned: int, tmp_path: Path) -> None:
    path = tmp_path / "image.tif"
    image = Image.new("RGB", (64, 32))
    image.putpixel((0, 0), (255, 0, 0))
    image.save(path, "TIFF", tiffinfo={0x0112: turned})
    trained = load_rgb(path)
    assert read_metadata(path).seen_size == read_size(path) == trained.size == image_size(path)
    corner = {1: (0, 0), 2: (63, 0), 3: (63, 31), 4: (0, 31), 5: (0, 0), 6: (31, 0), 7: (31, 63), 8: (0, 63)}
    assert trained.getpixel(corner[turned]) == (255, 0, 0)
