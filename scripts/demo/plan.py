"""The plan of a journey of the demo, and a check that it is possible."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.spec.registry import MODES as RLHF_MODES
from modules.util.errors import ConfigError, DataError
from scripts.demo.sampling import DEMO_MODEL
from scripts.demo.taste import Person, get_taste

ROOT = Path(__file__).resolve().parents[2]
PRESETS = {
    key: path
    for key in RLHF_MODES
    if (path := ROOT / "training_presets" / f"#demo {key.lower().replace('_', ' ')}.json").is_file()
}
"""Modes the demo can show, by the name of their preset."""
MODES = tuple(PRESETS)
FEW, LOOP, LIVE = "FEW", "LOOP", "LIVE"
"""Special journeys; see ``few.py``, ``loop.py`` and ``live.py``."""
JUDGE, PICKS = "judge", "picks"
REWARDS = (JUDGE, PICKS)


@dataclass(frozen=True)
class Size:
    """Amount of work.

    Args:
        prompts, images_per_prompt, pairs_per_prompt: for the pairs.
        judged: images that are judged, each with its own seed, over the new prompts in turn.
        epochs: of training; ``None`` leaves it to the preset.
        online_epochs: the same for the modes that make their own images.
    """

    prompts: int
    images_per_prompt: int
    pairs_per_prompt: int
    judged: int
    epochs: int | None = None
    online_epochs: int | None = None


FULL = Size(prompts=60, images_per_prompt=8, pairs_per_prompt=2, judged=150)
QUICK = Size(prompts=20, images_per_prompt=6, pairs_per_prompt=2, judged=40, online_epochs=4)


@dataclass(frozen=True)
class Journey:
    """One journey.

    Args:
        out: folder for everything.
        mode: how to train.
        taste: name of what the person and the judge like.
        error_rate: share of the person's answers that are slips.
        model: folder of the base model.
        overrides: further ``name=value`` settings of the training.
        reward: what scores the images of an online mode: the judge, or a head learned from the person's picks.
    """

    out: Path
    seed: int = 1
    mode: str = "DPO"
    size: Size = FULL
    taste: str = "large"
    error_rate: float = 0.1
    model: Path = DEMO_MODEL
    overrides: tuple[str, ...] = ()
    reward: str = JUDGE

    def facts(self) -> dict[str, Any]:
        """Its facts for a report."""
        taste = get_taste(self.taste)
        return {
            "mode": self.mode,
            "seed": self.seed,
            "taste": taste.likes,
            "attribute": taste.attribute,
            "error_rate": self.error_rate,
        }

    @property
    def online(self) -> bool:
        """True if the training images are made during training."""
        return RLHF_MODES[self.mode].online

    def check(self) -> None:
        """Check everything that can be checked before work begins."""
        Person(get_taste(self.taste), self.seed, self.error_rate)
        if self.mode not in MODES:
            possible = ", ".join((FEW, LOOP, LIVE, *MODES))
            raise ConfigError(f"there is no mode {self.mode}", "--mode", f"possible: {possible}")
        if self.reward not in REWARDS:
            raise ConfigError(
                f"there is no reward {self.reward}", "--reward", f"possible: {', '.join(REWARDS)}"
            )
        if not self.online and self.reward != JUDGE:
            raise ConfigError(f"{self.mode} has no reward: it learns from pairs", "--reward", "leave it out")
        if not (self.model / "model_index.json").is_file():
            raise DataError(
                f"there is no model in {self.model}", "--model", "scripts/make_demo.py model trains one"
            )
        check_new(self.out)


def check_new(out: Path, begun: str = "") -> None:
    """Check that nothing in a folder for results would be replaced.

    Args:
        begun: name that a folder may hold alone, because an earlier attempt has begun there; empty for none.

    Raises:
        DataError: it holds anything else, or is a file.
    """
    if out.exists() and (not out.is_dir() or {path.name for path in out.iterdir()} - {begun}):
        raise DataError(f"{out} is not empty", "--out", "choose a new folder")


def threads() -> int:
    """Number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
