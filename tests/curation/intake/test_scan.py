"""Walking through folders of images: order, hazards, and files that change meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from modules.curation.intake.scan import (
    FoundImage,
    ImageFile,
    ScanFault,
    natural_key,
    output_folders,
    scan_images,
    walk_images,
)
from modules.util.errors import UserError
from modules.util.image_metadata.limits import Reason
from tests.util.image_metadata import files as f
from tests.util.image_metadata.hazards import HAZARDS

GOOD = f.png(f.text("parameters", "a cat\nSteps: 2, Sampler: x"))


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(GOOD)


def names(folder: Path, **options: bool) -> list[str]:
    return [found.name for found in scan_images(folder, **options) if isinstance(found, FoundImage)]


def faults(folder: Path) -> dict[str, str]:
    found = [entry for entry in scan_images(folder) if isinstance(entry, ScanFault)]
    assert len({fault.path for fault in found}) == len(found)
    return {fault.path.name: fault.reason for fault in found}


def test_order_is_as_people_count_and_folders_come_after_files(tmp_path: Path) -> None:
    put(
        tmp_path,
        "10.png",
        "9.png",
        "b2/1.png",
        "b10/1.png",
        "a/x.png",
        "B1.png",
        "c.webp",
        "a.JPG",
        "a/deep/1.png",
    )
    assert names(tmp_path) == [
        "9.png",
        "10.png",
        "a.JPG",
        "B1.png",
        "c.webp",
        "a/x.png",
        "a/deep/1.png",
        "b2/1.png",
        "b10/1.png",
    ]
    assert names(tmp_path, recursive=False) == ["9.png", "10.png", "a.JPG", "B1.png", "c.webp"]


@given(st.lists(st.tuples(st.sampled_from(("a", "A", "img_", "")), st.integers(0, 10**25)), unique=True))
def test_numbers_count(parts: list[tuple[str, int]]) -> None:
    texts = [f"{start}{number}.png" for start, number in parts]
    ordered = sorted(texts, key=natural_key)
    wanted = sorted(parts, key=lambda part: (part[0].casefold() or "0", part[1], part[0]))
    assert [text.casefold() for text in ordered] == [
        f"{start}{number}.png".casefold() for start, number in wanted
    ]


@given(st.lists(st.text(st.sampled_from("aB019.²٣"), max_size=9), unique=True))
def test_the_order_is_total(texts: list[str]) -> None:
    assert len({natural_key(text) for text in texts}) == len(texts)


def test_only_images_count_and_hidden_names_do_not(tmp_path: Path) -> None:
    put(tmp_path, "a.png", ".b.png", ".thumbs/c.png", "notes.txt", "d", "e.PnG")
    assert list(scan_images(tmp_path)) == [
        entry for entry in scan_images(tmp_path) if isinstance(entry, FoundImage)
    ]
    assert names(tmp_path) == ["a.png", "e.PnG"]


def test_every_hazard_is_a_reason_and_the_scan_resumes(tmp_path: Path) -> None:
    for hazard in HAZARDS:
        hazard.put(tmp_path)
    put(tmp_path, "zz/last.png")
    found = list(scan_images(tmp_path))
    assert isinstance(found[-1], FoundImage)
    assert found[-1].name == "zz/last.png"
    reasons = {entry.path.name: entry.reason for entry in found if isinstance(entry, ScanFault)}
    good = {entry.name for entry in found if isinstance(entry, FoundImage)}
    for hazard in HAZARDS:
        if hazard.name == "folder.png":
            continue
        if hazard.reason is None:
            assert hazard.name in good
        else:
            assert reasons[hazard.name].startswith(hazard.reason.value)


def test_links(tmp_path: Path) -> None:
    put(tmp_path, "real/a.png")
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "up.png").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "link.png").symlink_to("real/a.png")
    (tmp_path / "link.txt").symlink_to("real/a.png")
    assert names(tmp_path) == ["link.png", "real/a.png"]
    assert faults(tmp_path) == {
        "circle": Reason.FOLDER_LINK.value,
        "up.png": Reason.FOLDER_LINK.value,
        "self": Reason.LINK_LOOP.value,
    }


def test_a_linked_root_is_followed(tmp_path: Path) -> None:
    put(tmp_path, "real/a.png")
    (tmp_path / "link").symlink_to("real")
    assert names(tmp_path / "link") == ["a.png"]


def test_names_that_are_no_text(tmp_path: Path) -> None:
    put(tmp_path, "a.png")
    Path(os.fsdecode(bytes(tmp_path) + b"/b\xff.png")).write_bytes(GOOD)
    Path(os.fsdecode(bytes(tmp_path) + b"/c\xff")).mkdir()
    Path(os.fsdecode(bytes(tmp_path) + b"/d\xff.txt")).write_bytes(b"")
    assert names(tmp_path) == ["a.png"]
    assert sorted(faults(tmp_path).values()) == [Reason.BAD_NAME.value] * 2
    put(tmp_path, "new\nline.png", "ä 猫 '\".png")
    assert names(tmp_path) == ["a.png", "new\nline.png", "ä 猫 '\".png"]


def test_files_that_vanish_meanwhile(tmp_path: Path) -> None:
    put(tmp_path, "1.png", "2.png", "3.png", "x/4.png", "y/5.png")
    scan = scan_images(tmp_path)
    first = next(scan)
    assert isinstance(first, FoundImage)
    (tmp_path / "2.png").unlink()
    (tmp_path / "x/4.png").unlink()
    (tmp_path / "x").rmdir()
    rest = list(scan)
    assert [entry.name for entry in rest if isinstance(entry, FoundImage)] == ["3.png", "y/5.png"]
    gone = [entry for entry in rest if isinstance(entry, ScanFault)]
    assert [(fault.path.name, fault.reason) for fault in gone] == [
        ("2.png", Reason.GONE.value),
        ("x", Reason.GONE.value),
    ]


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a.png", "closed/b.png", "open/c.png")
    real: Callable[[str], object] = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr("modules.curation.intake.scan.os.scandir", scandir)
    assert names(tmp_path) == ["a.png", "open/c.png"]
    assert faults(tmp_path) == {"closed": Reason.NO_PERMISSION.value}


def test_a_root_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(UserError, match="cannot be read"):
            list(walk_images(root))


def test_pairs_that_were_written_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, "a.png", "out/chosen/p.png", "chosen/q.png", "rejected/q.png", "sub/chosen/b.png")
    inside = walk_images(tmp_path, output_folders(tmp_path, tmp_path / "out"))
    assert [entry.name for entry in inside if isinstance(entry, ImageFile)] == [
        "a.png",
        "chosen/q.png",
        "rejected/q.png",
        "sub/chosen/b.png",
    ]
    same = walk_images(tmp_path, output_folders(tmp_path, tmp_path))
    assert [entry.name for entry in same if isinstance(entry, ImageFile)] == [
        "a.png",
        "out/chosen/p.png",
        "sub/chosen/b.png",
    ]


def test_stopping(tmp_path: Path) -> None:
    put(tmp_path, *(f"{i}.png" for i in range(9)))
    asked = count()
    assert 0 < len(list(scan_images(tmp_path, stopped=lambda: next(asked) > 4))) < 9


def test_pictures_and_films_that_are_not_read_are_listed(tmp_path: Path) -> None:
    put(tmp_path, "a.jfif", "B.JFIF")
    unread = ("c.gif", "d.heic", "e.mp4", "F.MOV", "sub/g.webm")
    put(tmp_path, *unread, "notes.txt", "data.json", "model.safetensors", "noextension")
    assert names(tmp_path) == ["a.jfif", "B.JFIF"]
    assert faults(tmp_path) == {Path(name).name: Reason.OTHER_KIND.value for name in unread}


def test_a_tiff_file_has_its_caption_next_to_it(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.tif")
    assert faults(tmp_path) == {"a.tif": Reason.NO_PROMPT.value}
    (tmp_path / "a.txt").write_text("a cat")
    (found,) = scan_images(tmp_path)
    assert isinstance(found, FoundImage)
    assert found.about.prompt == "a cat"


def test_folders_in_which_pairs_were_picked_are_left_out(tmp_path: Path) -> None:
    for place in ("", "pairs/chosen/", "deep/old/rejected/", "site/", "work/"):
        put(tmp_path, f"{place}a.png")
    for place in ("pairs", "deep/old", "site"):
        (tmp_path / place / "manifest.json").write_text('{"pairs": []}')
    (tmp_path / "work" / "curation.sqlite").touch()
    found = list(walk_images(tmp_path))
    assert [one.name for one in found if isinstance(one, ImageFile)] == ["a.png", "site/a.png"]
    faults = {(one.path, one.reason) for one in found if isinstance(one, ScanFault)}
    assert faults == {
        (tmp_path / name, "a folder of pairs, skipped") for name in ("pairs", "deep/old", "work")
    }
    inside = list(walk_images(tmp_path / "pairs"))
    assert [one.name for one in inside if isinstance(one, ImageFile)] == ["chosen/a.png"], "asked for by name"
