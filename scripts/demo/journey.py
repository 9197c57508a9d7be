"""The whole way: images, picks, preference training, a supervised run beside it, and a report in numbers."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from modules.runner.events import EventReader
from modules.util.config.config_list import save_list
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, DataError, UserError
from modules.util.jsonio import atomic_path, read_json, write_json
from modules.util.rng import digest64
from scripts.demo.judge import fidelity, read_image
from scripts.demo.pairs import finalise, make_images, pick_pairs, prompt_split
from scripts.demo.sampling import DEMO_MODEL, load_model, sample_pixels
from scripts.demo.taste import Person, Taste, get_taste
from scripts.demo.world import Pixels, Wish

ROOT = Path(__file__).resolve().parents[2]
PRESET = ROOT / "training_presets" / "#demo dpo.json"
MODES = ("DPO",)
SHEET_COLUMNS = 8
SAME = 1e-6

Report = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """How much is done.

    Args:
        prompts, images_per_prompt, pairs_per_prompt: for the pairs.
        judged: images that are judged, each with its own seed, over the new prompts in turn.
        epochs: of training; ``None`` leaves it to the preset.
    """

    prompts: int
    images_per_prompt: int
    pairs_per_prompt: int
    judged: int
    epochs: int | None = None


FULL = Size(prompts=60, images_per_prompt=8, pairs_per_prompt=2, judged=150)
QUICK = Size(prompts=20, images_per_prompt=6, pairs_per_prompt=2, judged=40)


@dataclass(frozen=True)
class Journey:
    """One journey.

    Args:
        out: folder for everything.
        taste: name of what the person likes.
        error_rate: share of answers that are slips.
        model: folder of the base model.
        overrides: further ``name=value`` settings of the training.
    """

    out: Path
    seed: int = 1
    mode: str = "DPO"
    size: Size = FULL
    taste: str = "large"
    error_rate: float = 0.1
    model: Path = DEMO_MODEL
    overrides: tuple[str, ...] = ()

    def check(self) -> None:
        """Everything that can be wrong before work begins."""
        Person(get_taste(self.taste), self.seed, self.error_rate)
        if self.mode not in MODES:
            raise ConfigError(f"there is no mode {self.mode}", "--mode", f"possible: {', '.join(MODES)}")
        if not (self.model / "model_index.json").is_file():
            raise DataError(
                f"there is no model in {self.model}", "--model", "scripts/make_demo.py model trains one"
            )
        if self.mode not in MODES:
            raise ConfigError(f"there is no mode {self.mode}", "--mode", f"possible: {', '.join(MODES)}")
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise DataError(f"{self.out} is not empty", "--out", "choose a new folder")


def run_journey(journey: Journey, report: Report) -> dict[str, Any]:
    """Run it; returns what is also written to ``report.json``."""
    journey.check()
    begin = time.monotonic()
    out, size, taste = journey.out, journey.size, get_taste(journey.taste)
    out.mkdir(parents=True, exist_ok=True)
    for_pairs, new = prompt_split(journey.seed)
    base = load_model(journey.model)
    make_images(out / "images", base, for_pairs[: size.prompts], size.images_per_prompt, journey.seed, report)
    person = Person(taste, journey.seed, journey.error_rate)
    answers = pick_pairs(out / "images", out / "pairs", person, size.pairs_per_prompt, journey.seed, report)
    in_training, held_out = finalise(out / "pairs", 20.0)
    preference = _train(journey, "dpo", [], report)
    supervised = _train(journey, "supervised", _supervised_settings(out), report)
    wishes = [new[i % len(new)] for i in range(size.judged)]
    seeds = [digest64("demo-judged", journey.seed, i) % 2**32 for i in range(size.judged)]
    prompts = [wish.caption() for wish in wishes]
    images = {"base": sample_pixels(base, prompts, seeds, report, "judging the base model")}
    for name, run in (("adapter", preference), ("supervised", supervised)):
        model = load_model(journey.model, run.adapter)
        images[name] = sample_pixels(model, prompts, seeds, report, f"judging the {run.name} adapter")
    judged = {name: _judge(pixels, wishes, taste) for name, pixels in images.items()}
    contact_sheet(out / "before_after.png", images["base"], images["adapter"], taste)
    made: dict[str, Any] = {
        "mode": journey.mode,
        "seed": journey.seed,
        "taste": taste.likes,
        "error_rate": journey.error_rate,
        "prompts": min(size.prompts, len(for_pairs)),
        "images": size.images_per_prompt * min(size.prompts, len(for_pairs)),
        "answers": answers,
        "pairs": in_training,
        "heldout_pairs": held_out,
        "heldout_pair_accuracy": preference.validation_accuracy,
        "win_rate": win_rate(judged["adapter"].scores, judged["base"].scores),
        "fidelity_base": judged["base"].fidelity,
        "fidelity_adapter": judged["adapter"].fidelity,
        "attribute": taste.attribute,
        "attribute_base": judged["base"].attribute,
        "attribute_adapter": judged["adapter"].attribute,
        "supervised_win_rate": win_rate(judged["supervised"].scores, judged["base"].scores),
        "supervised_fidelity": judged["supervised"].fidelity,
        "supervised_attribute": judged["supervised"].attribute,
        "judged": size.judged,
        "steps": preference.steps,
        "train_seconds": round(preference.seconds, 1),
        "train_cpu_seconds": round(preference.cpu_seconds, 1),
        "supervised_train_seconds": round(supervised.seconds, 1),
        "total_seconds": round(time.monotonic() - begin, 1),
        "adapter": str(preference.adapter),
    }
    write_json(out / "report.json", made)
    return made


# -- training ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    name: str
    adapter: Path
    steps: int
    seconds: float
    cpu_seconds: float
    validation_accuracy: float | None


def _supervised_settings(out: Path) -> list[str]:
    """The same steps on the chosen images alone, with the ordinary loss."""
    concepts = read_json(out / "pairs" / "concepts.json", "concepts")
    chosen = [{**c, "type": "STANDARD"} for c in concepts if c["type"] == "DPO_CHOSEN"]
    save_list(TrainConfig.from_dict({"concepts": chosen}).load_concepts(), out / "supervised_concepts.json")
    return [f"concept_file_name={json.dumps(str(out / 'supervised_concepts.json'))}", "rlhf_enabled=false",
            "rlhf_dpo_validation=false"]  # fmt: skip


def _train(journey: Journey, name: str, changes: Sequence[str], report: Report) -> Trained:
    """Train through the command line, as a user would."""
    out, run = journey.out, journey.out / f"run-{name}"
    settings = {
        "base_model_name": str(journey.model),
        "concept_file_name": str(out / "pairs" / "concepts.json"),
        "workspace_dir": str(run),
        "cache_dir": str(out / "cache"),
        "output_model_destination": str(out / f"adapter-{name}.safetensors"),
        "seed": journey.seed,
    }
    if journey.size.epochs is not None:
        settings["epochs"] = journey.size.epochs
    texts = [f"{key}={json.dumps(value)}" for key, value in settings.items()] + [*changes, *journey.overrides]
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), "--preset-path", str(PRESET)]
    for text in texts:
        command += ["--set", text]
    report(f"training ({name})")
    begin, spent = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    log = out / f"train-{name}.log"
    with log.open("wb") as stream:
        status = subprocess.run(
            command, stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT, check=False
        ).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if status != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise UserError(
            f"the training ended with status {status}:\n{tail}", hint=f"the whole log is in {log}"
        )
    events = EventReader(run / "events.jsonl").poll()
    validations = [e["metrics"]["dpo/val_accuracy"] for e in events if e["kind"] == "validation"]
    return Trained(
        name,
        Path(settings["output_model_destination"]),  # type: ignore[arg-type]
        int(events[-1]["progress"]["global_step"]),
        time.monotonic() - begin,
        after.ru_utime + after.ru_stime - spent.ru_utime - spent.ru_stime,
        validations[-1] if validations else None,
    )


# -- judging -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """What the judge says of one set of images.

    Args:
        scores: how much each is liked.
        fidelity: share that shows what the prompt says.
        attribute: mean of what the taste is about.
    """

    scores: list[float]
    fidelity: float
    attribute: float


def _judge(pixels: Sequence[Pixels], wishes: Sequence[Wish], taste: Taste) -> Judged:
    readings = [read_image(image) for image in pixels]
    scores = [taste.score(reading, wish) for reading, wish in zip(readings, wishes, strict=True)]
    attribute = float(np.mean([taste.value(reading) for reading in readings]))
    return Judged(scores, fidelity(readings, wishes)["all"], attribute)


def win_rate(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Share of prompts and seeds at which ours is liked more; equals count half."""
    wins = [
        1.0 if a > b + SAME else 0.5 if abs(a - b) <= SAME else 0.0 for a, b in zip(ours, theirs, strict=True)
    ]
    return float(np.mean(wins))


def contact_sheet(path: Path, before: Sequence[Pixels], after: Sequence[Pixels], taste: Taste) -> None:
    """Rows of images before training, each above the same prompt and seed after it."""
    rows, scale, pad, label = 3, 2, 4, 22
    count = min(len(before), rows * SHEET_COLUMNS)
    cell = before[0].shape[0] * scale
    width = SHEET_COLUMNS * (cell + pad) + pad
    lines = -(-count // SHEET_COLUMNS)
    block = 2 * (cell + label) + 2 * pad
    sheet = Image.new("RGB", (width, lines * block + pad), (250, 250, 250))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for line in range(lines):
        for half, (title, images) in enumerate(
            (("before", before), (f"after training on a taste for {taste.likes}", after))
        ):
            top = line * block + half * (cell + label) + pad
            draw.text((pad, top), title, fill=(40, 40, 40), font=font)
            for column in range(min(SHEET_COLUMNS, count - line * SHEET_COLUMNS)):
                image = Image.fromarray(images[line * SHEET_COLUMNS + column]).resize(
                    (cell, cell), Image.Resampling.NEAREST
                )
                sheet.paste(image, (pad + column * (cell + pad), top + label - 4))
    with atomic_path(path) as temporary:
        sheet.save(temporary, format="PNG")


def threads() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
