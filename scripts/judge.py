"""Score images automatically by a learned taste, PickScore and CLIP, and measure how far the images of a group differ.

Reads one JSON object from stdin: `images` (a list of `path`, `prompt`, `group`), and optionally `taste` (a file made by
train_reward.py), `base` (the model that gives the features for the taste, and the VAE for the spread), `clip` and
`pickscore` (folders or names of the hub). Prints one JSON object: `scores` by judge, one number for each image,
`spread` by group, `measure` (the method of the spread), and `missing` (the reason for each missing judge). Nothing is
downloaded.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from modules.reward.base import Reward, RewardBatch, check_images  # noqa: E402
from modules.reward.clip import CLIP_L14, PICKSCORE, ClipScore, has_processor  # noqa: E402
from modules.reward.frozen_features import FeatureOptions, FrozenFeatures  # noqa: E402
from modules.reward.pickscore import PICKSCORE_PROCESSOR, PickScore  # noqa: E402
from modules.reward.preference_head import PreferenceReward  # noqa: E402
from modules.trainer.distributed import where_there_is_room  # noqa: E402
from modules.util.display import command_parser, print_any_text  # noqa: E402
from modules.util.errors import DataError  # noqa: E402
from modules.util.files.hub_names import repository  # noqa: E402
from modules.util.jsonio import parse_json  # noqa: E402
from scripts.curate import exit_status, tell  # noqa: E402
from scripts.train_reward import load_image  # noqa: E402

AT_ONCE = 16
Told = Mapping[str, Any]


def is_installed(source: str) -> bool:
    """Return whether a model is in a local folder or in the download cache."""
    from huggingface_hub import try_to_load_from_cache

    if Path(source).is_dir():
        return True
    return isinstance(try_to_load_from_cache(repository(source), "config.json"), str)


def judges(told: Told, missing: dict[str, str]) -> Iterator[tuple[str, Reward]]:
    """Load the available judges by name; record the reason for the others in ``missing``."""
    if told.get("taste"):
        yield "taste", PreferenceReward(str(told["taste"]), str(told.get("base", "")))
    else:
        missing["taste"] = "no taste has been learned in this project"
    clip, pick = told.get("clip") or CLIP_L14, told.get("pickscore") or PICKSCORE
    if not is_installed(clip):
        missing["clip"] = f"CLIP ({clip}) is not installed"
    else:
        yield "clip", ClipScore(clip)
    processor = pick if has_processor(pick) else PICKSCORE_PROCESSOR
    if not is_installed(pick) or not is_installed(processor):
        missing["pickscore"] = f"PickScore ({pick}) is not installed"
    else:
        yield "pickscore", PickScore(pick)


def batches(images: Sequence[Told]) -> Iterator[tuple[torch.Tensor, list[str]]]:
    """Images of one size at a time, in order."""
    start = 0
    while start < len(images):
        found = [load_image(Path(images[start]["path"]))]
        while len(found) < AT_ONCE and start + len(found) < len(images):
            following = load_image(Path(images[start + len(found)]["path"]))
            if following.shape != found[0].shape:
                break
            found.append(following)
        pixels_BCHW = torch.stack(found)
        check_images(pixels_BCHW, allow_black=True)
        yield pixels_BCHW, [str(one["prompt"]) for one in images[start : start + len(found)]]
        start += len(found)


def over_all(
    images: Sequence[Told], what: str, call: Callable[[torch.Tensor, list[str]], torch.Tensor]
) -> torch.Tensor:
    """Results of ``call`` for all images, one row for each."""
    rows, done = [], 0
    for pixels_BCHW, prompts in batches(images):
        rows.append(call(pixels_BCHW, prompts))
        done += len(prompts)
        print(f"{what}: {done}/{len(images)} images", file=sys.stderr, flush=True)
    return torch.cat(rows)


def features(told: Told, missing: dict[str, str]) -> FrozenFeatures | None:
    """Features that tell images apart: CLIP, otherwise the VAE of the base model."""
    if "clip" not in missing:
        return FrozenFeatures(FeatureOptions("clip", told.get("clip") or CLIP_L14))
    if (Path(str(told.get("base", ""))) / "vae").is_dir():
        return FrozenFeatures(FeatureOptions("vae", str(told["base"])))
    missing["diversity"] = (
        "images cannot be compared: CLIP is missing, and the base model has no folder with a VAE"
    )
    return None


def spread(images: Sequence[Told], features_ND: torch.Tensor) -> dict[str, float]:
    """Mean distance between two images of a group, for groups of at least two."""
    members = defaultdict(list)
    for number, one in enumerate(images):
        members[str(one["group"])].append(number)
    return {
        name: float(torch.pdist(features_ND[rows].double()).mean())
        for name, rows in members.items()
        if len(rows) > 1
    }


def judge(told: Told, place: torch.device) -> dict[str, Any]:
    """Compute the output of the command."""
    images = told.get("images")
    if not isinstance(images, list) or not images:
        raise DataError("there are no images to judge", "images")
    missing: dict[str, str] = {}
    scores: dict[str, list[float]] = {}
    for name, reward in judges(told, missing):
        reward.load(place)

        def score(pixels_BCHW: torch.Tensor, prompts: list[str], one: Reward = reward) -> torch.Tensor:
            return one.score(RewardBatch(pixels_BCHW, prompts))

        said = over_all(images, name, score)
        scores[name] = said.tolist()
        reward.unload()
    made: dict[str, Any] = {"scores": scores, "spread": {}, "measure": "", "missing": missing}
    found = features(told, missing)
    if found is not None:
        found.load(place)
        made["spread"] = spread(
            images, over_all(images, "diversity", lambda pixels, prompts: found(pixels, prompts))
        )
        made["measure"] = found.options.kind
    return made


def answer_request(
    argv: list[str] | None, about: str | None, answer: Callable[[Told, torch.device], dict[str, Any]]
) -> int:
    """Print the answer to the request on stdin as JSON, and return the exit status."""
    parser = command_parser(about)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    options = parser.parse_args(argv)

    def work() -> None:
        told = parse_json(sys.stdin.buffer.read(), "request")
        if not isinstance(told, dict):
            raise DataError("the request is not an object", "stdin")
        print(json.dumps(where_there_is_room(options.device, lambda place: answer(told, place), tell)))

    return exit_status(work)


def main(argv: list[str] | None = None) -> int:
    return answer_request(argv, __doc__, judge)


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
