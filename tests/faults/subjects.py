"""The work of the program that is stopped: pairs, their review, the queue, settings, backups, saved models."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from modules.curation.commands import finalize, import_file
from modules.curation.CurationMode import CurationMode
from modules.curation.GroupsAhead import GroupsAhead
from modules.curation.GroupWalk import GroupWalk
from modules.curation.PairServer import PairServer
from modules.curation.review.review import PairReview
from modules.curation.session import CurationSession, ImageGroup, SessionSettings
from modules.curation.store import CurationStore
from modules.runner.RunDirectory import RunDirectory
from modules.runner.RunQueue import RunQueue
from modules.trainer.evaluate.best import BestKeeper
from modules.trainer.resume.checkpoint import find_backup, list_backups, read_backup, write_backup
from modules.ui.state.PresetStore import PresetStore
from modules.ui.state.SessionStore import Session, SessionStore, WindowMemory
from modules.util.config.SecretsConfig import SecretsConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from modules.util.owned_files import TEMPORARY, Owned
from tests.faults.cases import Acknowledge, State, Subject
from tests.faults.pair_folders import make_pairs, write_images
from tests.trainer.resume.test_checkpoint import at

_DRAWN = re.compile(rb"\.[0-9a-f]{8}/")
"""The part of names in the trash that is drawn again each time."""
LEFT, PICK, UNDO = {"do": "answer", "best": 0}, {"do": "pick"}, {"do": "undo"}
MODES: dict[str, list[dict[str, Any]]] = {
    "ELO": [LEFT, PICK, UNDO, LEFT, PICK, {"do": "finish_group"}, {"do": "tie"}, PICK],
    "SMART": [*[LEFT] * 4, UNDO, LEFT, LEFT, {"do": "finish_group"}],
    "FOUR_UP": [{"do": "answer", "best": 0, "worst": 3}, PICK, UNDO, PICK, {"do": "finish_group"}],
    "SELECT": [{"do": "choose", "best": 1, "worst": 0}, UNDO, {"do": "choose", "best": 0, "worst": 1}],
    "TRIAGE": [{"do": "judge", "good": good} for good in (True, False, None, True)] + [UNDO],
}


def _groups(folder: Path) -> list[ImageGroup]:
    return [
        ImageGroup(f"key {p}", p, "1:1", folder / "in", tuple(f"{p}{i}.png" for i in range(4))) for p in "ab"
    ]


def _images(folder: Path) -> None:
    (folder / "in").mkdir()
    for group in _groups(folder):
        for number, name in enumerate(group.files):
            Image.new("RGB", (16, 16), (60 * number, ord(group.prompt), 9)).save(folder / "in" / name)


def _pick(mode: str) -> Subject:
    requests = MODES[mode]

    def served(folder: Path, requests: list[dict[str, Any]], acknowledge: Acknowledge) -> None:
        scan = GroupsAhead(lambda control: iter(_groups(folder)))
        with CurationStore(folder / "out") as store, scan as ahead:
            walk = GroupWalk(
                CurationSession(store, SessionSettings(CurationMode(mode), threshold=0.6)), ahead
            )
            server = PairServer(walk, io.BytesIO(), io.StringIO())
            server.where()
            for request in requests:
                reply = server.reply(json.dumps(request).encode())
                if reply is not None and reply["type"] == "error" and "cannot" in reply["message"]:
                    raise UserError(reply["message"])
                acknowledge()

    def work(folder: Path, start: int, acknowledge: Acknowledge) -> None:
        served(folder, requests[start:], acknowledge)

    return Subject(_images, work, lambda folder: served(folder, [], lambda: None), pair_state, len(requests))


def _open(folder: Path) -> None:
    CurationStore(folder / "out").close()


def pair_state(folder: Path) -> State:
    """Every file of the folder of pairs, the pairs, and what was answered."""
    out, found = folder / "out", {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_file() and not path.name.startswith(("curation.sqlite", ".curation.lock", "steps.jsonl")):
            found[_DRAWN.sub(b"/", name.encode()).decode()] = path.read_bytes()
    with CurationStore(out) as store:
        events = [(e.kind, json.dumps(e.payload, sort_keys=True)) for e in store.events()]
        found["pairs"] = json.dumps(store.pairs(), sort_keys=True).encode()
    found["events"] = repr([e for e in events if e[0] != "remove"]).encode()
    return found


def _finalise() -> Subject:
    def work(folder: Path, start: int, acknowledge: Acknowledge) -> None:
        for percentage in (0.0, 40.0)[start:]:
            finalize(folder / "out", percentage)
            acknowledge()

    def settle(folder: Path) -> None:
        """Finalising that was cut off is finished by doing it again; until then every pair is whole, here or there."""
        _open(folder)

    return Subject(lambda folder: make_pairs(folder, 4), work, settle, _whole_pairs, 2, (UserError, OSError))


def _whole_pairs(folder: Path) -> State:
    """The pairs, each whole in whatever split it lies."""
    found = pair_state(folder)
    state = {
        re.sub(r"/(train|val)/", "/", name): data
        for name, data in found.items()
        if name.endswith((".png", ".txt"))
    }
    return {**state, "events": found["events"]}


def _review() -> Subject:
    acts: list[Callable[[PairReview], object]] = [
        lambda review: review.swap("pair_0000"),
        lambda review: review.edit_caption("pair_0001", "another caption"),
        lambda review: review.remove("pair_0002"),
        lambda review: review.undo(),
        lambda review: review.remove("pair_0001"),
        lambda review: review.swap("pair_0002"),
        lambda review: review.undo(),
        lambda review: review.edit_caption("pair_0002", "a third caption"),
        lambda review: review.undo(),
    ]

    def work(folder: Path, start: int, acknowledge: Acknowledge) -> None:
        review = PairReview(folder / "out")
        for act in acts[start:]:
            act(review)
            acknowledge()

    def reopen(folder: Path) -> None:
        _open(folder)
        PairReview(folder / "out")
        _open(folder)

    return Subject(
        lambda folder: make_pairs(folder, 3, finalised=True),
        work,
        reopen,
        pair_state,
        len(acts),
        (UserError, OSError),
    )


def _import() -> Subject:
    def prepare(folder: Path) -> None:
        files = write_images(folder / "in", 8)
        rows = [
            {"prompt": f"p{n}", "chosen": files[2 * n].name, "rejected": files[2 * n + 1].name}
            for n in range(4)
        ]
        (folder / "in" / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def work(folder: Path, start: int, acknowledge: Acknowledge) -> None:
        def done(text: str) -> None:
            if int(text.split()[0]) > start:
                acknowledge()

        import_file(folder / "in" / "rows.jsonl", folder / "out", None, done)

    return Subject(prepare, work, _open, pair_state, 4, (UserError, OSError))


def _queue() -> Subject:
    def at_work(folder: Path) -> list[Callable[[RunQueue], object]]:
        def entry(queue: RunQueue, number: int) -> str:
            return queue.entries()[number].id

        return [
            lambda q: q.add(RunDirectory(folder / "one"), {"epochs": 1}, "one"),
            lambda q: q.add(RunDirectory(folder / "two"), {"epochs": 2}, "two"),
            lambda q: q.move(entry(q, 1), 0),
            lambda q: q.claim_next(),
            lambda q: q.set_state(entry(q, 0), "finished", "done"),
            lambda q: q.clear_ended(),
        ]

    def work(folder: Path, start: int, acknowledge: Acknowledge) -> None:
        queue = RunQueue(folder / "settings" / "queue.json")
        for act in at_work(folder)[start:]:
            act(queue)
            acknowledge()

    def reopen(folder: Path) -> None:
        SessionStore(folder / "settings").claim()
        for name in ("one", "two"):
            if (folder / name).is_dir():
                Owned(folder / name, local=True).sweep(TEMPORARY)

    def state(folder: Path) -> State:
        return [(e.title, e.state, e.note) for e in RunQueue(folder / "settings" / "queue.json").entries()]

    return Subject(lambda folder: None, work, reopen, state, 6)


def _settings() -> Subject:
    def acts(folder: Path) -> list[Callable[[], object]]:
        store, presets = SessionStore(folder / "settings"), PresetStore(folder / "presets")
        secrets = folder / "settings" / "secrets.json"
        return [
            lambda: store.save_session(Session(TrainConfig(epochs=7).to_dict())),
            lambda: SecretsConfig(huggingface_token="hf_a").save(secrets),
            lambda: store.save_window(WindowMemory()),
            lambda: presets.save("mine", TrainConfig(epochs=3)),
            lambda: store.save_session(Session(TrainConfig(epochs=8).to_dict())),
            lambda: SecretsConfig(huggingface_token="hf_b").save(secrets),
            lambda: presets.delete(presets.presets()[0]),
        ]

    def work(folder: Path, start: int, acknowledge: Acknowledge) -> None:
        for act in acts(folder)[start:]:
            act()
            acknowledge()

    def reopen(folder: Path) -> None:
        for name in ("settings", "presets"):
            Owned(folder / name, local=True).sweep(TEMPORARY)

    def state(folder: Path) -> State:
        store = SessionStore(folder / "settings")
        config, _, trouble = store.load_session()
        token = SecretsConfig.load_if_there(folder / "settings" / "secrets.json").huggingface_token
        names = [p.name for p in PresetStore(folder / "presets").presets()]
        return [config and config.epochs, trouble, token, store.window_path.exists(), names]

    return Subject(lambda folder: None, work, reopen, state, 7, (UserError, OSError))


def _backup() -> Subject:
    def work(folder: Path, start: int, acknowledge: Acknowledge) -> None:
        best = BestKeeper(folder / "best", [("a", torch.nn.Parameter(torch.zeros(3)))])
        for step in range(start + 1, 5):
            with torch.no_grad():
                best.parameters[0][1].fill_(step)
            best.step = step - 1 or None
            best.offer(step, 0.1 * step, 1.0)
            snapshot = at(step)
            assert best.path is not None
            snapshot.files["best"] = best.path
            write_backup(folder / "backup", snapshot, keep=2)
            acknowledge()

    def reopen(folder: Path) -> None:
        for name in ("backup", "best"):
            Owned(folder / name, local=True).sweep(TEMPORARY)

    def state(folder: Path) -> State:
        path, problems = find_backup(folder / "backup")
        kept = len(list_backups(folder / "backup"))
        assert kept <= 3
        if path is None:
            return None
        made = read_backup(path)
        weights = {name: tensor.tolist() for name, tensor in made.tensors["weights"].items()}
        return [problems, made.progress.to_dict(), weights, made.files["best"].read_bytes()]

    return Subject(lambda folder: None, work, reopen, state, 4)


def _saved_model(layout: str) -> Subject:
    from modules.weights.one_file import save_file as save_single_file
    from modules.weights.saving import save_folder
    from tests.tiny import tiny_model

    model, save = tiny_model("STABLE_DIFFUSION_15"), save_folder if layout == "folder" else save_single_file

    def work(folder: Path, start: int, acknowledge: Acknowledge) -> None:
        for number in range(start, 3):
            with torch.no_grad():
                for parameter in model.module("vae").parameters():
                    parameter.fill_(number)
            save(model, folder / ("model" if layout == "folder" else "model.safetensors"))
            acknowledge()

    def reopen(folder: Path) -> None:
        owned = Owned(folder, local=True)
        if layout == "folder":
            owned.restore_folder("model")
        owned.sweep(TEMPORARY)

    def state(folder: Path) -> State:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    return Subject(lambda folder: None, work, reopen, state, 3, (UserError, OSError))


def _cache() -> Subject:
    from modules.pipeline.cache.ContentCache import ContentCache

    def work(folder: Path, start: int, acknowledge: Acknowledge) -> None:
        cache = ContentCache(folder / "cache")
        for number in range(start, 5):
            cache.put(f"{number:032x}", {"latents": torch.full((4,), float(number))})
            cache.flush()
            acknowledge()
        cache.close()

    def state(folder: Path) -> State:
        cache = ContentCache(folder / "cache")
        keys = [f"{number:032x}" for number in range(5)]
        return {key: cache.get(key)["latents"].tolist() for key in keys if key in cache}

    def reopen(folder: Path) -> None:
        Owned(folder / "cache", local=True).sweep(TEMPORARY)

    return Subject(lambda folder: None, work, reopen, state, 5)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    **{f"pick {mode}": (lambda mode=mode: _pick(mode)) for mode in MODES},
    "finalise": _finalise,
    "review": _review,
    "import": _import,
    "queue": _queue,
    "settings": _settings,
    "backup and best": _backup,
    "save a file": lambda: _saved_model("file"),
    "save a folder": lambda: _saved_model("folder"),
    "cache": _cache,
}
