from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import logsigmoid

from modules.reward.base import create_reward
from modules.reward.frozen_features import FeatureOptions, FrozenFeatures
from modules.reward.head_training import Comparisons, HeadOptions, train_head
from modules.reward.preference_head import PreferenceHead, load_head, save_head
from modules.util.errors import ConfigError, DataError
from tests.reward.builders import batch_of, noise_images
from tests.reward.tiny_clip import save_tiny_clip
from tests.source_tree import ROOT

DEMO = str(ROOT / "resources" / "demo_model")


def picks(count=300, width=12, seed=0, noise=0.5, curve=False):
    """Features, and comparisons by Bradley-Terry odds of a hidden quality."""
    stream = torch.Generator().manual_seed(seed)
    features = torch.randn(count, width, generator=stream) * torch.linspace(0.1, 10, width) + 3
    standard = (features - 3) / torch.linspace(0.1, 10, width)
    quality = standard[:, 0] - 2 * standard[:, 1] + 1.5 * standard[:, 2]
    if curve:
        quality = -standard[:, 0].abs() * 3
    pairs = torch.randint(0, count, (500, 2), generator=stream)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    margin = (quality[pairs[:, 0]] - quality[pairs[:, 1]]) / noise
    first = torch.rand(len(pairs), generator=stream) < torch.sigmoid(margin)
    better = torch.where(first, pairs[:, 0], pairs[:, 1])
    worse = torch.where(first, pairs[:, 1], pairs[:, 0])
    return Comparisons(features, better, worse, [f"prompt {i % 50}" for i in range(len(pairs))]), quality


def test_a_hidden_quality_is_found():
    data, quality = picks()
    head, report = train_head(data)
    assert report.held_out_accuracy > 0.82 and report.train_accuracy > 0.82
    assert report.train_pairs + report.held_out_pairs == len(data.groups)
    assert 0.15 < report.held_out_pairs / len(data.groups) < 0.25
    found = torch.corrcoef(torch.stack([head(data.features_ND), quality]))[0, 1]
    assert found > 0.97


def test_random_picks_teach_nothing():
    data, _ = picks(noise=1e9)
    assert 0.35 < train_head(data)[1].held_out_accuracy < 0.65


@pytest.mark.parametrize("options", [HeadOptions(), HeadOptions(hidden=4, strength=0.1)])
def test_comparisons_that_share_one_answer_count_as_one(options):
    data, _ = picks()
    part = Comparisons(data.features_ND, data.better_P[:60], data.worse_P[:60], data.groups[:60])
    sides = (torch.cat([one, one]) for one in (part.better_P, part.worse_P))
    half_P = torch.full((120,), 0.5)
    halves = Comparisons(data.features_ND, *sides, list(part.groups) * 2, weight_P=half_P)
    (one, first), (other, second) = train_head(part, options), train_head(halves, options)
    torch.testing.assert_close(one(data.features_ND), other(data.features_ND), rtol=1e-4, atol=1e-4)
    assert (first.train_pairs, first.held_out_pairs) == (second.train_pairs, second.held_out_pairs)
    assert first.held_out_interval == pytest.approx(second.held_out_interval)


def test_answers_that_are_right_or_wrong_together_tell_less_about_other_prompts():
    data, _ = picks(noise=2.0)
    part = Comparisons(data.features_ND, data.better_P[:60], data.worse_P[:60], data.groups[:60])
    sides = (part.better_P.repeat(20), part.worse_P.repeat(20))
    often = Comparisons(data.features_ND, *sides, list(part.groups) * 20)
    first, second = (train_head(one, HeadOptions(strength=0.1))[1] for one in (part, often))
    assert 0.5 < first.held_out_accuracy < 1 and second.held_out_accuracy == first.held_out_accuracy
    assert second.held_out_interval == pytest.approx(first.held_out_interval, abs=0.05)


def test_a_hidden_layer_finds_what_a_sum_cannot():
    data, _ = picks(curve=True, noise=0.2)
    flat = train_head(data, HeadOptions(strength=0.003))[1].held_out_accuracy
    bent = train_head(data, HeadOptions(hidden=16, strength=0.003))[1].held_out_accuracy
    assert flat < 0.65 < 0.75 < bent


@pytest.mark.parametrize("hidden", [0, 4])
def test_equal_picks_give_equal_heads(hidden):
    data, _ = picks()
    options = HeadOptions(hidden=hidden, strength=0.1)
    one, other = train_head(data, options)[0], train_head(data, options)[0]
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)


def test_the_fit_is_where_the_penalised_likelihood_is_highest():
    data, _ = picks()
    head, _ = train_head(data, HeadOptions(strength=0.1, holdout=0.0))
    x = (data.features_ND.double() - head.tensors["mean_D"]) / head.tensors["scale_D"]
    weight = head.tensors["out"].clone().requires_grad_()
    score = x @ weight
    (-logsigmoid(score[data.better_P] - score[data.worse_P]).mean() + 0.05 * weight.square().sum()).backward()
    assert weight.grad.abs().max() < 1e-5


def test_groups_are_not_split_between_training_and_measuring():
    data, _ = picks()
    hold = HeadOptions(holdout=0.3)
    # what is held out has no influence on the head
    held = torch.tensor([group in {"prompt 1", "prompt 7"} for group in data.groups])
    swapped = Comparisons(
        data.features_ND,
        torch.where(held, data.worse_P, data.better_P),
        torch.where(held, data.better_P, data.worse_P),
        data.groups,
        held,
    )
    same = Comparisons(data.features_ND, data.better_P, data.worse_P, data.groups, held)
    one, report = train_head(same, hold)
    other, turned = train_head(swapped, hold)
    assert torch.equal(one.tensors["out"], other.tensors["out"])
    assert report.held_out_accuracy == pytest.approx(1 - turned.held_out_accuracy)
    assert report.held_out_pairs == int(held.sum())


def test_nothing_to_learn_from_is_an_error():
    data, _ = picks()
    everything = torch.ones(len(data.groups), dtype=torch.bool)
    with pytest.raises(DataError, match="no comparison"):
        train_head(Comparisons(data.features_ND, data.better_P, data.worse_P, data.groups, everything))
    broken = data.features_ND.clone()
    broken[3, 3] = math.nan
    with pytest.raises(DataError, match="finite"):
        train_head(Comparisons(broken, data.better_P, data.worse_P, data.groups))


@pytest.mark.parametrize(
    "make",
    [
        lambda: HeadOptions(hidden=-1),
        lambda: HeadOptions(strength=0.0),
        lambda: HeadOptions(holdout=1.0),
        lambda: FeatureOptions("dino", "x"),
        lambda: FeatureOptions("vae", "x", size=12),
        lambda: FeatureOptions("vae", "x", grid=0),
        lambda: create_reward("preference_head", {"weights": "x", "batch_size": 0}),
    ],
)
def test_impossible_options_are_refused(make):
    with pytest.raises(ConfigError):
        make()


# -- features and files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vae():
    extract = FrozenFeatures(FeatureOptions("vae", DEMO, grid=4))
    extract.load()
    return extract


def make_file(path, extract, hidden=3):
    width = len(extract.probe())
    stream = torch.Generator().manual_seed(5)
    tensors = {
        "mean_D": torch.randn(width, generator=stream, dtype=torch.float64),
        "scale_D": torch.rand(width, generator=stream, dtype=torch.float64) + 0.5,
        "out": torch.randn(hidden or width, generator=stream, dtype=torch.float64),
    }
    if hidden:
        tensors["hidden_weight"] = torch.randn(hidden, width, generator=stream, dtype=torch.float64)
        tensors["hidden_bias"] = torch.randn(hidden, generator=stream, dtype=torch.float64)
    head = PreferenceHead(tensors)
    save_head(path, head, extract.options, extract.probe())
    return head


def test_latent_features_are_cell_means_and_deviations(vae):
    images = noise_images(3, 64)
    found = vae(images)
    with torch.no_grad():
        latents = vae._vae.encode(images * 2 - 1).latent_dist.mean
    cells = latents.reshape(3, 4, 4, latents.shape[2] // 4, 4, latents.shape[3] // 4)
    mean = cells.mean(dim=(3, 5))
    deviation = cells.std(dim=(3, 5), correction=0)
    expected = torch.cat([mean, deviation], dim=1).flatten(1)
    assert torch.allclose(found, expected, atol=1e-4)
    assert vae(noise_images(2, 40)).shape == found[:2].shape, "any size of image will do"


@pytest.mark.parametrize("hidden", [0, 3])
def test_a_head_survives_its_file_and_scores_images(tmp_path, vae, hidden):
    path = tmp_path / "head.safetensors"
    head = make_file(path, vae, hidden)
    reward = create_reward("preference_head", {"weights": str(path), "batch_size": 2})
    with pytest.raises(RuntimeError, match="load"):
        reward.score(batch_of(noise_images(1)))
    reward.load(), reward.load(), reward.to("cpu")
    images = noise_images(5, 48)
    scores = reward.score(batch_of(images))
    assert torch.allclose(scores, head(vae(images)), atol=1e-5)
    reward.unload()
    with pytest.raises(RuntimeError, match="load"):
        reward.score(batch_of(images))


def test_another_feature_model_is_noticed(tmp_path, vae):
    path = tmp_path / "head.safetensors"
    make_file(path, vae)
    moved = tmp_path / "moved"
    shutil.copytree(f"{DEMO}/vae", moved)
    create_reward("preference_head", {"weights": str(path), "source": str(moved)}).load()
    weights = load_file(moved / "diffusion_pytorch_model.safetensors")
    weights = {name: (value * 1.5 if "conv_in" in name else value) for name, value in weights.items()}
    save_file(weights, moved / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="not those"):
        create_reward("preference_head", {"weights": str(path), "source": str(moved)}).load()
    with pytest.raises(DataError, match="nowhere"):
        create_reward("preference_head", {"weights": str(path), "source": str(tmp_path / "nowhere")}).load()


def test_clip_features_work_as_well(tmp_path):
    extract = FrozenFeatures(FeatureOptions("clip", str(save_tiny_clip(tmp_path / "clip"))))
    extract.load()
    path = tmp_path / "head.safetensors"
    head = make_file(path, extract, 0)
    reward = create_reward("preference_head", {"weights": str(path)})
    reward.load()
    images = noise_images(3, 20)
    assert torch.allclose(reward.score(batch_of(images)), head(extract(images)), atol=1e-5)


def damage(kind, tensors, description):
    if kind == "no format":
        description["format"] = "other"
    if kind == "odd options":
        description["features"]["grid"] = 99
    if kind == "option of a wrong type":
        description["features"]["grid"] = True
    if kind == "more options":
        description["features"]["code"] = "x"
    if kind == "no options":
        description["features"] = None
    if kind == "shape":
        tensors["out"] = torch.zeros(7)
    if kind == "probe":
        del tensors["probe_D"]
    if kind == "more tensors":
        tensors["more"] = torch.zeros(1)
    if kind == "nan":
        tensors["out"][0] = math.nan
    if kind == "scale":
        tensors["scale_D"][0] = 0
    if kind == "no hidden bias":
        del tensors["hidden_bias"]
    return tensors, "{" if kind == "no json" else json.dumps(description)


@pytest.mark.parametrize(
    "kind",
    ["no format", "odd options", "option of a wrong type", "more options", "no options", "shape", "probe",
     "more tensors", "nan", "scale", "no json", "no hidden bias"],
)  # fmt: skip
def test_damaged_files_are_named(tmp_path, vae, kind):
    path = tmp_path / "head.safetensors"
    make_file(path, vae)
    options = {"kind": "vae", "source": DEMO, "size": 0, "grid": 4}
    description = {"format": "preference-head-1", "features": options, "report": None}
    tensors, text = damage(kind, load_file(path), description)
    save_file(tensors, path, metadata={"description": text})
    with pytest.raises(DataError, match="head.safetensors"):
        load_head(path)


def test_what_is_no_safetensors_file_is_named(tmp_path):
    path = tmp_path / "head.safetensors"
    with pytest.raises(DataError, match="train_reward"):
        load_head(path)
    path.write_bytes(b"\x80\x04.")
    with pytest.raises(DataError, match="not a preference head"):
        load_head(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(DataError, match="not a preference head"):
        load_head(path)
