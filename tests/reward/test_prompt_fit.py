"""The guard of a learned taste: images that the base model would not have made from their prompt are marked down."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.modelSetup.registry import create_model_setup
from modules.reward.base import create_reward
from modules.reward.denoiser_features import FIT_DRAWS, FIT_LEVEL
from modules.reward.frozen_features import FeatureOptions, FrozenFeatures
from modules.reward.preference_head import UsualFit, load_head, save_head
from modules.reward.taste_head import Answers, fit_taste
from modules.util.errors import ConfigError, DataError
from modules.util.rng import generator, python_random
from scripts.demo.world import combinations, draw_scene, render
from tests.reward.builders import batch_of
from tests.source_tree import ROOT

DEMO = str(ROOT / "resources" / "demo_model")
WISHES = combinations(held_out=False)[::9][:12]
PROMPTS = [wish.caption() for wish in WISHES]
OTHERS = [*PROMPTS[1:], PROMPTS[0]]


@pytest.fixture(scope="module")
def drawn_BCHW():
    pixels = [render(draw_scene(one, python_random("fit", i))) for i, one in enumerate(WISHES)]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255


@pytest.fixture(scope="module")
def features():
    made = FrozenFeatures(FeatureOptions("denoiser", DEMO))
    made.load()
    return made


@pytest.fixture(scope="module")
def fits(features, drawn_BCHW):
    """The fit of each image to its own prompt and to another one; only to be read."""
    return features.prompt_fit(drawn_BCHW, PROMPTS), features.prompt_fit(drawn_BCHW, OTHERS)


def test_images_fit_their_own_prompts(fits):
    own_B, other_B = fits
    assert (own_B > other_B).all()
    usual = UsualFit.of(own_B)
    assert (usual.shortfall(own_B) == 0).float().mean() > 0.8
    assert (usual.shortfall(other_B) > 1).all()


def test_the_fit_is_the_error_that_the_prompt_saves(fits, drawn_BCHW):
    """The formula in float64, from the numbers of the scheduler's file: v-prediction, zero terminal SNR."""
    setup = create_model_setup("STABLE_DIFFUSION_15")
    model = setup.load(DEMO)
    told = json.loads((ROOT / "resources/demo_model/scheduler/scheduler_config.json").read_text())
    beta_T = np.linspace(told["beta_start"] ** 0.5, told["beta_end"] ** 0.5, 1000) ** 2
    signal_T = np.cumprod(1.0 - beta_T) ** 0.5
    signal_T = (signal_T - signal_T[-1]) * signal_T[0] / (signal_T[0] - signal_T[-1])
    place = int(model.schedule.timestep(torch.tensor([FIT_LEVEL]))[0])
    signal, sigma = signal_T[place], (1 - signal_T[place] ** 2) ** 0.5
    image_BCHW, prompt = drawn_BCHW[:1], PROMPTS[0]
    saved = []
    with torch.no_grad(), model.in_mode("eval"):
        clean = setup.encode_image(model, image_BCHW).double()
        for draw in range(FIT_DRAWS):
            noise = torch.randn(clean.shape[1:], generator=generator("prompt-fit", draw)).double()[None]
            noised = signal * clean + sigma * noise
            errors = []
            for text in (prompt, ""):
                cond = setup.encode_text(model, [text])
                said = setup.denoise(model, noised.float(), torch.tensor([place]), cond, (64, 64))
                errors.append(float((said.double() - (signal * noise - sigma * clean)).square().mean()))
            saved.append(errors[1] - errors[0])
    assert float(fits[0][0]) == pytest.approx(np.mean(saved), rel=1e-4)


def test_the_shortfall_is_in_standard_deviations_below_nine_of_ten():
    fit_N = torch.arange(11.0)
    usual = UsualFit.of(fit_N)
    assert (usual.least, usual.spread) == (pytest.approx(1.0), pytest.approx(10**0.5))
    assert usual.shortfall(torch.tensor([5.0, 1.0, 0.0])).tolist() == pytest.approx([0.0, 0.0, 10**-0.5])
    assert UsualFit.of(torch.ones(20)) is None and UsualFit.of(torch.arange(9.0)) is None


@pytest.fixture(scope="module")
def head(features, drawn_BCHW):
    half = torch.arange(6)
    answers = Answers(half, half + 6, torch.ones(6, dtype=torch.float64))
    return fit_taste(features(drawn_BCHW, PROMPTS), features.parts, answers, PROMPTS)


def test_a_guarded_reward_marks_down_what_does_not_show_its_prompt(features, head, drawn_BCHW, fits, tmp_path):
    """Six images with their own prompts, and two of them with others."""
    path = tmp_path / "taste.safetensors"
    own_B, other_B = fits
    save_head(path, head, features.options, features.probe(), None, UsualFit.of(own_B))
    shown, prompts = torch.cat([drawn_BCHW[:2], drawn_BCHW[:6]]), [*OTHERS[:2], *PROMPTS[:6]]
    plain_B, guarded_B = (scored(path, guard, shown, prompts) for guard in (0.0, 3.0))
    lost_B = plain_B - guarded_B
    expected_B = 3.0 * (UsualFit.of(own_B).least - other_B[:2]) / own_B.double().std(correction=0)
    torch.testing.assert_close(lost_B[:2].double(), expected_B.double(), rtol=1e-3, atol=1e-4)
    assert (lost_B[2:] == 0).float().mean() > 0.8


def scored(path, guard, images_BCHW, prompts):
    reward = create_reward("preference_head", {"weights": str(path), "guard": guard})
    reward.load()
    return reward.score(batch_of(images_BCHW, prompts=prompts))


def test_a_head_that_knows_no_fit_cannot_guard(features, head, tmp_path):
    path = tmp_path / "taste.safetensors"
    save_head(path, head, features.options, features.probe())
    assert load_head(path).usual_fit is None
    with pytest.raises(ConfigError, match="(?s)guard: .*train the head again"):
        create_reward("preference_head", {"weights": str(path), "guard": 1.0}).load()
    with pytest.raises(ConfigError, match="guard"):
        create_reward("preference_head", {"weights": str(path), "guard": -1.0})


@pytest.mark.parametrize(
    "told",
    [
        3,
        {},
        {"least": 1.0},
        {"least": "1", "spread": 1.0},
        {"least": 1.0, "spread": 0.0},
        {"least": True, "spread": 1.0},
        {"least": 1.0, "spread": 1.0, "more": 2},
    ],
)
def test_a_damaged_fit_is_named(features, head, tmp_path, told):
    path = tmp_path / "taste.safetensors"
    save_head(path, head, features.options, features.probe(), None, UsualFit(1.0, 2.0))
    assert load_head(path).usual_fit == UsualFit(1.0, 2.0)
    with safe_open(path, "pt") as stream:
        description = json.loads(stream.metadata()["description"])
    description["usual_fit"] = told
    save_file(load_file(path), path, metadata={"description": json.dumps(description)})
    with pytest.raises(DataError, match=r"taste\.safetensors"):
        load_head(path)
