"""The value of a few answers: a learned taste drives the training; DPO on the same answers is compared with it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from modules.util.jsonio import write_json
from scripts.demo.judging import Judge, Judged, compared, contact_sheet
from scripts.demo.loop import Loop, judge_of, new_project, one_round
from scripts.demo.pairs import finalise
from scripts.demo.plan import FEW
from scripts.demo.sampling import Report
from scripts.demo.taste import Person, get_taste
from scripts.demo.training import Trained, as_settings, seconds_of_children, train, twin_settings

FIGURES = ("win_rate", "best_of_n", "fidelity_adapter", "attribute_adapter")
"""Wording of each method's figures; those of DPO and of the LoRA on the chosen images are prefixed with their
names.
"""


def run_few(loop: Loop, report: Report) -> dict[str, Any]:
    """Run it; returns what is also written to ``report.json``.

    The answers of one round of a taste project are spent three times: on a learned taste that judges images the model
    makes while training, on DPO, and on a LoRA trained on the chosen images alone. All three are judged by the same
    prompts and seeds, which nobody was asked about.
    """
    loop.check()
    begin = time.monotonic()
    journey, taste = loop.journey, get_taste(loop.journey.taste)
    project = new_project(loop)
    judge = judge_of(loop, project, report)
    spent = seconds_of_children()
    trained = one_round(loop, project, Person(taste, journey.seed, journey.error_rate), report)
    cpu_seconds = seconds_of_children() - spent
    pairs = project.round.pairs
    in_training, _ = finalise(pairs, 0.0)
    made = {"": judge.adapter(project.round.adapter_path, "the learned taste")}
    runs = {name: _twin(loop, name, pairs, report) for name in ("dpo", "supervised")}
    made |= {f"{name}_": judge.adapter(run.adapter, name) for name, run in runs.items()}
    contact_sheet(journey.out / "before_after.png", judge.base.pixels, made[""].pixels, taste)
    written: dict[str, Any] = {
        **journey.facts(),
        **compared(judge.base, made[""]),
        "mode": FEW,
        "reward": "picks",
        "answers": trained["answers"],
        "candidates": trained["candidates"],
        "pairs": in_training,
        "head_accuracy": trained["head_accuracy"],
        "steps": trained["steps"],
        "judged": len(judge.base.pixels),
        "cpu_seconds": round(cpu_seconds, 1),
        "dpo_train_cpu_seconds": round(runs["dpo"].cpu_seconds, 1),
    }
    for name, images in made.items():
        written |= {f"{name}{field}": value for field, value in _figures(judge, images).items()}
    written["total_seconds"] = round(time.monotonic() - begin, 1)
    written["adapter"] = str(project.round.adapter_path)
    write_json(journey.out / "report.json", written)
    return written


def _twin(loop: Loop, name: str, pairs: Path, report: Report) -> Trained:
    """Train on the same answers with the demo's settings for pairs."""
    journey = replace(loop.journey, mode="DPO")
    return train(journey, name, as_settings(twin_settings(name, pairs, journey.out)), report)


def _figures(judge: Judge, made: Judged) -> dict[str, float]:
    found = {**compared(judge.base, made), "best_of_n": judge.best_of_n(made)}
    return {field: found[field] for field in FIGURES}
