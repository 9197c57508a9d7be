"""How much of a prompt each family reads, in one chunk or as many as are allowed: what is longer is reported, and its
end has no effect.
"""

from __future__ import annotations

from bisect import bisect_left

import pytest
import torch

from modules.model.Model import Model
from modules.modelSetup.registry import MODEL_SETUPS
from tests.tiny import tiny_model, tiny_setup
from tests.usual import usual

FAMILIES = MODEL_SETUPS.keys()
CHUNKED = [key for key in FAMILIES if MODEL_SETUPS.get(key)().spec.chunks_prompts]
PUBLISHED = {
    "PIXART_ALPHA": 120,
    "PIXART_SIGMA": 300,
    "SANA": 300,
    "CHROMA_1": 512,
    "QWEN": 507,
    "QWEN_EDIT": 507,
    "QWEN_EDIT_PLUS": 507,
    "KREA_2": 507,
    "LUMINA_2": 226,
    "ERNIE": 512,
    "LONGCAT_IMAGE": 512,
    "LONGCAT_IMAGE_EDIT": 512,
    "QWEN_21": 512,
    "ANIMA": 512,
    "HI_DREAM_FULL": 128,
    "IDEOGRAM_4": 504,
    "FLUX_2": 500,
    "FLUX_2_DEV": 480,
    "Z_IMAGE": 504,
    "FLUX_DEV_1": 512,
    "FLUX_SCHNELL_1": 256,
    "FLUX_KONTEXT_DEV_1": 512,
    "STABLE_DIFFUSION_3": 256,
    "STABLE_DIFFUSION_35": 256,
}
"""Tokens of a prompt, marks included and template not. Those that read with CLIP alone have 77, see below."""
RELATIVES = tuple(
    key
    for key in FAMILIES
    if key.startswith(("STABLE_DIFFUSION_2", "STABLE_DIFFUSION_35"))
    or key.endswith(("_INPAINTING", "_EDIT_PLUS", "IMAGE_EDIT", "FLUX_2_DEV"))
)
"""Families that read prompts with the code of others; the usual run takes those others."""
IN_TEMPLATES = ("QWEN", "QWEN_EDIT", "QWEN_EDIT_PLUS", "KREA_2", "FLUX_2", "FLUX_2_DEV", "Z_IMAGE")


def model_without_short_tokenizers(key: str) -> tuple[Model, int]:
    """A model whose tokenizers say no more than the published ones, and the tokens of a prompt it has room for."""
    setup, model = tiny_setup(key), tiny_model(key)
    names = [part.name for part in setup.spec.of_kind("tokenizer") if "clip" not in part.module]
    for name in names:
        model.parts[name].model_max_length = 10**9
    own = [model.parts[part.name].model_max_length for part in setup.spec.of_kind("tokenizer")]
    return model, min(setup.spec.prompt_tokens, max(own))


def of_length(tokenizer: object, length: int) -> tuple[str, str]:
    """A text of exactly this many tokens, and what it is made of."""

    def tokens(text: str) -> int:
        return len(tokenizer(text).input_ids)  # type: ignore[operator]

    for piece in ("a ", "a"):
        texts = [(piece * count).strip() for count in range(1, length + 1)]
        text = texts[min(bisect_left(texts, length, key=tokens), length - 1)]
        if tokens(text) == length:
            return text, piece
    raise AssertionError("no text of that length")


@pytest.mark.parametrize("key", PUBLISHED)
def test_families_state_what_they_read(key: str) -> None:
    assert tiny_setup(key).spec.prompt_tokens == PUBLISHED[key]


@pytest.mark.parametrize("key", FAMILIES)
def test_families_of_clip_and_a_unet_have_chunks(key: str) -> None:
    spec = tiny_setup(key).spec
    alone = spec.denoiser == "unet" and all(
        part.comfy_name.startswith("clip") for part in spec.of_kind("text_encoder")
    )
    assert spec.chunks_prompts is alone and (not alone or spec.prompt_tokens == 77)


CASES = [*((key, 1) for key in FAMILIES), *((key, 3) for key in CHUNKED)]


@pytest.mark.parametrize(
    ("key", "chunks"), usual(CASES, *(case for case in CASES if case[0] not in RELATIVES))
)
def test_what_is_longer_is_reported_and_has_no_effect(key: str, chunks: int) -> None:
    setup = tiny_setup(key)
    model, room = model_without_short_tokenizers(key)
    model.prompt_chunks = chunks
    tokenizer = model.parts[setup.spec.of_kind("tokenizer")[-1].name]
    fits, piece = of_length(tokenizer, room)
    # each chunk has its own marks
    fits = " ".join([fits] * chunks)
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
    if chunks > 1:
        assert encoded(fits)["hidden_BLE"].shape[1] == chunks * room
        assert encoded(fits.rsplit(" ", room)[0])["hidden_BLE"].shape[1] < chunks * room


UNCHUNKED = [key for key in FAMILIES if key not in CHUNKED]
# of each kind of tokenizer
TOKENIZERS = (
    "STABLE_DIFFUSION_3",
    "FLUX_DEV_1",
    "PIXART_ALPHA",
    "QWEN",
    "LUMINA_2",
    "HI_DREAM_FULL",
    "ERNIE",
)


@pytest.mark.parametrize("key", usual(UNCHUNKED, *TOKENIZERS))
def test_chunks_mean_nothing_to_other_families(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    long = ["a red cat " * 200]
    before, cut = setup.encode_text(model, long), setup.cut_prompts(model, long)
    model.prompt_chunks = 8
    after = setup.encode_text(model, long)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.tensors.items())
    assert setup.cut_prompts(model, long) == cut and setup.chunk_count(model, long[0]) == 0
