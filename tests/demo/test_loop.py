"""The taste loop of the demo: rounds through a project, and what its report says."""

from __future__ import annotations

import json

import pytest

from scripts.demo.loop import Loop, run_loop
from scripts.demo.plan import Journey


@pytest.mark.slow  # starts the sampler and the trainer as programs several times
def test_two_rounds(tmp_path):
    journey = Journey(tmp_path / "out", seed=3, overrides=("epochs=1", "cpu_threads=1"))
    loop = Loop(journey, rounds=2, answers=16, base_per_prompt=4, judged=8, judging_prompts=4, votes=6)
    made = run_loop(loop, print)
    assert made == json.loads((tmp_path / "out" / "report.json").read_text())
    assert [one["answers"] for one in made["rounds"]] == [16, 16]
    assert [one["answers_total"] for one in made["rounds"]] == [16, 32]
    for one in made["rounds"]:
        assert 0.0 <= one["win_rate_base"] <= 1.0 and 0.0 <= one["win_rate_previous"] <= 1.0
        assert (
            1.0 <= one["best_of_n"] <= 4.0 and one["fidelity_loss"] == made["fidelity_base"] - one["fidelity"]
        )
        assert one["arena"]["votes"] <= 6 and one["steps"] == 4 and one["head_accuracy"] is not None
    assert made["rounds"][0]["win_rate_previous"] == made["rounds"][0]["win_rate_base"]
    assert (tmp_path / "out" / "before_after.png").is_file()


@pytest.mark.parametrize(("changes", "message"), [({"rounds": 0}, "--rounds"), ({"answers": 5}, "--answers")])
def test_what_cannot_be(tmp_path, changes, message):
    with pytest.raises(ValueError, match="too few") as raised:
        run_loop(Loop(Journey(tmp_path / "out"), **changes), print)
    assert message in str(raised.value) and not (tmp_path / "out").exists()
