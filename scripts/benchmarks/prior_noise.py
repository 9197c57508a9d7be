"""DPO on a flow-matching model from the noise each image was made from, next to DPO from fresh noise.

PNAPO (arXiv 2605.09433) mixes an image with the initial noise of its own sampling instead of fresh noise. The demo
model is asked for the velocity of flow matching, a simulated person chooses among images whose initial noise is
known, and the adapters are measured on prompts that nobody saw. A row that is finished is on the disk.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import cos, pi
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.PeftAdapter import attach
from modules.model.batch import Conditioning, ImageBatch, NoiseDraw, PairBatch
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.model.noising.sampling import initial_noise
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from modules.objective import execution
from modules.objective.preference import ObjectiveOptions, get_preference_loss
from modules.util.dpo_curation_util import file_sha256, load_manifest
from modules.util.errors import ConfigError
from modules.util.jsonio import read_json, write_json
from modules.util.rng import generator, python_random
from scripts.benchmarks._flow_demo import SETUP, Bank, bank, flow_model, make
from scripts.benchmarks._taste_cell import INDIFFERENCE, SLIPS, Asked
from scripts.benchmarks._taste_images import Images
from scripts.benchmarks._taste_picking import OUTPUT, SOURCE, with_the_pair_tool
from scripts.benchmarks._taste_spec import (
    IMAGES_PER_PROMPT,
    JUDGED_PROMPTS,
    MOST_ANSWERS,
    MOST_N,
    PROMPT_CLICKS,
)
from scripts.benchmarks.taste import Row, names, numbers, summarise
from scripts.demo.best_of_n import best_of_n
from scripts.demo.judge import fidelity
from scripts.demo.judging import win_rate
from scripts.demo.pairs import prompt_split
from scripts.demo.taste import Person, get_taste
from scripts.demo.world import SIZE

NOISES = ("fresh", "prior", "mix")
TASTES = "large,bright,left,centred,calm"
FIGURES = ("win_rate", "best_of_n", "fidelity_loss", "diversity_ratio")
JUDGED_EACH = 4
LATENT = (4, 16, 16)
LEVELS = NoiseOptions(min_strength=0.03)
"""The demo model has learned no lower noise level."""
ERROR_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
BATCH, RATE, WARMUP, RANK = 8, 5e-4, 5, 8
"""Of the demo's preset for DPO."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tastes", type=names, default=names(TASTES), help=f"names ({TASTES})")
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3], help="seeds (1,2,3)")
    parser.add_argument("--noises", type=names, default=list(NOISES), help=f"of {', '.join(NOISES)}")
    parser.add_argument("--answers", type=int, default=50, help="answers (50)")
    parser.add_argument("--beta", type=float, default=120.0, help="rlhf_dpo_beta (120)")
    parser.add_argument("--epochs", type=int, default=12, help="epochs (12)")
    parser.add_argument("--sampling-steps", type=int, default=20, help="Euler steps of an image (20)")
    parser.add_argument(
        "--best-of", type=int, default=MOST_N, help=f"end of the scale of best of N ({MOST_N})"
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for images and finished rows")


def choose(pool: Bank, taste: str, seed: int, answers: int) -> list[tuple[int, int]]:
    """The pairs (chosen, rejected), by index, that a person's answers in the pair tool make."""
    scores = pool.images.scores(get_taste(taste))
    person = Asked(Person(get_taste(taste), seed, SLIPS, INDIFFERENCE), scores, [])
    with TemporaryDirectory() as name:
        folder = Path(name)
        with_the_pair_tool(pool.images, person.ask, folder, seed, answers)
        place = {
            file_sha256(one): int(one.stem) for one in (folder / SOURCE).iterdir() if one.suffix != ".txt"
        }
        pairs = load_manifest(folder / OUTPUT)["pairs"]
        sides = ("chosen_file", "rejected_file")
        found = [[place[file_sha256(folder / OUTPUT / pair[side])] for side in sides] for pair in pairs]
    return [(chosen, rejected) for chosen, rejected in found]


# -- training --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pool:
    """Data of the images for training: latents as a trainer encodes them, initial noise, and prompts."""

    latents_NChw: torch.Tensor
    noise_NChw: torch.Tensor
    prompts: list[str]
    cond: Conditioning

    @classmethod
    def of(cls, model: Model, made: Bank) -> Pool:
        prompts = made.images.prompts
        latents = made.images.latents(SETUP, model)
        return cls(latents, initial_noise(made.seeds, LATENT)[0], prompts, SETUP.encode_text(model, prompts))

    def batch(self, places: Sequence[int], visit: int) -> ImageBatch:
        index, count = torch.tensor(places), len(places)
        ids = [str(one) for one in places]
        return ImageBatch(
            self.latents_NChw[index], self.cond.select(index), [self.prompts[i] for i in places], ids,
            [visit] * count, (SIZE, SIZE), torch.ones(count),
        )  # fmt: skip


def draws_from(noise: str, pool: Pool, drawn: NoiseDraw, sides: Sequence[Sequence[int]]) -> list[NoiseDraw]:
    """The draws of both sides: the shared fresh noise, each image's own, or its own for every second pair."""
    if noise == "fresh":
        return [drawn, drawn]
    own_B = torch.arange(len(drawn)) % 2 == 0 if noise == "mix" else torch.ones(len(drawn), dtype=torch.bool)
    chosen = own_B.view(-1, 1, 1, 1)
    own = [pool.noise_NChw[torch.tensor(side)] for side in sides]
    return [replace(drawn, noise_BChw=torch.where(chosen, one, drawn.noise_BChw)) for one in own]


def train(
    model: Model,
    pool: Pool,
    pairs: Sequence[tuple[int, int]],
    noise: str,
    options: argparse.Namespace,
    seed: int,
) -> int:
    """Attach an adapter and train it by DPO as the demo's preset does; return the number of steps."""
    handle = attach(model, AdapterOptions(rank=RANK, alpha=float(RANK), seed=seed))
    weights = [one for _, one in handle.named_parameters()]
    optimizer = torch.optim.AdamW(weights, lr=RATE)
    steps = options.epochs * -(-len(pairs) // BATCH)
    done, objective = 0, get_preference_loss("SIGMOID")
    model.set_mode("no_dropout")
    for epoch in range(options.epochs):
        order = list(pairs)
        python_random("prior-noise-order", seed, epoch).shuffle(order)
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            sides = [[pair[side] for pair in part] for side in (0, 1)]
            chosen, rejected = (pool.batch(side, epoch) for side in sides)
            batch = PairBatch([f"{a}-{b}" for a, b in part], chosen, rejected)
            drawn, _ = SETUP.draw_pair_noise(model, batch, LEVELS, seed)
            draws = draws_from(noise, pool, drawn, sides)
            scorer = ModelPairScorer(SETUP, model, batch, (draws[0], draws[1]))
            execution.run(
                "FULL_CONCURRENT", "AUTO", scorer, handle.disabled, objective, ObjectiveOptions(options.beta),
                parameters=weights,
            )  # fmt: skip
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            share = max(0, done - WARMUP) / max(1, steps - WARMUP)
            rate = RATE * min((done + 1) / WARMUP, 0.5 + 0.5 * cos(pi * share))
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
            done += 1
    return done


@torch.no_grad()
def errors(model: Model, pool: Pool, seed: int) -> dict[str, list[float]]:
    """Mean squared error of the base model at each of ``ERROR_LEVELS``, from each image's own noise and from fresh
    noise."""
    fresh = torch.randn(pool.noise_NChw.shape, generator=generator("prior-noise-fresh", seed))
    made: dict[str, list[float]] = {}
    for name, noise in (("prior", pool.noise_NChw), ("fresh", fresh)):
        made[name] = []
        for level in ERROR_LEVELS:
            draw = NoiseDraw(torch.full((len(noise),), 1000 * level), noise)
            score_N = SETUP.score(model, pool.latents_NChw, pool.cond, draw, (SIZE, SIZE))
            made[name].append(-float(score_N.mean()))
    return made


# -- measuring -------------------------------------------------------------------------------------------------


def measure(model: Model, taste: str, curve: Bank, steps: int) -> dict[str, Any]:
    """Compare the model with its adapter with the base model on the same prompts and seeds."""
    before = curve.first(JUDGED_EACH)
    pixels = make(model, before.images.wishes, before.seeds, steps)
    after = replace(before, images=Images(before.images.wishes, pixels))
    every = curve.images.scores(get_taste(taste))
    theirs, ours = (one.images.scores(get_taste(taste)) for one in (before, after))
    groups = [[every[i] for i in group] for group in curve.images.by_prompt().values()]
    was, now = (fidelity(one.images.readings(), one.images.wishes)["all"] for one in (before, after))
    return {
        "win_rate": win_rate(ours, theirs),
        "best_of_n": best_of_n(groups, float(np.mean(ours)), curve.each),
        "fidelity_loss": was - now,
        "diversity_ratio": after.images.diversity(SETUP, model) / before.images.diversity(SETUP, model),
        "fidelity_before": was,
        "liking_before": float(np.mean(theirs)),
        "liking_after": float(np.mean(ours)),
        "judged": len(ours),
    }


def run(options: argparse.Namespace) -> list[Row]:
    """Measure what is not on the disk yet; return all requested rows."""
    check(options)
    torch.set_num_threads(1)
    model = cache(flow_model)
    rows = []
    for seed in options.seeds:
        for taste in options.tastes:
            for noise in options.noises:
                key = f"{taste}-{noise}-{seed}-{options.answers}-{options.beta:g}-{options.epochs}"
                file = options.work / "rows" / f"{key}-{options.sampling_steps}-{options.best_of}.json"
                if not file.is_file():
                    write_json(file, measured(model(), options, seed, taste, noise))
                rows.append(Row(read_json(file, "row")))
                print(_line(rows[-1].data), flush=True)
        print(_errors_of(read_json(_errors_file(options, seed), "errors")), flush=True)
    return rows


def check(options: argparse.Namespace) -> None:
    """Raise ``ConfigError`` for what is not possible."""
    for taste in options.tastes:
        get_taste(taste)
    for noise in options.noises:
        if noise not in NOISES:
            raise ConfigError(f"there is no {noise!r}", "--noises", f"known: {', '.join(NOISES)}")
    least = {"answers": 2, "epochs": 1, "sampling_steps": 1, "best_of": JUDGED_EACH}
    for name, lowest in least.items():
        if getattr(options, name) < lowest:
            raise ConfigError(f"must be at least {lowest}", f"--{name.replace('_', '-')}")
    if options.answers > MOST_ANSWERS:
        raise ConfigError(f"must be at most {MOST_ANSWERS}", "--answers")
    if not (options.tastes and options.seeds and options.noises):
        raise ConfigError("there is nothing to measure", "--tastes, --seeds, --noises")
    if not options.beta > 0:
        raise ConfigError("must be greater than 0", "--beta")


def measured(model: Model, options: argparse.Namespace, seed: int, taste: str, noise: str) -> dict[str, Any]:
    """One row."""
    shown, new = prompt_split(seed)
    work, sampling = options.work, options.sampling_steps
    wishes = shown[: -(-options.answers // PROMPT_CLICKS)]
    made = bank(model, work, seed, "pool", wishes, IMAGES_PER_PROMPT, sampling)
    curve = bank(model, work, seed, "curve", new[:JUDGED_PROMPTS], options.best_of, sampling)
    pairs = choose(made, taste, seed, options.answers)
    pool = Pool.of(model, made)
    file = _errors_file(options, seed)
    if not file.is_file():
        write_json(file, errors(model, pool, seed))
    begin = time.process_time()
    try:
        steps = train(model, pool, pairs, noise, options, seed)
        spent = time.process_time() - begin
        figures = measure(model, taste, curve, sampling)
    finally:
        model.adapter.detach()
    row = {"taste": taste, "noise": noise, "seed": seed, "beta": options.beta, "answers": options.answers}
    return row | figures | {"pairs": len(pairs), "steps": steps, "train_cpu_seconds": round(spent, 1)}


def _errors_file(options: argparse.Namespace, seed: int) -> Path:
    return Path(options.work) / f"seed-{seed}-{options.sampling_steps}" / "errors.json"


def _errors_of(found: Mapping[str, Sequence[float]]) -> str:
    """The base model's error from own noise, relative to that from fresh noise."""
    parts = [f"{own / new:.2f}" for own, new in zip(found["prior"], found["fresh"], strict=True)]
    levels = ", ".join(map(str, ERROR_LEVELS))
    return f"error from own noise over that from fresh noise at levels {levels}: {', '.join(parts)}"


def _line(row: Mapping[str, Any]) -> str:
    return f"{row['taste']:8} {row['noise']:6} {row['seed']:3}  " + "  ".join(
        f"{row[one]:.3f}" for one in FIGURES
    )


def table(rows: Sequence[Row]) -> str:
    """Mean over tastes, worst taste and quartiles for each kind of noise."""
    lines = []
    for noise in dict.fromkeys(row.data["noise"] for row in rows):
        own = [row.data for row in rows if row.data["noise"] == noise]
        for figure in FIGURES:
            told = summarise(own, figure)
            lines.append(f"{noise:6} {len(own):3} rows  {figure:16}" + "  ".join(told or ()))
    return "\n".join(lines)
