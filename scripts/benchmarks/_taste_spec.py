"""The rows of the benchmark ``taste``, described without loading any model."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from modules.util.errors import ConfigError
from scripts.demo.taste import TASTES, Taste

IMAGES_PER_PROMPT = 5
SURPLUS = 3
"""Number of images to choose from, as a multiple of those shown; a head chooses those it is least sure about."""
PROMPT_CLICKS = 4
GRID_IMAGES = 2
"""Number of images looked at for one like or dislike, as a multiple of those for one answer."""
LEAST_OF_ROUNDS = 12
"""Minimum number of answers that a project learns a taste from."""
LEAST_POOL = 50
"""Minimum number of prompts to choose from, even if fewer are asked about."""
MOST_ANSWERS = 360
JUDGED_PROMPTS = 25
JUDGED_PER_PROMPT = 4
MOST_N = 16
GUARD = 10.0
"""Of a round of a project, which also takes three quarters of the preset's 8 epochs."""
FINISHED = "finished "
"""A child prints this and the path of its result when it is done."""
PART = 50
"""Number of images made by one process at a time."""


@dataclass(frozen=True)
class Method:
    """A way from answers to an adapter.

    Args:
        order: how the answers are spent: 4 in each prompt as the pair tool asks; the same, but the second half on the
            5 of 15 images of each prompt that a head of the first half is least sure about; on random pairs of random
            prompts; on the pairs of all prompts that say most about the taste; or as likes and dislikes on pages of
            many prompts.
        features: what the head looks at; ``None`` where there is no head.
        training: how, with a preset of the demo (AWM with that of NFT); ``None`` measures the head alone.
        supervised: the chosen images alone, with the ordinary loss.
        caution, guard: of the head as a reward.
        epochs: of the training, where they are not those of the demo preset.
        confidence, objective: ``rlhf_dpo_confidence`` and ``rlhf_dpo_objective`` of a run on the pairs.
        composed: one adapter of the chosen and one of the rejected images, the difference times this strength.
        rounds: a real project: up to this many answers in a round, and further rounds for more answers.
    """

    order: Literal["pair-tool", "surplus", "random", "information", "grid"]
    features: Literal["denoiser", "picture", "vae"] | None = None
    training: Literal["DPO", "NFT", "AWM"] | None = None
    supervised: bool = False
    caution: float = 0.0
    guard: float = 0.0
    epochs: int | None = None
    confidence: str = "OFF"
    objective: str = "SIGMOID"
    composed: float | None = None
    rounds: int | None = None


METHODS = {
    "supervised": Method("pair-tool", None, "DPO", supervised=True),
    "dpo": Method("pair-tool", None, "DPO"),
    "dpo-smoothing": Method("pair-tool", None, "DPO", confidence="SMOOTHING"),
    "dpo-margin": Method("pair-tool", None, "DPO", confidence="MARGIN"),
    "kto": Method("pair-tool", None, "DPO", objective="KTO"),
    "composed": Method("pair-tool", None, "DPO", composed=1.0),
    "composed-strong": Method("pair-tool", None, "DPO", composed=3.0),
    "vae-nft": Method("pair-tool", "vae", "NFT"),
    "head-nft": Method("pair-tool", "denoiser", "NFT", caution=0.5),
    "guarded-nft": Method("pair-tool", "denoiser", "NFT", guard=GUARD, epochs=6),
    "rounds": Method("pair-tool", "denoiser", "NFT", guard=GUARD, rounds=50),
    "awm": Method("pair-tool", "denoiser", "AWM", guard=GUARD, epochs=6),
    "head-nft-unguarded": Method("pair-tool", "denoiser", "NFT"),
    "asked-nft": Method("information", "denoiser", "NFT", caution=0.5),
    "vae-head": Method("pair-tool", "vae"),
    "picture-head": Method("pair-tool", "picture"),
    "head": Method("pair-tool", "denoiser"),
    "random-head": Method("random", "denoiser"),
    "asked-head": Method("information", "denoiser"),
    "surplus-head": Method("surplus", "denoiser"),
    "grid-head": Method("grid", "denoiser"),
}
"""Those that end in ``head`` train no adapter: their rows have a head accuracy alone."""


@dataclass(frozen=True)
class Cell:
    """One row to measure."""

    taste: str
    method: str
    answers: int
    seed: int

    @property
    def key(self) -> str:
        return f"{self.taste}--{self.method}--{self.answers}--{self.seed}"

    @property
    def method_spec(self) -> Method:
        return METHODS[self.method]

    @property
    def images(self) -> tuple[str, ...]:
        """Kinds of images used for measuring: those to choose from, and those of held-out prompts."""
        if self.method_spec.rounds is not None:
            return ("curve",)
        return ("surplus" if self.method_spec.order == "surplus" else "pool", "curve")

    @property
    def chain(self) -> object:
        """Rows with the same value are measured one after another in the same project; all others are alone."""
        size = self.method_spec.rounds
        if size is None or self.answers % size:
            return self
        return self.taste, self.method, self.seed

    @property
    def asked(self) -> int:
        """Number of answers in the pair tool that need the same number of images."""
        return self.answers * (GRID_IMAGES if self.method_spec.order == "grid" else 1)


def pool_prompts(answers: int) -> int:
    """Number of prompts that images are made for."""
    return max(LEAST_POOL, -(-answers // PROMPT_CLICKS))


def parts_of(kind: str, answers: int) -> int:
    """Number of parts of the images of a kind."""
    counts = {
        "pool": pool_prompts(answers) * IMAGES_PER_PROMPT,
        "surplus": -(-answers // PROMPT_CLICKS) * IMAGES_PER_PROMPT * SURPLUS,
        "curve": JUDGED_PROMPTS * MOST_N,
    }
    return -(-counts[kind] // PART)


def part_file(work: Path, seed: int, kind: str, part: int) -> Path:
    return work / f"seed-{seed}" / f"{kind}-{part:03d}.npy"


def row_file(work: Path, cell: Cell, tastes: str | None) -> Path:
    """The file of a row. Rows of tastes of one's own belong to the content of the file that defines these.

    Args:
        tastes: that file.
    """
    own = "" if tastes is None or cell.taste in TASTES else f"--{sha256(Path(tastes).read_bytes()).hexdigest()[:12]}"
    return work / "rows" / f"{cell.key}{own}.json"


def load_tastes(file: str | None) -> dict[str, Taste]:
    """The demo's tastes and those of a Python file, whose code is run.

    Raises:
        ConfigError: the file cannot be run, or has no ``TASTES`` of new, differently named ``Taste`` objects.
    """
    known = dict(TASTES)
    if file is None:
        return known
    field = "--taste-file"
    if not Path(file).is_file():
        raise ConfigError(f"{file} does not exist", field)
    spec = importlib.util.spec_from_file_location("taste_file", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} is not a Python file", field, "its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{file} cannot be run: {type(error).__name__}: {error}", field) from error
    found = getattr(module, "TASTES", None)
    if not isinstance(found, Sequence) or not found or not all(isinstance(one, Taste) for one in found):
        raise ConfigError(
            f"{file} has no TASTES",
            field,
            "TASTES = (Taste(name, likes, attribute, value), ...); see docs/few-picks.md",
        )
    for one in found:
        if one.name in known or not one.name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(
                f"{one.name!r} cannot be the name of a taste", field, "use new names of letters, digits and -"
            )
        known[one.name] = one
    return known
