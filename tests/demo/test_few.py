"""The demo's main journey: a few answers, a learned taste, and DPO on the same answers."""

from __future__ import annotations

import json

import pytest
from safetensors import safe_open

from scripts.demo.few import FIGURES, run_few
from scripts.demo.loop import Loop
from scripts.demo.plan import Journey
from scripts.make_demo import fill_in, main, parser


def test_it_is_what_the_demo_does_unless_another_mode_is_named():
    options = parser().parse_args(["journey"])
    fill_in(options)
    assert (options.mode, options.answers) == ("FEW", 50)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--reward", "picks"], "--reward"),
        (["--rounds", "2"], "--rounds"),
        (["--mode", "DPO", "--answers", "30"], "--answers"),
        (["--mode", "LIVE", "--method", "pairs"], "--method"),
    ],
)
def test_options_of_another_mode_are_refused(tmp_path, capsys, arguments, option):
    assert main(["journey", *arguments, "--out", str(tmp_path / "new")]) == 2
    assert option in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_options_of_a_mode_keep_what_was_given():
    options = parser().parse_args(["journey", "--mode", "LOOP", "--rounds", "2"])
    fill_in(options)
    assert (options.rounds, options.answers, options.method) == (2, 50, "taste")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--answers", "5"], "--answers"),
        (["--error-rate", "0.7"], "0.7"),
        (["--model", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_found_before_anything_is_made(tmp_path, capsys, arguments, expected):
    assert main(["journey", *arguments, "--out", str(tmp_path / "new")]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.slow  # starts the sampler once and the trainer three times as programs
def test_a_small_journey(tmp_path):
    out = tmp_path / "a folder with spaces"
    journey = Journey(out, seed=3, overrides=("cpu_threads=1",))
    loop = Loop(journey, 1, 16, base_per_prompt=4, judged=8, judging_prompts=4, epochs=1)
    made = run_few(loop, print)
    assert made == json.loads((out / "report.json").read_text())
    # 16 answers are 4 about each of 4 prompts of 5 images
    assert (made["answers"], made["candidates"], made["steps"]) == (16, 20, 4)
    assert made["pairs"] >= 4 and made["head_accuracy"] is not None
    for name in ("", "dpo_", "supervised_"):
        mine = {field: made[f"{name}{field}"] for field in FIGURES}
        assert 0.0 <= mine["win_rate"] <= 1.0 and 1.0 <= mine["best_of_n"] <= 4.0
        assert 0.0 <= mine["fidelity_adapter"] <= 1.0
    with safe_open(out / "adapter-dpo.safetensors", framework="pt") as adapter:
        assert adapter.metadata()["tastemaker.objective"] == "SIGMOID"
    assert (out / "adapter-supervised.safetensors").is_file()
    assert (out / "before_after.png").is_file()
