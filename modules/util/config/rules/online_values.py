"""Parsers for settings of online training that are written as text."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from modules.util.config.resolution import parse_resolutions
from modules.util.config.section.RewardConfig import RewardConfig
from modules.util.errors import ConfigError

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig

_SIZE = re.compile(r"\s*(\d+)(?:\s*[x×]\s*(\d+))?\s*")
_WINDOW = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
MAX_SIDE = 8192


def rollout_size(config: TrainConfig) -> tuple[int, int]:
    """(height, width) of the rollout images.

    Raises:
        ConfigError: the text is not a size.
    """
    text = config.rlhf_rollout_size
    if not text.strip():
        side = parse_resolutions(config.resolution)[0]
        return side, side
    found = _SIZE.fullmatch(text)
    width = int(found[1]) if found else 0
    height = int(found[2] or width) if found else 0
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
        raise ConfigError(f"{text!r} is not a size", "rlhf_rollout_size", "write 512 or 512x768, width first")
    return height, width


def sde_window(text: str) -> tuple[int, int] | None:
    """(first, last) step, inclusive; ``None`` for an empty text. Raises ``ConfigError``."""
    if not text.strip():
        return None
    found = _WINDOW.fullmatch(text)
    if not found:
        raise ConfigError(
            f"{text!r} is not a range of steps", "rlhf_sde_window", "write 0-4: the first and the last step"
        )
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise ConfigError(f"{text!r} ends before it begins", "rlhf_sde_window", f"write {last}-{first}")
    return first, last


def reward_list(config: TrainConfig) -> list[RewardConfig]:
    """The rewards of the run: the list, or those in the short text.

    Raises:
        ConfigError: there are none, two have the same name, or all weights are 0.
    """
    made, field = list(config.rlhf_rewards), "rlhf_rewards"
    if not made:
        made, field = _short_rewards(config.rlhf_reward), "rlhf_reward"
    names = [one.name or one.reward for one in made]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{', '.join(map(repr, twice))} is listed twice", field, "rename one")
    if not any(one.weight for one in made):
        raise ConfigError("all weights are 0: there is nothing to learn", field)
    return made


def _short_rewards(text: str) -> list[RewardConfig]:
    made = []
    for part in text.split(","):
        words = part.split()
        if not words and "," not in text:
            raise ConfigError(
                "is empty, but nothing can be learned without a reward",
                "rlhf_reward",
                "enter a reward, such as brightness",
            )
        weight = _weight(words[1]) if len(words) == 2 else 1.0
        if len(words) not in (1, 2) or weight is None:
            raise ConfigError(
                f"{part.strip()!r} is not a reward with a weight",
                "rlhf_reward",
                "write names with weights, such as aesthetic 1, clip_score 0.5",
            )
        made.append(RewardConfig(reward=words[0], weight=weight))
    return made


def _weight(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
