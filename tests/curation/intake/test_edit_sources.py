"""Edits and the images that they were made from: found, refused, never mixed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake.edit_sources import EditOptions
from modules.curation.intake.groups import ScanOptions, scan_groups
from modules.curation.intake.scan import ScanFault, edits_without_source
from modules.curation.intake.scan_report import scan_rows
from modules.util.dpo_curation_util import file_sha256
from modules.util.errors import UserError
from modules.util.pairs.source_files import most_sources
from tests.curation.edits import edit_folder, instructed, save
from tests.util.image_metadata.edit_graphs import PLAIN, kontext, qwen

Groups = dict[tuple[str, ...], list[str]]


def scan(folder: Path, edits: EditOptions) -> tuple[Groups, dict[str, str]]:
    """Names of sources by the files of each group, and reasons by the names of what is left out."""
    options = ScanOptions(near_duplicates=None, edits=edits)
    groups: Groups = {}
    faults = {}
    for found in scan_groups(folder, folder / "out", options):
        if isinstance(found, ImageGroup):
            groups[found.files] = [source.path.name for source in found.sources]
            assert [file_sha256(source.path) for source in found.sources] == [s.sha256 for s in found.sources]
        else:
            faults[found.path.relative_to(folder).as_posix()] = found.reason
    return groups, faults


@pytest.mark.parametrize("graph", [kontext, qwen])
def test_the_graph_names_the_sources_in_the_folder_of_inputs(graph, tmp_path: Path) -> None:
    for seed, name in enumerate(("sub/cat.png", "hat.jpg")):
        save(tmp_path / "input" / name, 100 + seed)
    for number in range(2):
        save(tmp_path / "images" / f"{number}.png", number, graph("sub/cat.png [input]", "hat.jpg"))
        save(tmp_path / "images" / f"{2 + number}.png", 2 + number, graph("hat.jpg"))
    groups, faults = scan(tmp_path / "images", EditOptions(input_dir=tmp_path / "input"))
    assert groups == {("0.png", "1.png"): ["cat.png", "hat.jpg"], ("2.png", "3.png"): ["hat.jpg"]}
    assert faults == {}


def test_edits_of_different_images_are_never_compared_whatever_the_images_are_called(tmp_path: Path) -> None:
    images = tmp_path / "images"
    for folder, seed in (("a", 100), ("b", 101), ("c", 100)):
        save(images / folder / "source" / "0.png", seed)
        save(images / folder / "0.png", seed + ord(folder), kontext("same name.png"))
    save(images / "5.png", 5, PLAIN)
    save(images / "6.png", 6, PLAIN)
    groups, faults = scan(images, EditOptions())
    assert sorted(groups) == [("5.png", "6.png"), ("a/0.png", "c/0.png")]
    assert groups["a/0.png", "c/0.png"] == ["0.png"]
    assert set(faults) == {f"{name}/source/0.png" for name in "abc"}


@pytest.mark.parametrize(
    ("result", "sources"),
    [
        ("fox.png", ["fox-source.png"]),
        ("fox.png", ["fox_source.webp", "fox_source.2.png"]),
        ("fox.png", ["source/fox.png", "source/fox.2.jpg", "source/fox.3.png"]),
        ("sub/fox.png", ["sub/control/fox.jpg"]),
        ("fox.2.png", ["input/fox.2.png"]),
    ],
)
def test_sources_next_to_the_result(result: str, sources: list[str], tmp_path: Path) -> None:
    graph = instructed(PLAIN, "make it snow")
    save(tmp_path / result, 1, graph)
    for seed, name in enumerate(sources):
        save(tmp_path / name, 100 + seed, graph)
    if result == "fox.2.png":  # that one's own source is no second source of fox
        save(tmp_path / "fox.png", 2, graph)
        save(tmp_path / "input" / "fox.png", 100, graph)
    rows = {row["path"]: row for row in scan_rows(tmp_path, edits=EditOptions(edits=True))}
    assert rows[result]["error"] is None
    assert rows[result]["sources"] == [str(tmp_path / name) for name in sources]
    assert set(rows) == ({result, "fox.png"} if result == "fox.2.png" else {result})
    if result == "fox.2.png":
        assert rows["fox.png"]["sources"] == [str(tmp_path / "input" / "fox.png")]


@pytest.mark.parametrize("folder", ["source", "control", "input", "input/deep"])
def test_results_in_a_folder_called_as_those_of_sources_do_not_vanish(folder: str, tmp_path: Path) -> None:
    for seed in range(3):
        save(tmp_path / folder / f"{seed}.png", seed, PLAIN)
    groups, faults = scan(tmp_path, EditOptions(edits=True))
    assert groups == {} and set(faults) == {f"{folder}/{seed}.png" for seed in range(3)}
    assert all(reason.startswith("edit without source") for reason in faults.values())
    before = save(tmp_path / "before.png", 100)
    groups, faults = scan(tmp_path, EditOptions(image=before))
    assert groups == {tuple(f"{folder}/{seed}.png" for seed in range(3)): ["before.png"]} and faults == {}


def test_one_source_for_all(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    source = save(folder / "before.png", 100, PLAIN)
    for number in range(3):
        save(folder / f"{number}.png", number, PLAIN)
    groups, faults = scan(folder, EditOptions(image=source))
    assert (groups, faults) == ({("0.png", "1.png", "2.png"): ["before.png"]}, {})


def test_edits_without_source_are_counted_by_instruction_and_left_out(tmp_path: Path) -> None:
    images, inputs = edit_folder(tmp_path, 2, 3)
    (inputs / "sub" / "source1.png").unlink()
    save(images / "plain.png", 90, PLAIN)
    options = ScanOptions(near_duplicates=None, edits=EditOptions(input_dir=inputs))
    found = list(scan_groups(images, tmp_path / "out", options))
    assert [group.prompt for group in found if isinstance(group, ImageGroup)] == ["make it night 0"]
    faults = [fault for fault in found if isinstance(fault, ScanFault)]
    assert edits_without_source(faults) == {"make it night 1": 3, "make it night": 1}
    assert {fault.reason for fault in faults} == {
        f"edit without source: source1.png is not in {inputs / 'sub'}",
        "edit without source: its metadata names none, and there is none next to it",
    }


def test_without_the_folder_of_inputs_the_reason_says_what_is_missing(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 1, kontext("cat.png"))
    _, faults = scan(tmp_path, EditOptions())
    assert faults == {
        "a.png": "edit without source: the folder with cat.png is not known: name ComfyUI's input folder"
    }


@pytest.mark.parametrize(
    "name",
    [
        "../secret.png",
        "sub/../../secret.png",
        "/{outside}/secret.png",
        "..\\secret.png",
        "link.png",
        "folder/secret.png",
        "secret.png [output]",
        "cat\0.png",
        "C:\\secret.png",
        "x" * 5000 + ".png",
        "notes.txt",
        "pipe.png",
        "broken.png",
        "",
    ],
)
def test_names_in_a_graph_never_leave_the_folder_of_inputs(name: str, tmp_path: Path) -> None:
    inputs = tmp_path / "input"
    save(inputs / "good.png", 100)
    secret = save(tmp_path / "outside" / "secret.png", 101)
    save(tmp_path / "secret.png", 101)
    save(tmp_path / "output" / "secret.png", 101)
    (inputs / "link.png").symlink_to(secret)
    (inputs / "folder").symlink_to(secret.parent, target_is_directory=True)
    (inputs / "notes.txt").write_text("no image")
    (inputs / "broken.png").write_bytes(b"\x89PNG nothing")
    os.mkfifo(inputs / "pipe.png")
    graph = kontext(name.format(outside=secret.parent))
    for number in range(2):
        save(tmp_path / "images" / f"{number}.png", number, graph)
    groups, faults = scan(tmp_path / "images", EditOptions(input_dir=inputs))
    assert groups == {}
    assert set(faults) == {"0.png", "1.png"}
    assert all(
        reason.startswith("edit without source: ") and len(reason) < 1000 for reason in faults.values()
    )


def test_what_is_no_edit_or_says_nothing_is_left_out(tmp_path: Path) -> None:
    inputs = tmp_path / "input"
    source = save(inputs / "cat.png", 100)
    images = tmp_path / "images"
    save(images / "good.png", 1, kontext("cat.png"))
    save(images / "silent.png", 2, instructed(kontext("cat.png"), ""))
    save(images / "copy.png", 3, kontext("cat.png"))
    same = save(inputs / "copy.png", 3, kontext("cat.png"))
    assert same.read_bytes() == (images / "copy.png").read_bytes() != source.read_bytes()
    save(images / "copy.png", 3, kontext("cat.png"))
    (images / "source").mkdir()
    (images / "source" / "copy.png").write_bytes(same.read_bytes())
    rows = {row["path"]: row["error"] for row in scan_rows(images, edits=EditOptions(input_dir=inputs))}
    assert rows == {
        "copy.png": "it is the source image itself",
        "good.png": None,
        "silent.png": "edit without an instruction",
    }


def test_two_files_that_may_both_be_the_source_are_none(tmp_path: Path) -> None:
    save(tmp_path / "fox.png", 1, PLAIN)
    for ending in ("png", "jpg"):
        save(tmp_path / "source" / f"fox.{ending}", 100)
    _, faults = scan(tmp_path, EditOptions(edits=True))
    assert faults == {"fox.png": "edit without source: it may be fox.jpg or fox.png: keep one of them"}


def test_places_that_cannot_hold_a_source_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("no image")
    for options in (
        EditOptions(input_dir=tmp_path / "none"),
        EditOptions(image=tmp_path / "none.png"),
        EditOptions(image=tmp_path / "notes.png"),
        EditOptions(image=tmp_path),
    ):
        with pytest.raises(UserError, match="source image"):
            options.check()


def test_an_image_with_a_source_of_its_name_is_an_edit_among_others(tmp_path: Path) -> None:
    """Without any option; the other images of the folder are of prompts alone, as ever."""
    graph = instructed(PLAIN, "a fox")
    save(tmp_path / "before.png", 100, graph)
    for number in range(2):
        save(tmp_path / f"fox{number}.png", number, graph)
        save(tmp_path / f"edit{number}.png", 2 + number, graph)
        (tmp_path / f"edit{number}_source.png").write_bytes((tmp_path / "before.png").read_bytes())
    save(tmp_path / "control" / "fox0.png", 300, graph)
    groups, faults = scan(tmp_path, EditOptions())
    assert groups == {
        ("edit0.png", "edit1.png"): ["edit0_source.png"],
        ("before.png", "fox0.png", "fox1.png", "control/fox0.png"): [],
    }
    assert faults == {}


@pytest.mark.parametrize(
    ("names", "most", "sources"),
    [
        (["cat.png", "cat.2.png", "cat.3.jpg"], 3, 3),
        (["cat.png", "cat.2.png", "cat.3.jpg"], 2, 2),
        (["cat.png", "cat.3.png", "dog.7.png"], 3, 1),
        (["photo v1.2.png", "photo v1.3.png"], 3, 1),
        (["cat.png", "cat.2.txt"], 3, 1),
        (["deep/cat.png", "deep/cat.2.png", "cat.3.png"], 3, 2),
    ],
)
def test_how_many_sources_a_folder_has_by_its_names(
    names: list[str], most: int, sources: int, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert most_sources(tmp_path, most) == sources
