from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from modules.pipeline.nodes.collect import collect_items
from modules.util.config.ConceptConfig import ConceptConfig
from tests.dataLoader.builders import write_image


def collect(path: Path | str, **more: Any) -> Any:
    return collect_items(ConceptConfig.from_dict({"path": str(path), **more}), 3, "pets")


def messages(found: Any) -> str:
    return "\n".join(str(fault) for fault in found.faults)


def test_items_are_sorted_and_named_without_the_machine(tmp_path: Path) -> None:
    for name in ("b.png", "a.jpg", "sub/c.PNG", "sub/deeper/d.webp"):
        write_image(tmp_path / name)
    found = collect(tmp_path, include_subdirectories=True)
    assert [item.id for item in found.items] == [
        "pets/a.jpg",
        "pets/b.png",
        "pets/sub/c.PNG",
        "pets/sub/deeper/d.webp",
    ]
    assert [item.key for item in found.items] == ["a", "b", "sub/c", "sub/deeper/d"]
    assert {item.concept for item in found.items} == {3} and not found.faults
    assert found.items[0].prompts == ("a picture of a",)
    assert [item.id for item in collect(tmp_path).items] == ["pets/a.jpg", "pets/b.png"]


def test_hidden_files_masks_and_other_files_are_left_out(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    for name in (
        ".hidden.png",
        "._a.png",
        "a-masklabel.png",
        "a-condlabel.png",
        ".thumbs/b.png",
        "A-MaskLabel.png",
    ):
        write_image(tmp_path / name, caption=None)
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    (tmp_path / "folder.png").mkdir()
    assert [item.id for item in collect(tmp_path, include_subdirectories=True).items] == ["pets/a.png"]


def test_links(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    write_image(root / "a.png")
    write_image(elsewhere / "b.png")
    (root / "sub").symlink_to(elsewhere)
    (root / "loop").symlink_to(root)
    (root / "again").symlink_to(root / "sub")
    (root / "linked.png").symlink_to(elsewhere / "b.png")
    (root / "linked.txt").symlink_to(elsewhere / "b.txt")
    found = collect(root, include_subdirectories=True)
    names = [item.id for item in found.items]
    # a folder that can be reached in two ways is entered in one of them
    assert len(names) == 3 and {"pets/a.png", "pets/linked.png"} < set(names)
    assert not found.faults


def test_a_dangling_link_is_an_item_whose_image_is_missing(tmp_path: Path) -> None:
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "gone.txt").write_text("x", encoding="utf-8")
    assert [item.id for item in collect(tmp_path).items] == ["pets/gone.png"]


@pytest.mark.parametrize(("path", "reason"), [("", "has no folder"), ("nowhere", "does not exist")])
def test_bad_paths(path: str, reason: str) -> None:
    assert reason in messages(collect(path))


def test_a_file_and_an_empty_folder(tmp_path: Path) -> None:
    write_image(tmp_path / "sub" / "a.png")
    assert "is not a folder" in messages(collect(tmp_path / "sub" / "a.png"))
    assert "switch on include_subdirectories" in messages(collect(tmp_path))
    (tmp_path / "none").mkdir()
    found = collect(tmp_path / "none")
    assert "there are no images" in messages(found) and "include" not in messages(found)


def test_missing_captions_are_one_fault_that_lists_them(tmp_path: Path) -> None:
    write_image(tmp_path / "with.png")
    for number in range(25):
        write_image(tmp_path / f"without_{number:02d}.png", caption=None)
    found = collect(tmp_path)
    assert len(found.faults) == 1 and len(found.items) == 1 and len(found.broken) == 25
    text = messages(found)
    assert "25 images have no caption" in text and "without_19.png" in text and "and 5 more" in text
    assert "without_20.png" not in text


def test_bad_captions_are_listed_beside_missing_ones(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", caption=None)
    write_image(tmp_path / "b.png").with_suffix(".txt").write_bytes(b"\xff")
    found = collect(tmp_path)
    assert len(found.faults) == 2 and found.broken == {"a", "b"}


def test_empty_captions_are_counted(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png").with_suffix(".txt").write_text("\n", encoding="utf-8")
    found = collect(tmp_path)
    assert found.items[0].prompts == ("",) and found.empty_captions == 1 and not found.faults


def test_prompts_from_names_and_from_one_file(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "a red fox.png", caption=None)
    by_name = collect(tmp_path / "images", text={"prompt_source": "filename"})
    assert by_name.items[0].prompts == ("a red fox",)
    (tmp_path / "prompts.txt").write_text("one\ntwo\n", encoding="utf-8")
    shared = collect(
        tmp_path / "images", text={"prompt_source": "concept", "prompt_path": str(tmp_path / "prompts.txt")}
    )
    assert shared.items[0].prompts == ("one", "two")
    for path, reason in (("", "names no file"), (str(tmp_path / "no.txt"), "does not exist")):
        found = collect(tmp_path / "images", text={"prompt_source": "concept", "prompt_path": path})
        assert reason in messages(found) and not found.items


def listed(folder: Path, captions: object, name: str = "captions.json", **text: Any) -> Any:
    """The content of ``folder/images`` whose captions are in one file; ``captions`` is JSON data, lines or text."""
    file = folder / name
    if isinstance(captions, list):
        captions = "\n".join(json.dumps(line) for line in captions)
    file.write_text(captions if isinstance(captions, str) else json.dumps(captions), encoding="utf-8")
    source = {"prompt_source": "metadata", "prompt_path": str(file), **text}
    return collect(folder / "images", include_subdirectories=True, text=source)


def prompts_of(found: Any) -> dict[str, tuple[str, ...]]:
    return {item.id.removeprefix("pets/"): item.prompts for item in found.items}


def test_captions_and_tags_from_one_file_for_all_images(tmp_path: Path) -> None:
    images = tmp_path / "images"
    for name in ("a.png", "b.c.jpg", "sub/d.png", "sub/e.png", "f.png", "g.png"):
        write_image(images / name, caption="next to the image")
    captions = {
        "a": {"caption": "a dog", "tags": "grass, ball", "train_resolution": [512, 512]},
        "b.c.jpg": {"caption": "a cat\n\n the same cat \n", "tags": "sofa"},
        "sub\\d": {"tags": "one, two"},
        str(images / "sub" / "e.png"): {"caption": "with its full path"},
        "./f": {"caption": None, "tags": ""},
        "g.png": {},
    }
    found = listed(tmp_path, captions)
    assert prompts_of(found) == {
        "a.png": ("a dog,grass, ball",),
        "b.c.jpg": ("a cat,sofa", "the same cat,sofa"),
        "sub/d.png": ("one, two",),
        "sub/e.png": ("with its full path",),
        "f.png": ("",),
        "g.png": ("",),
    }
    assert (found.faults, found.warnings, found.empty_captions) == ([], [], 2)
    found = listed(tmp_path, captions, tag_delimiter=" | ", trigger_word="sks")
    assert prompts_of(found)["a.png"] == ("sks a dog | grass, ball",)
    lines = [{"image_path": "a.png", "caption": "a dog", "tags": "grass"}, {"image_path": "sub/d"}]
    found = listed(tmp_path, lines, "captions.jsonl", tag_delimiter=", ")
    assert prompts_of(found) == {"a.png": ("a dog, grass",), "sub/d.png": ("",)}


def test_images_that_the_file_does_not_list_are_left_out_with_a_warning(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        write_image(tmp_path / "images" / name, caption=None)
    found = listed(tmp_path, {"a": {"caption": "a dog"}, "gone/c": {"caption": "away"}})
    assert prompts_of(found) == {"a.png": ("a dog",)} and not found.faults
    unlisted, without_image = found.warnings
    assert "1 image is not listed" in unlisted and "b.png" in unlisted and "missing_caption" in unlisted
    assert "1 name in" in without_image and "has no image" in without_image and "gone/c" in without_image
    found = listed(tmp_path, {"a": {"caption": "a dog"}}, missing_caption="an animal")
    assert prompts_of(found) == {"a.png": ("a dog",), "b.png": ("an animal",)} and not found.warnings
    found = listed(tmp_path, {"c": {"caption": "a dog"}})
    assert "lists none of its images" in messages(found) and not found.items


def test_names_in_a_file_of_captions_never_lead_out_of_the_folder(tmp_path: Path) -> None:
    write_image(tmp_path / "secret.png", caption=None)
    write_image(tmp_path / "images2" / "near.png", caption=None)
    write_image(tmp_path / "images" / "a.png", caption=None)
    names = ["../secret", "sub/../../secret.png", "/etc/passwd", "C:\\windows\\x.png", "\x1b[2J"]
    names += [str(tmp_path / name) for name in ("secret.png", "images2/near.png", "images/../secret.png")]
    found = listed(tmp_path, {name: {"caption": "x"} for name in [*names, "a"]})
    assert prompts_of(found) == {"a.png": ("x",)} and not found.faults
    (warning,) = found.warnings
    assert "8 names" in warning and "\x1b" not in warning


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "not an object with one entry per image"),
        ("{}", "lists no image"),
        ('{"a": "a dog"}', "not an object with caption or tags"),
        ('{"a": {"caption": 5}}', "caption is not a text"),
        ('{"a": {"tags": ["x"]}}', "tags is not a text"),
        ('{"a": {"caption": "x"}, "./a": {"caption": "y"}}', "listed twice"),
        ('{"a": {"caption": "x"}, "a": {"caption": "y"}}', "twice"),
        ('{"a": {"caption": "x\\u0000"}}', "caption is not a text"),
    ],
)
def test_a_file_of_captions_that_cannot_be_used_is_one_fault(tmp_path: Path, content: str, part: str) -> None:
    write_image(tmp_path / "images" / "a.png", caption=None)
    found = listed(tmp_path, content)
    (fault,) = found.faults
    assert part in str(fault) and not found.items


def test_a_file_of_captions_must_be_there_and_name_images(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", caption=None)
    for path, part in (("", "names no file"), (str(tmp_path / "no.json"), "does not exist")):
        found = collect(tmp_path, text={"prompt_source": "metadata", "prompt_path": path})
        assert part in messages(found) and not found.items
    write_image(tmp_path / "images" / "a.png", caption=None)
    found = listed(tmp_path, '{"image_path": "a.png"}\n{"caption": "a dog"}\n', "captions.jsonl")
    assert "line 2 names no image" in messages(found)


@pytest.mark.skipif(os.name == "nt", reason="file names are text there")
def test_names_that_are_no_text_are_faults(tmp_path: Path) -> None:
    write_image(tmp_path / "good.png")
    raw = os.fsencode(tmp_path) + b"/bad\xff.png"
    with open(raw, "wb") as stream:  # noqa: PTH123
        stream.write(b"x")
    write_image(tmp_path / "line\nbreak.png")
    found = collect(tmp_path)
    assert [item.id for item in found.items] == ["pets/good.png"]
    assert len(found.faults) == 2 and all("rename" in str(fault) for fault in found.faults)
