"""Backups: whole or not there, and nothing in them is trusted."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.trainer.evaluate.best import write_tensors
from modules.trainer.resume import checkpoint
from modules.trainer.resume.checkpoint import (
    CONFIG,
    MANIFEST,
    META,
    OPTIMIZER,
    Snapshot,
    backup_problem,
    find_backup,
    list_backups,
    read_backup,
    write_backup,
)
from modules.util.errors import DataError, UserError
from modules.util.TrainProgress import TrainProgress
from tests.changes import full_disk
from tests.trainer.builders import small_files_only


def at(step: int) -> Snapshot:
    """A small run after ``step`` steps of 10 in an epoch."""
    return Snapshot(
        TrainProgress(step // 10, step % 10, 2 * (step % 10), step),
        {
            "weights": {"a": torch.full((3, 2), float(step)), "b": torch.tensor([0.1, -0.0]).bfloat16()},
            "ema": {"a": torch.full((3, 2), step / 3)},
        },
        optimizer={"state": {0: {"step": torch.tensor(float(step))}}, "parameter_names": ["a"]},
        state={
            "patience": {"counter": 1, "bests": {}},
            "identity": {"base": "x", "data": "y", "adapter": "z"},
            "processes": 1,
            "step": {},
            "scaler": {"scale": 1.0, "good": 0},
            "counters": {"undefined_steps": 0, "saves_due": 0, "validated_at": -1, "samples_due": 0},
        },
        config={"seed": step},
    )


def steps(folder: Path) -> list[int]:
    """Positions of the backups below a folder, newest first."""
    return [read_backup(path).progress.global_step for path in list_backups(folder)]


def content(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    change(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


def sign(path: Path, *names: str) -> None:
    """Make the manifest true again for files that were changed."""
    edit_manifest(path, lambda m: m["files"].update({n: checkpoint._digest(path / n) for n in names}))


# -- writing and reading -------------------------------------------------------------------------------------


def test_everything_comes_back(tmp_path: Path) -> None:
    path = write_backup(tmp_path / "backup", at(13))
    back, former = read_backup(path), at(13)
    assert path.name.endswith("-backup-13-1-3")
    assert (back.progress, back.state, back.config) == (former.progress, former.state, former.config)
    assert back.tensors.keys() == former.tensors.keys()
    for name, tensors in former.tensors.items():
        assert back.tensors[name].keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert back.tensors[name][key].dtype == tensor.dtype
            assert torch.equal(back.tensors[name][key], tensor)
    assert back.optimizer["parameter_names"] == ["a"]
    assert torch.equal(back.optimizer["state"][0]["step"], torch.tensor(13.0))
    assert back.files == {}


def test_no_temporary_folder_is_left(tmp_path: Path) -> None:
    path = write_backup(tmp_path, at(1))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("links", [True, False], ids=["hard link", "copy"])
def test_the_best_weights_outlive_their_first_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:

        def refuse(*_: object, **__: object) -> None:
            raise OSError("no links here")

        monkeypatch.setattr(os, "link", refuse)
    best = tmp_path / "best" / "best-5.safetensors"
    write_tensors(best, {"a": torch.ones(2)}, "it")
    snapshot = at(6)
    snapshot.files["best"] = best
    path = write_backup(tmp_path / "backup", snapshot)
    former = best.read_bytes()
    best.unlink()
    back = read_backup(path)
    assert back.files["best"].read_bytes() == former
    assert "best" not in back.tensors


def test_only_the_newest_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10, 20):
        write_backup(tmp_path, at(step), keep=3)
    assert steps(tmp_path) == [20, 10, 3]
    write_backup(tmp_path, at(21))
    assert steps(tmp_path) == [21, 20, 10, 3]
    write_backup(tmp_path, at(22), keep=1)
    assert steps(tmp_path) == [22]


def test_the_same_position_in_the_same_second_is_one_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint.time, "strftime", lambda _: "2026-01-01_00-00-00")
    first = write_backup(tmp_path, at(4))
    assert write_backup(tmp_path, at(4)) == first
    assert steps(tmp_path) == [4]


def test_the_newest_is_found_although_the_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(["2026-05-05_12-00-00", "2026-05-05_11-00-00", "2026-05-05_11-30-00"])
    monkeypatch.setattr(checkpoint.time, "strftime", lambda _: next(times))
    for step in (9, 10, 11):
        write_backup(tmp_path, at(step), keep=2)
    assert steps(tmp_path) == [11, 10]


def test_the_backup_just_written_is_not_removed_in_favour_of_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = write_backup(tmp_path, at(9), keep=1)
    _truncate(damaged / "weights" / "weights.safetensors")
    monkeypatch.setattr("modules.trainer.resume.checkpoint.time.strftime", lambda _: "2000-01-01_00-00-00")
    written = write_backup(tmp_path, at(5), keep=1)
    assert find_backup(tmp_path)[0] == written


def test_a_folder_that_is_not_there_has_no_backups(tmp_path: Path) -> None:
    assert list_backups(tmp_path / "nothing") == []
    assert find_backup(tmp_path / "nothing") == (None, [])


def test_other_folders_are_no_backups(tmp_path: Path) -> None:
    for name in ("notes", "2026-01-01_00-00-00-backup-x-0-0", "old-2026-01-01_00-00-00-backup-1-0-1"):
        (tmp_path / name).mkdir()
    assert list_backups(tmp_path) == []
    write_backup(tmp_path, at(1), keep=1)
    assert (tmp_path / "notes").is_dir()


# -- disks that are full, processes that are killed --------------------------------------------------------------


@pytest.mark.parametrize("limit", [20, 300, 5000], ids=["metadata", "weights", "optimizer"])
def test_a_full_disk_leaves_the_former_backups(tmp_path: Path, limit: int) -> None:
    for step in (1, 2):
        write_backup(tmp_path, at(step), keep=2)
    before = {path: content(path) for path in tmp_path.iterdir()}
    large = at(3)
    large.optimizer["state"][0]["exp_avg"] = torch.zeros(10_000)
    with small_files_only(limit), pytest.raises(UserError, match="cannot be written") as caught:
        write_backup(tmp_path, large, keep=2)
    assert "intact" in (caught.value.hint or "")
    assert {path: content(path) for path in tmp_path.iterdir()} == before
    assert find_backup(tmp_path)[0] == list_backups(tmp_path)[0]


def test_whatever_change_fails_the_former_backups_stay_and_nothing_else(tmp_path: Path) -> None:
    first = write_backup(tmp_path, at(1), keep=1)
    before, failed = content(tmp_path), 0
    while True:
        with full_disk("create", "write", "fsync", "folder", "rename", after=failed):
            try:
                write_backup(tmp_path, at(2), keep=1)
                break
            except UserError as error:
                told = str(error)
        if steps(tmp_path)[:1] != [2]:  # flushing the folder's names comes last of all
            assert "No space left on device" in told and list(tmp_path.iterdir()) == [first]
            assert content(tmp_path) == before
        failed += 1
    assert failed > 15 and steps(tmp_path)[0] == 2


def test_an_old_backup_that_cannot_be_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_backup(tmp_path, at(1))

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkpoint, "remove_backup", refuse)
    with pytest.raises(UserError, match="is written, but the old one .* cannot be removed: Permission"):
        write_backup(tmp_path, at(2), keep=1)
    assert steps(tmp_path) == [2, 1]


@pytest.mark.parametrize(
    "name", [".tmp-9999-01-01_00-00-00-backup-5-0-5", ".tastemaker-0123456789abcdef.tmp"]
)
def test_half_written_folders_are_skipped_and_cleared_away(tmp_path: Path, name: str) -> None:
    whole = write_backup(tmp_path, at(1))
    half = tmp_path / name
    shutil.copytree(whole, half)
    (tmp_path / ".tmp-mine").mkdir()
    assert find_backup(tmp_path) == (whole, [])
    write_backup(tmp_path, at(2))
    assert not half.exists() and (tmp_path / ".tmp-mine").exists()
    assert steps(tmp_path) == [2, 1]


@pytest.mark.parametrize("name", ["notes.txt", "weights/mine.safetensors", "link", "meta.json.bak"])
def test_an_old_backup_with_files_of_a_person_in_it_is_kept(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = write_backup(tmp_path, at(1))
    if name == "link":
        (old / name).symlink_to(tmp_path)
    else:
        (old / name).write_text("mine")
    write_backup(tmp_path, at(2), keep=1)
    assert steps(tmp_path) == [2, 1] and (old / name).exists()
    assert f"it holds {name}" in caplog.text
    (old / name).unlink()
    write_backup(tmp_path, at(3), keep=1)
    assert steps(tmp_path) == [3]


# -- damage --------------------------------------------------------------------------------------------------


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [_flip, _truncate, Path.unlink], ids=["bit", "short", "gone"])
@pytest.mark.parametrize(
    "name", [META, CONFIG, OPTIMIZER, "weights/weights.safetensors", "ema/ema.safetensors"]
)
def test_a_damaged_file_sends_the_run_to_the_backup_before(
    tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    older, newer = write_backup(tmp_path, at(1)), write_backup(tmp_path, at(2))
    damage(newer / name)
    found, problems = find_backup(tmp_path)
    assert found == older
    assert problems == [f"the backup {newer.name} is skipped: {name} is missing or damaged"]
    with pytest.raises(DataError, match=f"{name} is missing or damaged"):
        read_backup(newer)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "does not exist"),
        ("", "not valid JSON"),
        ("[]", "its manifest is not valid"),
        ('{"format": 1}', "its manifest is not valid"),
        ('{"format": 1, "files": []}', "its manifest is not valid"),
        ('{"format": 2, "files": {}}', "it has format 2, this program knows 1"),
        ('{"format": 1, "files": {}}', "its manifest does not name meta.json"),
    ],
)
def test_a_manifest_that_is_none(tmp_path: Path, text: str | None, problem: str) -> None:
    path = write_backup(tmp_path, at(1))
    if text is None:
        (path / MANIFEST).unlink()
    else:
        (path / MANIFEST).write_text(text)
    found, problems = find_backup(tmp_path)
    assert found is None
    assert len(problems) == 1
    assert problem in problems[0]
    with pytest.raises(DataError, match="cannot be used"):
        read_backup(path)


@pytest.mark.parametrize("name", ["../secret.txt", "weights/../../secret.txt", "ABSOLUTE", "a\0b"])
def test_a_manifest_that_leads_outside_is_refused(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    path = write_backup(tmp_path / "backup", at(1))
    if name == "ABSOLUTE":
        name = str(secret)
    elif name.startswith(".."):
        name = f"../{name}"
    edit_manifest(path, lambda m: m["files"].update({name: checkpoint._digest(secret)}))
    assert backup_problem(path) == f"its manifest names {name!r}"


def test_a_link_that_leads_outside_is_refused(tmp_path: Path) -> None:
    path = write_backup(tmp_path / "backup", at(1))
    outside = tmp_path / "weights.safetensors"
    inside = path / "weights" / "weights.safetensors"
    inside.replace(outside)
    inside.symlink_to(outside)
    assert backup_problem(path) == "its manifest names 'weights/weights.safetensors'"


def test_files_the_manifest_does_not_name_are_not_read(tmp_path: Path) -> None:
    path = write_backup(tmp_path, at(1))
    write_tensors(path / "extra" / "reference.safetensors", {"a": torch.zeros(1)}, "it")
    assert read_backup(path).tensors.keys() == {"weights", "ema"}


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("code-was-run",)


def test_code_in_the_optimizer_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_backup(tmp_path / "backup", at(1))
    stream = io.BytesIO()
    torch.save({"state": _Runs()}, stream)
    for data in (stream.getvalue(), pickle.dumps(_Runs(), protocol=2), b""):
        (path / OPTIMIZER).write_bytes(data)
        sign(path, OPTIMIZER)
        with pytest.raises(DataError, match="cannot be read"):
            read_backup(path)
    assert not (tmp_path / "code-was-run").exists()


@pytest.mark.parametrize(
    "meta", [[], {}, {"train_progress": [], "state": {}}, {"train_progress": {"epoch": -1}, "state": {}}]
)
def test_foreign_facts_are_a_data_error(tmp_path: Path, meta: Any) -> None:
    path = write_backup(tmp_path, at(1))
    (path / META).write_text(json.dumps(meta))
    sign(path, META)
    with pytest.raises(DataError, match=r"cannot be used: meta\.json"):
        read_backup(path)


FOREIGN: dict[str, tuple[tuple[str, ...], Any]] = {
    "counters that are none": (("state", "counters"), 7),
    "an unknown counter": (("state", "counters", "__class__"), 1),
    "a counter of text": (("state", "counters", "saves_due"), "x"),
    "a huge counter": (("state", "counters", "saves_due"), 10**400),
    "an identity of text": (("state", "identity"), "x"),
    "an identity of numbers": (("state", "identity", "base"), 1),
    "half an identity": (("state", "identity"), {"base": "x"}),
    "no identity": (("state", "identity"), None),
    "processes of text": (("state", "processes"), "two"),
    "no process": (("state", "processes"), 0),
    "a huge step": (("train_progress", "global_step"), 10**400),
    "another step": (("train_progress", "global_step"), 9),
    "a loss scale of text": (("state", "scaler", "scale"), "x"),
    "a loss scale below 1": (("state", "scaler", "scale"), 0.5),
    "patience of a list": (("state", "patience"), []),
    "a best that is text": (("state", "best"), {"step": "1", "accuracy": 0.5, "loss": 1.0}),
    "a best without its file": (("state", "best"), {"step": 1, "accuracy": 0.5, "loss": 1.0}),
    "diagnostics of no points": (("state", "step"), {"diagnostics": {"points": [[1]], "steps": 1, "told": {}}}),
    "an adaptive beta of text": (("state", "step"), {"adaptive_beta": {"fast": "x", "slow": 0, "updates": 0}}),
    "a rollout of text": (("state", "rollout"), "x"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOREIGN)
def test_foreign_facts_with_fitting_digests_send_the_run_to_the_backup_before(
    tmp_path: Path, what: str
) -> None:
    older, newer = write_backup(tmp_path, at(1)), write_backup(tmp_path, at(2))
    meta = json.loads((newer / META).read_text())
    (*place, last), value = FOREIGN[what]
    inner = meta
    for name in place:
        inner = inner[name]
    inner[last] = value
    (newer / META).write_text(json.dumps(meta))
    sign(newer, META)
    found, problems = find_backup(tmp_path)
    assert found == older
    assert len(problems) == 1 and "is skipped" in problems[0] and len(problems[0]) < 200


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["weights", "ema"])
def test_weights_that_are_nan_or_infinite_send_the_run_to_the_backup_before(
    tmp_path: Path, name: str, value: float
) -> None:
    older, snapshot = write_backup(tmp_path, at(1)), at(2)
    snapshot.tensors[name] = {**snapshot.tensors[name], "a": torch.tensor([0.0, value])}
    newer = write_backup(tmp_path, snapshot)
    found, problems = find_backup(tmp_path)
    assert found == older
    assert problems == [f"the backup {newer.name} is skipped: {name}.safetensors: a holds NaN or infinity"]


def test_a_backup_under_the_name_of_another_step_is_refused(tmp_path: Path) -> None:
    older, newer = write_backup(tmp_path, at(1)), write_backup(tmp_path, at(2))
    newer.rename(tmp_path / newer.name.replace("-backup-2-0-2", "-backup-3-0-3"))
    assert find_backup(tmp_path)[0] == older
