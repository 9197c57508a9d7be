"""Files with one prompt a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.util import prompts_file
from modules.util.errors import DataError
from modules.util.prompts_file import MAX_PROMPT_LETTERS, read_prompts_file


def test_lines_count_unless_empty_or_comments(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeff# mine\n\n a cat \r\na dog\na cat\n  # no\n".encode())
    assert read_prompts_file(path) == ["a cat", "a dog", "a cat"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"# only\n\n", "holds no prompt"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a\x00b", "is not a text file"),
        (b"x" * (MAX_PROMPT_LETTERS + 1), "line 1: the prompt has"),
    ],
)
def test_what_is_no_list_of_prompts_says_so_at_the_field(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        read_prompts_file(path)
    assert caught.value.field == "rlhf_prompts_file"


def test_missing_and_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_prompts_file(tmp_path / "none.txt")
    path = tmp_path / "prompts.txt"
    path.write_text("a\nb\nc\n", encoding="utf-8")
    monkeypatch.setattr(prompts_file, "MAX_PROMPTS", 2)
    with pytest.raises(DataError, match="3 prompts; the maximum is 2"):
        read_prompts_file(path)
    monkeypatch.setattr(prompts_file, "MAX_FILE_BYTES", 3)
    with pytest.raises(DataError, match="larger than"):
        read_prompts_file(path)
