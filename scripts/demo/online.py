"""The way of the online modes: images made while training, scored by the judge or by what picks taught."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from modules.reward.remote import TOKEN_VARIABLE
from modules.util.errors import UserError
from modules.util.jsonio import write_text
from scripts.demo.judge_server import MAX_IMAGES, judge_server
from scripts.demo.judging import compared, contact_sheet, judge_model, questions
from scripts.demo.pairs import picked, prompt_split
from scripts.demo.plan import JUDGE, ROOT, Journey
from scripts.demo.sampling import Report, load_model
from scripts.demo.taste import get_taste
from scripts.demo.training import Trained, as_settings, train
from scripts.demo.world import Wish

WRONG = -0.5
"""Reward of an image of the wrong thing while training; the judge's own -2 would outweigh the taste."""


@dataclass(frozen=True)
class Learned:
    """A reward learned from picks.

    Args:
        answers, pairs, heldout_pairs: it was learned from and measured with.
        accuracy: share of the answers about other prompts that it gets right.
        settings: a reward entry of the config.
    """

    answers: int
    pairs: int
    heldout_pairs: int
    accuracy: float | None
    settings: dict[str, Any]


def run_online(journey: Journey, report: Report) -> dict[str, Any]:
    """Train and measure; returns the report."""
    begin = time.monotonic()
    out, size = journey.out, journey.size
    in_training, new = prompt_split(journey.seed)
    write_text(out / "prompts.txt", "".join(f"{wish.caption()}\n" for wish in in_training))
    learned: Learned | None = None
    judge_cpu: float | None = None
    if journey.reward == JUDGE:
        run, judge_cpu = _train_with_judge(journey, report)
    else:
        learned = _learn_reward(journey, in_training, report)
        run = _train(journey, learned.settings, report)
    wishes, seeds = questions(new, size.judged, journey.seed)
    base = judge_model(journey, None, wishes, seeds, report, "the base model")
    adapter = judge_model(journey, run.adapter, wishes, seeds, report, "the adapter")
    contact_sheet(out / "before_after.png", base.pixels, adapter.pixels, get_taste(journey.taste))
    return {
        **journey.facts(),
        **compared(base, adapter),
        **run.facts(),
        "error_rate": journey.error_rate if learned else None,
        "reward": journey.reward,
        "prompts": len(in_training),
        "images": run.images,
        "answers": learned.answers if learned else None,
        "pairs": learned.pairs if learned else None,
        "heldout_pairs": learned.heldout_pairs if learned else None,
        "heldout_pair_accuracy": learned.accuracy if learned else None,
        "reward_curve": [round(one, 4) for one in run.rewards],
        "supervised_win_rate": None,
        "supervised_fidelity": None,
        "supervised_attribute": None,
        "judged": size.judged,
        "judge_cpu_seconds": None if judge_cpu is None else round(judge_cpu, 3),
        "supervised_train_seconds": None,
        "total_seconds": round(time.monotonic() - begin, 1),
    }


def _train_with_judge(journey: Journey, report: Report) -> tuple[Trained, float]:
    """Run the training; return it with the processor time of the judge, which runs in this process."""
    token = secrets.token_urlsafe(24)
    with judge_server(get_taste(journey.taste), token) as server:
        params = {"url": server.url, "batch_size": MAX_IMAGES}
        reward = {"reward": "remote", "name": JUDGE, "clip_low": WRONG, "params": params}
        run = _train(journey, reward, report, {TOKEN_VARIABLE: token})
        return run, server.cpu_seconds


def _train(
    journey: Journey, reward: dict[str, Any], report: Report, environment: dict[str, str] | None = None
) -> Trained:
    settings: dict[str, Any] = {
        "rlhf_prompts_file": str(journey.out / "prompts.txt"),
        "rlhf_rewards": [reward],
    }
    if journey.size.online_epochs is not None:
        settings["epochs"] = journey.size.online_epochs
    return train(journey, journey.mode.lower(), as_settings(settings), report, environment)


def _learn_reward(journey: Journey, wishes: list[Wish], report: Report) -> Learned:
    """Make images, let the person answer questions about them, and run ``scripts/train_reward.py`` on the answers."""
    out = journey.out
    answers, pairs, held_out = picked(journey, wishes, load_model(journey.model), report)
    weights = out / "taste.safetensors"
    command = [
        sys.executable, str(ROOT / "scripts" / "train_reward.py"), "--pairs", str(out / "pairs"),
        "--images", str(out / "images"), "--features", "vae", "--source", str(journey.model), "--out", str(weights),
        "--seed", str(journey.seed),
    ]  # fmt: skip
    report("learning a reward from the answers")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise UserError(f"no reward could be learned:\n{done.stderr.strip()[-2000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    settings = {"reward": "preference_head", "name": "picks", "params": {"weights": str(weights)}}
    return Learned(answers, pairs, held_out, told["held_out_accuracy"], settings)
