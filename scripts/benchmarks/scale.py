"""100,000 images: a start without changes, the order of an epoch, memory over epochs, one changed image, the check.

Small image files with a caption each are made in a scratch folder. Every start is a separate process. Encoders take
no time here; the tokenizer is real. Seconds are those of the processor as a share of what is allowed, because other
work on the machine disturbs them less; wall time is in the JSON file. Memory is what is added to that of the loaded
model.
"""

from __future__ import annotations

import argparse
import io
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from modules.util.errors import UserError
from modules.util.jsonio import write_json
from scripts.benchmarks._measure import Result, run_child

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS, PLAN_SECONDS, CHECK_SECONDS = 5.0, 1.0, 5.0
START_BYTES = 300 * 10**6
GROWTH = 1.01
SIZES = ((64, 64), (80, 56), (56, 80), (96, 48))
DIFFERENT = 64
PNG_HEADER = 33
LONG = "fox in the snow, forest, night sky, looking at viewer, painting, number"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--items", type=int, default=100_000, help="image files (default 100000)")
    parser.add_argument("--pairs", action="store_true", help="half as many pairs instead of single images")
    parser.add_argument(
        "--epochs", type=int, default=3, help="whole epochs for the memory (default 3, at least 3)"
    )
    parser.add_argument("--plans", type=int, default=5, help="epochs whose order is made (default 5)")


def pictures() -> list[bytes]:
    """A few pictures as PNG files, of several shapes."""
    rng = np.random.default_rng(3)
    made = []
    for number in range(DIFFERENT):
        coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8))
        stream = io.BytesIO()
        coarse.resize(SIZES[number % len(SIZES)]).save(stream, "PNG")
        made.append(stream.getvalue())
    return made


def numbered(png: bytes, text: str) -> bytes:
    """A PNG file made unique by a text in it, which is much faster than drawing and compressing another image."""
    body = b"tEXtNumber\0" + text.encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return png[:PNG_HEADER] + chunk + png[PNG_HEADER:]


def make_images(folder: Path, count: int, pairs: bool) -> list[Path]:
    """Write files with a caption each, every tenth longer than the context of its encoder; return the folders."""
    drawn = pictures()
    folders = [folder / name for name in (("chosen", "rejected") if pairs else ("images",))]
    for place, side in enumerate(folders):
        side.mkdir()
        for number in range(count // len(folders)):
            content = numbered(drawn[number % DIFFERENT], f"{place} {number}")
            (side / f"{number:06d}.png").write_bytes(content)
            text = LONG if number % 10 == 0 else "fox"
            (side / f"{number:06d}.txt").write_text(f"{text} {number}", encoding="utf-8")
    return folders


def config_of(folder: Path, folders: list[Path], pairs: bool) -> dict[str, Any]:
    kinds = ("DPO_CHOSEN", "DPO_REJECTED") if pairs else ("STANDARD",)
    concepts = [
        {"path": str(place), "name": place.name, "type": kind}
        for place, kind in zip(folders, kinds, strict=True)
    ]
    return {
        "__version": 1,
        "base_model_name": str(ROOT / "resources" / "demo_model"),
        "concepts": concepts,
        "rlhf_enabled": pairs,
        "cache_dir": str(folder / "cache"),
        "workspace_dir": str(folder / "workspace"),
        "output_model_destination": str(folder / "model.safetensors"),
        "resolution": "64",
        "batch_size": 4,
        "epochs": 1000,
    }


def child(config: Path, what: str, *options: str) -> dict[str, Any]:
    """Run the data side in one process, and return its output."""
    return run_child("_scale_child.py", what, str(config), *options, seconds=None)


def run(options: argparse.Namespace) -> list[Result]:
    if options.items < 100 or options.epochs < 3 or options.plans < 1:
        raise UserError(
            "needs at least 100 items, 3 epochs and 1 plan", hint="raise --items, --epochs or --plans"
        )
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name), Path(name) / "config.json"
        folders = make_images(folder, options.items, options.pairs)
        write_json(file, config_of(folder, folders, options.pairs))
        first = child(file, "start")
        again = child(file, "start", f"--plans={options.plans}")
        walked = child(file, "start", f"--epochs={options.epochs}")
        looked = child(file, "check")
        checked = child(file, "check")
        middle = options.items // len(folders) // 2
        # of the same shape, because both sides of a pair have one
        other = pictures()[(middle + len(SIZES)) % DIFFERENT]
        (folders[0] / f"{middle:06d}.png").write_bytes(numbered(other, "changed"))
        after = child(file, "start")
    for done in (again, walked):
        if done["images"] or done["texts"]:
            raise RuntimeError(f"nothing was changed, and {done['images']} images were encoded again")
    if not after["images"] or looked["faults"] or checked["faults"]:
        raise RuntimeError(f"the changed image was not encoded, or the check found {looked['faults']}")
    unit = "pairs" if options.pairs else "images"
    return results(f"{first['units']} {unit}", first, again, walked, [looked, checked], after)


def results(
    model: str,
    first: dict[str, Any],
    again: dict[str, Any],
    walked: dict[str, Any],
    checks: list[dict[str, Any]],
    after: dict[str, Any],
) -> list[Result]:
    """One line for each figure."""

    def times(found: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"seconds": found["wall"], "cpu_seconds": found["cpu"], **more}

    kept = walked["memory"]
    return [
        Result(
            model, f"start without changes, as share of {START_SECONDS:g} s", again["cpu"] / START_SECONDS, 1.0,
            memory_ratio=again["peak"] / START_BYTES, memory_limit=1.0,
            extra=times(again, parts=again["parts"], peak_bytes=again["peak"], kept_bytes=again["kept"]),
        ),
        Result(
            model, f"order and buckets of an epoch, as share of {PLAN_SECONDS:g} s",
            max(again["plans"]) / PLAN_SECONDS, 1.0, extra={"cpu_seconds": again["plans"]},
        ),
        Result(
            model, "memory after the last epoch, second = 1", kept[-1] / kept[1], GROWTH,
            extra={"bytes": kept, "cpu_seconds": walked["epochs"]},
        ),
        Result(
            model, "images encoded after a change of one", float(after["images"]), 1.0, extra=times(after),
        ),
        Result(
            model, f"check before a run, known files, as share of {CHECK_SECONDS:g} s",
            checks[1]["cpu"] / CHECK_SECONDS, 1.0, extra=times(checks[1]),
        ),
        Result(
            model, "check before a run, every file decoded, known = 1", checks[0]["cpu"] / checks[1]["cpu"],
            extra=times(checks[0]),
        ),
        Result(
            model, "first start, everything encoded, start without changes = 1", first["cpu"] / again["cpu"],
            extra=times(first, peak_bytes=first["peak"]),
        ),
    ]  # fmt: skip
