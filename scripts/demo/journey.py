"""The whole way: images, picks, preference training, a supervised run for comparison, and a report in numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from modules.util.jsonio import write_json
from scripts.demo.judging import compared, contact_sheet, judge_model, questions, win_rate
from scripts.demo.online import run_online
from scripts.demo.pairs import picked, prompt_split
from scripts.demo.plan import Journey
from scripts.demo.sampling import Report, load_model
from scripts.demo.taste import get_taste
from scripts.demo.training import as_settings, train, twin_settings


def run_journey(journey: Journey, report: Report) -> dict[str, Any]:
    """Run the journey; return the contents of ``report.json``."""
    journey.check()
    journey.out.mkdir(parents=True, exist_ok=True)
    made = run_online(journey, report) if journey.online else _run_pairs(journey, report)
    write_json(journey.out / "report.json", made)
    return made


def _run_pairs(journey: Journey, report: Report) -> dict[str, Any]:
    begin = time.monotonic()
    out, size = journey.out, journey.size
    for_pairs, new = prompt_split(journey.seed)
    answers, in_training, held_out = picked(journey, for_pairs, load_model(journey.model), report)
    on_pairs = {"concept_file_name": str(out / "pairs" / "concepts.json")}
    preference = train(journey, "dpo", _settings(journey, on_pairs), report)
    on_chosen = twin_settings("supervised", out / "pairs", out)
    supervised = train(journey, "supervised", _settings(journey, on_chosen), report)
    wishes, seeds = questions(new, size.judged, journey.seed)
    base = judge_model(journey, None, wishes, seeds, report, "the base model")
    adapter, plain = (
        judge_model(journey, run.adapter, wishes, seeds, report, f"the {run.name} adapter")
        for run in (preference, supervised)
    )
    contact_sheet(out / "before_after.png", base.pixels, adapter.pixels, get_taste(journey.taste))
    return {
        **journey.facts(),
        **compared(base, adapter),
        **preference.facts(),
        "reward": None,
        "prompts": min(size.prompts, len(for_pairs)),
        "images": size.images_per_prompt * min(size.prompts, len(for_pairs)),
        "answers": answers,
        "pairs": in_training,
        "heldout_pairs": held_out,
        "heldout_pair_accuracy": preference.validation_accuracy,
        "reward_curve": None,
        "supervised_win_rate": win_rate(plain.scores, base.scores),
        "supervised_fidelity": plain.fidelity,
        "supervised_attribute": plain.attribute,
        "judged": size.judged,
        "judge_cpu_seconds": None,
        "supervised_train_seconds": round(supervised.seconds, 1),
        "total_seconds": round(time.monotonic() - begin, 1),
    }


def _settings(journey: Journey, settings: Mapping[str, Any]) -> list[str]:
    epochs = {} if journey.size.epochs is None else {"epochs": journey.size.epochs}
    return as_settings({**settings, **epochs})
