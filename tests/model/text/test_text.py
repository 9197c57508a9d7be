"""Prompts that are longer than text encoders read."""

from __future__ import annotations

import pytest

from modules.model.text.encoding import cut_prompts
from tests.tiny import tiny_model, tiny_setup
from tests.tiny.pieces import T5_LENGTH
from tests.tiny.stable_diffusion import CONTEXT

LONG = "a " * (CONTEXT - 1)
FITS = "a " * (CONTEXT - 2)


@pytest.mark.parametrize("key", ["STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE"])
def test_a_prompt_is_cut_when_start_and_end_marks_no_longer_fit(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    assert setup.cut_prompts(model, [FITS, LONG, "", "a cat"]) == [LONG]
    full, cut = (setup.encode_text(model, [prompt]) for prompt in (FITS + "cat", FITS + "dog"))
    assert full["hidden_BLE"].equal(cut["hidden_BLE"]), "what is past the end has no effect"


def test_the_tokenizer_with_the_most_room_decides() -> None:
    tokenizer = tiny_model().parts["tokenizer"]
    wide = tiny_model().parts["tokenizer"]
    wide.model_max_length = CONTEXT + 4
    assert cut_prompts([tokenizer, wide], [LONG], [100, 100]) == [False]
    assert cut_prompts([tokenizer, wide], [LONG], [CONTEXT, CONTEXT]) == [True]
    assert cut_prompts([tokenizer], [LONG, FITS], [100]) == [True, False]
    assert cut_prompts([], [LONG], []) == [False] and cut_prompts([tokenizer], [], [1]) == []


def test_brackets_that_are_emphasis_are_not_counted() -> None:
    setup, model = tiny_setup(), tiny_model()
    weighted = FITS.replace("a", "(a:1.2)")
    assert setup.cut_prompts(model, [weighted]) == [weighted], "off, brackets are text"
    model.prompt_weighting = True
    assert setup.cut_prompts(model, [weighted, weighted + " cat"]) == [weighted + " cat"]


def test_an_encoder_that_a_model_comes_without_has_no_room() -> None:
    setup, model = tiny_setup("STABLE_DIFFUSION_3"), tiny_model("STABLE_DIFFUSION_3")
    model.parts["tokenizer_3"].model_max_length = 512
    assert setup.cut_prompts(model, [LONG]) == []
    del model.parts["text_encoder_3"]
    assert setup.cut_prompts(model, [LONG]) == [LONG]


def test_small_letters_are_counted_where_small_letters_are_read() -> None:
    setup, model = tiny_setup("PIXART_ALPHA"), tiny_model("PIXART_ALPHA")
    small = "red " * (T5_LENGTH - 1)
    assert setup.cut_prompts(model, [small, small.upper()]) == []
    assert setup.cut_prompts(model, [small + "CAT"]) == [small + "CAT"]
