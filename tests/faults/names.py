"""Hostile names in every field that is a name: refused, or used inside its folder; nothing of a person's is touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from modules.curation.review.review import PairReview
from modules.curation.store import CurationStore
from modules.runner.RunDirectory import RunDirectory
from modules.runner.RunQueue import RunQueue
from modules.trainer.resume.checkpoint import MANIFEST, find_backup, write_backup
from modules.ui.state.PresetStore import PresetStore
from modules.util.config.load import load_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.dpo_curation_util import load_manifest
from modules.util.errors import UserError
from modules.util.owned_files import Owned
from scripts import curate
from tests.faults.pair_folders import change_manifest, entry, make_pairs, put_row
from tests.guard import Guard
from tests.trainer.resume.test_checkpoint import at

NAMES = {
    "up": "../person/mine.png", "up below": "chosen/../../person/mine.png", "absolute": "{person}/mine.png",
    "drive": "C:/x.png", "drive below": "chosen/C:x.png", "NUL": "chosen/a\0.png", "newline": "chosen/a\nb.png",
    "surrogate": "chosen/\ud800.png", "bidi": "chosen/\u202egnp.exe", "240 letters": "chosen/" + "x" * 240 + ".png",
    "5000 letters": "chosen/" + "x" * 5000 + ".png", "device": "/dev/zero", "FIFO": "../person/fifo",
    "link out": "out/mine.png",
    "circle": "circle/circle/x.png", "swap": "chosen/..swap", "reserved": "chosen/CON.png", "empty": "", "dots": "..",
    "backslash": "chosen\\..\\..\\person\\mine.png", "option": "-rf", "home": "~/mine.png",
}  # fmt: skip
Field = Callable[[Path, str], object]


def _of_manifest(folder: Path, name: str) -> object:
    change_manifest(folder / "out", 0, chosen_file=name)
    load_manifest(folder / "out")
    (folder / "out" / "curation.sqlite").unlink()
    return [
        curate.main(["finalize", str(folder / "out")]),
        curate.main(["review", str(folder / "out"), "--remove", "pair_0000"]),
    ]


def _of_store(folder: Path, name: str) -> object:
    put_row(folder / "out", "intents", "pair_0009", entry("pair_0009", name))
    with CurationStore(folder / "out") as store:
        return store.pairs()


def _of_journal(folder: Path, name: str) -> object:
    review = PairReview(folder / "out")
    review.remove("pair_0000")
    steps = folder / "out" / ".trash" / "steps.jsonl"
    step = json.loads(steps.read_text())
    step["files"] = [[name, name]]
    steps.write_text(json.dumps(step) + "\n")
    return PairReview(folder / "out").undo()


def _of_import(folder: Path, name: str) -> object:
    (folder / "in" / "rows.jsonl").write_text(
        json.dumps({"prompt": "p", "chosen": name, "rejected": "0.png"})
    )
    return curate.main(["import", str(folder / "in" / "rows.jsonl"), str(folder / "imported")])


def _of_config(name_of: str) -> Field:
    def use(folder: Path, name: str) -> object:
        (folder / "config.json").write_text(json.dumps({"__version": 1, name_of: name}))
        return load_config(folder / "config.json")

    return use


def _of_backup(folder: Path, name: str) -> object:
    path = write_backup(folder / "backup", at(1))
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"][name] = "0" * 40
    (path / MANIFEST).write_text(json.dumps(manifest))
    return find_backup(folder / "backup")


def _of_run(folder: Path, name: str) -> object:
    return RunDirectory(folder / "run") / name


def _of_preset(folder: Path, name: str) -> object:
    return PresetStore(folder / "presets").save(name, TrainConfig(epochs=3))


def _of_queue(folder: Path, name: str) -> object:
    made = {"id": name, "run_dir": name, "title": name, "state": "waiting"}
    (folder / "queue.json").write_text(json.dumps({"version": 1, "entries": [made]}))
    queue = RunQueue(folder / "queue.json")
    queue.remove(queue.entries()[0].id)
    return queue.entries()


def _of_door(folder: Path, name: str) -> object:
    owned = Owned(folder / "out")
    found = []
    for act in (owned.remove, owned.remove_tree, lambda one: owned.append(one, b"x")):
        try:
            found.append(act(name))
        except UserError as error:
            found.append(str(error))
    return found


FIELDS: dict[str, Field] = {
    "manifest": _of_manifest, "store": _of_store, "journal": _of_journal, "import": _of_import, "backup": _of_backup,
    "file of a run": _of_run, "preset": _of_preset, "queue": _of_queue, "door": _of_door,
    **{f"config {name}": _of_config(name) for name in (
        "workspace_dir", "cache_dir", "output_model_destination", "concept_file_name", "rlhf_prompts_file",
        "save_filename_prefix", "sample_definition_file_name", "lora_model_name")},
}  # fmt: skip


@dataclass
class NameTally:
    """Figures of many names."""

    tried: int = 0
    refused: int = 0
    crashes: list[str] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        return [*self.crashes, *self.guards]


def _prepared(base: Path, folder: Path) -> Path:
    """A copy of what every case begins with; it is made once, at the place of the cases, for names in files."""
    made = base / "prepared"
    if not made.exists():
        shutil.rmtree(folder, ignore_errors=True)
        make_pairs(folder, 2, finalised=True)
        (folder / "out" / "out").symlink_to(folder / "person")
        (folder / "out" / "circle").symlink_to(".")
        folder.rename(made)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made, folder, symlinks=True)
    return folder


def try_name(base: Path, where: str, what: str, tally: NameTally) -> None:
    """One name in one field, in folders of its own."""
    folder = _prepared(base, base / "case")
    guard = Guard(folder / "person")
    try:
        tally.tried += 1
        try:
            made = FIELDS[where](folder, NAMES[what].replace("{person}", str(guard.folder)))
            tally.refused += made == 2 or (isinstance(made, list) and 2 in made)
        except UserError:
            tally.refused += 1
        except Exception as error:  # noqa: BLE001 - a traceback is what is looked for
            tally.crashes.append(f"{where}, {what}: {error!r:.300}")
        guard.check()
    except AssertionError as error:
        tally.guards.append(f"{where}, {what}: {error}")
    assert not os.path.lexists(base / "mine.png")
