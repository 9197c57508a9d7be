"""Words with vectors of their own are found in prompts however they are written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modules.model.text.LearnedWords import LearnedWord, LearnedWords


@pytest.mark.parametrize(
    ("placeholder", "prompt"),
    [
        ("<my-cat>", "photo of <My-Cat> on a chair"),
        ("<k\u0131z>", "photo of <KIZ>"),
        ("<m\u0130ni>", "photo of <mini>"),
        ("<m\u0131n\u0131>", "photo of <MINI>"),
        ("<stra\u00dfe>", "photo of <Stra\u00dfe>"),
    ],
)
def test_a_word_is_replaced_by_its_tokens(placeholder: str, prompt: str) -> None:
    words = LearnedWords(
        [LearnedWord("<other>", {"e": nn.Parameter(torch.zeros(1, 4))}),
         LearnedWord(placeholder, {"e": nn.Parameter(torch.zeros(2, 4))})], {},
    )  # fmt: skip
    made = words.expanded(prompt)
    assert made.startswith("photo of ") and len([one for one in made if ord(one) >= 0xF0001]) == 2
    assert "<" not in made.removeprefix("photo of ")
    assert words.names_in(prompt) == {placeholder}
    assert words.expanded(f"{prompt} <other>").count(chr(0xF0000)) == 1
    assert words.expanded("nothing of it") == "nothing of it" and words.names_in("nothing") == set()
