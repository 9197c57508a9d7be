"""What a session promises about its disk: nothing acknowledged is lost, nothing half-written is named."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from PIL import Image

from modules.curation.store import CurationStore
from modules.util.dpo_curation_util import file_sha256, find_exported_file, load_manifest, save_manifest
from modules.util.errors import UserError
from tests.changes import full_disk

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    made = []
    for i in range(6):
        path = folder / f"{i}.png"
        Image.new("RGB", (12, 12), (40 * i, 0, 0)).save(path)
        made.append(path)
    return made


def test_a_second_window_is_refused_and_the_lock_goes_with_the_first(tmp_path):
    with CurationStore(tmp_path / "out"), pytest.raises(UserError, match="another window"):
        CurationStore(tmp_path / "out")
    CurationStore(tmp_path / "out").close()


def test_a_pick_is_in_the_manifest_and_unchanged_on_disk(tmp_path, images):
    with CurationStore(tmp_path / "out") as store:
        (pair,) = store.export("g", [(images[0], images[1])], "a cat", "1:1", {"used": []})
        listed = load_manifest(tmp_path / "out")["pairs"]
    assert listed == [pair]
    assert (tmp_path / "out" / pair["chosen_file"]).read_bytes() == images[0].read_bytes()
    assert (tmp_path / "out" / "chosen" / "pair_0000.txt").read_text() == "a cat\n"


@pytest.mark.parametrize("files", range(4))
def test_a_failed_copy_leaves_nothing_and_no_acknowledged_pick(tmp_path, images, files):
    store = CurationStore(tmp_path / "out")
    store.export("g", [(images[0], images[1])], "a cat", "1:1", {"used": []})
    with full_disk("create", after=files), pytest.raises(UserError, match="No space left"):
        store.export("g", [(images[2], images[3])], "a cat", "1:1", {"used": []})
    assert store.pair_count() == 1
    assert len(store.events()) == 1
    assert sorted(p.name for p in (tmp_path / "out" / "chosen").iterdir()) == [
        "pair_0000.png",
        "pair_0000.txt",
    ]
    store.export("g", [(images[2], images[3])], "a cat", "1:1", {"used": []})
    assert store.pair_count() == 2
    store.close()


def test_a_folder_that_is_moved_while_it_is_open_keeps_its_pairs_together(tmp_path, images):
    out, moved = tmp_path / "out", tmp_path / "moved"
    store = CurationStore(out)
    (first,) = store.export("g", [(images[0], images[1])], "a cat", "1:1", {"used": []})
    out.rename(moved)
    for step in (
        lambda: store.export("g", [(images[2], images[3])], "a cat", "1:1", {"used": []}),
        lambda: store.append("g", "answer", {}),
        store.undo_last,
    ):
        with pytest.raises(UserError, match="out was moved, renamed or deleted"):
            step()
    assert not out.exists()
    moved.rename(out)
    (second,) = store.export("g", [(images[2], images[3])], "a cat", "1:1", {"used": []})
    out.rename(moved)
    store.close()
    assert not out.exists()
    assert load_manifest(moved)["pairs"] == [first, second]


def test_a_folder_that_has_only_a_manifest_opens(tmp_path, images):
    with CurationStore(tmp_path / "out") as store:
        store.export("g", [(images[0], images[1])], "a cat", "1:1", {"used": []})
    for name in ("curation.sqlite", "curation.sqlite-wal", "curation.sqlite-shm"):
        (tmp_path / "out" / name).unlink(missing_ok=True)
    with CurationStore(tmp_path / "out") as store:
        assert [p["pair_id"] for p in store.pairs()] == ["pair_0000"]
        (pair,) = store.export("g", [(images[2], images[3])], "a cat", "1:1", {"used": []})
        assert pair["pair_id"] == "pair_0001"


@pytest.mark.parametrize("owner", ["manifest", "person"])
def test_pairs_saved_together_never_take_the_name_of_a_file_that_is_there(tmp_path, images, owner):
    out = tmp_path / "out"
    with CurationStore(out) as store:
        for _ in range(4):
            store.export("g", [(images[0], images[1])], "a cat", "1:1", {"used": []})
        for name in ("pair_0001", "pair_0002"):
            store.remove(name)
    if owner == "person":
        save_manifest(out, {"pairs": []})
        (out / "rejected" / "pair_0003.png").unlink()
    for name in ("curation.sqlite", "curation.sqlite-wal", "curation.sqlite-shm"):
        (out / name).unlink(missing_ok=True)
    before = {path: path.read_bytes() for path in out.glob("*/pair_0003.*")}
    with CurationStore(out) as store:
        made = store.export("h", [(images[2], images[3]), (images[4], images[5])] * 2, "a dog", "1:1", {"used": []})
        names = [pair["pair_id"] for pair in made]
        assert len(set(names)) == 4
        assert "pair_0003" not in names
        assert all((out / pair["chosen_file"]).is_file() for pair in store.pairs())
    assert {path: path.read_bytes() for path in before} == before


def test_numbers_are_not_used_twice_after_removing(tmp_path, images):
    with CurationStore(tmp_path / "out") as store:
        store.export("g", [(images[0], images[1])], "a cat", "1:1", {"used": []})
        store.remove("pair_0000")
        (pair,) = store.export("g", [(images[2], images[3])], "a cat", "1:1", {"used": []})
        assert pair["pair_id"] != "pair_0000"
        assert find_exported_file(tmp_path / "out", "chosen", "pair_0000") is None


@pytest.mark.parametrize(
    "pair",
    [
        {"pair_id": "../x", "prompt": "p", "chosen_file": "chosen/a.png", "rejected_file": "rejected/a.png"},
        {"pair_id": "a", "prompt": "p", "chosen_file": "../a.png", "rejected_file": "rejected/a.png"},
        {"pair_id": "a", "prompt": "p", "chosen_file": "/etc/passwd", "rejected_file": "rejected/a.png"},
        {
            "pair_id": "a",
            "prompt": "p",
            "chosen_file": "chosen/../../a.png",
            "rejected_file": "rejected/a.png",
        },
        {
            "pair_id": "a",
            "prompt": "p",
            "chosen_file": "chosen\\..\\..\\a.png",
            "rejected_file": "rejected/a.png",
        },
        {"pair_id": "a", "prompt": 3, "chosen_file": "chosen/a.png", "rejected_file": "rejected/a.png"},
    ],
)
def test_names_in_a_foreign_manifest_do_not_leave_the_folder(tmp_path, pair):
    save_manifest(tmp_path, {"pairs": [pair]})
    with pytest.raises(UserError):
        load_manifest(tmp_path)
    with pytest.raises(UserError):
        CurationStore(tmp_path)


KILLED = """
    import sys
    from pathlib import Path
    from modules.curation.store import CurationStore
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    files = sorted(source.iterdir())
    with CurationStore(out) as store:
        print("open", flush=True)
        while True:
            n = store.pair_count()
            if n and n % 5 == 4:
                store.undo_last()
                print("undo", n - 1, flush=True)
            picks = [(files[n % 3], files[3 + n % 3])]
            (pair,) = store.export("g", picks, f"prompt {n}", "1:1", {"used": []})
            print("pick", pair["pair_id"], store.pair_count(), flush=True)
"""


def check_folder(out: Path) -> int:
    """Every pair complete under its final names, nothing else in the folders; returns the number of pairs."""
    with CurationStore(out) as store:
        pairs = store.pairs()
    for side in ("chosen", "rejected"):
        names = {p.name for p in (out / side).iterdir()} if (out / side).is_dir() else set()
        wanted = set()
        for pair in pairs:
            file = out / pair[f"{side}_file"]
            assert file_sha256(file) == pair["hashes"][side]
            assert file.with_suffix(".txt").read_text() == pair["prompt"] + "\n"
            wanted |= {file.name, file.with_suffix(".txt").name}
        assert names == wanted
    assert load_manifest(out)["pairs"] == pairs
    return len(pairs)


def run_and_kill(source: Path, out: Path, seconds: float, after: int) -> list[str]:
    """What a child acknowledged that is killed some time after its first ``after`` answers."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(source), str(out)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "open\n"
    said = "".join(child.stdout.readline() for _ in range(after))
    time.sleep(seconds)
    os.kill(child.pid, signal.SIGKILL)
    lines = [line for line in (said + child.stdout.read()).split("\n")[:-1] if line]
    child.wait()
    return lines


@pytest.mark.child
@pytest.mark.parametrize("rounds", [25, pytest.param(200, marks=pytest.mark.slow)])
def test_sigkill_at_random_moments_loses_no_acknowledged_pick(tmp_path, images, rounds):
    rng = random.Random(7)
    out = tmp_path / "out"
    count = 0
    for _ in range(rounds):
        lines = run_and_kill(images[0].parent, out, rng.uniform(0.0, 0.06), rng.choice((0, 0, 1)))
        undone = False
        for line in lines:
            kind, *values = line.split()
            count, undone = int(values[-1]), kind == "undo"
        undo_is_next = count > 0 and count % 5 == 4 and not undone
        found = check_folder(out)
        assert found in (count, count - 1 if undo_is_next else count + 1)
        count = found
    assert count > 0
