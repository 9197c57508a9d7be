"""The formats of the generators, in the containers they use."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.pipeline.nodes.images import read_size
from modules.util.image_metadata.containers.exif import decode_user_comment
from modules.util.image_metadata.formats.a1111 import parse_a1111
from modules.util.image_metadata.formats.json_formats import split_invoke
from modules.util.image_metadata_util import ImageMetadata, extract_metadata, read_metadata
from scripts.demo.metadata import STYLES, Made, write_image
from tests.util.image_metadata import files as f

_USER, _MODEL, _MAKE, _DESCRIPTION, _SOFTWARE, _NOTE = 0x9286, 0x0110, 0x010F, 0x010E, 0x0131, 0x927C
A1111 = "a cat, <lora:x:1>\nsecond line\nNegative prompt: blurry\nbad\nSteps: 20, Sampler: Euler a, Seed: 77, Size: 2x3"


def read(tmp_path: Path, data: bytes, **options: bool) -> ImageMetadata:
    path = tmp_path / "image.bin"
    path.write_bytes(data)
    return read_metadata(path, **options)


def summary(about: ImageMetadata) -> tuple[str | None, str | None, str | None, int | None]:
    assert (about.width, about.height) == (2, 3)
    return about.prompt, about.negative_prompt, about.generator, about.seed


A1111_FOUND = ("a cat, <lora:x:1>\nsecond line", "blurry\nbad", "A1111", 77)


@pytest.mark.parametrize(
    "data",
    [
        f.png(f.text("parameters", A1111)),
        f.png(f.ztext("parameters", A1111.encode())),
        f.png(f.itext("parameters", A1111.encode())),
        f.png(f.itext("parameters", A1111.encode(), deflate=True)),
        f.png(after=f.text("parameters", A1111)),
        f.png(f.chunk(b"eXIf", f.tiff({}, {_USER: f.comment(A1111)}))),
        f.jpeg(f.app1(f.tiff({}, {_USER: f.comment(A1111)}))),
        f.jpeg(f.app1(f.tiff({}, {_USER: f.comment(A1111, "utf-16-le")}, "<"))),
        f.jpeg(f.app1(f.tiff({}, {_USER: f.comment(A1111, "utf-16-le")}, ">"))),
        f.jpeg(f.app1(f.tiff({}, {_USER: f.comment(A1111, "ascii")}))),
        f.jpeg(f.app1(f.tiff({}, {_USER: f.comment(A1111, "utf-8")}))),
        f.jpeg(f.app1(f.tiff({}, {_USER: b"UNICODE\0" + A1111.encode()}))),
        f.webp((b"EXIF", f.tiff({}, {_USER: b"UNICODE\0" + A1111.encode() + bytes(3)}, "<"))),
        f.jpeg(f.app1(f.tiff({_USER: f.comment(A1111)}))),
        f.jpeg(f.segment(0xFE, A1111.encode())),
        f.webp((b"EXIF", f.tiff({}, {_USER: f.comment(A1111)}))),
        f.webp((b"EXIF", b"Exif\0\0" + f.tiff({}, {_USER: f.comment(A1111, "utf-16-le")}, "<"))),
        f.avif(f.tiff({}, {_USER: f.comment(A1111)})),
        f.png(f.text("parameters", A1111.replace("\n", "\r\n"))),
    ],
)
def test_a1111_in_every_container(data: bytes, tmp_path: Path) -> None:
    assert summary(read(tmp_path, data)) == A1111_FOUND


@pytest.mark.parametrize("code", ["utf-16-be", "utf-16-le"])
@pytest.mark.parametrize(
    "prompt",
    ["あかいきつね", "赤い狐", "un renard rouge", "füchse\nim wald", "山上", "“あか”", "《あか》"],
)
def test_utf16_is_not_mistaken_for_utf8(prompt: str, code: str) -> None:
    assert decode_user_comment(f.comment(prompt, code), "<" if code == "utf-16-le" else ">") == prompt


@pytest.mark.parametrize(
    ("text", "prompt", "negative"),
    [
        ("a cat\nSteps: 20, Sampler: x", "a cat", ""),
        ("Negative prompt: bad\nSteps: 20, Sampler: x", "", "bad"),
        ("Steps: 20, Sampler: x", "", ""),
        ("a sign: Negative prompt: none\nSteps: 20, Sampler: x", "a sign: Negative prompt: none", ""),
        (
            "a poster, Steps: 3, Sampler: lies, wow\nNegative prompt: b\nSteps: 20, Sampler: x",
            "a poster, Steps: 3, Sampler: lies, wow",
            "b",
        ),
        (
            "Steps: 12, Up: the stairs\na cat\nNegative prompt: b\nSteps: 20, Sampler: x",
            "Steps: 12, Up: the stairs\na cat",
            "b",
        ),
        ("Steps: to heaven\na cat\nSteps: 20", "Steps: to heaven\na cat", ""),
        (
            "a cat\nNegative prompt: b\nSteps: 20, Sampler: x\nTemplate: a {cat|dog}\nNegative Template: c",
            "a cat",
            "b",
        ),
        ("a cat Negative prompt: b Steps: 20, Sampler: x, Size: 1x1", "a cat", "b"),
        ("a cat\nNegative prompt: b\nSampler: Euler, Seed: 4, CFG scale: 7", "a cat", "b"),
        ("just words", "just words", ""),
        ("just words\nNegative prompt: and others", "just words", "and others"),
        ("", "", ""),
    ],
)
def test_a1111_texts(text: str, prompt: str, negative: str) -> None:
    found = parse_a1111(text)
    assert (found.prompt, found.negative) == (prompt, negative)


@pytest.mark.parametrize("style", sorted(STYLES))
def test_what_the_demo_writes_is_read_back(style: str, tmp_path: Path) -> None:
    made = Made('a "cat" (red:1.2), naïve 猫 😀\nsecond line', 42, 20, 7.0, 32, 16)
    path = write_image(tmp_path, "image", numpy.zeros((16, 32, 3), numpy.uint8), made, style)
    about = read_metadata(path)
    assert (about.prompt, about.negative_prompt, about.seed) == (made.prompt, "", 42)
    assert (about.width, about.height, about.error) == (32, 16, None)
    assert about.generator is not None
    assert about.generator.lower() == style.split("-")[0]


def _json(**values: Any) -> str:
    return json.dumps(values)


SWARM = _json(sui_image_params={"prompt": "a <wildcard:x> cat", "negativeprompt": "bad", "seed": 5})
NOVEL = _json(prompt="a cat", steps=28, seed=9, uc="bad")
NOVEL_4 = _json(
    v4_prompt={"caption": {"base_caption": "a cat", "char_captions": []}},
    v4_negative_prompt={"caption": {"base_caption": "bad"}},
    seed=9,
)
FOOOCUS = _json(
    prompt="a cat", negative_prompt="bad", full_prompt=["a cat", "sharp"], seed="9", base_model="x"
)
XMP = "<rdf:li><exif:UserComment><rdf:Alt><rdf:li>{}</rdf:li></rdf:Alt></exif:UserComment></rdf:li>"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (f.png(f.itext("parameters", SWARM.encode())), ("a <wildcard:x> cat", "bad", "SwarmUI", 5)),
        (
            f.jpeg(f.app1(f.tiff({}, {_USER: f.comment(SWARM, "utf-16-le")}, "<"))),
            ("a <wildcard:x> cat", "bad", "SwarmUI", 5),
        ),
        (
            f.png(f.text("invokeai_metadata", _json(positive_prompt="a cat", negative_prompt="bad", seed=9))),
            ("a cat", "bad", "InvokeAI", 9),
        ),
        (
            f.png(
                f.text(
                    "sd-metadata",
                    _json(image={"prompt": [{"prompt": "a cat [bad, worse]", "weight": 1}], "seed": 9}),
                )
            ),
            ("a cat", "bad, worse", "InvokeAI", 9),
        ),
        (
            f.png(f.text("sd-metadata", _json(image={"prompt": "a cat", "seed": 9}))),
            ("a cat", "", "InvokeAI", 9),
        ),
        (f.png(f.text("Dream", '"a cat [bad]" -s 50 -S 9 -W 512 -A k_lms')), ("a cat", "bad", "InvokeAI", 9)),
        (f.png(f.text("Dream", "a cat -s 50 -S 9 -W 512 -A k_lms")), ("a cat", "", "InvokeAI", 9)),
        (
            f.png(
                f.text("Software", "NovelAI"),
                f.text("Description", "a cat"),
                f.text("Comment", _json(uc="bad", seed=9)),
            ),
            ("a cat", "bad", "NovelAI", 9),
        ),
        (f.png(f.text("Software", "NovelAI"), f.text("Comment", NOVEL)), ("a cat", "bad", "NovelAI", 9)),
        (f.png(f.text("Software", "NovelAI"), f.text("Comment", NOVEL_4)), ("a cat", "bad", "NovelAI", 9)),
        (
            f.webp(
                (b"EXIF", f.tiff({}, {_USER: f.comment(_json(Comment=NOVEL, Software="NovelAI"), "utf-8")}))
            ),
            ("a cat", "bad", "NovelAI", 9),
        ),
        (
            f.png(f.text("parameters", FOOOCUS), f.text("fooocus_scheme", "fooocus")),
            ("a cat", "bad", "Fooocus", 9),
        ),
        (
            f.jpeg(f.app1(f.tiff({_USER: FOOOCUS.encode(), _NOTE: b"fooocus", _SOFTWARE: b"Fooocus v2.5"}))),
            ("a cat", "bad", "Fooocus", 9),
        ),
        (
            f.jpeg(f.app1(f.tiff({_USER: A1111.encode(), _NOTE: b"a1111", _SOFTWARE: b"Fooocus v2.5"}))),
            ("a cat, <lora:x:1>\nsecond line", "blurry\nbad", "Fooocus", 77),
        ),
        (
            f.png(
                f.text("prompt", "a cat"),
                f.text("negative_prompt", "bad"),
                f.text("seed", "9"),
                f.text("num_inference_steps", "25"),
            ),
            ("a cat", "bad", "Easy Diffusion", 9),
        ),
        (
            f.jpeg(
                f.app1(
                    f.tiff(
                        {},
                        {
                            _USER: f.comment(
                                _json(prompt="a cat", negative_prompt="bad", seed=9, num_inference_steps=25)
                            )
                        },
                    )
                )
            ),
            ("a cat", "bad", "Easy Diffusion", 9),
        ),
        (
            f.png(
                f.itext(
                    "XML:com.adobe.xmp",
                    XMP.format('{"c":"a cat","uc":"bad","seed":9}').replace('"', "&quot;").encode(),
                )
            ),
            ("a cat", "bad", "Draw Things", 9),
        ),
        (
            f.jpeg(
                f.segment(
                    0xE1,
                    b"http://ns.adobe.com/xap/1.0/\0"
                    + XMP.format(A1111.replace("<", "&lt;").replace(">", "&gt;")).encode(),
                )
            ),
            A1111_FOUND,
        ),
        (
            f.png(f.text("Description", "a cat --ar 3:2 --v 6 Job ID: 12345678-1234-1234-1234-123456789abc")),
            ("a cat --ar 3:2 --v 6", "", "Midjourney", None),
        ),
        (
            f.png(f.text("generation_data", _json(prompt="a cat", negativePrompt="bad", seed="9"))),
            ("a cat", "bad", "unknown", 9),
        ),
        (f.png(f.text("prompt", _json(prompt="a cat", seed=9))), ("a cat", "", "unknown", 9)),
        (f.png(f.text("prompt", "a cat")), ("a cat", "", "unknown", None)),
    ],
)
def test_other_generators(data: bytes, expected: tuple[Any, ...], tmp_path: Path) -> None:
    assert summary(read(tmp_path, data)) == expected


def test_easy_diffusion_with_its_other_names(tmp_path: Path) -> None:
    chunks = [("Prompt", "a cat"), ("Negative Prompt", "bad"), ("Seed", "9"), ("Steps", "25")]
    data = f.png(*(f.text(key, value) for key, value in chunks))
    assert summary(read(tmp_path, data)) == ("a cat", "bad", "Easy Diffusion", 9)
    whole = json.dumps(dict(chunks))
    data = f.webp((b"EXIF", f.tiff({}, {_USER: f.comment(whole)})))
    assert summary(read(tmp_path, data)) == ("a cat", "bad", "Easy Diffusion", 9)


@pytest.mark.parametrize(
    ("text", "prompt", "negative"),
    [
        ("a cat", "a cat", ""),
        ("a cat, mat,", "a cat, mat,", ""),
        ("a, b, [c, d], e, f, [g, h], i", "a, b, e, f, i", "c, d, g, h"),
        ("[bad]", "", "bad"),
        ("a cat []", "a cat", ""),
        ("a cat [bad", "a cat [bad", ""),
    ],
)
def test_brackets_of_invokeai(text: str, prompt: str, negative: str) -> None:
    assert split_invoke(text) == (prompt, negative)


def test_novelai_in_one_piece(tmp_path: Path) -> None:
    whole = _json(Software="NovelAI", Description="a cat", Comment=_json(uc="bad", seed=9, steps=28))
    path = tmp_path / "hidden.png"
    _hide(gzip.compress(whole.encode()), b"stealth_pngcomp", "A").save(path)
    about = read_metadata(path, stealth=True)
    assert (about.prompt, about.negative_prompt, about.generator, about.seed) == (
        "a cat",
        "bad",
        "NovelAI",
        9,
    )
    data = f.webp((b"EXIF", f.tiff({}, {_USER: f.comment(whole, "utf-8")})))
    assert summary(read(tmp_path, data)) == ("a cat", "bad", "NovelAI", 9)


def test_a_prompt_may_start_with_a_bracket(tmp_path: Path) -> None:
    about = read(tmp_path, f.png(f.text("parameters", "[cat|dog] and {x}\nSteps: 2, Sampler: x, Seed: 1")))
    assert about.prompt == "[cat|dog] and {x}"
    assert (
        read(tmp_path, f.png(f.text("parameters", "{a|b} cat\nSteps: 2, Sampler: x"))).prompt == "{a|b} cat"
    )


def test_an_empty_prompt_is_a_prompt(tmp_path: Path) -> None:
    about = read(tmp_path, f.png(f.text("parameters", "Steps: 20, Sampler: x, Seed: 1, Size: 2x3")))
    assert (about.prompt, about.error) == ("", None)
    assert extract_metadata(tmp_path / "image.bin")["prompt"] == "UNCONDITIONAL"


def test_words_win_over_an_empty_text(tmp_path: Path) -> None:
    data = f.png(f.text("parameters", "Steps: 20, Sampler: x, Seed: 1"), after=f.text("prompt", "a cat"))
    assert read(tmp_path, data).prompt == "a cat"


def test_the_header_says_the_size_not_the_text(tmp_path: Path) -> None:
    about = read(
        tmp_path, f.png(f.text("parameters", "a\nSteps: 1, Sampler: x, Size: 900x100"), width=20, height=30)
    )
    assert about.seen_size == (20, 30)


@pytest.mark.parametrize("turned", range(1, 9))
def test_orientation_is_seen(turned: int, tmp_path: Path) -> None:
    orientation = b"MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0" + bytes((turned,)) + bytes(6)
    about = read(tmp_path, f.jpeg(f.app1(orientation)))
    assert about.orientation == turned
    assert about.seen_size == ((3, 2) if turned > 4 else (2, 3))


@pytest.mark.parametrize(("turn", "seen"), [(0, (2, 3)), (1, (3, 2)), (2, (2, 3)), (3, (3, 2))])
def test_avif_is_turned_by_its_own_box(turn: int, seen: tuple[int, int], tmp_path: Path) -> None:
    about = read(tmp_path, f.avif(f.tiff({}, {_USER: f.comment(A1111)}), turn=turn))
    assert about.seen_size == seen
    assert about.kind == "AVIF"


def test_a_text_file_beside_the_image(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(f.png())
    assert read_metadata(path).error == "no prompt found"
    (tmp_path / "image.txt").write_text("\ufeffa caption\n", encoding="utf-8")
    about = read_metadata(path)
    assert (about.prompt, about.generator, about.error) == ("a caption", "text file", None)
    assert read_metadata(path, sidecar=False).prompt is None
    (tmp_path / "image.txt").write_text(A1111, encoding="utf-8")
    assert summary(read_metadata(path)) == A1111_FOUND
    path.write_bytes(f.png(f.text("parameters", "inside\nSteps: 2, Sampler: x")))
    assert read_metadata(path).prompt == "inside"


def test_a_file_of_swarmui_beside_the_image(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(f.png())
    (tmp_path / "image.swarm.json").write_text(SWARM, encoding="utf-8")
    assert summary(read_metadata(path)) == ("a <wildcard:x> cat", "bad", "SwarmUI", 5)
    (tmp_path / "image.swarm.json").write_text("{", encoding="utf-8")
    assert read_metadata(path).error == "its text is damaged JSON"


def test_exif_as_hexadecimal_text(tmp_path: Path) -> None:
    exif = b"Exif\0\0" + f.tiff({}, {_USER: f.comment(A1111)})
    profile = (
        f"\nexif\n{len(exif):8}\n"
        + "\n".join(exif.hex()[i : i + 72] for i in range(0, 2 * len(exif), 72))
        + "\n"
    )
    for made in (
        f.text("Raw profile type exif", profile),
        f.ztext("Raw profile type APP1", profile.encode()),
    ):
        assert summary(read(tmp_path, f.png(made))) == A1111_FOUND
    for broken in ("", "\nexif\n", "\nexif\n 9\nxyz", "\nexif\n 9\n45786"):
        assert read(tmp_path, f.png(f.text("Raw profile type exif", broken))).error is not None


def _hide(text: bytes, signature: bytes, channels: str) -> Image.Image:
    payload = signature + (len(text) * 8).to_bytes(4, "big") + text
    bits = numpy.unpackbits(numpy.frombuffer(payload, numpy.uint8))
    width = 50 + len(bits) // 40
    values = numpy.full((40, width, 4), 254, numpy.uint8)
    part = values[:, :, 3:] if channels == "A" else values[:, :, :3]
    flat = part.transpose(1, 0, 2).reshape(-1).copy()
    flat[: len(bits)] |= bits
    part[:] = flat.reshape(width, 40, part.shape[2]).transpose(1, 0, 2)
    return Image.fromarray(values)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize(
    ("signature", "channels", "packed"),
    [
        (b"stealth_pnginfo", "A", False),
        (b"stealth_pngcomp", "A", True),
        (b"stealth_rgbinfo", "RGB", False),
        (b"stealth_rgbcomp", "RGB", True),
    ],
)
def test_hidden_text(kind: str, signature: bytes, channels: str, packed: bool, tmp_path: Path) -> None:
    text = A1111.encode()
    image = _hide(gzip.compress(text) if packed else text, signature, channels)
    path = tmp_path / "hidden"
    image.save(path, kind, lossless=True, exact=True)
    assert read_metadata(path).error == "no prompt found"
    about = read_metadata(path, stealth=True)
    assert (about.prompt, about.negative_prompt, about.generator, about.seed) == A1111_FOUND


def test_hidden_nonsense(tmp_path: Path) -> None:
    path = tmp_path / "hidden.png"
    for broken in (b"not gzip", gzip.compress(bytes(8 << 20))):
        _hide(broken, b"stealth_pngcomp", "A").save(path)
        assert read_metadata(path, stealth=True).prompt is None
    Image.new("L", (9, 9)).save(path)
    assert read_metadata(path, stealth=True).error == "no prompt found"
    Image.new("RGBA", (1, 1)).save(path)
    assert read_metadata(path, stealth=True).error == "no prompt found"


def test_files_written_by_pillow(tmp_path: Path) -> None:
    image = Image.new("RGB", (30, 20))
    exif = Image.Exif()
    exif[_MAKE] = "someone"
    exif.get_ifd(0x8769)[_USER] = f.comment(A1111)
    for extension in ("jpg", "webp", "avif", "png"):
        path = tmp_path / f"image.{extension}"
        image.save(path, exif=exif)
        about = read_metadata(path)
        assert (about.prompt, about.negative_prompt, about.generator, about.seed) == A1111_FOUND
        assert (about.width, about.height) == (30, 20)
    info = PngInfo()
    info.add_itxt("parameters", A1111, "en", "Parameter", zip=True)
    image.save(tmp_path / "zipped.png", pnginfo=info)
    assert read_metadata(tmp_path / "zipped.png").seed == 77


@pytest.mark.parametrize("options", [{"lossless": True}, {"lossless": False}])
def test_webp_sizes_without_an_extended_header(options: dict[str, bool], tmp_path: Path) -> None:
    Image.new("RGB", (301, 203)).save(tmp_path / "image.webp", **options)
    about = read_metadata(tmp_path / "image.webp")
    assert (about.width, about.height, about.kind) == (301, 203, "WebP")


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "AVIF", "PNG", "MPO"])
def test_the_size_seen_is_the_size_trained_on(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "image.bin"
    for turned in range(1, 9):
        exif = Image.Exif()
        exif[_MAKE] = "someone"
        exif[0x0112] = turned
        Image.new("RGB", (64, 32)).save(path, kind, exif=exif)
        assert read_metadata(path).seen_size == read_size(path)
        assert read_metadata(path).seen_size == ((32, 64) if turned > 4 else (64, 32))
