from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from modules.pipeline.cache.PromptIndex import PromptIndex

READER, OTHER = "ab" * 16, "cd" * 16


class Tokenizer:
    """Counts what it is asked: a chunk for every four letters, and more than twelve are not read."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def chunks(self, prompt: str) -> int:
        self.asked.append(prompt)
        return -(-len(prompt) // 4)

    def cut(self, prompts: Sequence[str]) -> list[str]:
        self.asked.extend(prompts)
        return [prompt for prompt in prompts if len(prompt) > 12]


def ask(index: PromptIndex, tokenizer: Tokenizer, prompts: Sequence[str]) -> tuple[list[int], list[str]]:
    return [index.chunks(one, tokenizer.chunks) for one in prompts], index.cut(prompts, tokenizer.cut)


PROMPTS = ["a fox", "", "a fox in the snow", "日本", "\udc80 of a name"]
WANTED = ([2, 0, 5, 1, 3], ["a fox in the snow"])


def test_a_tokenizer_is_asked_once(tmp_path: Path) -> None:
    file, tokenizer = tmp_path / "cache" / "prompts.sqlite", Tokenizer()
    index = PromptIndex(file, READER)
    assert ask(index, tokenizer, PROMPTS) == ask(index, tokenizer, PROMPTS) == WANTED
    assert sorted(tokenizer.asked) == sorted(PROMPTS * 2), "once for its chunks, once for its end"
    index.flush()
    tokenizer.asked.clear()
    again = PromptIndex(file, READER)
    assert ask(again, tokenizer, PROMPTS) == WANTED and not tokenizer.asked
    assert ask(again, tokenizer, [*PROMPTS, "new"])[0][-1] == 1
    assert tokenizer.asked == ["new", "new"]


def test_what_reads_prompts_in_another_way_is_asked_itself(tmp_path: Path) -> None:
    file, tokenizer = tmp_path / "prompts.sqlite", Tokenizer()
    index = PromptIndex(file, READER)
    ask(index, tokenizer, PROMPTS)
    index.flush()
    tokenizer.asked.clear()
    other = PromptIndex(file, OTHER)
    ask(other, tokenizer, PROMPTS)
    assert len(tokenizer.asked) == 2 * len(PROMPTS)
    other.flush()
    tokenizer.asked.clear()
    for reader in (READER, OTHER):
        assert ask(PromptIndex(file, reader), tokenizer, PROMPTS) == WANTED and not tokenizer.asked


def test_one_of_the_facts_may_be_known_alone(tmp_path: Path) -> None:
    file, tokenizer = tmp_path / "prompts.sqlite", Tokenizer()
    index = PromptIndex(file, READER)
    assert index.cut(PROMPTS, tokenizer.cut) == WANTED[1]
    index.flush()
    assert ask(PromptIndex(file, READER), tokenizer, PROMPTS) == WANTED
    assert len(tokenizer.asked) == 2 * len(PROMPTS)


@pytest.mark.parametrize("damage", ["chunks = 3", "chunks = 'x'", "cut = NULL", "sum = sum + 1", "file"])
def test_damage_costs_a_warning_and_time(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file, tokenizer = tmp_path / "prompts.sqlite", Tokenizer()
    index = PromptIndex(file, READER)
    ask(index, tokenizer, PROMPTS)
    index.flush()
    if damage == "file":
        file.write_bytes(b"SQLite format 3\0" + b"junk" * 400)
    else:
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(f"UPDATE prompts SET {damage}")
    again = PromptIndex(file, READER)
    assert "damaged" in caplog.text
    assert ask(again, tokenizer, PROMPTS) == WANTED
    again.flush()
    tokenizer.asked.clear()
    assert ask(PromptIndex(file, READER), tokenizer, PROMPTS) == WANTED and not tokenizer.asked


def test_without_a_file_everything_is_remembered() -> None:
    index, tokenizer = PromptIndex(None, READER), Tokenizer()
    assert ask(index, tokenizer, PROMPTS) == ask(index, tokenizer, PROMPTS) == WANTED
    index.flush()
    assert len(tokenizer.asked) == 2 * len(PROMPTS)
