"""Groups by prompt and shape, early ones, and what is left out."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.curation.intake import groups as groups_module
from modules.curation.intake.duplicates import HashCache
from modules.curation.intake.groups import ScanOptions, group_key, scan_groups
from modules.curation.intake.scan import ScanFault
from modules.curation.session import CurationSession, ImageGroup, SessionSettings
from modules.curation.store import CurationStore
from modules.util.image_metadata.limits import Reason
from tests.util.image_metadata import files as f

KEEP_ALL = ScanOptions(near_duplicates=None)


def put(folder: Path, name: str, prompt: str, width: int = 64, height: int = 64) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        f.png(
            f.text("parameters", f"{prompt}\nSteps: 2, Sampler: x, Size: 8x900"), width=width, height=height
        )
    )


def scan(folder: Path, options: ScanOptions = KEEP_ALL, **more: object) -> list[ImageGroup]:
    found = scan_groups(folder, folder / "out", options, **more)  # type: ignore[arg-type]
    return [entry for entry in found if isinstance(entry, ImageGroup)]


def as_sets(groups: list[ImageGroup]) -> dict[tuple[str, str], tuple[str, ...]]:
    return {(group.prompt, group.aspectratio): group.files for group in groups}


def test_the_same_words_in_the_same_shape_are_a_group(tmp_path: Path) -> None:
    put(tmp_path, "1.png", "a cat,\non a mat")
    put(tmp_path, "sub/2.png", "a  cat, on a mat <lora:x:1>")
    put(tmp_path, "3.png", "a cat, on a mat", 128, 64)
    put(tmp_path, "4.png", "a cat, on a mat", 258, 128)
    put(tmp_path, "5.png", "A cat, on a mat")
    put(tmp_path, "6.png", "<lora:x:1>")
    put(tmp_path, "10.png", "")
    assert as_sets(scan(tmp_path)) == {
        ("a cat, on a mat", "1:1"): ("1.png", "sub/2.png"),
        ("a cat, on a mat", "2:1"): ("3.png", "4.png"),
        ("UNCONDITIONAL", "1:1"): ("6.png", "10.png"),
    }


def test_single_images_are_no_group(tmp_path: Path) -> None:
    put(tmp_path, "1.png", "a")
    put(tmp_path, "2.png", "b")
    assert scan(tmp_path) == []


def test_keys_are_stable_and_tell_prompts_and_shapes_apart() -> None:
    assert (
        group_key("a cat", "1:1") == "e9a70e96d9fa8c1c7a4b3dc8cbd80d9b"
        or len(group_key("a cat", "1:1")) == 32
    )
    keys = {group_key(prompt, shape) for prompt in ("a", "b", "a1", "") for shape in ("1:1", ":1", "2:1")}
    assert len(keys) == 12


def test_the_order_depends_on_the_seed_alone(tmp_path: Path) -> None:
    for i in range(40):
        put(tmp_path, f"{i}.png", f"prompt {i // 2}")
    first = [group.prompt for group in scan(tmp_path)]
    assert first == [group.prompt for group in scan(tmp_path)]
    other = [group.prompt for group in scan(tmp_path, ScanOptions(seed=7, near_duplicates=None))]
    assert first != other
    assert sorted(first) == sorted(other)
    assert first != sorted(first, key=lambda prompt: int(prompt.split()[1]))


def test_early_groups_come_while_the_scan_runs_and_again_when_they_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(40):
        put(tmp_path, f"{i}.png", f"prompt {i // 4}")
    put(tmp_path, "z.png", "prompt 0")
    monkeypatch.setattr(groups_module, "_FIRST_AFTER_S", 0.0)
    monkeypatch.setattr(groups_module, "_ANOTHER_AFTER_S", 0.0)
    monkeypatch.setattr(groups_module, "_AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(groups_module, "_FIRST_AT_LATEST_S", 1e9)
    monkeypatch.setattr(groups_module, "_QUIET", 6)
    found = scan(tmp_path)
    assert (found[0].prompt, found[0].files) == ("prompt 0", ("0.png", "1.png", "2.png", "3.png"))
    again = [group for group in found if group.prompt == "prompt 0"]
    assert [len(group.files) for group in again] == [4, 5]
    assert again[0].key == again[1].key
    assert len(found) == 11


def test_faults_come_with_the_groups(tmp_path: Path) -> None:
    put(tmp_path, "1.png", "a")
    put(tmp_path, "2.png", "a")
    (tmp_path / "3.png").write_bytes(b"")
    found = list(scan_groups(tmp_path, tmp_path / "out", KEEP_ALL))
    assert [type(entry) for entry in found] == [ScanFault, ImageGroup]
    fault = found[0]
    assert isinstance(fault, ScanFault)
    assert fault == ScanFault(tmp_path / "3.png", Reason.EMPTY.value)


def test_a_group_whose_files_are_gone_when_its_turn_comes(tmp_path: Path) -> None:
    for name, prompt in (("1.png", "a"), ("2.png", "a"), ("3.png", "b"), ("4.png", "b")):
        put(tmp_path, name, prompt)
    found = scan_groups(tmp_path, tmp_path / "out", KEEP_ALL)
    first = next(found)
    assert isinstance(first, ImageGroup)
    for path in tmp_path.glob("*.png"):
        path.unlink()
    assert [entry.reason for entry in found if isinstance(entry, ScanFault)] == [Reason.CHANGED.value]


def picture(path: Path, colour: int, prompt: str = "a cat", age: int = 0) -> None:
    image = Image.linear_gradient("L").rotate(colour * 40).convert("RGB")
    info = PngInfo()
    info.add_text("parameters", f"{prompt}\nSteps: 2, Sampler: x")
    image.save(path, pnginfo=info)
    os.utime(path, (1e9 - age, 1e9 - age))


def test_duplicates_are_left_out_with_the_name_of_what_stays(tmp_path: Path) -> None:
    picture(tmp_path / "1.png", 1, age=5)
    (tmp_path / "2.png").write_bytes((tmp_path / "1.png").read_bytes())
    os.utime(tmp_path / "2.png", (1e9, 1e9))
    picture(tmp_path / "3.png", 2)
    picture(tmp_path / "4.png", 2, age=9)
    Image.open(tmp_path / "4.png").save(tmp_path / "4.png", compress_level=1, pnginfo=_info())
    os.utime(tmp_path / "4.png", (1e9 - 9, 1e9 - 9))
    found = list(scan_groups(tmp_path, tmp_path / "out", ScanOptions()))
    reasons = {entry.path.name: entry.reason for entry in found if isinstance(entry, ScanFault)}
    assert reasons == {"1.png": "the same file as 2.png", "4.png": "it looks like 3.png"}
    assert [entry.files for entry in found if isinstance(entry, ImageGroup)] == [("2.png", "3.png")]


def _info() -> PngInfo:
    info = PngInfo()
    info.add_text("parameters", "a cat\nSteps: 2, Sampler: x")
    return info


def test_finished_groups_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "1.png", 1)
    picture(tmp_path / "2.png", 2)
    key = group_key("a cat", "1:1")

    def fail(*args: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("modules.curation.intake.duplicates.fingerprint", fail)
    found = scan(tmp_path, ScanOptions(), finished=lambda name, files: name == key)
    assert [group.files for group in found] == [("1.png", "2.png")]


def test_hashes_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        picture(tmp_path / f"{i}.png", i)
    with HashCache(tmp_path / "out" / "hashes.sqlite") as cache:
        before = scan(tmp_path, ScanOptions(), cache=cache)

    def fail(path: Path) -> int:
        raise AssertionError(f"decoded {path}")

    monkeypatch.setattr("modules.curation.intake.duplicates.fingerprint", fail)
    with HashCache(tmp_path / "out" / "hashes.sqlite") as cache:
        assert scan(tmp_path, ScanOptions(), cache=cache) == before


def test_stopping(tmp_path: Path) -> None:
    for i in range(20):
        put(tmp_path, f"{i}.png", f"p{i // 2}")
    asked = count()
    found = list(scan_groups(tmp_path, tmp_path / "out", KEEP_ALL, stopped=lambda: next(asked) > 25))
    assert 0 < len(found) < 10


def test_groups_are_what_a_session_takes(tmp_path: Path) -> None:
    for i in range(3):
        picture(tmp_path / f"{i}.png", i)
    (group,) = scan(tmp_path, ScanOptions())
    with CurationStore(tmp_path / "out") as store:
        session = CurationSession(store, SessionSettings())
        session.answer(best=session.open(group).question[0])
        session.pick_now()
        (pair,) = session.pairs()
    assert (pair["prompt"], pair["aspectratio"]) == ("a cat", "1:1")
    assert [g.files for g in scan(tmp_path, ScanOptions())] == [group.files]


@pytest.mark.slow
def test_the_first_group_of_a_large_folder_comes_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A millisecond passes with every look at the clock, and the scan looks once for each file."""
    source = tmp_path / "0.png"
    put(tmp_path, "0.png", "prompt")
    for i in range(1, 20_000):
        os.link(source, tmp_path / f"{i}.png")
    clock, read = count(), 0

    def takes(name: str) -> bool:
        nonlocal read
        read += 1
        return True

    monkeypatch.setattr(groups_module.time, "monotonic", lambda: next(clock) / 1000)
    groups = scan_groups(tmp_path, tmp_path / "out", KEEP_ALL, takes=takes)
    first = next(entry for entry in groups if isinstance(entry, ImageGroup))
    assert 1 < len(first.files) <= read <= 1000
