"""What every model family must do, run on tiny random-weight models of each.

Two things are not multiplied out, so that a new family gets all of it and the tests still end:

* Each family runs every schedule of a preference step, both references and both kinds of text, but each schedule with
  one of the references. How a schedule meets a reference has nothing of a family in it: the product is tried with the
  first family of each prediction here, and with a toy model in ``tests/objective/test_execution.py``. In the usual run
  one family of each kind of denoiser (``STEPPING``) runs steps that train its text encoders too, which have all
  gradients that the others have; the rest are differentiated with and without checkpointing (``CHECKPOINTED``); and a
  few families are trained until they have learned a preference (``LEARNERS``).
* A family whose setup class adds nothing to that of another one with the same prediction, and whose denoiser has the
  same kinds of modules (``inherits_all``), runs that one's code with other constants. Its tiny model passes everything
  here, but gradients of all schedules and whole runs (``test_family_training.py``) are left to the other one in the
  usual run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.layers import adaptable_layers, filter_patterns, select_layers
from modules.adapter.PeftAdapter import AdapterHandle, attach
from modules.adapter.reference import Reference
from modules.model import activations
from modules.model.batch import Conditioning, ImageBatch, NoiseDraw, Sources
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from modules.modelSetup.registry import MODEL_SETUPS
from modules.objective import execution
from modules.objective.preference import ObjectiveOptions, PairScores, get_preference_loss
from modules.util.errors import ConfigError, DataError
from tests.model.noising.formulas import clean_from
from tests.tiny import SIZE, factories, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch, images, pair_batch, seen_images, train_pairs
from tests.usual import usual

MODES = [
    ("FULL_CONCURRENT", "AUTO"),
    ("POLICY_CONCURRENT", "AUTO"),
    ("SEQUENTIAL", "THREE_FORWARD"),
    ("SEQUENTIAL", "GRAD_STASH"),
]
OBJECTIVE = get_preference_loss("SIGMOID")
OPTIONS = ObjectiveOptions(beta=20.0, label_smoothing=0.1)


def families() -> Iterator[tuple[str, str]]:
    """(model type, prediction): each kind of tiny model once, and every parameterisation."""
    seen: set[tuple[object, ...]] = set()
    for key in factories():
        spec = tiny_setup(key).spec
        what = (factories()[key], spec.prediction)
        if what not in seen:
            seen.add(what)
            yield key, spec.prediction


VARIANTS = (
    "STABLE_DIFFUSION_20_BASE",
    "STABLE_DIFFUSION_20_INPAINTING",
    "STABLE_DIFFUSION_XL_10_BASE_INPAINTING",
    "FLUX_KONTEXT_DEV_1",
    "QWEN_EDIT_PLUS",
    "LONGCAT_IMAGE_EDIT",
)
"""Families made of the parts of others; the usual run takes those others."""


def kinds_of_modules(key: str) -> tuple[set[type], set[str]]:
    """The types of a tiny denoiser's modules, and the names of its parameters without the numbers of layers."""
    denoiser = tiny_model(key).denoiser
    names = (name.split(".") for name, _ in denoiser.named_parameters())
    return (
        {type(module) for module in denoiser.modules()},
        {".".join(part for part in parts if not part.isdigit()) for parts in names},
    )


def inherits_all(key: str) -> bool:
    """Whether a family runs another one's code: its setup class only holds a spec, with the same prediction, and its
    denoiser has no other kinds of modules.
    """
    kind = type(tiny_setup(key))
    parent, *others = kind.__bases__
    own = {name for name in vars(kind) if not name.startswith("__")} - {"spec", "_abc_impl"}
    if own or others or "spec" not in vars(parent):
        return False
    if parent.spec.prediction != kind.spec.prediction:
        return False
    return kinds_of_modules(key) == kinds_of_modules(parent.spec.key)


SIBLINGS = tuple(key for key, _ in families() if inherits_all(key))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(family, marks=[pytest.mark.slow] if family[0] in VARIANTS else [])
        for family in families()
    ],
    ids="-".join,
)
def named(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A model type and a prediction; the tests of one family follow each other."""
    key, prediction = request.param
    return key, prediction


def usual_families(*keys: str) -> pytest.MarkDecorator:
    """All families for a test; those that are not named are slow."""
    values = [pytest.param(one, marks=[] if one[0] in keys else [pytest.mark.slow]) for one in families()]
    return pytest.mark.parametrize("named", values, ids="-".join, indirect=True)


@pytest.fixture
def family(named: tuple[str, str]) -> tuple[BaseModelSetup, Model]:
    """A model to do anything with."""
    key, prediction = named
    return tiny_setup(key), tiny_model(key, prediction)


@pytest.fixture(scope="module")
def untouched(named: tuple[str, str]) -> Iterator[tuple[BaseModelSetup, Model]]:
    """One model of the family for all tests that only look at it."""
    key, prediction = named
    setup, model = tiny_setup(key), tiny_model(key, prediction)
    yield setup, model
    loaded = tiny_model(key, prediction)
    assert model.adapter is None and model.compute_dtype == loaded.compute_dtype
    for name, module in model.modules().items():
        assert not module.training and not any(p.requires_grad for p in module.parameters())
        found, before = module.state_dict(), loaded.module(name).state_dict()
        assert found.keys() == before.keys(), name
        assert all(torch.equal(tensor, before[path]) for path, tensor in found.items()), name


def adapted(
    model: Model, dtype: torch.dtype = torch.float32, text: bool = False, **options: Any
) -> AdapterHandle:
    """Attach adapters with all tensors away from zero."""
    parts = (model.spec.denoiser, *(model.spec.trained_encoders if text else ()))
    options = {"rank": 2, "alpha": 2.0} | options
    handle = attach(model, AdapterOptions(parts=parts, dtype=dtype, **options))
    stir(handle, 0)
    return handle


def stir(handle: AdapterHandle, seed: int, amount: float = 0.05) -> None:
    source = torch.Generator().manual_seed(seed)
    for _, parameter in handle.named_parameters():
        parameter.data += amount * torch.randn(parameter.shape, generator=source).to(parameter.dtype)


def test_who_runs_the_code_of_another_family() -> None:
    assert set(SIBLINGS) == {"FLUX_KONTEXT_DEV_1", "STABLE_DIFFUSION_20_BASE"}
    # normalised queries and a second attention; no embedding of guidance
    assert not inherits_all("STABLE_DIFFUSION_35") and not inherits_all("FLUX_SCHNELL_1")


def test_every_family_has_a_tiny_model() -> None:
    assert set(factories()) == set(MODEL_SETUPS.keys()), "each family has a tiny model in tests/tiny"


@pytest.mark.parametrize("key", factories())
def test_a_tiny_model_is_one_of_its_family(key: str) -> None:
    setup = tiny_setup(key)
    assert setup.spec.key == key
    assert tiny_model(key, setup.spec.prediction).schedule.prediction == setup.spec.prediction


def test_spec_names_parts_that_exist(untouched: tuple[BaseModelSetup, Model]) -> None:
    setup, model = untouched
    assert set(model.parts) == {part.name for part in setup.spec.parts}
    names = adaptable_layers(model.denoiser)
    for preset in setup.spec.layer_presets:
        chosen = select_layers(names, filter_patterns(preset, "", setup.spec.layer_presets))
        assert chosen, preset
    assert len(select_layers(names, filter_patterns("full", "", setup.spec.layer_presets))) == len(names)


def test_loaded_model_is_frozen(untouched: tuple[BaseModelSetup, Model]) -> None:
    _, model = untouched
    for module in model.modules().values():
        assert not module.training
        assert not any(p.requires_grad for p in module.parameters())


def test_saved_model_loads_again(family: tuple[BaseModelSetup, Model], tmp_path) -> None:
    setup, model = family
    training.save(model, tmp_path / "out", "DIFFUSERS")
    again = setup.load(str(tmp_path / "out"))
    for name, module in model.modules().items():
        assert model.fingerprint(name) == again.fingerprint(name)
        loaded = again.module(name).state_dict()
        for key, tensor in module.state_dict().items():
            assert torch.equal(tensor, loaded[key]), f"{name}.{key}"
    assert again.schedule.prediction == model.schedule.prediction
    for module in again.modules().values():
        # weights mapped from a file may lie at odd addresses, which changes the last digits of sums
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data = tensor.data.clone()
    first = images(setup, model, ["a cat"], seeds=[1], steps=1, size=SIZE)
    assert torch.equal(first, images(setup, again, ["a cat"], seeds=[1], steps=1, size=SIZE))


def test_only_asked_parts_are_loaded(named: tuple[str, str]) -> None:
    setup = tiny_setup(named[0])
    model = setup.load(str(tiny_folder(*named)), parts={setup.spec.vae})
    assert list(model.modules()) == [setup.spec.vae]
    with pytest.raises(RuntimeError, match="not loaded"):
        _ = model.denoiser


def test_predict_gives_prediction_and_target(untouched: tuple[BaseModelSetup, Model]) -> None:
    setup, model = untouched
    batch = image_batch(setup, model, ["a", "b", "c"])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    with torch.no_grad():
        out = setup.predict(model, batch.latents_BChw, batch.cond, draw, batch.size)
        score = setup.score(model, batch.latents_BChw, batch.cond, draw, batch.size)
    assert out.predicted.shape == out.target.shape == batch.latents_BChw.shape
    assert out.predicted.dtype == out.target.dtype == torch.float32
    assert torch.isfinite(out.predicted).all()
    expected = -((out.predicted - out.target) ** 2).flatten(1).mean(1)
    assert score.shape == (3,) and torch.allclose(score, expected)


def test_target_leads_back_to_the_clean_latents(untouched: tuple[BaseModelSetup, Model]) -> None:
    setup, model = untouched
    batch = image_batch(setup, model, ["a", "b", "c"], dtype=torch.float64)
    draw = setup.draw_noise(model, batch, NoiseOptions(max_strength=0.9), seed=1)
    schedule = model.schedule
    noisy = schedule.add_noise(batch.latents_BChw, draw.noise_BChw.double(), draw.timestep_B)
    target = schedule.target(batch.latents_BChw, draw.noise_BChw.double(), draw.timestep_B)
    clean = clean_from(schedule, noisy, target, draw.timestep_B)
    assert torch.allclose(clean, batch.latents_BChw, atol=1e-9)


def test_images_survive_encoding_shapes(untouched: tuple[BaseModelSetup, Model]) -> None:
    setup, model = untouched
    rgb = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    latents = setup.encode_image(model, rgb)
    factor = model.latent_factor
    assert latents.shape == (2, model.latent_channels, 32 // factor, 48 // factor)
    assert latents.dtype == torch.float32
    assert torch.equal(latents, setup.encode_image(model, rgb)), "encoding must not be random"
    assert torch.allclose(latents[1:], setup.encode_image(model, rgb[1:]), atol=1e-5)
    back = setup.decode_latents(model, latents)
    assert back.shape == rgb.shape and back.min() >= 0.0 and back.max() <= 1.0
    with pytest.raises(DataError, match="multiples of"):
        setup.encode_image(model, rgb[..., :-1])


def test_a_batch_equals_its_samples(untouched: tuple[BaseModelSetup, Model]) -> None:
    setup, model = untouched
    both = image_batch(setup, model, ["a", "b"])
    draw = setup.draw_noise(model, both, NoiseOptions(strata=4, offset_weight=0.1), seed=5)
    with torch.no_grad():
        together = setup.score(model, both.latents_BChw, both.cond, draw, both.size)
        for index, name in enumerate(both.ids):
            one = image_batch(setup, model, [name])
            own = setup.draw_noise(model, one, NoiseOptions(strata=4, offset_weight=0.1), seed=5)
            assert torch.equal(own.noise_BChw[0], draw.noise_BChw[index])
            assert own.timestep_B[0] == draw.timestep_B[index]
            alone = setup.score(model, one.latents_BChw, one.cond, own, one.size)
            assert torch.allclose(alone[0], together[index], rtol=1e-5, atol=1e-6)


def test_cached_conditioning_equals_live(untouched: tuple[BaseModelSetup, Model]) -> None:
    setup, model = untouched
    cached = image_batch(setup, model, ["a", "b", "c"])
    live = image_batch(setup, model, ["a", "b", "c"], encoded=False)
    encoded = setup.condition(model, live)
    for name, tensor in cached.cond.tensors.items():
        assert torch.equal(encoded[name], tensor)
    one = setup.encode_text(model, [cached.prompts[1]], seen=row_of(live.seen, 1))
    rebuilt = Conditioning.cat([cached.cond.select([0]), one, cached.cond.select(slice(2, 3))])
    for name, tensor in cached.cond.tensors.items():
        assert torch.allclose(rebuilt[name], tensor, atol=1e-5)


def row_of(seen: Sources, number: int) -> Sources:
    """The images of one sample."""
    return Sources(one[number : number + 1] for one in seen)


def test_dropped_captions_become_the_empty_prompt(untouched: tuple[BaseModelSetup, Model]) -> None:
    setup, model = untouched
    batch = image_batch(setup, model, list("abcdefghij"))
    draw = setup.draw_noise(model, batch, NoiseOptions(caption_dropout=0.5), seed=3)
    assert draw.drop_caption_B is not None and 0 < int(draw.drop_caption_B.sum()) < 10
    mixed, before = setup.condition(model, batch, draw).unbind(), batch.cond.unbind()
    seen = seen_images(setup, batch.ids)
    empties = [
        setup.encode_text(model, [""], seen=row_of(seen, number)).unbind()[0]
        # the same for all images unless the text encoder sees them
        for number in range(10 if seen else 1)
    ]
    for number, (dropped, row, old) in enumerate(
        zip(draw.drop_caption_B.tolist(), mixed, before, strict=True)
    ):
        empty = empties[number % len(empties)]
        for name, tensor in row.items():
            assert torch.equal(tensor, empty[name] if dropped else old[name])


BEGINNERS = (
    *("STABLE_DIFFUSION_15", "PIXART_ALPHA", "FLUX_DEV_1", "QWEN_EDIT"),
    *("STABLE_DIFFUSION_3", "SANA", "LUMINA_2", "HI_DREAM_FULL"),
)
"""Families of each kind of denoiser. That a base is the same without its adapter is seen of every family in
``test_fewer_bits.py``, with its weights in 8 or 4 bits.
"""


@usual_families(*BEGINNERS)
def test_an_adapter_begins_as_the_base_and_its_references_are_what_they_were(
    family: tuple[BaseModelSetup, Model],
) -> None:
    """Without an adapter, with a new one, and after two changes of it; attaching one takes longer than a score."""
    setup, model = family
    pair = pair_batch(setup, model, ["p1", "p2"])
    draws = setup.draw_pair_noise(model, pair, NoiseOptions(), seed=3)

    def score() -> torch.Tensor:
        with torch.no_grad():
            return setup.score(model, pair.chosen.latents_BChw, pair.chosen.cond, draws[0], pair.chosen.size)

    base = score()
    handle = attach(model, AdapterOptions(rank=2, alpha=2.0, parts=(setup.spec.denoiser,)))
    new = Reference(handle, "NEW_ADAPTER")
    new.self_check()
    check_first_step(setup, model, handle, new, pair, draws)
    stir(handle, 0)
    old = score()
    assert not torch.equal(old, base)
    with handle.disabled():
        assert torch.equal(score(), base)
    snapshot = Reference(handle, "EXISTING_ADAPTER")
    stir(handle, 1)
    now = score()
    assert not torch.equal(now, old)
    for reference, wanted in ((new, base), (snapshot, old)):
        with reference():
            assert torch.equal(score(), wanted)
        assert torch.equal(score(), now)
    check_gradients_reach_the_adapter_alone(setup, model, handle, pair, draws)


def check_first_step(
    setup: BaseModelSetup, model: Model, handle: AdapterHandle, reference: Reference, pair: Any, draws: Any
) -> None:
    """The loss of an untrained adapter is log 2."""
    out = train_pairs(
        setup,
        model,
        pair,
        draws,
        reference,
        OBJECTIVE,
        ObjectiveOptions(beta=5000.0),
        "FULL_CONCURRENT",
        parameters=[p for _, p in handle.named_parameters()],
        supervised_mix=0.5,
    )
    assert float(out.raw_loss) == pytest.approx(math.log(2), abs=1e-6)
    assert float(out.accuracy) == 0.0
    plain = setup.calculate_loss(model, pair.chosen, draws[0]).detach()
    assert torch.allclose(out.supervised_B, plain, rtol=1e-5)
    assert float(out.loss) == pytest.approx(math.log(2) + 0.5 * float(plain.mean()), rel=1e-5)
    for _, parameter in handle.named_parameters():
        parameter.grad = None


def check_gradients_reach_the_adapter_alone(
    setup: BaseModelSetup, model: Model, handle: AdapterHandle, pair: Any, draws: Any
) -> None:
    setup.calculate_loss(model, pair.chosen, draws[0]).mean().backward()
    own = {id(p): p for _, p in handle.named_parameters()}
    for module in model.modules().values():
        for name, parameter in module.named_parameters():
            assert parameter.grad is None or id(parameter) in own, name
    # a last block that makes no more of its text leaves some layers without influence
    assert sum(p.grad is None for p in own.values()) < 0.1 * len(own)


def gradient_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Zeros where no gradient arrived: some encoders are read before their last layer."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def autograd_gradients(
    setup: BaseModelSetup, model: Model, handle: AdapterHandle, reference: Reference, pair, draws
) -> dict[str, torch.Tensor]:
    """Gradients of the whole loss, differentiated in one piece."""

    def scores() -> list[torch.Tensor]:
        return [
            setup.score(model, side.latents_BChw, setup.condition(model, side), draw, side.size)
            for side, draw in zip((pair.chosen, pair.rejected), draws, strict=True)
        ]

    with torch.no_grad(), reference():
        anchors = scores()
    out = OBJECTIVE(PairScores(*scores(), *anchors), OPTIONS)
    out.loss_B.mean().backward()
    gradients = {name: gradient_of(p).clone() for name, p in handle.named_parameters()}
    for _, parameter in handle.named_parameters():
        parameter.grad = None
    return gradients


def check_preference_steps(
    setup: BaseModelSetup,
    prediction: str,
    reference_mode: str,
    text: bool,
    modes: list[tuple[str, str]] = MODES,
    **options: Any,
) -> None:
    """Every way of running a step gives the gradients of the whole loss, and changes no reference."""
    model = tiny_model(setup.spec.key, prediction, dtype=torch.float64)
    handle = adapted(model, torch.float64, text=text, **options)
    model.trains_text = text
    reference = Reference(handle, reference_mode)
    stir(handle, 2)
    before = {name: tensor.clone() for name, tensor in reference.snapshot_state().items()}
    pair = pair_batch(setup, model, ["p1", "p2"], encoded=not text, dtype=torch.float64)
    draws = setup.draw_pair_noise(model, pair, NoiseOptions(), seed=3)
    expected = autograd_gradients(setup, model, handle, reference, pair, draws)
    parameters = [p for _, p in handle.named_parameters()]
    # a last block that makes no more of its text leaves some layers without influence
    idle = {name for name, gradient in expected.items() if not gradient.any()}
    assert len(idle) < 0.1 * len(expected), idle
    size = sum(float(gradient.square().sum()) for gradient in expected.values())
    for mode, strategy in modes:
        out = train_pairs(
            setup,
            model,
            pair,
            draws,
            reference,
            OBJECTIVE,
            OPTIONS,
            mode,
            strategy=strategy,
            parameters=parameters,
        )
        assert torch.isfinite(out.loss)
        error = 0.0
        for name, parameter in handle.named_parameters():
            assert bool(gradient_of(parameter).any()) == (name not in idle), name
            error += float((gradient_of(parameter) - expected[name]).square().sum())
            parameter.grad = None
        # some transformers and encoders compute parts in float32 whatever their weights are
        assert (error / size) ** 0.5 < (1e-9 if setup.spec.key_map == "latent_diffusion" else 2e-6), mode
        for module in model.modules().values():
            assert all(p.grad is None for p in module.parameters())
    after = reference.snapshot_state()
    assert all(torch.equal(after[name], before[name]) for name in before)


REFERENCES = ("NEW_ADAPTER", "EXISTING_ADAPTER")
KINDS: dict[str, dict[str, Any]] = {
    "dora": {"decompose": True},
    "loha": {"kind": "LOHA"},
    "lokr": {"kind": "LOKR"},
    "oft": {"kind": "OFT_2", "rank": 4},
    "dora of inputs": {"decompose": True, "decompose_outputs": False},
}


def step_cases() -> Iterator[tuple[str, str, str, str]]:
    """(model type, prediction, reference, text): every family with each reference and each kind of text, in pairs that
    alternate from family to family; one family with all four.
    """
    for number, (key, prediction) in enumerate(families()):
        texts = ("cached-text", "trained-text")
        for i, reference_mode in enumerate(REFERENCES):
            yield key, prediction, reference_mode, texts[(i + number) % 2]
            if key == "STABLE_DIFFUSION_15":
                yield key, prediction, reference_mode, texts[1 - i]


def first_families() -> set[str]:
    """The first family of each prediction."""
    return set({prediction: key for key, prediction in reversed(list(families()))}.values())


def modes_of(key: str, reference_mode: str) -> list[tuple[str, str]]:
    """The first family of each prediction runs all schedules with each reference, the others half of them with each."""
    if key in first_families():
        return MODES
    number = [name for name, _ in families()].index(key)
    first = (number // 2 + REFERENCES.index(reference_mode)) % 2 == 0
    # each half has one graph of both sides and one of a side alone
    return [MODES[0], MODES[3]] if first else [MODES[1], MODES[2]]


def test_every_family_runs_every_schedule() -> None:
    for key, _ in families():
        run = [mode for reference_mode in REFERENCES for mode in modes_of(key, reference_mode)]
        assert set(run) == set(MODES), key


STEPPING = (
    "STABLE_DIFFUSION_15",
    "FLUX_DEV_1",
    "STABLE_DIFFUSION_XL_10_BASE",
    "STABLE_DIFFUSION_3",
    "QWEN",
    "SANA",
)
"""Families whose steps are run in the usual run besides the first of each prediction: two that complete the product,
and one for each kind of denoiser. ``CHECKPOINTED`` takes gradients of all others there.
"""


def usual_steps() -> Iterator[tuple[str, str, str, str]]:
    """All of the first family of each prediction and of two that complete the product; of the rest of ``STEPPING``
    those that train text, with one reference or the other.
    """
    firsts = first_families() | set(STEPPING[:2])
    for case in step_cases():
        key, _, _, text = case
        if key in firsts or (key in STEPPING and text == "trained-text"):
            yield case


CHECKPOINTED = [
    key
    for key, _ in families()
    if key == "STABLE_DIFFUSION_15" or key not in (*VARIANTS, *SIBLINGS, *STEPPING, *first_families())
]
"""Families whose steps are not run in the usual run, and a UNet."""


def test_the_usual_steps_have_each_schedule_with_each_reference_and_each_text() -> None:
    run = {
        (mode, reference_mode, text)
        for key, _, reference_mode, text in usual_steps()
        for mode in modes_of(key, reference_mode)
    }
    assert len(run) == len(MODES) * len(REFERENCES) * 2
    stepping = {case[0] for case in usual_steps()}
    assert stepping | set(CHECKPOINTED) == {key for key, _ in families()} - {*VARIANTS, *SIBLINGS}


@pytest.mark.parametrize(
    ("key", "prediction", "reference_mode", "text"),
    usual(step_cases(), *usual_steps()),
)
def test_preference_steps_agree_with_autograd(
    key: str, prediction: str, reference_mode: str, text: str
) -> None:
    modes = modes_of(key, reference_mode)
    check_preference_steps(tiny_setup(key), prediction, reference_mode, text == "trained-text", modes)


KIND_CASES = [
    (kind, key, REFERENCES[(i + j) % 2], j)
    for i, kind in enumerate(KINDS)
    for j, key in enumerate(("STABLE_DIFFUSION_15", "FLUX_DEV_1"))
]


# in the usual run each kind has one of the families in turn, and each half of the schedules both references
@pytest.mark.parametrize(
    ("kind", "key", "reference_mode", "half"),
    usual(KIND_CASES, *(case for i, case in enumerate(KIND_CASES) if i in (0, 3, 5, 6, 9))),
)
def test_preference_steps_agree_with_autograd_for_other_kinds(
    kind: str, key: str, reference_mode: str, half: int
) -> None:
    setup = tiny_setup(key)
    # each kind runs all schedules, half of them with either family
    modes = [MODES[1], MODES[2]] if half else [MODES[0], MODES[3]]
    check_preference_steps(setup, setup.spec.prediction, reference_mode, True, modes, **KINDS[kind])


@usual_families(*CHECKPOINTED)
def test_a_trained_text_encoder_is_reset_in_the_reference_and_checkpointing_changes_no_gradient(
    family: tuple[BaseModelSetup, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, model = family
    pair = pair_batch(setup, model, ["p1", "p2"], encoded=False)
    model.trains_text = True
    draws = setup.draw_pair_noise(model, pair, NoiseOptions(), seed=3)
    with torch.no_grad():
        base = ModelPairScorer(setup, model, pair, draws)("both").score_B
    handle = adapted(model, text=True)
    model.trains_text = True
    with torch.no_grad(), Reference(handle, "NEW_ADAPTER")():
        assert torch.equal(ModelPairScorer(setup, model, pair, draws)("both").score_B, base)
    check_checkpointing(setup, model, handle, pair.chosen, draws[0], monkeypatch)


def check_checkpointing(
    setup: BaseModelSetup,
    model: Model,
    handle: AdapterHandle,
    batch: ImageBatch,
    draw: NoiseDraw,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gradients are those without it, wherever activations are kept."""
    kept = []

    class Kept(activations.Kept):
        def back(self) -> torch.Tensor:
            kept.append(self)
            return super().back()

    monkeypatch.setattr(activations, "Kept", Kept)
    grads = []
    for enabled, offloaded in ((False, False), (True, False), (True, True)):
        assert not kept
        for part in (setup.spec.denoiser, *setup.spec.trained_encoders):
            model.set_gradient_checkpointing(part, enabled, offloaded)
        model.set_mode("no_dropout")
        setup.calculate_loss(model, batch, draw).mean().backward()
        grads.append({name: gradient_of(p).clone() for name, p in handle.named_parameters()})
        for _, parameter in handle.named_parameters():
            parameter.grad = None
    assert kept
    for name, gradient in grads[0].items():
        assert torch.allclose(gradient, grads[1][name], rtol=1e-4, atol=1e-7), name
        assert torch.equal(grads[1][name], grads[2][name]), name


def test_samples_have_the_size_and_ignore_company(untouched: tuple[BaseModelSetup, Model]) -> None:
    setup, model = untouched
    # square samples are made wherever a saved model is loaded again
    size = (32 + max(16, setup.spec.size_multiple), 32)
    steps: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        steps.append((done, total))

    both = images(
        setup,
        model,
        ["a cat", "a dog"],
        "red",
        seeds=[7, 8],
        steps=2,
        size=size,
        batch_size=1,
        progress=progress,
    )
    assert both.shape == (2, 3, *size) and both.dtype == torch.float32
    assert both.min() >= 0.0 and both.max() <= 1.0
    assert not torch.equal(both[0], both[1])
    assert steps == [(i, 4) for i in range(1, 5)]
    together = images(setup, model, ["a cat", "a dog"], "red", seeds=[7, 8], steps=2, size=size)
    assert torch.allclose(both, together, atol=1e-4)


def test_impossible_sizes_are_refused(untouched: tuple[BaseModelSetup, Model]) -> None:
    setup, model = untouched
    with pytest.raises(
        ConfigError, match=f"multiples of {max(setup.spec.size_multiple, model.latent_factor)}"
    ):
        images(setup, model, ["a cat"], seeds=[1], steps=1, size=(30, 32))


def test_missing_rejected_side_is_an_error(untouched: tuple[BaseModelSetup, Model]) -> None:
    setup, model = untouched
    pair = pair_batch(setup, model, ["p1"])
    draws = setup.draw_pair_noise(model, pair, NoiseOptions(), seed=3)
    broken = type(pair)(pair.pair_ids, pair.chosen, None)
    with pytest.raises(RuntimeError, match="without its rejected"):
        ModelPairScorer(setup, model, broken, draws)
    with pytest.raises(RuntimeError, match="without its rejected"):
        setup.draw_pair_noise(model, broken, NoiseOptions(), seed=3)


def test_half_precision_arithmetic_gives_float_scores(family: tuple[BaseModelSetup, Model]) -> None:
    setup, model = family
    batch: ImageBatch = image_batch(setup, model, ["a", "b"])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    with torch.no_grad():
        exact = setup.score(model, batch.latents_BChw, batch.cond, draw, batch.size)
        model.compute_dtype = torch.bfloat16
        rough = setup.score(model, batch.latents_BChw, batch.cond, draw, batch.size)
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact) and torch.allclose(rough, exact, rtol=0.05)


LEARNERS = ("STABLE_DIFFUSION_15", "STABLE_DIFFUSION_20", "SANA")
"""Families of each prediction. That steps have the right gradients is
seen of every family; what an optimizer makes of them has nothing of a family in it.
"""


@pytest.mark.parametrize(
    ("key", "prediction"),
    usual(families(), *(one for one in families() if one[0] in LEARNERS)),
)
def test_preference_training_learns_the_preference(key: str, prediction: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key, prediction)
    handle = attach(model, AdapterOptions(rank=4, parts=(setup.spec.denoiser,)))
    reference = Reference(handle, "NEW_ADAPTER")
    pair = pair_batch(setup, model, ["p1", "p2"])
    draws = setup.draw_pair_noise(model, pair, NoiseOptions(), seed=3)
    parameters = [p for _, p in handle.named_parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3)
    options = ObjectiveOptions(beta=200.0)
    losses = []
    for _ in range(14):
        optimizer.zero_grad()
        out = train_pairs(
            setup, model, pair, draws, reference, OBJECTIVE, options, "FULL_CONCURRENT", parameters=parameters
        )
        optimizer.step()
        losses.append(float(out.raw_loss))
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5)
    assert losses[-1] < 0.4
    with model.in_mode("eval"):
        scorer = ModelPairScorer(setup, model, pair, draws)
        judged = execution.evaluate(scorer, reference, OBJECTIVE, options)
    assert float(judged.accuracy) == 1.0 and (judged.chosen_reward_B > judged.rejected_reward_B).all()
