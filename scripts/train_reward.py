"""Learn a reward from picks made with the pair tool.

    python scripts/train_reward.py --pairs my_pairs --source resources/demo_model --out taste.safetensors

Pairs are read from the folder's manifest. With --images, every answer given while picking counts, not only the exported
pairs. These answers include likes and dislikes. The result is used as
    {"reward": "preference_head", "params": {"weights": "taste.safetensors"}}.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from io import BytesIO
from itertools import combinations, zip_longest
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402

from modules.curation.intake.edit_sources import NO_EDITS, SourceFinder  # noqa: E402
from modules.curation.marking.Marks import Marks  # noqa: E402
from modules.curation.statistics import valid_answers  # noqa: E402
from modules.curation.store import CurationStore  # noqa: E402
from modules.reward.base import check_images  # noqa: E402
from modules.reward.denoiser_features import FAMILY  # noqa: E402
from modules.reward.frozen_features import FeatureKind, FeatureOptions, FrozenFeatures  # noqa: E402
from modules.reward.head_training import (  # noqa: E402
    Comparisons,
    HeadOptions,
    train_head,
    train_taste,
)
from modules.reward.preference_head import (  # noqa: E402
    FEWEST_FITS,
    Head,
    UsualFit,
    check_place,
    save_head,
)
from modules.tools.dataset.captioning import opened_rgb  # noqa: E402
from modules.trainer.distributed import where_there_is_room  # noqa: E402
from modules.util.display import command_parser, print_any_text  # noqa: E402
from modules.util.dpo_curation_util import SIDES, find_exported_file, load_manifest  # noqa: E402
from modules.util.errors import ConfigError, DataError, UserError, list_offenders  # noqa: E402
from modules.util.files.EventLog import Event  # noqa: E402
from modules.util.image_metadata.limits import Unusable  # noqa: E402
from modules.util.image_metadata_util import normalise_prompt, read_metadata  # noqa: E402
from modules.util.jsonio import parse_json, read_bytes, write_bytes  # noqa: E402
from modules.util.pairs.decoding import IMAGE_ERRORS  # noqa: E402
from modules.util.pairs.dpo_pair_files import Pair  # noqa: E402
from scripts.curate import exit_status, tell  # noqa: E402

OF_TASTE = ("denoiser", "picture")
"""Features with parts, on which the head is a ``TasteHead``."""
MAX_PIXELS = 64 * 1024 * 1024
MOST_WEIGHT = 1000
MOST_FITS = 100
"""Number of images whose fit is measured, at eight predictions each; the lowest tenth needs no more."""
TOLD_EVERY = 10
"""Number of images between two progress messages."""


@dataclass(frozen=True)
class Comparison:
    """One image preferred to another, with their prompt or group."""

    better: Path
    worse: Path
    group: str
    validation: bool = False
    tie: bool = False
    worse_group: str = ""
    """Group of the worse image, if its prompt differs."""
    weight: float = 1.0
    """Number of answers it stands for."""
    source: str = ""
    """Hashes of what both were made from by editing."""

    @property
    def tasks(self) -> dict[Path, str]:
        """Return what both images are made of: the prompt, and of edits the source too."""
        start = f"{self.source}\n" if self.source else ""
        return {path: f"{start}{prompt}" for path, prompt in self.prompts.items()}

    @property
    def prompts(self) -> dict[Path, str]:
        """The prompt of both images."""
        return {self.better: self.group, self.worse: self.worse_group or self.group}


def pair_comparisons(folder: Path) -> list[Comparison]:
    """The pairs of an output folder; those finalised into ``val`` are held out."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder", "--pairs")
    found = []
    for pair in load_manifest(folder)["pairs"]:
        chosen, rejected = (find_exported_file(folder, side, pair["pair_id"]) for side in SIDES)
        if chosen is None or rejected is None:
            raise DataError(f"an image of {pair['pair_id']} is missing from {folder}", "--pairs")
        source = _source_of_pair(pair)
        found.append(Comparison(chosen, rejected, pair["prompt"], chosen.parent.name == "val", source=source))
    return found


def _source_of_pair(pair: Pair) -> str:
    return " ".join(str(one["sha256"]) for one in pair.get("source_images", []))


def _of_one_source(found: Sequence[Comparison], images: Path) -> list[Comparison]:
    """The comparisons with what both images were made from. Edits of two sources say nothing about each other."""
    finder, known = SourceFinder(images, NO_EDITS), dict[Path, str]()

    def source_of(path: Path) -> str:
        if path not in known:
            name = path.relative_to(images).as_posix()
            try:
                sources = finder.find(name, read_metadata(path))
            except Unusable:
                sources = ()  # it was not to be found while picking either
            known[path] = " ".join(source.sha256 for source in sources)
        return known[path]

    return [
        replace(one, source=source_of(one.better))
        for one in found
        if source_of(one.better) == source_of(one.worse)
    ]


def answer_comparisons(folder: Path, images: Path) -> list[Comparison]:
    """Everything that was answered while picking in ``folder``, about files under ``images``.

    The best image of a question beats every other one shown, every other one beats the worst. Images found equal
    tie with one another, skips say nothing. Likes beat what was disliked or seen. Pairs that were chosen without a
    question count by themselves.

    Raises:
        UserError: the folder is open in a window.
        DataError: images are gone.
    """
    base, found = images.resolve(), list[Comparison]()
    missing: set[str] = set()
    prompts: dict[str, str] = {}
    with CurationStore(folder) as store:
        events = store.events()
        pairs = {pair["pair_id"]: pair for pair in store.pairs()}
    for event in events:
        for pair_id in event.payload.get("pair_ids", []):
            if pair_id in pairs:
                prompts[event.group_key] = pairs[pair_id]["prompt"]
    marks = Marks(events)
    answered = marks.groups()

    def both(better: str, worse: str) -> tuple[Path, Path] | None:
        """Two images, unless one of them is missing."""
        paths = (base / better).resolve(), (base / worse).resolve()
        lost = {str(path) for path in paths if not path.is_relative_to(base) or not path.is_file()}
        missing.update(lost)
        return None if lost else paths

    for event in valid_answers(events):
        for better, worse, tie in _answer_pairs(event):
            answered.add(event.group_key)
            if paths := both(better, worse):
                group = prompts.get(event.group_key) or _prompt_of(paths[0]) or event.group_key
                found.append(Comparison(*paths, group, tie=tie))
    for one in marks.comparisons():
        if paths := both(one.better, one.worse):
            found.append(Comparison(*paths, one.prompt, worse_group=one.worse_prompt, weight=one.weight))
    if missing:
        raise DataError(
            f"{len(missing)} images that were judged are missing:\n{list_offenders(sorted(missing))}",
            "--images",
            "give the folder the images were picked from",
        )
    silent = {
        name
        for event in events
        if event.kind == "pick" and event.group_key not in answered
        for name in event.payload["pair_ids"]
    }
    return _of_one_source(found, base) + [
        Comparison(
            _side(folder, "chosen", name), _side(folder, "rejected", name), pairs[name]["prompt"],
            source=_source_of_pair(pairs[name]),
        )
        for name in sorted(silent & set(pairs))
    ]  # fmt: skip


def listed_comparisons(file: Path) -> list[Comparison]:
    """Comparisons from a JSON list of ``better``, ``worse``, ``prompt``, ``worse_prompt`` where that differs, and
    ``weight``, by default 1.

    Raises:
        DataError: it is not such a list, or images are gone.
    """
    listed = _read_list(file)
    names = ("better", "worse", "prompt")
    if not isinstance(listed, list) or not all(
        isinstance(row, dict)
        and all(isinstance(row.get(name), str) for name in names)
        and isinstance(row.get("worse_prompt", ""), str)
        and _is_weight(row.get("weight", 1.0))
        for row in listed
    ):
        raise DataError(
            f"{file} is not a list of objects with better, worse and prompt",
            "--comparisons",
            f"worse_prompt is a text, and weight a number above 0 and up to {MOST_WEIGHT}",
        )
    found = [
        Comparison(
            Path(row["better"]),
            Path(row["worse"]),
            row["prompt"],
            worse_group=row.get("worse_prompt", ""),
            weight=row.get("weight", 1.0),
        )
        for row in listed
    ]
    gone = sorted({str(path) for one in found for path in one.prompts if not path.is_file()})
    if gone:
        raise DataError(f"{len(gone)} images are missing:\n{list_offenders(gone)}", "--comparisons")
    return found


def _read_list(file: Path) -> object:
    return parse_json(sys.stdin.buffer.read() if str(file) == "-" else read_bytes(file), str(file))


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST_WEIGHT


def listed_images(file: Path) -> set[Path]:
    """Images, or folders of them, from a JSON list of paths; ``-`` reads it from stdin.

    Raises:
        DataError: it is not such a list.
    """
    listed = _read_list(file)
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise DataError(f"{file} is not a list of paths", "--fit-images")
    return {Path(one).resolve() for one in listed}


def _prompt_of(image: Path) -> str:
    """The prompt that groups an image without pairs; empty if the image no longer contains one."""
    return normalise_prompt(read_metadata(image).prompt or "")


def _side(folder: Path, side: str, pair_id: str) -> Path:
    path = find_exported_file(folder, side, pair_id)
    if path is None:
        raise DataError(f"the {side} image of {pair_id} is missing from {folder}", "--pairs")
    return path


def _answer_pairs(event: Event) -> Iterator[tuple[str, str, bool]]:
    places, best, worst = (event.payload[name] for name in ("places", "best", "worst"))
    if event.payload.get("tie") or event.payload.get("both_bad"):
        for first, second in combinations(places, 2):
            yield first, second, True
    for name in places:
        if best is not None and name != best:
            yield best, name, False
        if worst is not None and name not in (worst, best):
            yield name, worst, False


def load_image(path: Path) -> torch.Tensor:
    """Load an image as (3, H, W) float32 in [0, 1], rotated by its EXIF orientation, on white if transparent."""
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(f"{path} has more than {MAX_PIXELS} pixels")
        array = np.array(opened_rgb(path))
    except DataError:
        raise
    except IMAGE_ERRORS as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return torch.from_numpy(array).permute(2, 0, 1).float() / 255


def features_of(images: dict[Path, str], extract: FrozenFeatures, cache: Path | None = None) -> torch.Tensor:
    """Features (N, D) of images with their prompts, computed one at a time; known ones come from ``cache``."""
    rows = []
    for number, (path, prompt) in enumerate(images.items(), 1):
        image_BCHW = load_image(path)[None]
        check_images(image_BCHW, allow_black=True)
        rows.append(_cached(image_BCHW, prompt, extract, cache))
        if number % TOLD_EVERY == 0 or number == len(images):
            print(f"features of {number}/{len(images)} images", file=sys.stderr, flush=True)
    return torch.cat(rows)


def fit_of(images: dict[Path, str], extract: FrozenFeatures) -> torch.Tensor:
    """Prompt fit (N,) of all images, or of ``MOST_FITS`` evenly spaced ones."""
    paths, count = list(images), min(len(images), MOST_FITS)
    chosen = [paths[place * len(paths) // count] for place in range(count)]
    rows = []
    for number, path in enumerate(chosen, 1):
        rows.append(extract.prompt_fit(load_image(path)[None], [images[path]]))
        if number % TOLD_EVERY == 0 or number == count:
            print(f"fit of {number}/{count} images to their prompts", file=sys.stderr, flush=True)
    return torch.cat(rows)


def usual_fit(
    images: dict[Path, str], untrained: set[Path] | None, extract: FrozenFeatures
) -> tuple[UsualFit | None, str]:
    """Return how well judged images fit their prompts, or the reason why this is not known.

    Args:
        untrained: only these images and those in these folders count: the model made them before any training, so
            the bar does not sink with a model that drifts. ``None`` for all; all count, too, where fewer than
            ``FEWEST_FITS`` of these were judged.
    """
    if extract.options.kind != "denoiser":
        return None, "the guard cannot read the denoiser of this model"
    known = {
        path: prompt
        for path, prompt in images.items()
        if untrained is not None and not untrained.isdisjoint((path, *path.parents))
    }
    try:
        fit = UsualFit.of(fit_of(known if len(known) >= FEWEST_FITS else images, extract))
    except (UserError, torch.OutOfMemoryError) as error:
        said = error.message if isinstance(error, UserError) else str(error).splitlines()[0]
        return None, f"the fit of images to their prompts could not be measured: {said}"
    if fit is None:
        return None, f"this needs {FEWEST_FITS} judged images that differ in how well they fit their prompts"
    return fit, ""


def _cached(
    image_BCHW: torch.Tensor, prompt: str, extract: FrozenFeatures, cache: Path | None
) -> torch.Tensor:
    """One row of features (1, D), cached by pixels, prompt, settings and the model itself."""
    if cache is None:
        return extract(image_BCHW, [prompt])
    told = repr((asdict(extract.options), prompt, tuple(image_BCHW.shape)))
    known = sha256(told.encode() + image_BCHW.numpy().tobytes() + extract.fingerprint())
    file = cache / f"{known.hexdigest()}.npy"
    if file.is_file():
        if (found := _saved_row(file, extract.width)) is not None:
            return found
        print(f"{file} is damaged and is made again", file=sys.stderr)
    made = extract(image_BCHW, [prompt])
    save_array(file, made.numpy())
    return made


def _saved_row(file: Path, width: int) -> torch.Tensor | None:
    """The features (1, width) of a file; ``None`` if it is damaged."""
    try:
        found = torch.from_numpy(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError):
        return None
    whole = found.shape == (1, width) and found.dtype == torch.float32 and torch.isfinite(found).all()
    return found if whole else None


def save_array(file: Path, array: np.ndarray) -> None:
    """Write a file of numpy completely or not at all, in a folder that is made where it is missing."""
    stream = BytesIO()
    np.save(stream, array)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(file, stream.getvalue())


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
    if options.comparisons is not None:
        found += listed_comparisons(options.comparisons)
    if all(one.tie for one in found):
        raise DataError("there is no comparison to learn from", "--pairs, --comparisons")
    return found


def arguments(argv: list[str] | None) -> argparse.Namespace:
    usual, usual_features = HeadOptions(), FeatureOptions("denoiser", "")
    parser = command_parser(__doc__)
    parser.add_argument(
        "--pairs", type=Path, action="append", default=[], help="output folder of the pair tool"
    )
    parser.add_argument(
        "--comparisons",
        type=Path,
        metavar="FILE",
        help="JSON list of {better, worse, prompt} with paths of images, and a weight if it is not 1; - reads the list "
        "from stdin",
    )
    parser.add_argument(
        "--images",
        type=Path,
        action="append",
        default=[],
        help="folder that the images were picked from, one for each --pairs: use every answer",
    )
    parser.add_argument(
        "--features",
        choices=get_args(FeatureKind),
        help="the features that the taste is learned from; by default denoiser for models with a UNet, otherwise "
        "picture, which needs no model. These two need the fewest answers",
    )
    parser.add_argument("--source", default="", help="the model you will train, or a CLIP model")
    parser.add_argument("--model-type", help=f"denoiser: model type of --source ({FAMILY})")
    parser.add_argument("--block", default=usual_features.block, help="denoiser: block whose output is read")
    parser.add_argument("--timestep", type=int, default=usual_features.timestep, help="denoiser: timestep, 0 to 999")
    parser.add_argument("--cache", type=Path, help="folder that keeps features of images for later calls")
    parser.add_argument(
        "--size", type=int, default=0, help="denoiser, vae: side of the square to which images are scaled"
    )
    parser.add_argument("--grid", type=int, default=8, help="vae: cells per side")
    parser.add_argument(
        "--hidden", type=int, default=usual.hidden, help="width of a hidden layer; 0: no hidden layer"
    )
    parser.add_argument(
        "--strength", type=float, help="strength of the regularisation; chosen by cross-validation by default"
    )
    parser.add_argument(
        "--holdout", type=float, default=usual.holdout, help="share of prompts that are held out to measure accuracy"
    )
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--fit-images",
        type=Path,
        metavar="FILE",
        help="denoiser: JSON list of images, or of folders of images, made before any training; - reads the list from "
        "stdin. The guard then takes the usual fit to prompts from these images instead of all judged images",
    )
    parser.add_argument("--out", type=Path, help="file to write, .safetensors")
    parser.add_argument(
        "--measure-only", action="store_true", help="print how well the head predicts the taste; write no file"
    )
    return parser.parse_args(argv)


def choose_features(options: argparse.Namespace) -> FeatureOptions:
    """The requested features; by default the denoiser's if it is a UNet, otherwise the picture's.

    Raises:
        ConfigError: an option that the features do not have.
    """
    if not options.source and options.features != "picture":
        raise ConfigError("no model is named", "--source", "name the model you will train")
    kind: FeatureKind = options.features or ("denoiser" if _has_known_unet(options) else "picture")
    if kind in OF_TASTE and (options.hidden or options.strength is not None):
        raise ConfigError(
            f"a head on the features {kind!r} chooses these itself",
            "--hidden, --strength",
            "leave them out, or add --features vae",
        )
    return FeatureOptions(
        kind,
        options.source,
        options.size,
        options.grid,
        options.model_type or FAMILY,
        options.block,
        options.timestep,
    )


def _has_known_unet(options: argparse.Namespace) -> bool:
    """Return whether the source is a folder with a UNet of a type that is named, or that needs no name."""
    source = Path(options.source)
    if not (source / "unet").is_dir():
        return False
    index = source / "model_index.json"
    told = parse_json(read_bytes(index), str(index)) if index.is_file() else {}
    plain = isinstance(told, dict) and told.get("_class_name") == "StableDiffusionPipeline"
    return plain or bool(options.model_type)


def _give_way() -> None:
    """Use one thread at low priority, because somebody is working at the same time."""
    torch.set_num_threads(1)
    if hasattr(os, "nice"):
        os.nice(10)


def train(options: argparse.Namespace) -> dict[str, object]:
    """Read comparisons, compute features, fit the head and write it; return the summary to print."""
    head_options = HeadOptions(options.hidden, options.strength, options.holdout, options.seed)
    if options.measure_only == (options.out is not None):
        raise ConfigError("give either --out or --measure-only", "--out")
    described = choose_features(options)
    if options.out is not None:
        check_place(options.out)
    comparisons = gather(options)
    untrained = None if options.fit_images is None else listed_images(options.fit_images)
    taste = described.kind in OF_TASTE
    if not taste:
        comparisons = [one for one in comparisons if not one.tie]
    prompts = {path: prompt for one in comparisons for path, prompt in one.prompts.items()}
    images = {path: prompts[path] for path in sorted(prompts)}

    def seen_on(device: torch.device) -> tuple[FrozenFeatures, torch.Tensor, torch.Tensor]:
        extract = FrozenFeatures(described)
        extract.load(device)
        return extract, extract.probe(), features_of(images, extract, options.cache)

    if described.kind == "picture" and not options.features:
        tell(f"no UNet was found in {options.source}: the taste is learned from the pictures alone")
    extract, probe_D, features_ND = where_there_is_room(options.device, seen_on, tell)
    row = {path: number for number, path in enumerate(images)}
    validation_P = torch.tensor([one.validation for one in comparisons], dtype=torch.bool)
    data = Comparisons(
        features_ND,
        torch.tensor([row[one.better] for one in comparisons]),
        torch.tensor([row[one.worse] for one in comparisons]),
        [one.tasks[one.better] for one in comparisons],
        validation_P if validation_P.any() else None,
        torch.tensor([one.tie for one in comparisons], dtype=torch.bool) if taste else None,
        torch.tensor([one.weight for one in comparisons], dtype=torch.float64),
    )
    head: Head
    if taste:
        tasks = {path: task for one in comparisons for path, task in one.tasks.items()}
        head, report = train_taste(data, extract.parts, head_options, [tasks[path] for path in images])
    else:
        head, report = train_head(data, head_options)
    fit, why_none = None, ""
    if options.out is not None:
        check_place(options.out)
        # save first without the fit, so that the learned head is not lost if the rest fails
        save_head(options.out, head, described, probe_D, report)
        fit, why_none = usual_fit(images, untrained, extract)
        if fit is not None:
            save_head(options.out, head, described, probe_D, report, fit)
    return {
        "out": None if options.out is None else str(options.out),
        "images": len(images),
        "features": described.kind,
        "usual_fit": None if fit is None else asdict(fit),
        "no_fit": why_none,
        **asdict(report),
    }


def main(argv: list[str] | None = None) -> int:
    return exit_status(lambda: print(json.dumps(train(arguments(argv)))))


if __name__ == "__main__":
    print_any_text()
    if "--measure-only" in sys.argv[1:]:
        _give_way()
    sys.exit(main())
