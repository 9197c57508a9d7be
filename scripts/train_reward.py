"""Learn a reward from picks made with the pair tool.

    python scripts/train_reward.py --pairs my_pairs --features vae --source resources/demo_model --out taste.safetensors

Pairs are read from the folder's manifest; with --images every answer given while picking counts, not the exported
pairs alone. The result is used as {"reward": "preference_head", "params": {"weights": "taste.safetensors"}}.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image, ImageOps  # noqa: E402

from modules.curation.store import CurationStore  # noqa: E402
from modules.reward.base import check_images  # noqa: E402
from modules.reward.preference_head import (  # noqa: E402
    Comparisons,
    FeatureOptions,
    FrozenFeatures,
    HeadOptions,
    save_head,
    train_head,
)
from modules.util.dpo_curation_util import SIDES, find_exported_file, load_manifest  # noqa: E402
from modules.util.errors import DataError, UserError, list_offenders  # noqa: E402
from modules.util.files.EventLog import Event  # noqa: E402

MAX_PIXELS = 64 * 1024 * 1024


@dataclass(frozen=True)
class Comparison:
    """One image preferred to another, and the prompt or group they belong to."""

    better: Path
    worse: Path
    group: str
    validation: bool = False


def pair_comparisons(folder: Path) -> list[Comparison]:
    """The pairs of an output folder; those that were finalised into ``val`` are kept for measuring."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder", "--pairs")
    found = []
    for pair in load_manifest(folder)["pairs"]:
        chosen, rejected = (find_exported_file(folder, side, pair["pair_id"]) for side in SIDES)
        if chosen is None or rejected is None:
            raise DataError(f"an image of {pair['pair_id']} is missing from {folder}", "--pairs")
        found.append(Comparison(chosen, rejected, pair["prompt"], chosen.parent.name == "val"))
    return found


def answer_comparisons(folder: Path, images: Path) -> list[Comparison]:
    """Everything that was answered while picking in ``folder``, about files under ``images``.

    The best image of a question beats every other one shown, every other one beats the worst. Ties and skips
    say nothing. Pairs that were chosen without a question count by themselves.

    Raises:
        UserError: the folder is open in a window.
        DataError: images are gone.
    """
    base, found, missing = images.resolve(), [], []
    prompts: dict[str, str] = {}
    with CurationStore(folder) as store:
        events = store.events()
        pairs = {pair["pair_id"]: pair for pair in store.pairs()}
    for event in events:
        for pair_id in event.payload.get("pair_ids", []):
            if pair_id in pairs:
                prompts[event.group_key] = pairs[pair_id]["prompt"]
    for event in events:
        if event.kind != "answer":
            continue
        for better, worse in _answer_pairs(event):
            paths = [(base / name).resolve() for name in (better, worse)]
            lost = [str(path) for path in paths if not path.is_relative_to(base) or not path.is_file()]
            missing += lost
            if not lost:
                group = prompts.get(event.group_key, event.group_key)
                found.append(Comparison(paths[0], paths[1], group))
    if missing:
        raise DataError(
            f"{len(set(missing))} images that were judged are not there:\n{list_offenders(sorted(set(missing)))}",
            "--images",
            "give the folder the images were picked from",
        )
    answered = {event.group_key for event in events if event.kind == "answer"}
    silent = {
        name
        for event in events
        if event.kind == "pick" and event.group_key not in answered
        for name in event.payload["pair_ids"]
    }
    return found + [
        Comparison(_side(folder, "chosen", name), _side(folder, "rejected", name), pairs[name]["prompt"])
        for name in sorted(silent & set(pairs))
    ]


def _side(folder: Path, side: str, pair_id: str) -> Path:
    path = find_exported_file(folder, side, pair_id)
    if path is None:
        raise DataError(f"the {side} image of {pair_id} is missing from {folder}", "--pairs")
    return path


def _answer_pairs(event: Event) -> Iterator[tuple[str, str]]:
    places, best, worst = (event.payload[name] for name in ("places", "best", "worst"))
    for name in places:
        if best is not None and name != best:
            yield best, name
        if worst is not None and name not in (worst, best):
            yield name, worst


def load_image(path: Path) -> torch.Tensor:
    """(3, H, W) float32 in [0, 1], turned as its file says, on white where it is transparent."""
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(f"{path} has more than {MAX_PIXELS} pixels")
            turned = ImageOps.exif_transpose(image)
            if turned.has_transparency_data:
                turned = turned.convert("RGBA")
                turned = Image.alpha_composite(Image.new("RGBA", turned.size, "white"), turned)
            array = np.array(turned.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return torch.from_numpy(array).permute(2, 0, 1).float() / 255


def features_of(paths: list[Path], extract: FrozenFeatures) -> torch.Tensor:
    """(N, D), one image after another."""
    rows = []
    for number, path in enumerate(paths, 1):
        image_BCHW = load_image(path)[None]
        check_images(image_BCHW, allow_black=True)
        rows.append(extract(image_BCHW))
        if number % 50 == 0 or number == len(paths):
            print(f"features of {number}/{len(paths)} images", file=sys.stderr, flush=True)
    return torch.cat(rows)


def gather(options: argparse.Namespace) -> list[Comparison]:
    found: list[Comparison] = []
    if options.images and len(options.images) != len(options.pairs):
        raise DataError(
            f"{len(options.pairs)} folders of pairs and {len(options.images)} of images",
            "--images",
            "name one folder of images for each folder of pairs, in the same order",
        )
    for folder, images in zip_longest(options.pairs, options.images):
        found += answer_comparisons(folder, images) if images else pair_comparisons(folder)
    if not found:
        raise DataError("there is no comparison in these folders", "--pairs")
    return found


def arguments(argv: list[str] | None) -> argparse.Namespace:
    usual = HeadOptions()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pairs", type=Path, action="append", required=True, help="output folder of the pair tool"
    )
    parser.add_argument(
        "--images",
        type=Path,
        action="append",
        default=[],
        help="folder the images were picked from: use every answer; one for each --pairs",
    )
    parser.add_argument("--features", choices=["clip", "vae"], default="vae")
    parser.add_argument("--source", required=True, help="CLIP model, or diffusers folder with a vae")
    parser.add_argument("--size", type=int, default=0, help="vae: side of the square images are scaled to")
    parser.add_argument("--grid", type=int, default=8, help="vae: cells a side")
    parser.add_argument(
        "--hidden", type=int, default=usual.hidden, help="width of a hidden layer, 0 for none"
    )
    parser.add_argument(
        "--strength", type=float, help="strength of the regularisation; chosen by cross-validation by default"
    )
    parser.add_argument(
        "--holdout", type=float, default=usual.holdout, help="share of prompts to measure with"
    )
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--out", type=Path, required=True, help="file to write, .safetensors")
    return parser.parse_args(argv)


def train(options: argparse.Namespace) -> dict[str, object]:
    """Read, compute features, fit, write; returns what is printed."""
    described = FeatureOptions(options.features, options.source, options.size, options.grid)
    head_options = HeadOptions(options.hidden, options.strength, options.holdout, options.seed)
    comparisons = gather(options)
    extract = FrozenFeatures(described)
    extract.load(options.device)
    paths = sorted({path for one in comparisons for path in (one.better, one.worse)})
    row = {path: number for number, path in enumerate(paths)}
    validation_P = torch.tensor([one.validation for one in comparisons])
    data = Comparisons(
        features_of(paths, extract),
        torch.tensor([row[one.better] for one in comparisons]),
        torch.tensor([row[one.worse] for one in comparisons]),
        [one.group for one in comparisons],
        validation_P if validation_P.any() else None,
    )
    head, report = train_head(data, head_options)
    save_head(options.out, head, described, extract.probe(), report)
    return {"out": str(options.out), "images": len(paths), **asdict(report)}


def main(argv: list[str] | None = None) -> int:
    try:
        print(json.dumps(train(arguments(argv))))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
