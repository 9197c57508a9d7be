"""Folders that are written by a process which is killed at each of its changes, tried in a process of its own: a
process that has loaded what other tests need takes a quarter of a second for each fork.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

from modules.util.errors import UserError
from modules.util.jsonio import atomic_path
from modules.util.owned_files import TEMPORARY, Owned
from tests.changes import killed_at, recorded


def inside(root: Path) -> dict[str, int]:
    """The type and the permissions of everything in a folder."""
    return {p.relative_to(root).as_posix(): p.lstat().st_mode for p in root.rglob("*")}


def write_model(owned: Owned, name: str, text: str, keep: tuple[Path, ...] = ()) -> None:
    """Replace a folder by one with two files that hold ``text``."""
    with owned.fresh_folder() as fresh:
        (fresh / "unet").mkdir()
        (fresh / "unet" / "weights").write_text(text)
        (fresh / "index.json").write_text(text)
        owned.replace_folder(fresh, name, keep)


def fill(folder: Owned) -> None:
    """Write three files."""
    for name in ("a", "b/x", "c"):
        with folder.write(name) as temporary:
            temporary.write_text("ours")


def a_kill_leaves_the_old_folder_or_the_new_one(folder: Path) -> None:
    """``folder`` is empty."""
    write_model(Owned(folder / "count"), "model", "first")
    with recorded() as changes:
        write_model(Owned(folder / "count"), "model", "second")
    assert {"create", "fsync", "rename", "delete", "folder"} <= {kind for kind, _ in changes.made}
    seen, restored = set(), 0
    for number in range(1, len(changes.made) + 1):
        for moment in ("before", "after"):
            root = folder / f"{number}-{moment}"
            write_model(Owned(root), "model", "first")
            owned = Owned(root)
            work = partial(write_model, owned, "model", "second")
            assert killed_at(number, moment == "after", work)
            restored += owned.restore_folder("model")
            owned.sweep(TEMPORARY)
            text = (root / "model" / "unet" / "weights").read_text()
            assert (root / "model" / "index.json").read_text() == text, (number, moment)
            assert [p.name for p in root.iterdir()] == ["model"], (number, moment, changes.made[number - 1])
            seen.add(text)
            write_model(owned, "model", "third")
    assert seen == {"first", "second"} and restored > 0, (seen, restored)


def _write_new(path: Path, taken: bool) -> None:
    with suppress(UserError), atomic_path(path, replace=False) as temporary:
        temporary.write_text("ours")
        if taken and not path.exists():
            path.write_text("theirs")


def a_kill_leaves_a_new_file_or_none(folder: Path) -> None:
    """``folder`` is empty."""
    for taken in (False, True):
        seen: set[tuple[str, ...]] = set()
        (count := folder / f"count-{taken}").mkdir()
        with recorded() as changes:
            _write_new(count / "file", taken)
        for number in range(1, len(changes.made) + 1):
            for moment in ("before", "after"):
                root = folder / f"{taken}-{number}-{moment}"
                root.mkdir()
                assert killed_at(number, moment == "after", partial(_write_new, root / "file", taken))
                Owned(root).sweep(TEMPORARY)
                texts = {path.name: path.read_text() for path in root.iterdir()}
                theirs = texts.pop("file", "") if taken else ""
                assert theirs in ("", "theirs"), (number, moment, theirs)
                assert set(texts.values()) <= {"ours"}, (number, moment, texts)
                seen.add(tuple(texts))
        assert seen == {(), ("file-2",) if taken else ("file",)}, seen


def a_kill_leaves_all_of_a_new_folder_or_nothing(folder: Path) -> None:
    """``folder`` is empty."""

    def work(root: Path) -> None:
        with Owned(root).filled_at_once(last="a") as fresh:
            fill(fresh)

    with recorded() as changes:
        work(folder / "count" / "new")
    seen = set()
    for number in range(1, len(changes.made) + 1):
        for moment in ("before", "after"):
            above = folder / f"{number}-{moment}"
            above.mkdir()
            (above / "photo.png").write_text("theirs")
            assert killed_at(number, moment == "after", partial(work, above / "new"))
            left = inside(above / "new").keys() if (above / "new").exists() else None
            assert left in (None, {"a", "b", "b/x", "c"}), (number, moment, changes.made[number - 1])
            seen.add(left is not None)
            if left is None:
                work(above / "new")
            assert inside(above / "new").keys() == {"a", "b", "b/x", "c"}
            assert (above / "photo.png").read_text() == "theirs"
    assert seen == {True, False}, seen
