"""How much of a prompt each family reads: what is longer is reported, and its end has no effect."""

from __future__ import annotations

import pytest
import torch

from modules.model.Model import Model
from modules.modelSetup.registry import MODEL_SETUPS
from tests.tiny import tiny_model, tiny_setup

FAMILIES = MODEL_SETUPS.keys()
PUBLISHED = {
    "PIXART_ALPHA": 120,
    "PIXART_SIGMA": 300,
    "SANA": 300,
    "CHROMA_1": 512,
    "QWEN": 507,
    "FLUX_2": 500,
    "Z_IMAGE": 504,
    "FLUX_DEV_1": 512,
    "FLUX_SCHNELL_1": 256,
    "STABLE_DIFFUSION_3": 256,
    "STABLE_DIFFUSION_35": 256,
}
"""Tokens of a prompt, marks included and template not; 77 for those that read with CLIP alone."""
IN_TEMPLATES = ("QWEN", "FLUX_2", "Z_IMAGE")


def model_without_short_tokenizers(key: str) -> tuple[Model, int]:
    """A model whose tokenizers say no more than the published ones, and the tokens of a prompt it has room for."""
    setup, model = tiny_setup(key), tiny_model(key)
    names = [part.name for part in setup.spec.of_kind("tokenizer") if "clip" not in part.module]
    for name in names:
        model.parts[name].model_max_length = 10**9
    own = [model.parts[part.name].model_max_length for part in setup.spec.of_kind("tokenizer")]
    return model, min(setup.spec.prompt_tokens, max(own))


def of_length(tokenizer: object, length: int) -> tuple[str, str]:
    """A text of exactly so many tokens, and what it is made of."""
    for piece in ("a ", "a"):
        for count in range(1, length + 1):
            tokens = len(tokenizer((piece * count).strip()).input_ids)  # type: ignore[operator]
            if tokens >= length:
                break
        if tokens == length:
            return (piece * count).strip(), piece
    raise AssertionError("no text of that length")


@pytest.mark.parametrize("key", FAMILIES)
def test_every_family_states_what_it_reads(key: str) -> None:
    assert tiny_setup(key).spec.prompt_tokens == PUBLISHED.get(key, 77)


@pytest.mark.parametrize("key", FAMILIES)
def test_what_is_longer_is_reported_and_has_no_effect(key: str) -> None:
    setup = tiny_setup(key)
    model, room = model_without_short_tokenizers(key)
    tokenizer = model.parts[setup.spec.of_kind("tokenizer")[-1].name]
    fits, piece = of_length(tokenizer, room)
    long = fits + " " + piece * 40
    assert setup.cut_prompts(model, [fits, long, "", "a cat"]) == [long]

    def encoded(prompt: str) -> dict[str, torch.Tensor]:
        return dict(setup.encode_text(model, [prompt]).tensors)

    def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(tensor, other[name]) for name, tensor in one.items())

    assert same(encoded(long + "cat"), encoded(long + "dog and bird"))
    # the template's end is cut before the prompt's
    assert key in IN_TEMPLATES or same(encoded(long), encoded(fits))
    assert not same(encoded(fits[:-1] + "b"), encoded(fits)), "the last word that fits is read"
