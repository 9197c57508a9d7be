"""Each kind of file damaged in each way: found and named, or proved harmless; never other results in silence."""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from modules.curation.intake.image_size import image_size
from modules.curation.review.review import PairReview
from modules.curation.review.review_journal import JOURNAL_NAME
from modules.curation.store import CurationStore
from modules.pipeline.cache.ContentCache import ContentCache
from modules.pipeline.cache.FileIndex import FileIndex
from modules.runner.RunQueue import RunQueue
from modules.trainer.resume.checkpoint import find_backup, read_backup, write_backup
from modules.ui.state.SessionStore import Session, SessionStore
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.config_list import load_list
from modules.util.config.load import load_config
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.dpo_curation_util import load_manifest
from modules.util.errors import UserError
from modules.util.pairs.decoding import undecodable
from modules.util.pairs.dpo_pair_files import TRASH_NAME
from tests.faults.pair_folders import make_pairs, write_images
from tests.faults.readers import CONFIG
from tests.guard import Guard
from tests.trainer.resume.test_checkpoint import at

Damage = Callable[[bytes, bytes, random.Random], bytes | None]
DAMAGES: dict[str, Damage] = {
    "flip": lambda data, other, draw: _flipped(data, draw),
    "cut": lambda data, other, draw: data[: draw.randrange(len(data))],
    "empty": lambda data, other, draw: b"",
    "extend": lambda data, other, draw: data + draw.randbytes(1 + draw.randrange(4096)),
    "swap": lambda data, other, draw: other,
    "zero": lambda data, other, draw: bytes(len(data)),
    "delete": lambda data, other, draw: None,
}
"""What becomes of the bytes; ``None`` for a file that is deleted."""


def _flipped(data: bytes, draw: random.Random) -> bytes:
    made = bytearray(data)
    made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
    return bytes(made)


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Args:
        make: writes sound files below a folder and returns the one to be damaged.
        use: reads it as the program does; what it returns is compared with that of the sound file.
        without: damages that do not concern it: others may write or delete such a file, and nothing shows that it
            was another one before.
        again: parts of what it returned are made again where they are missing.
        copied: whether a copy is as good as the files themselves, which is not so where one knows others by their
            place on the disk.
    """

    make: Callable[[Path], Path]
    use: Callable[[Path], Any]
    without: tuple[str, ...] = ()
    again: bool = False
    copied: bool = True


@dataclass
class DamageTally:
    """Figures of many damaged files."""

    tried: int = 0
    found: int = 0
    harmless: int = 0
    silent: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        return [*self.silent, *self.crashes, *self.guards]


def _backup_kind(name: str) -> Kind:
    def make(folder: Path) -> Path:
        write_backup(folder / "backup", at(1))
        return write_backup(folder / "backup", at(2)) / name

    def use(folder: Path) -> Any:
        path, _ = find_backup(folder / "backup")
        if path is None:
            return None
        made = read_backup(path)
        tensors = {n: t.tolist() for n, t in made.tensors["weights"].items()}
        return [made.progress.to_dict(), tensors, made.state, made.config]

    return Kind(make, use)


def _cache_kind() -> Kind:
    def make(folder: Path) -> Path:
        cache = ContentCache(folder / "cache")
        for number in range(3):
            cache.put(f"{number:032x}", {"latents": torch.full((300,), float(number))})
        cache.close()
        (folder / "cache" / "verified.json").unlink()
        return next((folder / "cache").glob("*.safetensors"))

    def use(folder: Path) -> Any:
        cache = ContentCache(folder / "cache")
        return {n: cache.get(f"{n:032x}")["latents"].tolist() for n in range(3) if f"{n:032x}" in cache}

    return Kind(make, use, again=True)


def _reference_kind() -> Kind:
    from modules.trainer.reference.reference_cache import ReferenceCache

    def opened(folder: Path) -> ReferenceCache:
        return ReferenceCache(folder / "scores", "ab", 3)

    def make(folder: Path) -> Path:
        cache = opened(folder)
        for number in range(4):
            name = bytes([number]) * 16
            cache._rows[name] = torch.linspace(0.1 + number, 2.0, 6).view(3, 2).numpy()
            cache._written.add(name)
        cache.save()
        return next((folder / "scores").glob("*.safetensors"))

    def use(folder: Path) -> Any:
        return {name.hex(): row.tolist() for name, row in opened(folder)._rows.items()}

    return Kind(make, use, again=True)


def _best_kind() -> Kind:
    from modules.trainer.evaluate.best import BestKeeper

    def make(folder: Path) -> Path:
        best = BestKeeper(folder / "best", [("a", torch.nn.Parameter(torch.linspace(0.1, 2.0, 30)))])
        best.offer(1, 0.5, 1.0)
        assert best.path is not None
        return best.path

    def use(folder: Path) -> Any:
        weight = torch.nn.Parameter(torch.zeros(30))
        best = BestKeeper(folder / "best", [("a", weight)])
        best.load_state_dict({"step": 1, "accuracy": 0.5, "loss": 1.0})
        best.restore()
        return weight.tolist()

    return Kind(make, use)


def _index_kind() -> Kind:
    def make(folder: Path) -> Path:
        (image,) = write_images(folder / "in", 1)
        index = FileIndex(folder / "files.sqlite")
        index.digest(str(image))
        index.flush()
        return folder / "files.sqlite"

    def use(folder: Path) -> Any:
        return FileIndex(folder / "files.sqlite").digest(str(folder / "in" / "0.png"))

    return Kind(make, use, copied=False)


def _pair_kind(name: str, use: Callable[[Path], Any], without: tuple[str, ...] = ()) -> Kind:
    def make(folder: Path) -> Path:
        return make_pairs(folder, 2, finalised=True) / name

    return Kind(make, use, without)


def _captions_of(folder: Path) -> Any:
    review = PairReview(folder / "out")
    faults = [(fault.pair_id, fault.kind) for fault in review.faults(64, image_size)]
    if faults:
        raise UserError(f"{faults}")
    return [(pair.pair_id, pair.chosen_caption, pair.rejected_caption) for pair in review.pairs()]


def _journal_kind() -> Kind:
    def make(folder: Path) -> Path:
        review = PairReview(make_pairs(folder, 3, finalised=True))
        review.edit_caption("pair_0001", "another caption")
        review.remove("pair_0002")
        return folder / "out" / TRASH_NAME / JOURNAL_NAME

    def use(folder: Path) -> Any:
        shutil.rmtree(folder / "used", ignore_errors=True)
        shutil.copytree(folder / "out", folder / "used")
        review = PairReview(folder / "used")
        return [review.undo(), review.undone, *_captions_of_pairs(review)]

    return Kind(make, use)


def _captions_of_pairs(review: PairReview) -> list[tuple[str, str | None]]:
    return [(pair.pair_id, pair.chosen_caption) for pair in review.pairs()]


def _json_kind(name: str, content: Any, use: Callable[[Path], Any]) -> Kind:
    def make(folder: Path) -> Path:
        (folder / name).write_text(json.dumps(content))
        return folder / name

    return Kind(make, lambda folder: use(folder / name))


def _model_kinds() -> dict[str, Kind]:
    from modules.adapter.AdapterOptions import AdapterOptions
    from modules.adapter.formats import save_adapter
    from modules.adapter.PeftAdapter import attach
    from modules.adapter.reading import read_adapter
    from modules.spec.registry import FAMILIES
    from modules.weights.one_file import save_file as save_single_file
    from modules.weights.single_file import read_single_file
    from tests.faults.readers import adapter_file
    from tests.tiny import tiny_model

    model, spec = tiny_model("STABLE_DIFFUSION_15"), FAMILIES["STABLE_DIFFUSION_15"]
    handle = attach(tiny_model("STABLE_DIFFUSION_15"), AdapterOptions(rank=2, patterns=("mid_block",)))

    def own_adapter(folder: Path) -> Path:
        return save_adapter(handle, folder / "adapter.safetensors")

    def foreign_adapter(folder: Path) -> Path:
        (folder / "adapter.safetensors").write_bytes(adapter_file())
        return folder / "adapter.safetensors"

    def adapter(folder: Path) -> Any:
        return {
            place: [layer.alpha, layer.rank, {name: t.tolist() for name, t in layer.tensors.items()}]
            for place, layer in read_adapter(folder / "adapter.safetensors", model).layers.items()
        }

    def checkpoint(folder: Path) -> Path:
        return save_single_file(model, folder / "model.safetensors")

    def parts(folder: Path) -> Any:
        return repr(read_single_file(folder / "model.safetensors", spec, {"unet"}))

    # a flipped bit of their numbers is another number: files of weights of others carry no digest
    return {
        "adapter": Kind(own_adapter, adapter),
        "adapter of others": Kind(foreign_adapter, adapter, ("flip",)),
        "checkpoint": Kind(checkpoint, parts, ("flip",)),
    }


def _store_of(folder: Path) -> Any:
    with CurationStore(folder / "out") as store:
        return [store.pairs(), [(e.kind, e.payload) for e in store.events()]]


def _queue_kind() -> Kind:
    def make(folder: Path) -> Path:
        entry = {"id": "a", "run_dir": "/x", "title": "t", "state": "waiting", "note": "", "added": 1.0, "claimed": 0.0,
                 "starter": None}  # fmt: skip
        (folder / "queue.json").write_text(json.dumps({"version": 1, "entries": [entry]}))
        return folder / "queue.json"

    return Kind(make, lambda folder: [vars(e) for e in RunQueue(folder / "queue.json").entries()])


def _session_kind() -> Kind:
    def make(folder: Path) -> Path:
        SessionStore(folder).save_session(Session(TrainConfig(epochs=7).to_dict()))
        return folder / "session.json"

    def use(folder: Path) -> Any:
        config, _, trouble = SessionStore(folder).load_session()
        if trouble:
            raise UserError(trouble)
        return config and config.to_dict()

    return Kind(make, use)


def _image_kind() -> Kind:
    def make(folder: Path) -> Path:
        draw = random.Random(1)
        image = Image.new("RGB", (32, 32))
        image.putdata([tuple(draw.randbytes(3)) for _ in range(1024)])
        image.save(folder / "a.png")
        return folder / "a.png"

    def use(folder: Path) -> Any:
        (fault,) = undecodable([folder / "a.png"])
        if fault is not None:
            raise fault
        with Image.open(folder / "a.png") as image:
            return image.tobytes()

    return Kind(make, use)


@cache
def file_kinds() -> dict[str, Kind]:
    """All kinds of files by their names, made when they are first used: some need a model."""

    def concepts(path: Path) -> Any:
        return [one.to_dict() for one in load_list(ConceptConfig, path, None, "concepts", "concept list")]

    def samples(path: Path) -> Any:
        return [one.to_dict() for one in load_list(SampleConfig, path, None, "samples", "sample list")]

    backup = (
        "meta.json",
        "config.json",
        "manifest.json",
        "optimizer/optimizer.pt",
        "weights/weights.safetensors",
    )
    return {
        **{f"backup {name}": _backup_kind(name) for name in backup},
        "cache": _cache_kind(),
        "reference cache": _reference_kind(),
        "best weights": _best_kind(),
        "file index": _index_kind(),
        "config": _json_kind("config.json", CONFIG, lambda path: load_config(path).to_dict()),
        "concepts": _json_kind("concepts.json", CONFIG["concepts"], concepts),
        "samples": _json_kind("samples.json", CONFIG["samples"], samples),
        "manifest": _pair_kind("manifest.json", lambda folder: load_manifest(folder / "out"), ("delete",)),
        "database": _pair_kind("curation.sqlite", _store_of, ("delete",)),
        "caption": _pair_kind("chosen/train/pair_0000.txt", _captions_of),
        "journal": _journal_kind(),
        "queue": replace(_queue_kind(), without=("delete",)),
        "session": replace(_session_kind(), without=("delete",)),
        "image": _image_kind(),
        **_model_kinds(),
    }


TEXTS = ("manifest", "queue", "session", "config", "concepts", "samples", "journal")
"""Readable files without a digest: a person may edit them, so a changed letter of a text or number is a change."""


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def _made(base: Path, kind: str) -> Path:
    """The file to be damaged, among sound ones in ``base/case``; they are made once, and copied for each case."""
    folder, one = base / "case", file_kinds()[kind]
    kept, name = base / "sound" / kind.replace("/", " "), base / "sound" / f"{kind.replace('/', ' ')}.name"
    shutil.rmtree(folder, ignore_errors=True)
    if name.exists():
        shutil.copytree(kept, folder)
        return folder / name.read_text()
    folder.mkdir(parents=True)
    file = one.make(folder)
    if one.copied:
        shutil.copytree(folder, kept)
        name.write_text(file.relative_to(folder).as_posix())
    return file


def damage(base: Path, kind: str, how: str, seed: int, tally: DamageTally) -> None:
    """One case; a person's files lie next to it."""
    label, draw = f"{kind} {how} {seed}", random.Random(f"{kind} {how} {seed}")
    folder, one = base / "case", file_kinds()[kind]
    if how in one.without:
        return
    guard, file = Guard(base / "person"), _made(base, kind)
    sound, data = one.use(folder), file.read_bytes()
    others = [p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p != file]
    other = next((found for found in others if found not in (data, b"")), b"another file")
    changed = DAMAGES[how](data, other, draw)
    if changed is None:
        file.unlink()
    else:
        file.write_bytes(changed)
    tally.tried += 1
    heard = _Heard()
    logging.getLogger().addHandler(heard)
    try:
        after = one.use(folder)
    except UserError:
        tally.found += 1
    except Exception as error:  # noqa: BLE001 - a traceback is what is looked for
        tally.crashes.append(f"{label}: {error!r}")
    else:
        older = kind.startswith("backup ") and after is not None and after[0]["global_step"] == 1
        made_again = one.again and after.items() <= sound.items()
        if (after == sound or made_again) and not heard.said:
            tally.harmless += 1
        elif heard.said or older or after is None:
            tally.found += 1
        elif kind in TEXTS and how in ("flip", "swap"):
            tally.harmless += 1  # another text that a person might have written, and shown as such
        else:
            tally.silent.append(label)
    finally:
        logging.getLogger().removeHandler(heard)
    try:
        guard.check()
    except AssertionError as error:
        tally.guards.append(f"{label}: {error}")
    shutil.rmtree(guard.folder)
