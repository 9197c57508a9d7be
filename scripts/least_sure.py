"""Choose the images to show: those whose order a learned taste is least sure of.

Reads one JSON object from stdin: `taste` (a file made by train_reward.py), `base` (the model whose features it reads),
`count` (how many images of a group are shown) and `groups` (a list of `prompt`, `images` and `chosen`, the places of
those that are already shown). Prints one JSON object: `chosen`, a list of places for each group.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from modules.reward.asking import least_sure  # noqa: E402
from modules.reward.preference_head import PreferenceReward  # noqa: E402
from modules.util.display import print_any_text  # noqa: E402
from modules.util.errors import DataError  # noqa: E402
from scripts.judge import Told, answer_request, over_all  # noqa: E402


def choose(told: Told, place: torch.device) -> dict[str, Any]:
    """Compute the output of the command."""
    groups = told.get("groups")
    if not isinstance(groups, list) or not groups:
        raise DataError("there are no images to choose from", "groups")
    reward = PreferenceReward(str(told.get("taste", "")), str(told.get("base", "")))
    reward.load(place)
    images = [{"path": path, "prompt": one["prompt"]} for one in groups for path in one["images"]]
    features_ND = over_all(images, "features", reward.features)
    chosen, start = [], 0
    for one in groups:
        stop = start + len(one["images"])
        worth_NN = reward.worth_asking(features_ND[start:stop])
        chosen.append(least_sure(worth_NN, int(told["count"]), one["chosen"]))
        start = stop
    return {"chosen": chosen}


def main(argv: list[str] | None = None) -> int:
    return answer_request(argv, __doc__, choose)


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
