"""Choices in the lines of prompts.txt."""

from __future__ import annotations

import pytest

from modules.project.prompts import MOST_OF_A_LINE, written_out
from modules.util.errors import DataError

EIGHT = "{" + "|".join("12345678") + "}"


@pytest.mark.parametrize(
    ("line", "prompts"),
    [
        ("a {red|blue} {fox|owl}", ["a red fox", "a red owl", "a blue fox", "a blue owl"]),
        ("a {red|{light|dark} blue} hen", ["a red hen", "a light blue hen", "a dark blue hen"]),
        ("a {|very} old {good} {well}", ["a old {good} {well}", "a very old {good} {well}"]),
        ("a {{red|blue} fox} or {owl", ["a {red fox} or {owl", "a {blue fox} or {owl"]),
        ("a|b} {", ["a|b} {"]),
        ("{a|a} fox", ["a fox"]),
        (
            f"{{{EIGHT} fox|{EIGHT} owl|{EIGHT} hen}}",
            [f"{n} {animal}" for animal in ("fox", "owl", "hen") for n in range(1, 9)],
        ),
    ],
)  # fmt: skip
def test_choices_are_written_out_in_order(line: str, prompts: list[str]) -> None:
    assert written_out(line) == prompts


def test_too_many_prompts_are_counted_and_refused() -> None:
    assert len(written_out(f"{{a|b|c|d}}{EIGHT}{EIGHT}")) == MOST_OF_A_LINE
    with pytest.raises(DataError, match="make 512 prompts; up to 256 are possible"):
        written_out(f"{EIGHT}{EIGHT}{EIGHT}")
    with pytest.raises(DataError, match="nested more than 32 deep"):
        written_out("{a|" * 2000 + "}" * 2000)
