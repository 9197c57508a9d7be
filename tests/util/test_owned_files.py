"""The door through which all changes of files go: nothing outside its folder is ever touched."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from modules.util.errors import UserError
from modules.util.files import OpenFolder as door
from modules.util.files.OpenFolder import read_plain
from modules.util.jsonio import atomic_path, read_json, write_bytes, write_text
from modules.util.owned_files import LIST_NAME, TEMPORARY, Owned, fault_of_path, shown
from tests.changes import full_disk, in_small_process, recorded
from tests.guard import Guard
from tests.util.killed_folders import (
    a_kill_leaves_a_new_file_or_none,
    a_kill_leaves_all_of_a_new_folder_or_nothing,
    a_kill_leaves_the_old_folder_or_the_new_one,
    fill,
    inside,
    write_model,
)

HOSTILE = [
    "", "/", "..", "../mine", "../../mine", "a/../../mine", "/etc/passwd", "C:/x", "C:x", "a:b", "nul", "aux.txt",
    "COM1", "a\0b", "a//b", "./a", "a/.", "a/", "a\n", "\ud800", "x" * 300, "y/" * 2100, "a\\..\\..\\mine",
    "out/mine", "circle/x", "a/..", " ", "lpt1.png", "con", "x.",
]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder of the program's own next to guarded files of a person, with links to them."""
    with Guard(tmp_path / "person") as guard:
        root = tmp_path / "root"
        (root / "sub").mkdir(parents=True)
        (root / "out").symlink_to(guard.folder)
        (root / "link").symlink_to(guard.folder / "mine")
        (root / "dangling").symlink_to(guard.folder / "none")
        (root / "circle").symlink_to(root / "circle")
        os.mkfifo(root / "fifo")
        yield root


def change(owned: Owned, verb: str, name: str) -> None:
    if verb == "remove":
        owned.remove(name)
    elif verb == "remove_tree":
        owned.remove_tree(name)
    elif verb == "move":
        owned.move(name, "moved")
    elif verb == "move to":
        owned.move("file", name, replace=True)
    elif verb == "append":
        owned.append(name, b"new")
    elif verb == "take":
        owned.take(owned.root / "file", name)
    elif verb == "folder":
        owned.folder(name)
    elif verb == "replace_folder":
        with owned.fresh_folder() as fresh:
            owned.replace_folder(fresh, name)
    else:
        with owned.write(name) as temporary:
            temporary.write_text("new")


VERBS = ["remove", "remove_tree", "move", "move to", "append", "take", "folder", "write", "replace_folder"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_hostile_name_is_refused_and_nothing_changes(place: Path, verb: str) -> None:
    (place / "file").write_text("own")
    before = inside(place)
    for name in HOSTILE:
        with pytest.raises(UserError) as caught:
            change(Owned(place), verb, name)
        str(caught.value).encode()
        assert inside(place) == before


@pytest.mark.parametrize("verb", VERBS)
def test_no_change_goes_through_a_link(place: Path, verb: str) -> None:
    (place / "file").write_text("own")
    for name in ("out/mine", "out/new", "out/sub/new", "circle/x"):
        with pytest.raises(UserError, match="out of|not a folder"):
            change(Owned(place), verb, name)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: socket.socket(socket.AF_UNIX).bind(str(path))])
def test_what_is_no_file_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, make: Callable[[Any], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    make("odd")
    (tmp_path / "file").write_text("own")
    with pytest.raises(UserError, match=r"odd.* (FIFO|socket)|odd.*not a folder"):
        change(Owned(tmp_path), verb, "odd")
    assert not stat.S_ISREG((tmp_path / "odd").lstat().st_mode)


def test_a_device_is_never_replaced() -> None:
    with pytest.raises(UserError, match=r"/dev/null.* is a device"), atomic_path("/dev/null"):
        pytest.fail("it began to write")


def test_a_refusal_names_what_was_asked_for_and_where_it_leads(place: Path) -> None:
    with pytest.raises(UserError) as caught:
        Owned(place).remove("out/mine")
    assert str(place / "out/mine") in caught.value.message
    assert str(place.parent / "person" / "mine") in caught.value.message
    assert caught.value.hint


@given(
    name=st.one_of(
        st.sampled_from([*HOSTILE, "out", "fifo"]),
        st.text(max_size=12),
        st.lists(
            st.sampled_from(["..", ".", "", "a", "sub", "out", "link", "circle", "fifo", "mine", "dangling"]),
            max_size=5,
        ).map("/".join),
    ),
    verb=st.sampled_from(VERBS),
    local=st.booleans(),
)
@example("sub/../../person/mine", "remove", True)
@settings(max_examples=100, deadline=None)
def test_no_name_at_all_reaches_a_file_of_a_person(
    tmp_path_factory: pytest.TempPathFactory, name: str, verb: str, local: bool
) -> None:
    base = tmp_path_factory.mktemp("case")
    with Guard(base / "person") as guard:
        root = base / "root"
        (root / "sub" / "a").mkdir(parents=True)
        for folder in (root, root / "sub"):
            (folder / "out").symlink_to(guard.folder)
            (folder / "link").symlink_to(guard.folder / "mine")
            (folder / "circle").symlink_to("circle")
            (folder / "dangling").symlink_to(guard.folder / "none")
            os.mkfifo(folder / "fifo")
        (root / "file").write_text("own")
        try:
            change(Owned(root, local), verb, name)
        except (UserError, OSError) as error:
            str(error).encode(errors="strict" if isinstance(error, UserError) else "replace")
        assert root.is_dir()
        assert [p.name for p in base.iterdir() if p.name not in ("root", "person")] == []
        assert not [p for p in root.rglob("*") if p.name.startswith(".tastemaker-") and p.suffix == ".tmp"]


def test_a_link_is_removed_and_moved_as_a_link(place: Path) -> None:
    owned = Owned(place)
    owned.move("link", "sub/moved")
    assert (place / "sub" / "moved").is_symlink()
    assert owned.remove("sub/moved") and owned.remove("out") and owned.remove("dangling")
    assert not owned.remove("out")


def test_a_tree_goes_with_its_links_and_without_what_they_lead_to(place: Path) -> None:
    (place / "sub" / "deep").mkdir()
    (place / "sub" / "deep" / "file").write_text("x")
    (place / "sub" / "deep" / "out").symlink_to(place / "out")
    (place / "sub" / "up").symlink_to(place)
    assert Owned(place).remove_tree("sub")
    assert not (place / "sub").exists() and (place / "out").is_symlink()


class Junction:
    """The status of a junction as Windows tells it: of a folder, with a tag."""

    st_reparse_tag = 0xA0000003

    def __init__(self, status: os.stat_result) -> None:
        self.st_mode, self.st_dev = stat.S_IFDIR | 0o777, status.st_dev


def test_a_junction_is_a_link(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, nothing but a tag tells a junction from a folder, and there are no handles of folders."""
    for name in ("sub/inner", "junction", "sub/moved"):
        (place / name).symlink_to(place / "out")
    real = door.OpenFolder.stat

    def told(self: door.OpenFolder, name: str) -> Any:
        status = real(self, name)
        return Junction(status) if name in ("inner", "junction", "moved") else status

    monkeypatch.setattr(door, "_HANDLES", False)
    monkeypatch.setattr(door.OpenFolder, "stat", told)
    owned = Owned(place)
    with pytest.raises(UserError, match="is below something that is not a folder|leads out of"):
        owned.append("junction/mine", b"new")
    assert owned.remove("sub/moved")
    owned.discard("junction")
    assert owned.remove_tree("sub")
    assert {"sub", "junction"}.isdisjoint(inside(place))  # and the guard says that what they led to is whole


@pytest.mark.parametrize("verb", ["replace", "unlink", "rmdir"])
def test_a_file_in_use_on_windows_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    real, refusals = getattr(os, verb), iter(range(3))

    def busy(*places: Any, **at: Any) -> None:
        if next(refusals, None) is not None:
            error = PermissionError(13, "in use")
            error.winerror = 32  # type: ignore[attr-defined]
            raise error
        real(*places, **at)

    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(door, "_HANDLES", False)
    monkeypatch.setattr(os, verb, busy)
    monkeypatch.setattr(door, "_PAUSE", 0.0)
    owned = Owned(tmp_path)
    with owned.write("file") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "file").read_text() == "new"
    assert owned.remove_tree("folder") and owned.remove("file")
    assert not inside(tmp_path) and next(refusals, None) is None


def test_a_file_that_stays_in_use_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any, **__: Any) -> None:
        error = PermissionError(13, "in use")
        error.winerror = 5  # type: ignore[attr-defined]
        raise error

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(door, "_HANDLES", False)
    monkeypatch.setattr(door, "_PATIENCE", 0.0)
    monkeypatch.setattr(os, "replace", busy)
    with pytest.raises(PermissionError), Owned(tmp_path).write("file") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "file").read_text() == "old" and list(inside(tmp_path)) == ["file"]


def test_a_tree_with_something_odd_in_it_stays_whole(place: Path) -> None:
    (place / "sub" / "a").write_text("x")
    os.mkfifo(place / "sub" / "fifo")
    before = inside(place)
    with pytest.raises(UserError, match="holds a FIFO"):
        Owned(place).remove_tree("sub")
    assert inside(place) == before


def test_a_tree_that_reaches_another_disk_stays_whole(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "sub" / "disk").mkdir()
    (place / "sub" / "file").write_text("x")
    real = door.OpenFolder.stat

    def elsewhere(self: door.OpenFolder, name: str) -> os.stat_result:
        info = real(self, name)
        return os.stat_result((*info[:2], info.st_dev + 1, *info[3:])) if name == "disk" else info

    monkeypatch.setattr(door.OpenFolder, "stat", elsewhere)
    with pytest.raises(UserError, match="reaches another disk"):
        Owned(place).remove_tree("sub")
    assert (place / "sub" / "file").exists()


@pytest.mark.child
def test_very_deep_trees_are_refused_and_do_not_end_the_program(tmp_path: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path)
        for _ in range(80):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.fchdir(here)
        os.close(here)
    with pytest.raises(UserError, match="nested folders"):
        Owned(tmp_path).remove_tree("d")
    subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


# -- writing -------------------------------------------------------------------------------------------------


def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "file") as temporary:
        temporary.write_text("half")
        assert (tmp_path / "file").read_text() == "old"
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize("kind", ["create", "write", "fsync", "rename"])
def test_no_room_at_any_change_leaves_the_old_file_and_nothing_else(tmp_path: Path, kind: str) -> None:
    write_text(tmp_path / "file", "old")
    with full_disk(kind), pytest.raises(OSError, match="No space"):
        write_text(tmp_path / "file", "new")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"file": "old"}


LINKS = [True, False]
"""Whether the disk has hard links."""


@pytest.fixture(params=LINKS, ids=["links", "no links"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with and without hard links."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not request.param:
        monkeypatch.setattr(os, "link", refuse)
        monkeypatch.setattr(door, "_HANDLES", False)


def theirs(path: Path, kind: str) -> None:
    """Something of another person."""
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(path.with_name("nowhere"))
    else:
        path.write_text("theirs")


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_a_new_file_never_replaces_what_has_its_name(
    tmp_path: Path, disk: None, kind: str, moment: str
) -> None:
    path = tmp_path / "model.v1.safetensors"
    if moment == "before":
        theirs(path, kind)
    with pytest.raises(UserError) as caught, atomic_path(path, replace=False) as temporary:
        if moment == "meanwhile":
            theirs(path, kind)
        temporary.write_text("ours")
    after = path.with_name("model.v1-2.safetensors")
    assert f"{path} already exists" in caught.value.message and str(after) in caught.value.message
    assert caught.value.hint == "rename one of the two"
    assert after.read_text() == "ours"
    assert stat.S_IFMT(path.lstat().st_mode) == {"folder": stat.S_IFDIR, "link": stat.S_IFLNK}.get(kind, stat.S_IFREG)
    assert kind != "file" or path.read_text() == "theirs"
    with pytest.raises(UserError, match=r"model\.v1-3\.safetensors"):
        write_bytes(path, b"again", replace=False)
    assert inside(tmp_path).keys() == {path.name, after.name, "model.v1-3.safetensors"}


def test_a_new_file_has_its_name_when_it_is_free(tmp_path: Path, disk: None) -> None:
    before = os.umask(0o027)
    try:
        write_bytes(tmp_path / "file", b"ours", replace=False)
    finally:
        os.umask(before)
    assert inside(tmp_path) == {"file": stat.S_IFREG | 0o640}
    assert (tmp_path / "file").stat().st_nlink == 1 and (tmp_path / "file").read_bytes() == b"ours"


def test_a_reserved_name_that_somebody_writes_to_stays_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = door.OpenFolder._reserve

    def reserve(folder: door.OpenFolder, name: str) -> bool:
        reserved = real(folder, name)
        if name == "file":
            (tmp_path / name).write_text("theirs")
        return reserved

    monkeypatch.setattr(os, "link", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EOPNOTSUPP, "no links")))
    monkeypatch.setattr(door, "_HANDLES", False)
    monkeypatch.setattr(door.OpenFolder, "_reserve", reserve)
    with pytest.raises(UserError, match="file-2"):
        write_bytes(tmp_path / "file", b"ours", replace=False)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "theirs", "file-2": "ours"}


@pytest.mark.parametrize("kind", ["create", "write", "fsync", "link", "rename"])
def test_no_room_at_any_change_leaves_nothing_of_a_new_file(tmp_path: Path, disk: None, kind: str) -> None:
    with full_disk(kind) as changes, suppress(OSError):
        write_bytes(tmp_path / "file", b"ours", replace=False)
    # nothing is renamed where there are links
    assert bool(changes.begun) == (not inside(tmp_path))
    assert changes.begun or (kind == "rename" and (tmp_path / "file").read_bytes() == b"ours")


@pytest.mark.child
def test_a_kill_at_any_moment_leaves_a_new_file_or_nothing_and_all_of_theirs(tmp_path: Path) -> None:
    in_small_process(a_kill_leaves_a_new_file_or_none, tmp_path)


def test_written_files_have_the_rights_that_the_system_gives_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "file", "x")
        with Owned(tmp_path).write("secret", private=True) as temporary:
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
        assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize("rights", [0o600, 0o640, 0o664, 0o444])
def test_a_file_that_is_replaced_keeps_its_rights(tmp_path: Path, rights: int) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(rights)
    with Owned(tmp_path).write("file") as temporary:
        temporary.write_text("new")
        assert not stat.S_IMODE(temporary.stat().st_mode) & ~(rights | 0o600), "nobody reads it meanwhile"
    # its owner may always write
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == rights | 0o600
    with Owned(tmp_path).write("file", private=True) as temporary:
        temporary.write_text("secret")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_writing_over_a_link_replaces_the_link_alone(place: Path) -> None:
    with Owned(place).write("link") as temporary:
        temporary.write_text("new")
    assert not (place / "link").is_symlink()


def test_a_name_given_on_this_computer_may_be_odd(tmp_path: Path) -> None:
    with Owned(tmp_path, local=True).write("12:30 aux.") as temporary:
        temporary.write_text("x")
    write_text(tmp_path / "a:b.json", "x")
    assert {p.name for p in tmp_path.iterdir()} == {"12:30 aux.", "a:b.json"}


def test_a_name_that_is_taken_is_not_moved_over(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    (tmp_path / "c").mkdir()
    owned = Owned(tmp_path)
    for target in ("b", "c"):
        with pytest.raises(UserError, match="already exists"):
            owned.move("a", target)
    with pytest.raises(UserError, match="already exists"):
        owned.move("a", "c", replace=True)
    owned.move("a", "b", replace=True)
    assert (tmp_path / "b").read_text() == "a"


def test_a_file_with_two_names_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "best").write_text("x")
    owned = Owned(tmp_path / "backup")
    owned.take(tmp_path / "best", "best/copy")
    owned.take(tmp_path / "best", "best/copy")
    assert (tmp_path / "backup" / "best" / "copy").stat().st_ino == (tmp_path / "best").stat().st_ino
    (tmp_path / "other").write_text("y")
    owned.take(tmp_path / "other", "best/copy")
    assert ((tmp_path / "best").read_text(), (tmp_path / "backup/best/copy").read_text()) == ("x", "y")


def test_where_there_are_no_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "best").write_text("x")
    monkeypatch.setattr(door.OpenFolder, "link", lambda *_: False)
    Owned(tmp_path).take(tmp_path / "best", "copy")
    assert (tmp_path / "copy").read_text() == "x"


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UserError, match="it is a FIFO"):
        read_json(tmp_path / "config.json")
    with pytest.raises(OSError, match="device"):
        read_plain("/dev/zero", 10)


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 5000, "y/" * 2500])
def test_paths_that_no_file_can_have_are_told(path: str) -> None:
    assert fault_of_path(path)
    assert shown(path).encode()
    with pytest.raises(UserError, match="path"):
        read_json(path)
    with pytest.raises(UserError):
        write_text(path, "x")
    assert fault_of_path("models/2024 ä: x") is None


# -- what a killed process leaves ----------------------------------------------------------------------------


def test_the_rests_of_a_killed_process_are_swept_and_nothing_else(place: Path) -> None:
    mine = [".editor.tmp", ".tastemaker.tmp", "tastemaker-1.tmp", ".pair_0000.png", ".tastemaker-1.tmp.png"]
    for name in [*mine, ".tastemaker-1.tmp", "sub/.tastemaker-2.tmp", "sub/.pair_0001.png.x.tmp"]:
        (place / name).write_text("x")
    (place / ".tastemaker-3.tmp").mkdir()
    (place / ".tastemaker-3.tmp" / "part").write_text("x")
    (place / ".tastemaker-4.tmp").symlink_to(place / "out")
    os.mkfifo(place / ".tastemaker-5.tmp")
    owned = Owned(place)
    assert owned.sweep(TEMPORARY) == 2
    assert owned.sweep(f"sub/{TEMPORARY}") == 1 and owned.sweep("sub/.pair_*.tmp") == 1
    assert owned.sweep(f"out/{TEMPORARY}") == 0 and owned.sweep(f"none/{TEMPORARY}") == 0
    left = {p.name for p in place.iterdir() if p.name.startswith(".") or p.name.startswith("tastemaker")}
    assert left == {*mine, ".tastemaker-4.tmp", ".tastemaker-5.tmp"}


@pytest.mark.parametrize("pattern", ["*", "*.tmp", ".*.tmp", "*/.tastemaker-*.tmp", ".tastemaker-*"])
def test_a_sweep_takes_names_of_the_program_alone(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ValueError, match="alone"):
        Owned(tmp_path).sweep(pattern)


def test_what_a_living_process_writes_is_not_swept(tmp_path: Path) -> None:
    owned = Owned(tmp_path)
    with owned.write("file") as temporary, owned.fresh_folder() as fresh:
        temporary.write_text("x")
        assert Owned(tmp_path).sweep(TEMPORARY) == 0
        assert temporary.exists() and fresh.exists()
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("told", [True, False], ids=["elsewhere", "Windows"])
def test_what_lies_next_to_a_folder_is_removed_only_where_nobody_can_be_writing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    monkeypatch.setattr("modules.util.owned_files.TELLS_WHO_WORKS", told)
    beside = tmp_path / ".tastemaker-0123456789abcdef.tmp"
    beside.mkdir()
    (beside / "model").write_text("being written")
    assert Owned(tmp_path / "new").is_vacant()
    assert beside.exists() == (not told)


@pytest.mark.child
def test_a_process_killed_while_it_writes_leaves_what_the_next_one_sweeps(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom modules.util.jsonio import atomic_path\n"
        "with atomic_path(sys.argv[1]) as temporary:\n    temporary.write_text('half')\n    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "file")], check=False)
    assert done.returncode == -9
    assert len(list(tmp_path.glob(TEMPORARY))) == 1
    assert Owned(tmp_path).sweep(TEMPORARY) == 1
    assert list(tmp_path.iterdir()) == []


# -- whole folders -------------------------------------------------------------------------------------------


def test_a_folder_written_by_the_program_is_replaced(tmp_path: Path) -> None:
    owned = Owned(tmp_path)
    (tmp_path / "model").mkdir()
    for text in ("first", "second"):
        write_model(owned, "model", text)
        assert (tmp_path / "model" / "unet" / "weights").read_text() == text
        assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert {p.name for p in (tmp_path / "model").iterdir()} == {"unet", "index.json", LIST_NAME}


def add_file(model: Path) -> None:
    (model / "unet" / "mine").write_text("mine")


def change_file(model: Path) -> None:
    (model / "index.json").write_text("written by a person")


def add_link(model: Path) -> None:
    (model / "unet" / "link").symlink_to(model)


def lose_list(model: Path) -> None:
    (model / LIST_NAME).unlink()


def break_list(model: Path) -> None:
    (model / LIST_NAME).write_text('{"files": [')


def list_is_a_fifo(model: Path) -> None:
    (model / LIST_NAME).unlink()
    os.mkfifo(model / LIST_NAME)


def link_instead(model: Path) -> None:
    model.rename(model.with_name("real"))
    model.symlink_to(model.with_name("real"))


def file_instead(model: Path) -> None:
    model.rename(model.with_name("real"))
    model.write_text("mine")


@pytest.mark.parametrize(
    "meddle",
    [add_file, change_file, add_link, lose_list, break_list, list_is_a_fifo, link_instead, file_instead],
)
def test_a_folder_with_anything_of_a_person_is_left_as_it_is(
    tmp_path: Path, meddle: Callable[[Path], None]
) -> None:
    owned = Owned(tmp_path)
    write_model(owned, "model", "first")
    meddle(tmp_path / "model")
    before = inside(tmp_path)
    with pytest.raises(UserError, match="model"):
        write_model(owned, "model", "second")
    assert inside(tmp_path) == before


@pytest.mark.parametrize("base", ["model", "model/unet/weights"])
def test_the_base_model_is_never_replaced(tmp_path: Path, base: str) -> None:
    owned = Owned(tmp_path)
    write_model(owned, "model", "first")
    with pytest.raises(UserError, match="in use"):
        write_model(owned, "model", "second", keep=(tmp_path / base,))
    assert (tmp_path / "model" / "unet" / "weights").read_text() == "first"


@pytest.mark.parametrize("kind", ["file", "folder", "link", "model"])
def test_a_new_folder_never_replaces_what_has_its_name(tmp_path: Path, kind: str) -> None:
    owned = Owned(tmp_path)
    path = tmp_path / "flux.1-dev"
    with pytest.raises(UserError) as caught, owned.fresh_folder() as fresh:
        (fresh / "weights").write_text("ours")
        if kind == "model":
            write_model(owned, path.name, "theirs")
        else:
            theirs(path, kind)
        owned.replace_folder(fresh, path.name, replace=False)
    assert f"{path} already exists" in caught.value.message and "flux.1-dev-2" in caught.value.message
    made = path.with_name("flux.1-dev-2")
    assert inside(made).keys() == {"weights", LIST_NAME}
    assert {found.name for found in tmp_path.iterdir()} == {path.name, made.name}
    assert kind != "model" or (path / "unet" / "weights").read_text() == "theirs"


@pytest.mark.child
def test_a_kill_at_any_moment_leaves_the_old_folder_or_the_new_one(tmp_path: Path) -> None:
    in_small_process(a_kill_leaves_the_old_folder_or_the_new_one, tmp_path)


def test_a_folder_is_filled_whole_or_left_as_it_was(tmp_path: Path) -> None:
    root = tmp_path / "new" / "deep"
    owned = Owned(root)
    with pytest.raises(OSError, match="full"), owned.filled_at_once(last="a") as fresh:
        with fresh.write("sub/x") as temporary:
            temporary.write_text("x")
        raise OSError("full")
    assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="already exists"), owned.filled_at_once(last="a") as fresh:
        fill(fresh)
        root.mkdir()
    # what others put there meanwhile stays, and so does the folder
    assert inside(tmp_path).keys() == {"new", "new/deep"}
    with pytest.raises(UserError, match="already exists"), owned.filled_at_once(last="a") as fresh:
        fill(fresh)
        (root / "c").write_text("theirs")
    assert inside(root).keys() == {"c"} and (root / "c").read_text() == "theirs"
    (root / "c").unlink()
    with recorded() as changes, owned.filled_at_once(last="a") as fresh:
        fill(fresh)
    assert inside(root).keys() == {"a", "b", "b/x", "c"} and changes


@pytest.mark.child
def test_a_kill_at_any_moment_leaves_all_of_a_new_folder_or_nothing(tmp_path: Path) -> None:
    in_small_process(a_kill_leaves_all_of_a_new_folder_or_nothing, tmp_path)
