"""Prompts that are longer than text encoders read."""

from __future__ import annotations

import pytest

from modules.model.text import cut_prompts
from tests.tiny import tiny_model, tiny_setup
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
    assert cut_prompts([tokenizer, wide], [LONG]) == []
    assert cut_prompts([tokenizer, wide], [LONG], limit=CONTEXT) == [LONG]
    assert cut_prompts([tokenizer], [LONG]) == [LONG]
    assert cut_prompts([], [LONG]) == [] and cut_prompts([tokenizer], []) == []
