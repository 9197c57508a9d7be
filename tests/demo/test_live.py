"""The live mode of the demo: the simulated person votes while a run waits, and the report says what came of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.demo.live import Live, run_live
from scripts.demo.plan import Journey
from scripts.make_demo import main

TINY = ("cpu_threads=1", "rlhf_rollout_steps=4", "rlhf_rollout_cfg_scale=1", "rlhf_num_train_timesteps=1")


@pytest.mark.slow  # trains and samples the demo model
def test_a_small_live_run(tmp_path: Path) -> None:
    live = Live(Journey(tmp_path / "out", seed=3, overrides=TINY), votes=20, prompts=2, judged=1, base=2)
    made = run_live(live, print)
    assert made == json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    # four prompts of the first epoch and one of the second, two likes and two dislikes each
    assert (made["mode"], made["votes"], made["rounds"], made["images_looked_at"]) == ("LIVE", 20, 5, 40)
    assert made["images"] == 64 and made["judged"] == 2
    assert 1.0 <= made["best_of_n"] <= 2.0 and 0.0 <= made["win_rate"] <= 1.0
    events = [json.loads(line) for line in (tmp_path / "out/run-live/events.jsonl").read_text().splitlines()]
    counted = [one["by"] for one in events if one["kind"] == "votes_counted"]
    assert counted.count("person") == 5 and counted.count("head") == 3


@pytest.mark.parametrize("votes", ["4", "18"])
def test_votes_that_are_no_whole_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], votes: str
) -> None:
    arguments = ["journey", "--mode", "live", "--votes", votes, "--out", str(tmp_path / "new")]
    assert main(arguments) == 2
    assert "--votes" in capsys.readouterr().err and not (tmp_path / "new").exists()
