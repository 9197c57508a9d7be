"""Likes and dislikes without partners (KTO): the loss that is trained on, and the data it takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.PeftAdapter import AdapterHandle, attach
from modules.adapter.reference import Reference
from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.dataLoader.preflight import inspect_data
from modules.dataLoader.samplers import Step
from modules.model.batch import ImageBatch, NoiseDraw, PairBatch
from modules.model.Model import Model
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.trainer.callbacks import Callback
from modules.trainer.distributed import Processes
from modules.trainer.steps import PairFacts, PreferenceStep
from modules.util.config.TrainConfig import TrainConfig
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import pair_batch
from tests.trainer.builders import run_here, settings, write_config, write_likes
from tests.usual import usual

SIDES = torch.tensor([[True, True], [True, False], [False, True], [True, False], [True, False]])
WEIGHTS = (0.625, 2.5)
BETA, GUARD = 30.0, 400.0
SCHEDULES = [
    ("FULL_CONCURRENT", "AUTO", [5]),
    ("FULL_CONCURRENT", "AUTO", [2, 1, 2]),
    ("POLICY_CONCURRENT", "AUTO", [1, 4]),
    ("SEQUENTIAL", "THREE_FORWARD", [3, 2]),
    ("SEQUENTIAL", "GRAD_STASH", [3, 2]),
]


def without(side: ImageBatch, there_B: torch.Tensor) -> ImageBatch:
    """A side with rubbish in place of the images that are not there."""
    latents_BChw = side.latents_BChw.clone()
    latents_BChw[~there_B] = torch.nan
    return replace(side, latents_BChw=latents_BChw)


def adapted() -> tuple[BaseModelSetup, Model, AdapterHandle]:
    setup = tiny_setup("STABLE_DIFFUSION_15")
    model = tiny_model("STABLE_DIFFUSION_15", dtype=torch.float64)
    options = AdapterOptions(rank=2, alpha=2.0, parts=(model.spec.denoiser,), dtype=torch.float64)
    handle = attach(model, options)
    source = torch.Generator().manual_seed(4)
    for _, parameter in handle.named_parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=source, dtype=torch.float64)
    return setup, model, handle


def image_by_image(
    setup: BaseModelSetup,
    model: Model,
    reference: Reference,
    pair: PairBatch,
    draws: tuple[NoiseDraw, NoiseDraw],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The reward of every image that is there, and what it adds to the norm guard."""
    rewards, guards = [], []
    for place, side in SIDES.nonzero().tolist():
        image, draw = pair.both_sides()[side].select([place]), draws[side].select([place])
        cond = setup.condition(model, image)
        ours = setup.predict(model, image.latents_BChw, cond, draw, image.size)
        with torch.no_grad(), reference():
            theirs = setup.predict(model, image.latents_BChw, cond, draw, image.size)
        errors = [(one.predicted - one.target).square().mean() for one in (ours, theirs)]
        rewards.append(errors[1] - errors[0])
        ratio = ours.predicted.norm() / theirs.predicted.norm()
        guards.append((ratio - 1).clamp(min=0).square())
    return rewards, guards


@pytest.mark.parametrize(("mode", "strategy", "sizes"), usual(SCHEDULES, *SCHEDULES[1:]))
def test_every_schedule_gives_the_gradient_of_the_loss_over_all_images_of_the_step(
    tmp_path: Path, mode: str, strategy: str, sizes: list[int]
) -> None:
    """Written down image by image in float64: reference point, weights and norm guard."""
    setup, model, handle = adapted()
    reference = Reference(handle, "NEW_ADAPTER")
    parameters = [parameter for _, parameter in handle.named_parameters()]
    config = TrainConfig.from_dict(
        settings(
            tmp_path, concepts=[], rlhf_dpo_objective="KTO", rlhf_dpo_beta=BETA, rlhf_norm_guard=GUARD,
            rlhf_dpo_execution_mode=mode, rlhf_dpo_sequential_strategy=strategy,
        )
    )  # fmt: skip
    whole = pair_batch(setup, model, list("abcde"), dtype=torch.float64)
    noise = training.noise_options(config, preference=True)
    draws = setup.draw_pair_noise(model, whole, noise, config.seed)
    model.set_mode("no_dropout")

    # rewards above zero on the whole, so that the reference point counts
    uphill = torch.autograd.grad(sum(image_by_image(setup, model, reference, whole, draws)[0]), parameters)
    length = sum(float(one.square().sum()) for one in uphill) ** 0.5
    for parameter, direction in zip(parameters, uphill, strict=True):
        parameter.data += direction / length
    rewards, guards = image_by_image(setup, model, reference, whole, draws)
    liked = [True, False, True, False, True, True]
    point = BETA * float(torch.stack(rewards).detach().mean())
    assert point > 0.01 and max(guards) > 0
    total = sum(
        WEIGHTS[0] * torch.sigmoid(point - BETA * reward)
        if like
        else WEIGHTS[1] * torch.sigmoid(BETA * reward - point)
        for reward, like in zip(rewards, liked, strict=True)
    )
    loss = (total + GUARD * sum(guards) / 2) / len(SIDES)
    wanted = torch.autograd.grad(loss, parameters)

    given = PairBatch(
        whole.pair_ids,
        without(whole.chosen, SIDES[:, 0]),
        without(whole.both_sides()[1], SIDES[:, 1]),
        sides_B2=SIDES,
    )
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    batches = [given.select(slice(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    step = PreferenceStep(
        config, setup, model, Processes(0, 1, 0, torch.device("cpu")), reference, parameters,
        facts=PairFacts(class_weights=WEIGHTS),
    )  # fmt: skip
    step.forward_backward(
        AccumulationGroup(batches, Step(0, 0, (), 5, False)), 0, lambda part: part.backward()
    )
    got = [parameter.grad for parameter in parameters]
    error = sum(float((a - b).square().sum()) for a, b in zip(got, wanted, strict=True) if a is not None)
    assert (error / sum(float(b.square().sum()) for b in wanted)) ** 0.5 < 1e-9
    told = step.metrics()
    assert told["loss/train_step"] == pytest.approx(float(loss), rel=1e-6)
    assert told["dpo/chosen_reward"] == pytest.approx(float(sum(rewards[n] for n in (0, 2, 4, 5))) / 4)
    assert told["dpo/rejected_reward"] == pytest.approx(float(sum(rewards[n] for n in (1, 3))) / 2)
    assert told["dpo/reward_margin"] == pytest.approx(float(rewards[0] - rewards[1]))


class Keeping(Callback):
    """Keeps the metrics of every step."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def step(self, progress: Any, metrics: Any, total: int, eta: float | None) -> None:
        self.metrics.append(dict(metrics))


def kto(folder: Path, **changes: Any) -> dict[str, Any]:
    return {"concepts": write_likes(folder / "data"), "rlhf_dpo_objective": "KTO", **changes}


def test_a_folder_of_likes_and_one_of_dislikes_are_trained_on_and_counted(tmp_path: Path) -> None:
    given = {"learning_rate": 5e-3, "rlhf_dpo_beta": 500.0, "layer_filter_preset": "attn-mlp"}
    changes = kto(tmp_path, epochs=8, base_model_name=str(tiny_folder()), **given)
    report = inspect_data(TrainConfig.from_dict(settings(tmp_path, **changes)))
    assert not report.faults
    assert "3 pairs and 3 single images to train on, 0 to validate on" in report.lines()
    config = write_config(tmp_path, **changes)
    told = Keeping()
    trainer = run_here(config, callback=told)
    # an epoch has every image once, so a batch of two is a pair or an image each
    assert trainer.progress.global_step == trainer.total_steps == 8 * 3
    ends = [
        [step["dpo/chosen_reward"] for step in part if "dpo/chosen_reward" in step]
        for part in (told.metrics[:9], told.metrics[-9:])
    ]
    assert sum(ends[1]) / len(ends[1]) > sum(ends[0]) / len(ends[0])
    with safe_open(tmp_path / "out.safetensors", "pt") as file:
        text = json.dumps(file.metadata())
    assert "single_images" in text and "KTO" in text


def test_a_like_and_a_dislike_of_one_name_may_have_different_shapes(tmp_path: Path) -> None:
    changes = kto(tmp_path, resolution="64", epochs=1)
    for number in (3, 4):  # the first one stays a pair
        Image.new("RGB", (64, 32), (9, 99, number)).save(tmp_path / f"data/rejected/{number:03d}.png")
    made = TrainConfig.from_dict(settings(tmp_path, **changes))
    report = inspect_data(made)
    assert not report.faults
    assert "1 pair and 7 single images to train on, 0 to validate on" in report.lines()
    trainer = run_here(write_config(tmp_path, **changes))
    units = trainer.parts.loader.units.entries
    assert sorted((one.id, one.only) for one in units if one.chosen.key in ("003", "004")) == [
        ("chosen/003", "chosen"), ("chosen/004", "chosen"),
        ("rejected/003", "rejected"), ("rejected/004", "rejected"),
    ]  # fmt: skip
    other = TrainConfig.from_dict(settings(tmp_path, **{**changes, "rlhf_dpo_objective": "IPO"}))
    assert any("crop resolutions of 2 pairs differ" in str(one) for one in inspect_data(other).faults)


def test_an_image_that_is_liked_and_disliked_is_named_at_the_check(tmp_path: Path) -> None:
    changes = kto(tmp_path)
    data = tmp_path / "data"
    assert not inspect_data(TrainConfig.from_dict(settings(tmp_path, **changes))).warnings
    (data / "rejected/again.png").write_bytes((data / "chosen/000.png").read_bytes())
    (data / "rejected/again.txt").write_text("a red circle", encoding="utf-8")
    (said,) = inspect_data(TrainConfig.from_dict(settings(tmp_path, **changes))).warnings
    assert said.startswith("1 image is both liked and disliked")
    assert "chosen/000.png and rejected/again.png" in said


def test_other_objectives_and_validation_name_the_images_without_partner(tmp_path: Path) -> None:
    changes = kto(tmp_path)

    def faults(**more: Any) -> str:
        made = TrainConfig.from_dict(settings(tmp_path, **{**changes, **more}))
        return "\n".join(str(one) for one in inspect_data(made).faults)

    assert "2 images of concept 'chosen' have no partner" in (found := faults(rlhf_dpo_objective="SIGMOID"))
    assert "set rlhf_dpo_objective to KTO" in found
    assert "validation is measured on pairs, but 3 images have no partner" in faults(rlhf_dpo_validation=True)


def test_a_like_that_became_a_dislike_is_other_data_and_has_no_known_reference_scores(tmp_path: Path) -> None:
    cached = {"rlhf_dpo_reference_cache": True, "rlhf_dpo_reference_cache_draws": 2, "epochs": 1}
    config = write_config(tmp_path, **kto(tmp_path, **cached))
    first = run_here(config).parts.loader.data_digest()
    changes = json.loads(config.read_text(encoding="utf-8"))
    kinds = [one["type"] for one in changes["concepts"]]
    for one, kind in zip(changes["concepts"], reversed(kinds), strict=True):
        one["type"] = kind
    config.write_text(json.dumps({**changes, "workspace_dir": str(tmp_path / "again")}), encoding="utf-8")
    assert run_here(config).parts.loader.data_digest() != first
