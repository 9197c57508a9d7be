"""Prompts in several chunks, from their text states to preference steps: alone and with short ones."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.PeftAdapter import attach
from modules.adapter.reference import Reference
from modules.model.batch import OWN, Conditioning, ImageBatch, PairBatch
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.model.text.chunks import ClipReader, states_in_chunks
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.objective.preference import ObjectiveOptions, get_preference_loss
from tests.tiny import SIZE, tiny_model, tiny_setup
from tests.tiny.batches import image_batch, images, pair_batch, train_pairs
from tests.tiny.stable_diffusion import CONTEXT, vocabulary
from tests.usual import usual

FAMILIES = [
    "STABLE_DIFFUSION_15",
    "STABLE_DIFFUSION_20_INPAINTING",
    "STABLE_DIFFUSION_XL_10_BASE",
    "STABLE_DIFFUSION_XL_10_BASE_INPAINTING",
]
SHORT = "a red circle on the left"
LONG = "a large blue square on the left of a photo of a green triangle on the right of a small dog and cat"
LONGER = LONG + ", " + LONG + " red"
MODES = [
    ("FULL_CONCURRENT", "AUTO"),
    ("POLICY_CONCURRENT", "AUTO"),
    ("SEQUENTIAL", "THREE_FORWARD"),
    ("SEQUENTIAL", "GRAD_STASH"),
]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[BaseModelSetup, Model]:
    setup, model = tiny_setup(request.param), tiny_model(request.param)
    model.prompt_chunks = 8
    return setup, model


def told(setup: BaseModelSetup, model: Model, batch: ImageBatch, prompts: list[str]) -> ImageBatch:
    """The batch with other prompts."""
    cond = None if batch.cond is None else setup.encode_text(model, prompts)
    return replace(batch, prompts=prompts, cond=cond)


def test_one_chunk_is_bit_for_bit_what_it_was(family: tuple[BaseModelSetup, Model]) -> None:
    setup, model = family
    for weighting in (False, True):
        model.prompt_weighting = weighting
        prompts = [SHORT, "", "a (red:1.4) cat", "a " * (CONTEXT - 2)]
        model.prompt_chunks = 8
        chunked = setup.encode_text(model, prompts)
        fits = [prompt for prompt in prompts if setup.chunk_count(model, prompt) == 0]
        assert fits == prompts
        model.prompt_chunks = 1
        before = setup.encode_text(model, prompts)
        assert chunked.tensors.keys() == before.tensors.keys() and OWN not in before.tensors
        assert all(torch.equal(chunked[name], before[name]) for name in before.tensors)


def test_chunks_are_encoded_alone_and_joined(family: tuple[BaseModelSetup, Model]) -> None:
    setup, model = family
    words = ["a large red square"] * 3 + ["photo of a dog"] * 3 + ["red"]
    count = setup.chunk_count(model, " ".join(words))
    assert count == 2
    model.prompt_weighting = True
    prompt = " ".join(words[:3]) + " BREAK " + " ".join(words[3:])
    whole = setup.encode_text(model, [prompt])
    model.prompt_chunks = 1
    parts = [setup.encode_text(model, [" ".join(own)]) for own in (words[:3], words[3:])]
    joined = torch.cat([part["hidden_BLE"] for part in parts], dim=1)
    assert torch.allclose(whole["hidden_BLE"], joined, atol=1e-6)
    if "pooled_BE" in whole.tensors:
        assert torch.allclose(whole["pooled_BE"], parts[0]["pooled_BE"], atol=1e-6)


def test_the_last_of_two_hundred_words_counts_until_the_chunks_end(
    family: tuple[BaseModelSetup, Model],
) -> None:
    setup, model = family
    start = "a red " * (4 * (CONTEXT - 2) // 2) + "a "
    ends = [start + "cat", start + "dog"]
    model.prompt_chunks = 5
    cat, dog = (setup.encode_text(model, [one]) for one in ends)
    assert cat["hidden_BLE"].shape[1] == 5 * CONTEXT and OWN not in cat.tensors
    same = (cat["hidden_BLE"] == dog["hidden_BLE"]).all(-1)[0]
    assert same[: 4 * CONTEXT + 2].all() and not same[4 * CONTEXT + 2]
    assert setup.cut_prompts(model, ends) == []
    model.prompt_chunks = 4
    cat, dog = (setup.encode_text(model, [one]) for one in ends)
    assert torch.equal(cat["hidden_BLE"], dog["hidden_BLE"])
    assert setup.cut_prompts(model, [*ends, SHORT]) == ends


def test_a_batch_of_unlike_lengths_equals_its_samples(family: tuple[BaseModelSetup, Model]) -> None:
    setup, model = family
    prompts = [SHORT, LONG, LONGER]
    counts = [setup.chunk_count(model, prompt) for prompt in prompts]
    assert counts[0] == 0 and 1 < counts[1] < counts[2]
    batch = told(setup, model, image_batch(setup, model, ["a", "b", "c"]), prompts)
    assert batch.cond is not None and OWN in batch.cond.tensors
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=3)
    with torch.no_grad():
        both = setup.predict(model, batch.latents_BChw, batch.cond, draw, SIZE).predicted
        for i, prompt in enumerate(prompts):
            cond = setup.encode_text(model, [prompt])
            assert OWN not in cond.tensors
            alone = setup.predict(model, batch.latents_BChw[i : i + 1], cond, draw.select([i]), SIZE)
            assert torch.allclose(alone.predicted[0], both[i], atol=1e-5, rtol=1e-5)
    short = setup.encode_text(model, [SHORT])
    padded = torch.equal(both[0], setup.predict(
        model, batch.latents_BChw[:1], short.plus(hidden_BLE=batch.cond["hidden_BLE"][:1]), draw.select([0]), SIZE
    ).predicted[0])  # fmt: skip
    assert not padded, "without the mask padding would be read"


def test_the_mask_is_as_if_shorter_prompts_were_repeated(family: tuple[BaseModelSetup, Model]) -> None:
    """As ComfyUI brings prompts to one length: attention over something twice is attention over it once."""
    setup, model = family
    batch = image_batch(setup, model, ["a", "b"])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=3)
    cond = setup.encode_text(model, [SHORT, LONG])
    rows = [row["hidden_BLE"] for row in cond.unbind()]
    times = rows[1].shape[0] // rows[0].shape[0]
    assert times > 1 and rows[0].shape[0] == CONTEXT
    repeated = {**cond.tensors, "hidden_BLE": torch.stack([rows[0].repeat(times, 1), rows[1]])}
    del repeated[OWN]
    with torch.no_grad():
        masked, plain = (
            setup.predict(model, batch.latents_BChw, one, draw, SIZE).predicted
            for one in (cond, Conditioning(repeated))
        )
    assert torch.allclose(masked, plain, atol=1e-5)


def test_rows_are_kept_without_their_company(family: tuple[BaseModelSetup, Model]) -> None:
    setup, model = family
    prompts = [SHORT, LONGER, "", LONG]
    cond = setup.encode_text(model, prompts)
    rows = cond.unbind()
    for row, prompt in zip(rows, prompts, strict=True):
        alone = setup.encode_text(model, [prompt])
        assert row.keys() == alone.tensors.keys()
        for name, tensor in row.items():
            assert torch.allclose(tensor, alone[name][0], atol=1e-6)
    again = Conditioning.stack(rows)
    joined = Conditioning.cat([cond.select([0]), Conditioning.stack(rows[1:2]), cond.select([2, 3])])
    for name, tensor in cond.tensors.items():
        assert torch.equal(again[name], tensor) and torch.equal(joined[name], tensor)
    assert OWN not in Conditioning.stack([rows[0], rows[2]]).tensors
    short, mixed = cond.select([2, 0]), cond.select(slice(2, 4))
    assert OWN not in short.tensors and torch.equal(short["hidden_BLE"][1], rows[0]["hidden_BLE"])
    assert mixed[OWN].sum(1).tolist() == [CONTEXT, mixed["hidden_BLE"].shape[1]]


def test_a_dropped_caption_beside_a_long_one_is_the_empty_prompt(
    family: tuple[BaseModelSetup, Model],
) -> None:
    setup, model = family
    batch = told(setup, model, image_batch(setup, model, ["a", "b"]), [LONG, LONG])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=3)
    draw = replace(draw, drop_caption_B=torch.tensor([True, False]))
    cond = setup.condition(model, batch, draw)
    live = setup.encode_text(model, ["", LONG])
    assert all(torch.allclose(cond[name], live[name], atol=1e-6) for name in live.tensors)
    assert OWN in live.tensors


@pytest.mark.parametrize("family", usual(FAMILIES, "STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE"), indirect=True)
def test_images_of_long_prompts_beside_short_ones(family: tuple[BaseModelSetup, Model]) -> None:
    setup, model = family

    def sampled(prompts: list[str], negative: str, seeds: list[int]) -> torch.Tensor:
        return images(setup, model, prompts, negative, seeds=seeds, steps=2, cfg=4.0, size=SIZE)

    for negative in ("", LONGER):
        both = sampled([SHORT, LONG], negative, [1, 2])
        for i, prompt in enumerate([SHORT, LONG]):
            alone = sampled([prompt], negative, [i + 1])
            assert torch.allclose(both[i], alone[0], atol=1e-4)
    assert not torch.allclose(sampled([LONG], "", [2]), sampled([LONG], LONGER, [2]), atol=1e-4)


# each family, with cached and with trained text: what they share is the same code
@pytest.mark.parametrize(
    ("family", "text"),
    usual(
        itertools.product(FAMILIES, (False, True)),
        ("STABLE_DIFFUSION_15", True),
        ("STABLE_DIFFUSION_XL_10_BASE_INPAINTING", False),
    ),
    indirect=["family"],
    ids=lambda value: value if isinstance(value, str) else "trained-text" if value else "cached-text",
)
def test_preference_steps_agree_whatever_their_mode(family: tuple[BaseModelSetup, Model], text: bool) -> None:
    setup, _ = family
    model = tiny_model(setup.spec.key, dtype=torch.float64)
    model.prompt_chunks = 8
    parts = (setup.spec.denoiser, *(setup.spec.text_encoders if text else ()))
    handle = attach(model, AdapterOptions(rank=2, alpha=2.0, parts=parts, dtype=torch.float64))
    source = torch.Generator().manual_seed(0)
    for _, parameter in handle.named_parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=source).double()
    model.trains_text = text
    reference = Reference(handle, "NEW_ADAPTER")
    parameters = [p for _, p in handle.named_parameters()]

    def gradients(pair: PairBatch, draws: Any, mode: str, strategy: str) -> list[torch.Tensor]:
        objective, options = get_preference_loss("SIGMOID"), ObjectiveOptions(beta=20.0)
        train_pairs(
            setup,
            model,
            pair,
            draws,
            reference,
            objective,
            options,
            mode,
            strategy=strategy,
            parameters=parameters,
        )
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        return found

    pair = pair_batch(setup, model, ["p", "q"], encoded=not text, dtype=torch.float64)
    sides = [told(setup, model, side, [SHORT, LONG]).to("cpu", torch.float64) for side in (pair.chosen, pair.rejected)]  # type: ignore[list-item] # fmt: skip
    pair = PairBatch(pair.pair_ids, *sides)
    draws = setup.draw_pair_noise(model, pair, NoiseOptions(), seed=3)
    both = [gradients(pair, draws, *mode) for mode in MODES]
    alone = [
        gradients(pair.select([i]), tuple(draw.select([i]) for draw in draws), *MODES[0]) for i in (0, 1)
    ]
    wanted = [(one + other) / 2 for one, other in zip(*alone, strict=True)]
    size = sum(float(g.square().sum()) for g in wanted) ** 0.5
    assert size > 0
    for found in both:
        error = sum(float((a - b).square().sum()) for a, b in zip(found, wanted, strict=True)) ** 0.5
        assert error / size < 1e-6


@pytest.mark.parametrize("family", usual(FAMILIES, "STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE"), indirect=True)
def test_checkpointing_keeps_the_mask(family: tuple[BaseModelSetup, Model]) -> None:
    setup, model = family
    handle = attach(model, AdapterOptions(rank=2, alpha=2.0, parts=(setup.spec.denoiser,)))
    batch = told(setup, model, image_batch(setup, model, ["a", "b"]), [SHORT, LONG])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=3)
    found: list[list[torch.Tensor]] = []
    for enabled in (False, True):
        model.set_gradient_checkpointing(setup.spec.denoiser, enabled)
        model.set_mode("no_dropout")
        setup.calculate_loss(model, batch, draw).mean().backward()
        found.append([p.grad for _, p in handle.named_parameters() if p.grad is not None])
        for _, parameter in handle.named_parameters():
            parameter.grad = None
    assert len(found[0]) == len(found[1]) > 0 and any(gradient.any() for gradient in found[0])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*found, strict=True))


def test_half_precision_takes_the_mask() -> None:
    setup, model = tiny_setup(), tiny_model()
    model.prompt_chunks, model.compute_dtype = 3, torch.bfloat16
    batch = told(setup, model, image_batch(setup, model, ["a", "b"]), [SHORT, LONG])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=3)
    with torch.no_grad():
        both = setup.score(model, batch.latents_BChw, batch.cond, draw, SIZE)  # type: ignore[arg-type]
        one = batch.select([0])
        alone = setup.score(
            model, one.latents_BChw, setup.encode_text(model, [SHORT]), draw.select([0]), SIZE
        )
    assert torch.allclose(both[:1], alone, rtol=0.02)


def test_encoders_that_divide_a_prompt_differently_get_as_many_chunks() -> None:
    from transformers.models.clip.tokenization_clip import CLIPTokenizer

    model = tiny_model("STABLE_DIFFUSION_XL_10_BASE")
    letters = CLIPTokenizer(vocab=vocabulary()[0], merges=[], model_max_length=CONTEXT, pad_token="!")
    first = ClipReader(model.module("text_encoder"), model.parts["tokenizer"], -2)
    second = ClipReader(model.module("text_encoder_2"), letters, -2)
    prompts = ["circle triangle square", "a"]
    assert [len(one.chunks) for one in first.chunked(prompts, 3)] == [1, 1]
    assert [len(one.chunks) for one in second.chunked(prompts, 3)] == [2, 1]
    with torch.no_grad():
        cond, pooled_BE = states_in_chunks([first, second], prompts, 3)
        empty, _ = first.read([[]])
        own = second.read(second.chunked(prompts, 3)[0].chunks)
    width = empty.shape[-1]
    assert cond["hidden_BLE"].shape[1] == 2 * CONTEXT and cond[OWN].sum(1).tolist() == [2 * CONTEXT, CONTEXT]
    assert torch.allclose(cond["hidden_BLE"][0, CONTEXT:, :width], empty[0], atol=1e-6)
    assert torch.allclose(cond["hidden_BLE"][0, :, width:], own[0].flatten(0, 1), atol=1e-6)
    assert torch.allclose(pooled_BE[0], own[1][0], atol=1e-6)
