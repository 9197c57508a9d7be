"""DPO from the noise an image was made from: the model, the draws, and one small row."""

from __future__ import annotations

import argparse

import pytest
import torch

from scripts import benchmark
from scripts.benchmarks import _flow_demo, prior_noise
from scripts.benchmarks._flow_demo import SETUP, bank, flow_model
from scripts.benchmarks.prior_noise import draws_from, errors
from scripts.demo.pairs import prompt_split


def options(tmp_path, **changes):
    parser = argparse.ArgumentParser()
    prior_noise.add_arguments(parser)
    read = parser.parse_args(["--work", str(tmp_path)])
    vars(read).update(changes)
    return read


@pytest.fixture(scope="module")
def model():
    return flow_model()


def test_the_velocity_is_noise_minus_image_of_what_the_demo_model_predicts(model):
    drawn = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(1))
    cond = SETUP.encode_text(model, ["a red circle on a blue background"] * 2)
    own = _flow_demo.load_model()
    # a timestep the demo model has learned, as a level of the straight path between image and noise
    timestep_B = torch.tensor([300, 999])
    signal_B, sigma_B = own.schedule.coefficients(timestep_B)
    level_B = (sigma_B / (signal_B + sigma_B)).float()
    x_BChw = drawn
    length = torch.hypot(1 - level_B, level_B).view(-1, 1, 1, 1)
    v_BChw = super(type(SETUP), SETUP).denoise(own, x_BChw / length, timestep_B, cond, (64, 64))
    signal, sigma = (one.float().view(-1, 1, 1, 1) for one in (signal_B, sigma_B))
    noise = sigma * x_BChw / length + signal * v_BChw
    image = signal * x_BChw / length - sigma * v_BChw
    ours = SETUP.denoise(model, x_BChw, 1000 * level_B, cond, (64, 64))
    torch.testing.assert_close(ours, noise - image, atol=2e-3, rtol=2e-3)


def test_each_side_gets_its_own_noise():
    noise = torch.randn(4, 4, 2, 2)
    pool = prior_noise.Pool(noise, noise, [], None)
    fresh = prior_noise.NoiseDraw(torch.tensor([100.0, 900.0]), torch.zeros(2, 4, 2, 2))
    sides = [[0, 1], [2, 3]]
    chosen, rejected = draws_from("prior", pool, fresh, sides)
    assert torch.equal(chosen.noise_BChw, noise[:2]) and torch.equal(rejected.noise_BChw, noise[2:])
    assert torch.equal(chosen.timestep_B, rejected.timestep_B)
    chosen, rejected = draws_from("mix", pool, fresh, sides)
    assert torch.equal(rejected.noise_BChw[0], noise[2]) and not rejected.noise_BChw[1].any()
    assert draws_from("fresh", pool, fresh, sides) == [fresh, fresh]


@pytest.mark.slow  # images are really made and judged, before and after training
def test_a_row_is_measured_once_and_the_model_is_left_as_it_was(model, tmp_path, monkeypatch):
    monkeypatch.setattr(prior_noise, "JUDGED_PROMPTS", 2)
    monkeypatch.setattr(prior_noise, "flow_model", lambda: model)
    small = options(
        tmp_path, tastes=["large"], seeds=[1], noises=["fresh", "prior"], answers=4, epochs=1, sampling_steps=2,
        best_of=4,
    )  # fmt: skip
    rows = prior_noise.run(small)
    assert [row.data["noise"] for row in rows] == ["fresh", "prior"]
    assert all(row.data["judged"] == 8 and row.data["pairs"] and row.data["steps"] == 1 for row in rows)
    assert model.adapter is None
    monkeypatch.setattr(prior_noise, "measured", None)
    assert [row.data for row in prior_noise.run(small)] == [row.data for row in rows]
    assert "prior" in prior_noise.table(rows)
    made = bank(model, tmp_path, 1, "pool", prompt_split(1)[0][:1], 5, 2)
    told = errors(model, prior_noise.Pool.of(model, made), 1)
    assert len(told["prior"]) == len(told["fresh"]) == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--noises", "old"], "--noises"), (["--tastes", "loud"], "--taste"), (["--beta", "0"], "--beta"),
     (["--answers", "999"], "--answers"), (["--seeds", ""], "--seeds"),
     (["--best-of", "2"], "--best-of")],
)  # fmt: skip
def test_what_is_not_possible_is_refused(tmp_path, arguments, words):
    with pytest.raises(benchmark.UserError, match=words):
        benchmark.main(["prior_noise", "--work", str(tmp_path), *arguments])
