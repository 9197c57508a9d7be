"""Rollouts of a tiny model: what they are made of, and that training sees the probabilities they were made with."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from modules.model.Model import Model
from modules.model.noising.sampling import SamplingCancelled
from modules.model.noising.schedule import FlowSchedule
from modules.rollout.generate import (
    RolloutHooks,
    RolloutRequest,
    decode,
    generate,
    image_seed,
    step_log_prob,
)
from modules.rollout.Rollouts import Rollouts, RolloutSettings
from modules.rollout.transitions import ODE
from modules.util.errors import ConfigError, DataError, UnsupportedError
from tests.rollout.helpers import SETUP, adapted_model, recomputed, requests, rolled, settings_for
from tests.tiny import SIZE, tiny_model
from tests.tiny.batches import images
from tests.usual import usual


class Whole(NamedTuple):
    """Rollouts that several tests look at, and the model that made them; nobody changes either."""

    model: Model
    settings: RolloutSettings
    made: Rollouts


@pytest.fixture(scope="module")
def whole() -> Whole:
    """Made in batches of two."""
    model = adapted_model()
    settings = settings_for(model)
    return Whole(model, settings, rolled(model, settings))


@pytest.fixture(scope="module")
def together(whole: Whole) -> Rollouts:
    """The same images made in one batch."""
    return rolled(whole.model, whole.settings, batch_size=4)


WAYS = [(1.0, "SPLIT"), (3.0, "SPLIT"), (3.0, "JOINT")]
STORAGES = ["FLOAT_32", "BFLOAT_16", "FLOAT_16"]
CASES = [(cfg, layout, storage) for storage in STORAGES for cfg, layout in WAYS]


# what is stored is rounded after the guided prediction, whichever that is
@pytest.mark.parametrize(
    ("cfg", "layout", "storage"),
    usual(CASES, (3.0, "SPLIT", "FLOAT_32"), (3.0, "JOINT", "BFLOAT_16"), (1.0, "SPLIT", "FLOAT_16")),
)
def test_right_after_a_rollout_the_ratio_is_exactly_one(cfg: float, layout: str, storage: str) -> None:
    model = adapted_model()
    settings = settings_for(model, {"temperature": 0.9}, cfg=cfg, layout=layout, storage=storage)
    made = rolled(model, settings)
    assert made.states_NPChw.dtype == settings.dtype
    assert made.logp_NS.std() > 0 and made.logp_NS.dtype == torch.float32
    model.set_mode("train")
    for batch in made.batches(2):
        for step in batch.steps:
            out = step_log_prob(SETUP, model, batch, step, settings)
            assert out.logp_B.requires_grad
            assert torch.equal(out.logp_B.detach(), batch.logp_NS[:, batch.column(step)])
            with torch.no_grad():
                again = step_log_prob(SETUP, model, batch, step, settings)
            assert torch.equal(again.logp_B, out.logp_B.detach())


def test_mixed_precision_keeps_the_ratio() -> None:
    model = adapted_model()
    model.compute_dtype = torch.bfloat16
    settings = settings_for(model)
    made = rolled(model, settings)
    (first, _) = made.batches(2)
    out = step_log_prob(SETUP, model, first, 1, settings)
    assert torch.equal(out.logp_B.detach(), first.logp_NS[:, 1])


@pytest.mark.parametrize("kind", ["FLOW_SDE", "DANCE_SDE", "CPS"])
def test_flow_models_keep_the_ratio(kind: str) -> None:
    """The tiny network with another schedule: what it predicts is taken for a velocity."""
    model = adapted_model()
    model.schedule = FlowSchedule()
    settings = settings_for(model, {"kind": kind}, cfg=1.0, storage="BFLOAT_16")
    made = rolled(model, settings)
    assert made.settings.plan.kind == kind and made.steps == (0, 1, 2)
    for batch in made.batches(2):
        for step in batch.steps:
            out = step_log_prob(SETUP, model, batch, step, settings)
            assert torch.equal(out.logp_B.detach(), batch.logp_NS[:, batch.column(step)])


def test_a_flow_rollout_without_noise_is_what_sampling_gives() -> None:
    model = adapted_model()
    model.schedule = FlowSchedule()
    made = rolled(model, settings_for(model, {"kind": ODE}, layout="JOINT"))
    wanted = images(
        SETUP,
        model,
        made.prompts,
        made.negatives,
        seeds=made.seeds,
        steps=4,
        cfg=3.0,
        size=SIZE,
        scheduler="EULER",
        batch_size=2,
    )
    torch.testing.assert_close(decode(SETUP, model, made.final_NChw, 4), wanted, rtol=1e-3, atol=1e-3)


def test_gradient_checkpointing_keeps_the_ratio(whole: Whole) -> None:
    model, settings, made = adapted_model(), whole.settings, whole.made
    model.set_gradient_checkpointing("unet", True)
    (first, _) = made.batches(2)
    out = step_log_prob(SETUP, model, first, 0, settings)
    assert torch.equal(out.logp_B.detach(), first.logp_NS[:, 0])
    out.logp_B.sum().backward()
    assert any(p.grad is not None for _, p in model.adapter.named_parameters())


def test_other_batches_differ_by_rounding_until_recomputed(whole: Whole, together: Rollouts) -> None:
    model, settings, made = whole.model, whole.settings, together
    again_NS = recomputed(SETUP, model, made, 1)
    torch.testing.assert_close(again_NS, made.logp_NS, rtol=1e-4, atol=1e-4)
    for number, single in enumerate(made.batches(1)):
        out = step_log_prob(SETUP, model, single, 2, settings)
        assert torch.equal(out.logp_B.detach(), again_NS[number : number + 1, 2])


def test_changed_weights_change_the_ratio_and_gradients_reach_the_adapter() -> None:
    model = adapted_model()
    settings = settings_for(model, {"window": (1, 1)})
    made = rolled(model, settings)
    out = step_log_prob(SETUP, model, made, 1, settings)
    (-out.logp_B.sum()).backward()
    parameters = [parameter for _, parameter in model.adapter.named_parameters()]
    assert sum(float(p.grad.abs().sum()) for p in parameters if p.grad is not None) > 0
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter -= 1e-2 * parameter.grad
    after = step_log_prob(SETUP, model, made, 1, settings).logp_B.detach()
    assert float(after.sum()) > float(made.logp_NS.sum()), "a step up the gradient makes the images likelier"


@pytest.mark.parametrize("layout", ["SPLIT", "JOINT"])
def test_the_unconditional_half_has_no_gradient(layout: str) -> None:
    """With the negative prompt's half detached, the gradient is cfg times that of the prompt's half alone."""
    model = adapted_model()
    guided = settings_for(model, cfg=3.0, layout=layout)
    made = rolled(model, guided, count=2)
    out = step_log_prob(SETUP, model, made, 1, guided)
    out.predicted_BChw.sum().backward()
    found = [p.grad.clone() for _, p in model.adapter.named_parameters() if p.grad is not None]
    for _, parameter in model.adapter.named_parameters():
        parameter.grad = None
    plain = replace(guided, cfg=1.0)
    alone = replace(made, settings=plain, negative_N=None)
    step_log_prob(SETUP, model, alone, 1, plain).predicted_BChw.sum().backward()
    wanted = [3.0 * p.grad for _, p in model.adapter.named_parameters() if p.grad is not None]
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()) + 1e-6)


def test_images_do_not_depend_on_what_they_are_made_with(whole: Whole, together: Rollouts) -> None:
    for number, request in enumerate(requests(4)):
        alone = generate(SETUP, whole.model, [request], whole.settings, 1)
        torch.testing.assert_close(alone.final_NChw[0], together.final_NChw[number], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(whole.made.final_NChw, together.final_NChw, rtol=1e-3, atol=1e-3)
    assert len({tuple(latent.flatten().tolist()) for latent in together.final_NChw}) == 4


def test_noise_of_a_step_does_not_depend_on_which_others_are_random(whole: Whole) -> None:
    a, b = whole.made, rolled(whole.model, settings_for(whole.model, {"window": (0, 0)}))
    assert torch.equal(a.x_next(0), b.x_next(0))
    assert b.states_NPChw.shape[1] == 2 and b.logp_NS.shape == (4, 1)
    assert not torch.equal(a.final_NChw, b.final_NChw)


def test_every_step_of_every_image_has_its_own_normal_noise() -> None:
    model = adapted_model()
    settings = settings_for(model, {"temperature": 0.7})
    made = rolled(model, settings)
    noises = []
    for part in made.batches(2):
        for step in made.steps:
            with torch.no_grad():
                mean = step_log_prob(SETUP, model, part, step, settings).mean_BChw
            noises.append((part.x_next(step) - mean) / settings.plan.stds[step])
    rows_RD = torch.cat(noises).flatten(1)
    assert float(rows_RD.mean()) == pytest.approx(0.0, abs=0.05)
    assert float(rows_RD.std()) == pytest.approx(1.0, abs=0.05)
    related = torch.corrcoef(rows_RD) - torch.eye(len(rows_RD))
    assert len(rows_RD) == 12 and float(related.abs().max()) < 0.3


def test_a_shared_start_is_shared() -> None:
    model = adapted_model()
    settings = settings_for(model)
    made = generate(
        SETUP,
        model,
        [RolloutRequest("a cat", 0, image_seed(0, 0, 0, k), f"{k}", start_seed=5) for k in range(2)],
        settings,
        2,
    )
    assert torch.equal(made.x(0)[0], made.x(0)[1])
    assert not torch.equal(made.x_next(0)[0], made.x_next(0)[1])


@pytest.mark.parametrize("cfg", usual([1.0, 3.0], 3.0))
def test_without_noise_a_rollout_is_what_sampling_gives(cfg: float) -> None:
    model = adapted_model()
    settings = settings_for(model, {"kind": ODE}, cfg=cfg, layout="JOINT")
    made = rolled(model, settings)
    assert made.states_NPChw.shape[1] == 0 and made.logp_NS.shape == (4, 0) and made.steps == ()
    wanted = images(
        SETUP,
        model,
        made.prompts,
        made.negatives,
        seeds=made.seeds,
        steps=4,
        cfg=cfg,
        size=SIZE,
        batch_size=2,
    )
    found = decode(SETUP, model, made.final_NChw, 3)
    assert found.shape == wanted.shape and found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_images_that_do_not_fit_into_memory_are_decoded_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = adapted_model(), []
    latents_NChw = torch.randn(4, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    wanted = decode(SETUP, model, latents_NChw, 4)
    whole = type(SETUP).decode_latents

    def small(setup: object, model: Model, latents_BChw: torch.Tensor) -> torch.Tensor:
        asked.append(len(latents_BChw))
        if len(latents_BChw) > 1:
            raise torch.OutOfMemoryError("too large")
        return whole(setup, model, latents_BChw)

    monkeypatch.setattr(type(SETUP), "decode_latents", small)
    torch.testing.assert_close(decode(SETUP, model, latents_NChw, 4), wanted)
    assert asked == [4, 2, 1, 1, 2, 1, 1]
    asked.clear()
    assert len(images(SETUP, model, ["a cat", "a dog"], steps=1, cfg=1.0, size=SIZE, batch_size=2)) == 2
    assert asked == [2, 1, 1]


def test_texts_are_encoded_once_each(whole: Whole) -> None:
    assert len(whole.made.texts) == 3, "two prompts and one negative prompt of four images"
    encoded = SETUP.encode_text(whole.model, ["a red cat"])["hidden_BLE"][0]
    assert torch.equal(whole.made.condition()["hidden_BLE"][0], encoded)


def test_progress_and_cancelling(whole: Whole) -> None:
    model = adapted_model()
    model.set_mode("no_dropout")
    settings, seen = settings_for(model), []
    generate(SETUP, model, requests(4), settings, 2, lambda done, total: seen.append((done, total)))
    assert seen == [(n, 8) for n in range(1, 9)]
    assert model._mode == "no_dropout"
    with pytest.raises(SamplingCancelled):
        generate(SETUP, model, requests(4), settings, 2, lambda done, total: done < 3)
    assert model._mode == "no_dropout"
    made = whole.made
    seen.clear()
    decode(SETUP, model, made.final_NChw, 3, lambda done, total: seen.append((done, total)))
    assert seen == [(3, 4), (4, 4)]
    with pytest.raises(SamplingCancelled):
        decode(SETUP, model, made.final_NChw, 3, lambda done, total: False)


@pytest.mark.parametrize(
    ("cfg", "layout", "names"),
    [(1.0, "SPLIT", {"cond"}), (3.0, "SPLIT", {"cond", "uncond"}), (3.0, "JOINT", {"joint"})],
)
def test_accelerators_are_told_of_batches_and_branches(
    cfg: float, layout: str, names: set[str], whole: Whole
) -> None:
    log: list[object] = []

    @contextmanager
    def around():
        log.append("begin")
        yield
        log.append("end")

    @contextmanager
    def branch(name: str, timestep: float):
        log.append((name, timestep))
        yield

    settings = settings_for(whole.model, cfg=cfg, layout=layout)
    generate(SETUP, whole.model, requests(2), settings, 1, hooks=RolloutHooks(around, branch))
    assert log.count("begin") == log.count("end") == 2
    assert {entry[0] for entry in log if isinstance(entry, tuple)} == names
    assert {entry[1] for entry in log if isinstance(entry, tuple)} == {751.0, 501.0, 251.0, 1.0}


def test_predictions_with_gradients_are_not_kept_between_steps() -> None:
    """An accelerator may force gradients on; the graph of one step must not hold that of the step before."""
    model = adapted_model()
    inner = model.denoiser.forward

    def forced(*args: object, **kwargs: object) -> object:
        with torch.enable_grad():
            return inner(*args, **kwargs)

    model.denoiser.forward = forced  # type: ignore[method-assign]
    made = rolled(model, settings_for(model), count=2)
    assert not made.final_NChw.requires_grad and not made.states_NPChw.requires_grad


def test_other_settings_are_refused(whole: Whole) -> None:
    model, settings, made = whole
    others = {
        "temperature": settings_for(model, {"temperature": 1.1}),
        "noise_level": settings_for(model, {"noise_level": 0.9}),
        "trained": settings_for(model, {"window": (0, 1)}),
        "path": settings_for(model, {"steps": 5}),
        "cfg": settings_for(model, cfg=2.0),
        "layout": settings_for(model, layout="JOINT"),
        "reduction": settings_for(model, reduction="SUM"),
        "form": settings_for(model, form="SQUARED_ERROR"),
        "storage": settings_for(model, storage="BFLOAT_16"),
    }
    for name, other in others.items():
        with pytest.raises(RuntimeError, match=rf"(?m)^    {name}: "):
            step_log_prob(SETUP, model, made, 1, other)
    with pytest.raises(ValueError, match="not among the trained"):
        step_log_prob(SETUP, model, made, 3, settings)


def test_images_that_break_are_named(whole: Whole) -> None:
    model, settings, made = adapted_model(), whole.settings, whole.made
    broken = replace(made, states_NPChw=made.states_NPChw.clone())
    broken.states_NPChw[2] = float("nan")
    with pytest.raises(DataError, match="0/2"):
        step_log_prob(SETUP, model, broken, 1, settings)
    with torch.no_grad():
        model.adapter.named_parameters()[0][1].fill_(float("nan"))
    with pytest.raises(DataError, match="NaN"):
        rolled(model, settings)


def test_what_is_refused() -> None:
    model = tiny_model(prediction="v_prediction")
    settings = settings_for(model)
    with pytest.raises(ValueError, match="0 images"):
        generate(SETUP, model, [], settings, 2)
    with pytest.raises(ConfigError):
        generate(SETUP, model, requests(1), replace(settings, size=(33, 32)), 1)
    with pytest.raises(ConfigError, match="rollout_cfg_layout"):
        replace(settings, layout="both")
    model.trains_text = True
    with pytest.raises(UnsupportedError, match="text encoder"):
        generate(SETUP, model, requests(1), settings, 1)


def test_seeds_of_members_differ() -> None:
    seeds = {image_seed(s, e, g, m) for s in range(2) for e in range(3) for g in range(4) for m in range(5)}
    assert len(seeds) == 120 and max(seeds) < 2**63
