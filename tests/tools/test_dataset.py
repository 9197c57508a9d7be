"""The dataset tool from its command line."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import zlib
from pathlib import Path

import numpy
import pytest
from PIL import Image, PngImagePlugin

from modules.tools.dataset.files import find_images, natural
from modules.util.image_metadata_util import extract_metadata
from scripts.dataset import main
from tests.tools.pictures import contents, picture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images, two with captions, one with a mask, and files that belong to none."""
    root = tmp_path / "my images"
    (root / "deeper").mkdir(parents=True)
    picture(1).save(root / "cat 2.png")
    picture(2).save(root / "cat 10.jpg", quality=95)
    picture(3).save(root / "deeper" / "dog.webp", lossless=True)
    picture(4).convert("L").save(root / "cat 2-masklabel.png")
    (root / "cat 2.txt").write_text("a cat, red, sits")
    (root / "cat 10.caption").write_text("a cat, blue")
    (root / "cat 10.npz").write_bytes(b"cache")
    (root / "notes.md").write_text("mine")
    return root


def call(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.mark.parametrize("orphan", ["pet_1.txt", "pet_1.caption", "pet_1-masklabel.png", "deeper/pet_1.txt"])
def test_a_renamed_image_does_not_get_the_caption_or_mask_of_a_deleted_one(
    folder: Path, orphan: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "cat 2.txt").unlink()
    (folder / "cat 2-masklabel.png").unlink()
    picture(8).convert("L").save(folder / "mask.png")
    (folder / orphan).write_bytes((folder / "mask.png").read_bytes())
    (folder / "mask.png").unlink()
    before = contents(folder)
    words = ("rename", folder, "--pattern", "pet_{number}", "--subfolders")
    assert call(*words) == 2
    said = capsys.readouterr()
    assert f"{orphan} already exists" in said.out and "--overwrite" in said.err
    assert contents(folder) == before
    assert call(*words, "--overwrite") == 0
    assert orphan not in contents(folder) and "pet_1.png" in contents(folder)
    assert call("undo", folder) == 0
    assert contents(folder) == before


@pytest.mark.parametrize("words", [("--edge", "32"), ("--to", "png"), ("--to", "jpeg"), ("--to", "webp")])
@pytest.mark.parametrize("name", ["a.jpg", "a.webp", "a.png"])
def test_ratings_of_a_person_and_prompts_in_comments_are_kept(
    tmp_path: Path, name: str, words: tuple[str, str]
) -> None:
    packet = (
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
        '<rdf:Description xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="5"/></rdf:RDF></x:xmpmeta>'
    )
    prompt = "a fox\nSteps: 20, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 64x48"
    extra: dict[str, object] = {"xmp": packet.encode()}
    if name == "a.jpg":
        extra["comment"] = prompt.encode()
    if name == "a.png":
        chunks = PngImagePlugin.PngInfo()
        chunks.add_itxt("XML:com.adobe.xmp", packet)
        chunks.add_text("parameters", prompt)
        extra = {"pnginfo": chunks}
    picture(1).save(tmp_path / name, **extra)
    before = extract_metadata(tmp_path / name)
    assert name == "a.webp" or before["prompt"] == "a fox"
    assert call("rewrite", tmp_path, *words) == 0
    (made,) = [path for path in tmp_path.iterdir() if path.is_file()]
    assert b'xmp:Rating="5"' in made.read_bytes()
    assert extract_metadata(made).get("prompt") == before.get("prompt")
    assert call("rewrite", tmp_path, "--strip") == 0
    assert b"Rating" not in made.read_bytes() and b"fox" not in made.read_bytes()


@pytest.mark.parametrize("link", ["a link.png", "zz link.png"])
def test_links_to_images_of_the_folder_are_not_broken(
    folder: Path, link: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / link).symlink_to("cat 2.png")
    for words in (("rename", "--pattern", "{number}"), ("rewrite", "--to", "webp")):
        before = contents(folder)
        assert call(words[0], folder, *words[1:]) == 2
        assert f"{link} -> cat 2.png" in capsys.readouterr().err
        assert contents(folder) == before
    assert call("duplicates", folder, "--remove") == 0
    assert call("forget", folder) == 0
    assert (folder / "cat 2.png").is_file() and not (folder / link).is_symlink()


def test_a_caption_stays_that_a_link_of_a_remaining_image_leads_to(folder: Path) -> None:
    (folder / "dog.png").write_bytes((folder / "cat 2.png").read_bytes())
    (folder / "dog.txt").write_text("a caption for two")
    (folder / "cat 2.txt").unlink()
    (folder / "cat 2.txt").symlink_to("dog.txt")
    assert call("duplicates", folder, "--remove") == 0
    assert not (folder / "dog.png").exists()
    assert (folder / "cat 2.txt").read_text() == "a caption for two"


def test_files_that_other_programs_name_after_an_image_follow_it(folder: Path) -> None:
    for name in ("cat 2.png.xmp", "cat 10.xmp", "cat 10.swarm.json", "gone.png.xmp"):
        (folder / name).write_text(name)
    (folder / "cat 2.webp").write_bytes((folder / "deeper" / "dog.webp").read_bytes())
    (folder / "cat 2.txt").unlink()
    (folder / "cat 2-masklabel.png").unlink()
    (folder / "cat 2.png.txt").write_text("no caption, for training does not read it")
    before = contents(folder)
    assert find_images(folder, False)[0].caption() is None
    assert call("rename", folder, "--pattern", "pet {number}") == 0
    found = contents(folder)
    assert found["pet 1.png"] == before["cat 2.png"] and found["pet 1.png.xmp"] == b"cat 2.png.xmp"
    assert found["pet 3.xmp"] == b"cat 10.xmp" and found["pet 3.swarm.json"] == b"cat 10.swarm.json"
    assert found["gone.png.xmp"] == b"gone.png.xmp" and found["pet 2.webp"] == before["cat 2.webp"]
    assert call("undo", folder) == 0
    assert contents(folder) == before


def test_files_named_after_a_converted_image_get_its_new_name(folder: Path) -> None:
    for name in ("cat 2.png.xmp", "cat 10.jpg.xmp", "deeper/dog.webp.json"):
        (folder / name).write_text(name)
    before = contents(folder)
    assert call("rewrite", folder, "--to", "webp", "--subfolders") == 0
    found = contents(folder)
    assert found["cat 2.webp.xmp"] == b"cat 2.png.xmp" and found["cat 10.webp.xmp"] == b"cat 10.jpg.xmp"
    assert found["deeper/dog.webp.json"] == b"deeper/dog.webp.json" and "cat 2.png.xmp" not in found
    assert call("undo", folder) == 0
    assert contents(folder) == before
    (folder / "cat 2.webp.xmp").write_text("mine")
    now = contents(folder)
    assert call("rewrite", folder, "--to", "webp") == 2
    assert contents(folder) == now
    assert call("rewrite", folder, "--to", "webp", "--overwrite") == 0
    assert contents(folder)["cat 2.webp.xmp"] == b"cat 2.png.xmp"
    assert call("undo", folder) == 0
    assert contents(folder) == now


def test_sources_of_edits_stay_with_their_results(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {"cat 2-source.png": 5, "cat 2-source.2.png": 6, "cat 10_source.webp": 7, "a-source.png": 8}
    for name, seed in sources.items():
        picture(seed).save(folder / name)
    before = contents(folder)
    assert call("rename", folder, "--pattern", "{number:3}") == 0
    found = contents(folder)
    old = {new: name for name, data in before.items() for new, same in found.items() if same == data}
    assert {new: old[new] for new in found if new.endswith((".png", ".jpg", ".webp")) and "/" not in new} == {
        "001.png": "a-source.png",
        "002.png": "cat 2.png", "002-masklabel.png": "cat 2-masklabel.png",
        "002-source.png": "cat 2-source.png", "002-source.2.png": "cat 2-source.2.png",
        "003.jpg": "cat 10.jpg", "003_source.webp": "cat 10_source.webp",
    }  # fmt: skip
    assert call("undo", folder) == 0
    assert contents(folder) == before
    (folder / "cat 10.png").write_bytes((folder / "a-source.png").read_bytes())
    (folder / "cat 10.caption").unlink()
    (folder / "cat 10.npz").unlink()
    assert call("rename", folder, "--pattern", "{number}") == 2
    assert "cat 10_source.webp (cat 10.*)" in capsys.readouterr().err


def test_images_and_folders_named_after_a_converted_image_stay(tmp_path: Path) -> None:
    picture(1).save(tmp_path / "a.png")
    picture(2).save(tmp_path / "a.png.jpg")
    picture(3).save(tmp_path / "a.png.JPEG", "JPEG")
    (tmp_path / "a.png.files").mkdir()
    (tmp_path / "a.png.files" / "b.txt").write_text("mine")
    (tmp_path / "a.png.xmp").write_text("stars")
    before = contents(tmp_path)
    assert call("rewrite", tmp_path, "--to", "jpeg") == 0
    found = contents(tmp_path)
    assert found.keys() == before.keys() - {"a.png", "a.png.xmp"} | {"a.jpg", "a.jpg.xmp"}
    assert all(found[name] == before[name] for name in found.keys() & before.keys())
    assert call("undo", tmp_path) == 0
    assert contents(tmp_path) == before
    (tmp_path / "a.png.xmp").unlink()
    assert call("rename", tmp_path, "--pattern", "x{name}") == 0
    assert {"xa.png", "xa.png.jpg", "xa.png.JPEG"} <= contents(tmp_path).keys()


@pytest.mark.parametrize("link", ["b.xmp", "b.webp.xmp"])
def test_links_to_files_named_after_a_converted_image_are_not_broken(
    tmp_path: Path, link: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.png", "b.webp"):
        picture(1).save(tmp_path / name)
    (tmp_path / "a.png.xmp").write_text("stars")
    (tmp_path / link).symlink_to("a.png.xmp")
    before = contents(tmp_path)
    assert call("rewrite", tmp_path, "--to", "webp") == 2
    assert f"{link} -> a.png.xmp" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_a_source_of_a_source_stays_with_the_last_result(tmp_path: Path) -> None:
    chain = ("a.png", "a-source.png", "a-source-source.png", "a-source-source_source.2.png")
    for seed, name in enumerate(chain):
        picture(seed).save(tmp_path / name)
    before = contents(tmp_path)
    assert call("rename", tmp_path, "--pattern", "x{number}") == 0
    assert contents(tmp_path) == {f"x1{name[1:]}": before[name] for name in chain}
    assert call("undo", tmp_path) == 0
    picture(0).save(tmp_path / "A first.png")
    before = contents(tmp_path)
    assert call("duplicates", tmp_path, "--remove") == 0
    assert contents(tmp_path).keys() == {"A first.png"}
    assert call("undo", tmp_path) == 0
    assert contents(tmp_path) == before


def test_duplicates_leave_every_edit_its_source(tmp_path: Path) -> None:
    # one source with two edits, an edit that equals its source, and an edit that is there twice
    for name, seed in {
        "a.png": 1, "a-source.png": 9, "b.png": 2, "b-source.png": 9, "c.png": 3, "c-source.png": 3,
        "d.png": 1, "d-source.png": 9, "d-source.2.png": 7,
    }.items():  # fmt: skip
        picture(seed).save(tmp_path / name)
        if "source" not in name:
            (tmp_path / name).with_suffix(".txt").write_text(name)
    before = contents(tmp_path)
    assert call("duplicates", tmp_path, "--remove") == 0
    gone = {"d.png", "d.txt", "d-source.png", "d-source.2.png"}
    assert contents(tmp_path).keys() == before.keys() - gone
    assert call("undo", tmp_path) == 0
    assert contents(tmp_path) == before


def test_two_images_do_not_come_to_share_a_caption(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "cat 10.caption").unlink()
    (folder / "cat 10.npz").unlink()
    before = contents(folder)
    assert call("rename", folder, "--pattern", "{folder}") == 2
    assert "would belong to another image too" in capsys.readouterr().err
    assert contents(folder) == before


def test_captions_and_masks_follow_their_images(folder: Path) -> None:
    before = contents(folder)
    assert call("rename", folder, "--pattern", "pet_{number:3}", "--subfolders") == 0
    found = contents(folder)
    assert found == {
        "pet_001.png": before["cat 2.png"],
        "pet_001-masklabel.png": before["cat 2-masklabel.png"],
        "pet_001.txt": before["cat 2.txt"],
        "pet_002.jpg": before["cat 10.jpg"],
        "pet_002.caption": before["cat 10.caption"],
        "pet_002.npz": before["cat 10.npz"],
        "deeper/pet_001.webp": before["deeper/dog.webp"],
        "notes.md": before["notes.md"],
    }
    assert call("undo", folder) == 0
    assert contents(folder) == before


def test_a_dry_run_says_everything_and_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)
    assert call("rename", folder, "--pattern", "{folder}-{number}", "--dry-run") == 0
    assert "cat 2.txt -> my images-1.txt" in capsys.readouterr().out
    assert call("rewrite", folder, "--edge", "32", "--to", "webp", "--dry-run") == 0
    assert "cat 10.jpg: 64x48 -> 32x24, JPEG -> WEBP" in capsys.readouterr().out
    assert contents(folder) == before
    assert not (folder / ".tastemaker-tools").exists()


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("same", "not a pattern"), ("{number}/x", "not a pattern"), ("{other}{number}", "not a pattern"),
        ("{number:x}", "not a pattern"), ("{folder}", "the same name"), ("con{name}\x07", "control character"),
    ],
)  # fmt: skip
def test_patterns_that_lose_files_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], pattern: str, message: str
) -> None:
    before = contents(folder)
    (folder / "cat 11.jpg").write_bytes(before["cat 10.jpg"])
    before = contents(folder)
    assert call("rename", folder, "--pattern", pattern) == 2
    assert message in capsys.readouterr().err
    assert contents(folder) == before


def test_names_that_are_taken_need_a_word(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "1.md").write_text("old")
    (folder / "cat 2.md").write_text("new")
    before = contents(folder)
    assert call("rename", folder, "--pattern", "{number}") == 2
    assert "1.md" in capsys.readouterr().err
    assert contents(folder) == before
    assert call("rename", folder, "--pattern", "{number}", "--overwrite") == 0
    assert (folder / "1.md").read_text() == "new"
    assert call("undo", folder) == 0
    assert contents(folder) == before


def test_a_caption_of_two_images_is_not_guessed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture(9).save(folder / "cat 2.jpg")
    assert call("rename", folder, "--pattern", "{number}") == 2
    assert "cat 2.txt (cat 2.jpg, cat 2.png)" in capsys.readouterr().err


def test_numbers_are_counted_as_people_do() -> None:
    assert sorted(["a10", "a9", "B1", "a"], key=natural) == ["a", "a9", "a10", "B1"]


def test_images_get_the_wanted_size_with_lanczos_and_masks_follow(folder: Path) -> None:
    before = contents(folder)
    assert call("rewrite", folder, "--edge", "32") == 0
    with Image.open(folder / "cat 2.png") as image:
        wanted = picture(1).resize((32, 24), Image.Resampling.LANCZOS)
        assert numpy.array_equal(numpy.asarray(image), numpy.asarray(wanted))
    with Image.open(folder / "cat 2-masklabel.png") as mask, Image.open(folder / "cat 10.jpg") as other:
        assert mask.size == other.size == (32, 24)
        assert mask.mode == "L"
    assert contents(folder)["deeper/dog.webp"] == before["deeper/dog.webp"]
    assert call("rewrite", folder, "--area", "48", "--enlarge") == 0
    with Image.open(folder / "cat 2.png") as image:
        assert image.size == (55, 42)  # 48 * sqrt(4 / 3), 48 * sqrt(3 / 4)
    assert call("undo", folder) == call("undo", folder) == 0
    assert contents(folder) == before


def test_small_images_stay_unless_they_are_to_grow(folder: Path) -> None:
    before = contents(folder)
    assert call("rewrite", folder, "--edge", "128") == 0
    assert contents(folder) == before


def test_a_prompt_survives_every_format(folder: Path) -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("parameters", "a red cat\nSteps: 20, Sampler: Euler, Seed: 1, Size: 64x48")
    picture(1).save(folder / "cat 2.png", pnginfo=text)
    name = folder / "cat 2.png"
    for kind, ending in (("png", ".png"), ("webp", ".webp"), ("jpeg", ".jpg"), ("png", ".png")):
        assert call("rewrite", folder, "--to", kind, "--edge", "60", "--quality", "100") == 0
        name = name.with_suffix(ending)
        assert extract_metadata(name)["prompt"] == "a red cat"
    assert call("rewrite", folder, "--strip") == 0
    assert not Image.open(name).info.get("parameters")


@pytest.mark.parametrize("kind", ["jpg", "webp", "png"])
def test_metadata_goes_and_pixels_stay(tmp_path: Path, kind: str) -> None:
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    profile = b"\0" * 200
    picture(1).save(tmp_path / f"a.{kind}", exif=exif, icc_profile=profile, quality=80)
    with Image.open(tmp_path / f"a.{kind}") as image:
        pixels = numpy.asarray(image)
    assert call("rewrite", tmp_path, "--strip") == 0
    assert b"where I live" not in (tmp_path / f"a.{kind}").read_bytes()
    with Image.open(tmp_path / f"a.{kind}") as image:
        assert numpy.array_equal(numpy.asarray(image), pixels)
        assert image.info["icc_profile"] == profile
        assert not image.getexif()
    assert call("rewrite", tmp_path, "--strip") == 0
    assert len([path for path in (tmp_path / ".tastemaker-tools").iterdir() if path.is_dir()]) <= 2


@pytest.mark.parametrize("option", ["--turn", "--strip", "--edge=40"])
def test_an_image_on_its_side_is_turned(tmp_path: Path, option: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(1).save(tmp_path / "a.png", exif=exif)
    picture(2).convert("L").save(tmp_path / "a-masklabel.png", exif=exif)
    wanted = picture(1).transpose(Image.Transpose.ROTATE_270)
    assert call("rewrite", tmp_path, option) == 0
    with Image.open(tmp_path / "a.png") as image, Image.open(tmp_path / "a-masklabel.png") as mask:
        assert image.getexif().get(0x0112, 1) == 1
        size = (30, 40) if "edge" in option else (48, 64)
        assert image.size == size
        expected = wanted.resize(size, Image.Resampling.LANCZOS)
        assert numpy.array_equal(numpy.asarray(image), numpy.asarray(expected))
        assert mask.size == size or option == "--strip"


def test_what_would_lose_something_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(1).convert("RGBA").save(tmp_path / "clear.png")
    frames = [picture(i) for i in range(2)]
    frames[0].save(tmp_path / "moving.webp", save_all=True, append_images=frames[1:])
    Image.fromarray(numpy.zeros((48, 64), numpy.uint16)).save(tmp_path / "deep.png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    picture(5).save(tmp_path / "fine.png")
    before = contents(tmp_path)
    assert call("rewrite", tmp_path, "--to", "jpeg") == 0
    said = capsys.readouterr().out
    for words in ("clear.png: left as it is: JPEG has no", "moving.webp: left as it is: it has several",
                  "deep.png: left as it is: pixels", "broken.png: left as it is: it cannot be read"):  # fmt: skip
        assert words in said
    after = contents(tmp_path)
    assert after.keys() == (before.keys() - {"fine.png"}) | {"fine.jpg"}
    assert all(after[name] == before[name] for name in after.keys() & before.keys())


def test_a_converted_image_replaces_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture(1).save(tmp_path / "a.png")
    picture(2).save(tmp_path / "a.webp")
    before = contents(tmp_path)
    assert call("rewrite", tmp_path, "--to", "webp") == 2
    assert "a.webp" in capsys.readouterr().err
    assert contents(tmp_path) == before
    assert call("rewrite", tmp_path, "--to", "webp", "--overwrite") == 0
    assert contents(tmp_path).keys() == {"a.webp"}
    assert call("undo", tmp_path) == 0
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "words", [("--edge", "8"), ("--edge", "64", "--area", "64"), ("--quality", "0", "--turn"), ()]
)
def test_wrong_words_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert call("rewrite", folder, *words) == 2
    assert capsys.readouterr().err.startswith("error: --")


def test_duplicates_are_found_and_taken_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "copy.png").write_bytes((folder / "cat 2.png").read_bytes())
    (folder / "copy.txt").write_text("a copy")
    picture(2, 128, 96).save(folder / "larger.webp", quality=80)
    before = contents(folder)
    assert call("duplicates", folder) == 0
    said = capsys.readouterr().out
    assert "copy.png is the same file as cat 2.png" in said
    assert "larger.webp is near cat 10.jpg" in said
    assert "2 duplicates among 4 images" in said
    assert contents(folder) == before
    assert call("duplicates", folder, "--remove") == 0
    assert contents(folder).keys() == before.keys() - {"copy.png", "copy.txt", "larger.webp"}
    assert call("undo", folder) == 0
    assert contents(folder) == before


def test_a_caption_stays_with_the_image_that_stays(folder: Path) -> None:
    """Three equal images share a caption; a fourth differs and shares another one with its copy."""
    data = (folder / "cat 2.png").read_bytes()
    for name in ("cat 2.jpg", "cat 2.webp"):
        (folder / name).write_bytes(data)
    for name in ("zebra.jpg", "zebra.webp"):
        (folder / name).write_bytes(data)
    (folder / "zebra.txt").write_text("of two that go")
    before = contents(folder)
    assert call("duplicates", folder, "--remove") == 0
    gone = {"cat 2.png", "cat 2.webp", "zebra.jpg", "zebra.webp", "zebra.txt"}
    assert contents(folder).keys() == before.keys() - gone
    assert call("undo", folder) == 0
    assert contents(folder) == before


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
@pytest.mark.parametrize("words", [("rename", "--pattern", "{number}"), ("rewrite", "--strip"), ("stats",)])
def test_names_that_are_not_utf8_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    picture(5).save(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.png"))
    before = contents(folder)
    assert call(words[0], folder, *words[1:]) == 2
    assert "names are not UTF-8:" in (said := capsys.readouterr().err)
    assert "caf\\udce9.png" in said
    assert contents(folder) == before


def test_a_pattern_that_is_not_utf8_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    assert call("rename", folder, "--pattern", "\udce9{number}") == 2
    assert "names are not UTF-8" in capsys.readouterr().err
    assert contents(folder) == before


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("words", [("--strip",), ("--to", "webp", "--quality", "100"), ("--edge", "32")])
def test_a_transparent_colour_stays_transparent(tmp_path: Path, mode: str, words: tuple[str, ...]) -> None:
    """Half of the image has the one colour that its file calls transparent."""
    image = Image.new(mode, (64, 48), 10 if mode == "L" else (10, 20, 30))
    image.paste(200 if mode == "L" else (200, 100, 50), (32, 0, 64, 48))
    text = PngImagePlugin.PngInfo()
    text.add_text("parameters", "a cat")
    image.save(tmp_path / "a.png", pnginfo=text, transparency=10 if mode == "L" else (10, 20, 30))
    assert call("rewrite", tmp_path, *words) == 0
    (made,) = (path for path in tmp_path.iterdir() if path.is_file())
    with Image.open(made) as found:
        alpha = numpy.asarray(found.convert("RGBA"))[..., 3]
    width = alpha.shape[1]
    assert (alpha[:, : width // 2 - 4] == 0).all()
    assert (alpha[:, width // 2 + 4 :] == 255).all()


def deep_png(colour: int) -> bytes:
    """A PNG file of 8x8 pixels with 16 bits a colour: grey with alpha (4), RGB (2) or RGBA (6)."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + bytes(range(16)) * {4: 2, 2: 3, 6: 4}[colour] for _ in range(8))
    header = struct.pack(">IIBBBBB", 8, 8, 16, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def deep_tiff() -> bytes:
    """A TIFF file of 8x8 RGB pixels with 16 bits a colour."""
    after = 8 + 2 + 9 * 12 + 4
    entries = [(256, 3, 1, 8), (257, 3, 1, 8), (258, 3, 3, after), (259, 3, 1, 1), (262, 3, 1, 2),
               (273, 4, 1, after + 6), (277, 3, 1, 3), (278, 3, 1, 8), (279, 4, 1, 384)]  # fmt: skip
    fields = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + fields + struct.pack("<I", 0)
    return head + struct.pack("<HHH", 16, 16, 16) + bytes(range(128)) * 3


def test_colours_of_16_bits_are_left_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for colour in (2, 4, 6):
        (tmp_path / f"{colour}.png").write_bytes(deep_png(colour))
    (tmp_path / "a.tiff").write_bytes(deep_tiff())
    before = contents(tmp_path)
    for path in tmp_path.iterdir():
        with Image.open(path) as image:
            assert image.mode in ("RGB", "LA", "RGBA"), "the mode alone does not tell"
            image.load()
    assert call("rewrite", tmp_path, "--to", "webp") == 0
    assert capsys.readouterr().out.count("left as it is: pixels with more than 8 bits") == 4
    assert contents(tmp_path) == before


def test_every_kind_of_metadata_leaves_a_jpeg(tmp_path: Path) -> None:
    """Other programs put it into any segment, behind fill bytes, between scans and after the end."""
    stream, profile = io.BytesIO(), b"\0" * 200
    picture(1).save(stream, "JPEG", progressive=True, icc_profile=profile)
    plain = stream.getvalue()
    with Image.open(io.BytesIO(plain)) as image:
        pixels = numpy.asarray(image)
    secret = b"\0\x08secret"
    scan = plain.index(b"\xff\xda", plain.index(b"\xff\xda") + 2)
    kinds = (0xE0, 0xE1, 0xE2, 0xEB, 0xED, 0xEE, 0xFE)
    hidden = b"".join(b"\xff\xff\xff" + bytes([kind]) + secret for kind in kinds)
    (tmp_path / "a.jpg").write_bytes(
        plain[:2] + hidden + plain[2:scan] + b"\xff\xfe" + secret + plain[scan:] + b"secret"
    )
    assert call("rewrite", tmp_path, "--strip") == 0
    assert (tmp_path / "a.jpg").read_bytes() == plain
    with Image.open(tmp_path / "a.jpg") as image:
        assert numpy.array_equal(numpy.asarray(image), pixels)


def test_a_segment_that_pillow_does_not_name_is_metadata_too(tmp_path: Path) -> None:
    stream = io.BytesIO()
    picture(1).save(stream, "JPEG")
    plain = stream.getvalue()
    (tmp_path / "a.jpg").write_bytes(plain[:2] + b"\xff\xeb\0\x08secret" + plain[2:])
    assert call("rewrite", tmp_path, "--strip") == 0
    assert (tmp_path / "a.jpg").read_bytes() == plain


@pytest.mark.parametrize("words", [("--strip",), ("--edge", "32"), ("--to", "png")])
def test_of_a_photo_with_several_images_the_first_is_taken(tmp_path: Path, words: tuple[str, ...]) -> None:
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    picture(1).save(
        tmp_path / "a.jpg", "MPO", save_all=True, append_images=[picture(2)], exif=exif, quality=95
    )
    with Image.open(tmp_path / "a.jpg") as image:
        assert image.format == "MPO"
        wanted = image.resize((32, 24), Image.Resampling.LANCZOS) if "32" in words else image.copy()
    assert call("rewrite", tmp_path, *words) == 0
    (made,) = (path for path in tmp_path.iterdir() if path.is_file())
    with Image.open(made) as image:
        assert image.format == ("PNG" if "png" in words else "JPEG")
        assert image.size == wanted.size
        apart = numpy.abs(numpy.asarray(image).astype(int) - numpy.asarray(wanted))
    assert apart.max() <= (8 if "32" in words else 0)
    assert (b"where I live" in made.read_bytes()) == ("--strip" not in words)


@pytest.mark.parametrize("more", [(), ("--overwrite",)])
def test_two_images_that_would_get_one_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    picture(1).save(tmp_path / "a.jpg")
    picture(2).save(tmp_path / "a.webp")
    before = contents(tmp_path)
    assert call("rewrite", tmp_path, "--to", "png", *more) == 2
    said = capsys.readouterr().err
    assert "a.jpg and a.webp -> a.png" in said and "rename all but one" in said
    assert "--overwrite" not in said
    assert contents(tmp_path) == before


def test_counts_of_a_known_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture(7, 48, 48).save(folder / "empty.png")
    (folder / "empty.txt").write_text(" \n")
    (folder / "broken.png").write_text("no image")
    assert call("stats", folder, "--subfolders", "--resolution", "64", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "images": 5,
        "masks": 1,
        "sizes": {"64x48": 3, "48x48": 1},
        "aspects": {"5:4": 3, "1:1": 1},
        "buckets": {"72x56": 3, "64x64": 1},
        "smaller_than_bucket": ["cat 2.png", "cat 10.jpg", "deeper/dog.webp", "empty.png"],
        "captions_missing": ["broken.png", "deeper/dog.webp"],
        "captions_empty": ["empty.png"],
        "tags": {"a cat": 2, "blue": 1, "red": 1, "sits": 1},
        "unreadable": ["broken.png"],
    } | {"smaller_than_bucket": found["smaller_than_bucket"]}
    assert set(found["smaller_than_bucket"]) == {"cat 2.png", "cat 10.jpg", "deeper/dog.webp", "empty.png"}
    assert call("stats", folder) == 0
    assert "captions missing: 1: broken.png" in capsys.readouterr().out


def test_captions_of_several_lines_and_with_a_byte_order_mark_are_counted_as_training_reads_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(7).save(folder / "empty.png")
    (folder / "empty.txt").write_text("\ufeff \n", encoding="utf-8")
    (folder / "cat 2.txt").write_bytes("\ufeffa cat, red\r\na cat, sits\r\n".encode())
    assert call("stats", folder, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tags"] == {"a cat": 2, "blue": 1, "red": 1, "sits": 1}
    assert found["captions_empty"] == ["empty.png"] and not found["captions_missing"]


def test_a_missing_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("stats",), ("rename", "--pattern", "{number}"), ("undo",), ("rewrite", "--turn")):
        assert call(words[0], tmp_path / "gone", *words[1:]) == 2
        assert "does not exist" in capsys.readouterr().err


def test_jpeg_with_damaged_segments_is_left(tmp_path: Path) -> None:
    """Lengths in files of others may lie."""
    stream = io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = "x" * 50
    picture(1).save(stream, "JPEG", exif=exif)
    data = bytearray(stream.getvalue())
    for at in range(2, 40, 9):
        (tmp_path / "a.jpg").write_bytes(data[:at] + b"\xff\xff" + data[at + 2 :])
        call("rewrite", tmp_path, "--strip")
        while (tmp_path / ".tastemaker-tools").exists() and call("undo", tmp_path) == 0:
            if not any(path.is_dir() for path in (tmp_path / ".tastemaker-tools").iterdir()):
                break
