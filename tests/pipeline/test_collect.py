from __future__ import annotations

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
    assert "include subdirectories" in messages(collect(tmp_path))
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
