"""Every reader of files and lines that others may have written, with sound inputs to begin from."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save

from modules.curation.CurationMode import CurationMode
from modules.curation.exchange.public_formats import PublicFile
from modules.curation.GroupsAhead import GroupsAhead
from modules.curation.GroupWalk import GroupWalk
from modules.curation.PairServer import PairServer
from modules.curation.review.review import PairReview
from modules.curation.session import CurationSession, ImageGroup, SessionSettings
from modules.curation.store import CurationStore
from modules.reward.wire import encode_image
from modules.runner.RunQueue import RunQueue
from modules.trainer.resume.checkpoint import META, find_backup, write_backup
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.config_list import load_list
from modules.util.config.load import load_config
from modules.util.dpo_curation_util import load_manifest
from modules.util.image_metadata_util import extract_metadata
from tests.faults.fuzzing import Reader
from tests.faults.pair_folders import make_pairs, write_images
from tests.trainer.resume.test_checkpoint import at, sign
from tests.util.config.onetrainer.reading import import_onetrainer

CONFIG = {
    "__version": 1, "epochs": 3, "learning_rate": 1e-4, "resolution": "512,768", "workspace_dir": "run", "lora_rank": 4,
    "unet": {"train": True}, "optimizer": {"optimizer": "ADAMW", "beta1": 0.9}, "rlhf_enabled": True,
    "concepts": [{"name": "a", "path": "x", "type": "STANDARD", "image": {"enable_random_flip": True}}],
    "samples": [{"prompt": "a", "width": 64, "height": 64}],
}  # fmt: skip
_ONETRAINER = {
    "__version": 10, "training_method": "LORA", "model_type": "STABLE_DIFFUSION_15", "base_model_name": "m",
    "learning_rate": 3e-4, "epochs": 3, "optimizer": {"optimizer": "ADAMW", "weight_decay": 0.01}, "lora_rank": 16,
    "unet": {"train": True, "weight_dtype": "FLOAT_16"}, "resolution": "512", "output_model_format": "SAFETENSORS",
}  # fmt: skip


def _json(*values: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


def _png() -> bytes:
    from PIL.PngImagePlugin import PngInfo

    info, stream = PngInfo(), io.BytesIO()
    info.add_text("parameters", "a cat\nSteps: 2, Sampler: x, Seed: 7, Size: 8x8")
    Image.new("RGB", (8, 8)).save(stream, "PNG", pnginfo=info)
    return stream.getvalue()


def _configs() -> dict[str, Reader]:
    def concepts(path: Path) -> object:
        return load_list(ConceptConfig, path, None, "concepts", "concept list")

    return {
        "metadata": Reader((_png(),), extract_metadata),
        "config": Reader(_json(CONFIG), load_config, grammar=True),
        "concepts": Reader(_json(CONFIG["concepts"]), concepts, grammar=True),
        "onetrainer": Reader(_json(_ONETRAINER), import_onetrainer, grammar=True),
    }


def adapter_file() -> bytes:
    """A small adapter of the tiny model."""
    layer = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    return save(
        {
            f"{layer}.lora_down.weight": torch.ones(2, 16),
            f"{layer}.lora_up.weight": torch.ones(16, 2),
            f"{layer}.alpha": torch.tensor(2.0),
        }
    )


def _models() -> dict[str, Reader]:
    from modules.adapter.reading import read_adapter
    from modules.model.noising.schedule import DiscreteSchedule
    from modules.model.noising.scheduler_config import check_scheduler_config
    from modules.spec.registry import FAMILIES
    from modules.weights.loading import read_scheduler_config
    from modules.weights.single_file import read_single_file
    from tests.tiny import tiny_model

    model, spec = tiny_model("STABLE_DIFFUSION_15"), FAMILIES["STABLE_DIFFUSION_15"]
    whole = save({"model.diffusion_model.input_blocks.0.0.weight": torch.ones(4, 4, 3, 3)})
    scheduler = {"_class_name": "DDIMScheduler", "num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012,
                 "beta_schedule": "scaled_linear", "prediction_type": "epsilon"}  # fmt: skip

    def schedule(path: Path) -> object:
        folder = path.parent / "scheduler"
        folder.mkdir(exist_ok=True)
        shutil.copyfile(path, folder / "scheduler_config.json")
        config = read_scheduler_config(path.parent)
        check_scheduler_config(config, False, "a family", path)
        return DiscreteSchedule.from_config(config)

    def adapter(path: Path) -> object:
        named = path.with_suffix(".safetensors")  # by another name it is refused unread
        shutil.copyfile(path, named)
        return read_adapter(named, model)

    return {
        "adapter": Reader((adapter_file(),), adapter),
        "checkpoint": Reader((whole,), lambda path: read_single_file(path, spec, {"unet"})),
        "scheduler": Reader(_json(scheduler), schedule, grammar=True),
    }


def _exchange(base: Path) -> dict[str, Reader]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = base / "exchange"
    write_images(folder, 4)
    rows = [
        {"prompt": "p", "chosen": "0.png", "rejected": "1.png"},
        {"prompt": "q", "chosen": "2.png", "rejected": "3.png"},
    ]
    table = pa.table({"caption": ["a cat"], "jpg_0": [b"x"], "jpg_1": [b"y"], "label_0": [1.0]})
    pq.write_table(table, folder / "p.parquet")

    def read(name: str) -> Callable[[Path], object]:
        def reader(path: Path) -> object:
            shutil.copyfile(path, folder / name)
            return list(PublicFile(folder / name))

        return reader

    lines = b"\n".join(_json(*rows))
    return {
        "jsonl": Reader((lines,), read("rows.jsonl"), grammar=True),
        "parquet": Reader(((folder / "p.parquet").read_bytes(),), read("rows.parquet")),
    }


def _pair_folders(base: Path) -> dict[str, Reader]:
    sound, out = make_pairs(base / "pairs", 2, finalised=True), base / "pairs" / "case"
    manifest = (sound / "manifest.json").read_bytes()
    with sqlite3.connect(sound / "curation.sqlite") as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode=DELETE")
    db.close()
    store = (sound / "curation.sqlite").read_bytes()
    review = PairReview(shutil.copytree(sound, base / "pairs" / "reviewed"))
    review.swap("pair_0000")
    review.edit_caption("pair_0001", "x")
    review.remove("pair_0001")
    journal = (
        (base / "pairs" / "reviewed" / ".trash" / "steps.jsonl").read_bytes().replace(b"\n\n", b"\n").strip()
    )

    def into(name: str, work: Callable[[Path], object], source: Path = sound) -> Callable[[Path], object]:
        def reader(path: Path) -> object:
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(source, out)
            shutil.copyfile(path, out / name)
            return work(out)

        return reader

    def opened(folder: Path) -> object:
        with CurationStore(folder) as one:
            one.events()
            return one.undo_last()

    undone = into(".trash/steps.jsonl", lambda folder: PairReview(folder).undo(), base / "pairs" / "reviewed")
    return {
        "manifest": Reader((manifest,), into("manifest.json", load_manifest), grammar=True),
        "store": Reader((store,), into("curation.sqlite", opened)),
        "journal": Reader((journal,), undone, grammar=True),
    }


def _backup(base: Path) -> Reader:
    path = write_backup(base / "backups", at(3))
    meta = (path / META).read_bytes()

    def read(source: Path) -> object:
        shutil.copyfile(source, path / META)
        sign(path, META)
        return find_backup(base / "backups")

    return Reader((meta,), read, grammar=True)


def _lines(base: Path) -> Reader:
    images = write_images(base / "lines" / "in", 4)
    group = ImageGroup("key", "a", "1:1", images[0].parent, tuple(path.name for path in images))
    seeds = [
        {"do": "answer", "best": 0},
        {"do": "rank", "order": ["0.png", "1.png"], "count": 1},
        {"do": "undo"},
        {"do": "choose", "best": 0, "worst": 1},
        {"do": "open", "group": "key"},
    ]

    def read(path: Path) -> object:
        replies = io.StringIO()
        with (
            CurationStore(base / "lines" / "out") as store,
            GroupsAhead(lambda control: iter([group])) as ahead,
        ):
            walk = GroupWalk(CurationSession(store, SessionSettings(mode=CurationMode.ELO)), ahead)
            PairServer(walk, io.BytesIO(path.read_bytes() + b"\n"), replies).serve()
        return [json.loads(line) for line in replies.getvalue().splitlines()]

    return Reader(_json(*seeds), read, grammar=True)


def _bodies() -> dict[str, Reader]:
    from modules.reward.base import create_reward
    from scripts.reward_server import Limits, Refused, answer

    reward = create_reward("brightness", {})
    image = encode_image(torch.zeros(3, 8, 8))
    body = {
        "version": 1,
        "kind": "pointwise",
        "prompts": ["a"],
        "images": [image],
        "metadata": [],
        "group_ids": [0],
    }
    limits = Limits(image_pixels=100_000, total_pixels=200_000)

    def read(path: Path) -> object:
        return answer(reward, path.read_bytes(), limits)

    return {"reward server": Reader(_json(body), read, (Refused,), grammar=True)}


def _queue() -> Reader:
    entry = {
        "id": "a",
        "run_dir": "/x",
        "title": "t",
        "state": "waiting",
        "note": "",
        "added": 1.0,
        "claimed": 0.0,
        "starter": None,
    }
    return Reader(
        _json({"version": 1, "entries": [entry]}), lambda path: RunQueue(path).entries(), grammar=True
    )


def readers(base: Path) -> dict[str, Reader]:
    """All of them; files they need lie below ``base``."""
    return {
        **_configs(), **_models(), **_exchange(base), **_pair_folders(base), "backup meta": _backup(base),
        "lines": _lines(base), "queue": _queue(), **_bodies(),
    }  # fmt: skip
