"""Make parts of the demo: drawn images, the model from scratch, preference pairs, or the whole journey and a report."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from modules.util.display import print_any_text  # noqa: E402
from modules.util.errors import ConfigError, UserError  # noqa: E402
from modules.util.files.result_file import check_result_folder  # noqa: E402
from scripts.curate import exit_status  # noqa: E402
from scripts.demo.taste import TASTES  # noqa: E402

if TYPE_CHECKING:
    from scripts.demo.plan import Journey

DEMO_MODEL = ROOT / "resources" / "demo_model"
SMALL: dict[str, Any] = {"judged": 24, "base_per_prompt": 6, "judging_prompts": 8}
"""Sizes of the judging with ``--quick`` in journeys with rounds."""
OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "FEW": {"answers": 50},
    "LOOP": {"answers": 50, "rounds": 3, "method": "taste"},
    "LIVE": {"votes": 80},
}
"""Options specific to a mode, with their defaults; all other modes have ``--reward``."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    parts = made.add_subparsers(dest="what", required=True)
    journey = parts.add_parser("journey", help="images, picks, training, report")
    images = parts.add_parser("images", help="only images to choose from, with prompts in their metadata")
    pairs = parts.add_parser("pairs", help="images and picks only")
    data = parts.add_parser("data", help="drawn images with captions, like those the model is trained on")
    vae = parts.add_parser("vae", help="train the demo model's autoencoder")
    model = parts.add_parser("model", help="train the whole demo model from scratch (hours)")
    for part in (journey, images, pairs, data, vae, model):
        part.add_argument("--out", type=Path, help="folder for the results; a new one by default")
        part.add_argument("--seed", type=int, default=1)
        part.add_argument(
            "--threads", type=whole, default=0, help="threads for computation; 0: one for each core"
        )
    for part in (journey, pairs):
        part.add_argument("--quick", action="store_true", help="fewer prompts, images and steps")
        part.add_argument(
            "--taste", choices=sorted(TASTES), default="large", help="what the simulated person likes"
        )
        part.add_argument(
            "--error-rate", type=float, default=0.1, help="share of the answers that are wrong by mistake"
        )
    for part in (journey, images, pairs):
        part.add_argument("--model", type=Path, default=DEMO_MODEL, help="folder of the base model")
    pairs.add_argument(
        "--images", type=Path, help="choose among the images of this folder instead of making new ones"
    )
    images.add_argument("--prompts", type=count, default=24, help="how many prompts")
    images.add_argument("--per-prompt", type=count, default=6, help="images for each prompt, at least 2")
    journey.add_argument(
        "--mode",
        default="FEW",
        type=str.upper,
        help="FEW (the default): learn a taste from 50 answers, then train an adapter on this taste. DPO: learn from "
        "pairs. LOOP: run several rounds of a taste project. LIVE: the simulated person votes on images during "
        "training. Other modes learn from images made during training",
    )
    journey.add_argument("--rounds", type=count, help="LOOP: how many rounds (3)")
    journey.add_argument(
        "--answers",
        type=count,
        help="FEW: number of the person's answers; LOOP: number in each round (50)",
    )
    journey.add_argument("--votes", type=count, help="LIVE: total number of the person's likes and dislikes (80)")
    journey.add_argument(
        "--method", choices=["taste", "pairs"], help="LOOP: what a round learns from (taste)"
    )
    journey.add_argument(
        "--reward",
        help="what scores images made during training: judge (the default), or "
        "picks, a reward learned from the simulated person's answers",
    )
    journey.add_argument("--set", dest="overrides", action="append", default=[], metavar="NAME=VALUE",
                         help="change a setting of the training")  # fmt: skip
    data.add_argument("--count", type=count, default=256)
    return made


def count(text: str) -> int:
    """Parse a positive integer."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def whole(text: str) -> int:
    """Parse an integer of at least 0."""
    return 0 if text == "0" else count(text)


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def fill_in(options: argparse.Namespace) -> None:
    """Fill in the defaults of the options specific to a journey's mode.

    Raises:
        ConfigError: an option of another mode was given, which would have no effect.
    """
    own = OWN_OPTIONS.get(options.mode, {"reward": "judge"})
    for name in ("answers", "rounds", "method", "votes", "reward"):
        if getattr(options, name, None) is None:
            setattr(options, name, own.get(name))
        elif name not in own:
            raise ConfigError(f"--mode {options.mode} has no such option", f"--{name}", "leave it out")


def run_journey(options: argparse.Namespace, out: Path) -> None:
    from scripts.demo.journey import run_journey
    from scripts.demo.plan import FEW, FULL, LIVE, LOOP, QUICK, Journey

    fill_in(options)
    journey = Journey(
        out, options.seed, taste=options.taste, error_rate=options.error_rate, model=options.model.resolve(),
        overrides=tuple(options.overrides),
    )  # fmt: skip
    special = {FEW: run_few, LOOP: run_rounds, LIVE: run_votes}.get(options.mode)
    if special is None:
        size = QUICK if options.quick else FULL
        made = run_journey(replace(journey, mode=options.mode, size=size, reward=options.reward), say)
        said = f"\n{summary(made)}"
    else:
        made, said = special(options, journey)
    print(json.dumps(made, indent=2))
    print(f"{said}\nLook at {out / 'before_after.png'}; everything is in {out}.")


def run_few(options: argparse.Namespace, journey: Journey) -> tuple[dict[str, Any], str]:
    from scripts.demo.few import FIGURES, run_few
    from scripts.demo.loop import Loop
    from scripts.demo.plan import QUICK

    small: dict[str, Any] = {**SMALL, "epochs": QUICK.online_epochs} if options.quick else {}
    made = run_few(Loop(journey, 1, options.answers, **small), say)
    said = [
        f"\n{made['answers']} answers about {made['candidates']} images. Judged on prompts nobody was asked about:"
    ]
    for name, title in (
        ("", "a learned taste"),
        ("dpo_", "DPO"),
        ("supervised_", "a LoRA on the chosen images"),
    ):
        mine = {field: made[f"{name}{field}"] for field in FIGURES}
        said.append(
            f"* {title}: preferred to the base model in {mine['win_rate']:.0%} of comparisons, as good as the best of "
            f"{mine['best_of_n']:.1f} of its images; {made['attribute']} {made['attribute_base']:.2f} -> "
            f"{mine['attribute_adapter']:.2f}; images that show what the prompt says: {made['fidelity_base']:.1%} -> "
            f"{mine['fidelity_adapter']:.1%}."
        )
    return made, "\n".join(said)


def run_rounds(options: argparse.Namespace, journey: Journey) -> tuple[dict[str, Any], str]:
    from modules.project.training import Method
    from scripts.demo.loop import Loop, run_loop

    small: dict[str, Any] = SMALL if options.quick else {}
    loop = Loop(journey, options.rounds, options.answers, method=Method(options.method), **small)
    made = run_loop(loop, say)
    return made, "\n".join(
        f"Round {number}, {one['answers_total']} answers so far: preferred to the base model in "
        f"{one['win_rate_base']:.0%} of comparisons, as good as the best of {one['best_of_n']:.1f} of its images; "
        f"{one['fidelity']:.1%} show what the prompt says ({-one['fidelity_loss'] * 100:+.1f} points)."
        for number, one in enumerate(made["rounds"], start=1)
    )


def run_votes(options: argparse.Namespace, journey: Journey) -> tuple[dict[str, Any], str]:
    from scripts.demo.live import Live, run_live

    small = {"prompts": 6, "base": 8} if options.quick else {}
    made = run_live(Live(journey, options.votes, **small), say)
    return made, (
        f"{made['votes']} votes in {made['rounds']} rounds of 8 images. Preferred to the base model in "
        f"{made['win_rate']:.0%} of comparisons, as good as the best of {made['best_of_n']:.1f} of its images; images "
        f"that show what the prompt says: {made['fidelity_base']:.1%} -> {made['fidelity_adapter']:.1%}."
    )


def summary(made: dict[str, Any]) -> str:
    """Describe the report in sentences."""
    lines = [
        f"{made['win_rate']:.0%} of the adapter's images are preferred to those of the base model with the same prompt "
        "and seed.",
        f"{made['attribute'].capitalize()}: {made['attribute_base']:.2f} -> {made['attribute_adapter']:.2f}. "
        f"The judge's reward: {made['reward_before']:.2f} -> {made['reward_after']:.2f}.",
        f"Images that show what the prompt says: {made['fidelity_base']:.1%} -> {made['fidelity_adapter']:.1%}.",
    ]
    learned_from = f"{made['images']} images made while training"
    if made["reward_curve"] is None:
        learned_from = f"{made['pairs']} pairs"
        lines.insert(1, f"For a LoRA trained on the chosen images alone: {made['supervised_win_rate']:.0%}.")
        lines.append(f"{made['heldout_pair_accuracy']:.0%} of the held-out pairs are ordered correctly.")
    return "\n".join([f"{learned_from}, {made['steps']} steps in {made['train_seconds']:.0f} s.", *lines])


def make_pairs(options: argparse.Namespace, out: Path) -> None:
    from scripts.demo.pairs import finalise, make_images, pick_pairs, prompt_split
    from scripts.demo.plan import FULL, QUICK
    from scripts.demo.sampling import load_model
    from scripts.demo.taste import Person, get_taste

    size = QUICK if options.quick else FULL
    person = Person(get_taste(options.taste), options.seed, options.error_rate)
    source = out / "images" if options.images is None else options.images.resolve()
    if options.images is None:
        wishes = prompt_split(options.seed)[0][: size.prompts]
        model = load_model(options.model.resolve())
        make_images(source, model, wishes, size.images_per_prompt, options.seed, say)
    pick_pairs(source, out / "pairs", person, size.pairs_per_prompt, options.seed, say)
    train, held_out = finalise(out / "pairs", 20.0)
    print(f"{train} pairs to train on and {held_out} to validate on in {out / 'pairs'}")


def only_images(options: argparse.Namespace, out: Path) -> None:
    from scripts.demo.pairs import make_images, prompt_split
    from scripts.demo.sampling import load_model

    every = prompt_split(options.seed)[0]
    if options.prompts > len(every) or options.per_prompt < 2:
        raise UserError(
            f"--prompts {options.prompts} --per-prompt {options.per_prompt} is not possible",
            hint=(
                f"1 to {len(every)} prompts, and 2 or more images for each, because otherwise there is "
                "nothing to compare"
            ),
        )
    model = load_model(options.model.resolve())
    made = make_images(out, model, every[: options.prompts], options.per_prompt, options.seed, say)
    print(f"{len(made)} images in {out}")


def make_data(options: argparse.Namespace, out: Path) -> None:
    from PIL import Image

    from scripts.demo.world import make_example

    out.mkdir(parents=True, exist_ok=True)
    for index in range(options.count):
        pixels, scene = make_example(options.seed, index)
        Image.fromarray(pixels).save(out / f"{index:05d}.png")
        (out / f"{index:05d}.txt").write_text(scene.wish.caption(), encoding="utf-8")
    print(f"{options.count} images with captions in {out}")


def make_vae(options: argparse.Namespace, out: Path) -> None:
    from scripts.demo.vae import VaeRecipe, round_trip, train_vae

    vae = train_vae(options.seed, VaeRecipe(), say)
    vae.save_pretrained(out, safe_serialization=True)
    print(json.dumps(round_trip(vae, options.seed + 1, 1000), indent=2))


def make_model(options: argparse.Namespace, out: Path) -> None:
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    from scripts.demo.denoiser import DenoiserRecipe, measure, train_denoiser, write_pipeline, write_untrained
    from scripts.demo.vae import VaeRecipe, train_vae

    work = out / "training"
    if not (work / "training_state.pt").exists():
        if not (work / "vae").is_dir():
            train_vae(options.seed, VaeRecipe(), say).save_pretrained(work / "vae", safe_serialization=True)
        write_untrained(work, AutoencoderKL.from_pretrained(work / "vae"), options.seed)
    model = train_denoiser(work, options.seed, DenoiserRecipe(), say)
    write_pipeline(out, model.vae, model.module("unet"), model.module("text_encoder"), half=True)
    for file in (work / "tokenizer").iterdir():
        (out / "tokenizer").mkdir(exist_ok=True)
        (out / "tokenizer" / file.name).write_bytes(file.read_bytes())
    for held_out in (True, False):
        print(f"held-out {held_out}: {json.dumps(measure(model, options.seed + 1, 300, held_out))}")


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    out = options.out or Path(tempfile.mkdtemp(prefix=f"tastemaker-{options.what}-"))
    what = {
        "journey": run_journey,
        "images": only_images,
        "pairs": make_pairs,
        "data": make_data,
        "vae": make_vae,
        "model": make_model,
    }

    def work() -> None:
        from scripts.demo.plan import check_new, threads

        check_result_folder(out, "--out")
        if options.what in ("data", "vae", "model"):
            check_new(out, "training" if options.what == "model" else "")
        if options.what != "data":
            import torch

            torch.set_num_threads(options.threads or threads())
            if options.threads:
                os.environ["OMP_NUM_THREADS"] = str(options.threads)  # of its child processes
        what[options.what](options, out.resolve())

    return exit_status(work)


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
