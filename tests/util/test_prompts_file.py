"""Files with one prompt a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from modules.project.prompts import read_tasks
from modules.util import prompts_file
from modules.util.errors import DataError
from modules.util.prompts_file import MAX_PROMPT_LETTERS, read_prompt_rows, read_prompts_file


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


def write_rows(folder: Path, *lines: str) -> Path:
    (folder / "in").mkdir(parents=True, exist_ok=True)
    path = folder / "in" / "prompts.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_lines_of_json_name_what_is_edited(tmp_path: Path) -> None:
    rows = ['{"prompt": " make it\u2028night ", "source": "a/cat.png"}', "", '{"prompt": "a dog"}']
    path = write_rows(tmp_path, *rows)
    (path.parent / "a").mkdir()
    (path.parent / "a" / "cat.2.jpg").touch()
    first, second = read_prompt_rows(path)
    # the first need not be there
    assert (first.text, [one.name for one in first.sources]) == (
        "make it\u2028night",
        ["cat.png", "cat.2.jpg"],
    )
    assert first.sources[0] == path.parent.resolve() / "a" / "cat.png"
    assert (second.text, second.sources) == ("a dog", ())


def test_those_who_can_use_texts_alone_are_told_of_sources(tmp_path: Path) -> None:
    path = write_rows(tmp_path, '{"prompt": "make it\u2028night"}', '{"prompt": "a dog"}')
    assert read_prompts_file(path) == ["make it\u2028night", "a dog"]
    path = write_rows(tmp_path, '{"prompt": "make it night", "source": "cat.png"}', '{"prompt": "a dog"}')
    with pytest.raises(DataError, match="1 prompt has a source image, but only texts can be used here"):
        read_prompts_file(path)
    Image.new("RGB", (8, 8)).save(path.parent / "cat.png")
    with pytest.raises(DataError, match="1 prompt has no source image, but others have one"):
        read_tasks(path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a cat", "line 1 is not valid JSON"),
        ('["a cat"]', 'line 1 is not an object with "prompt"'),
        ('{"prompt": "x", "image": "a.png"}', 'line 1 is not an object with "prompt"'),
        ('{"prompt": " ", "source": "a.png"}', "prompt is empty"),
        ('{"prompt": "x", "source": ["a.png"]}', "source is not the name of a file"),
        ('{"prompt": "x", "source": ""}', "is empty"),
        ('{"prompt": "x", "source": "../secret.png"}', "has a part '..'"),
        ('{"prompt": "x", "source": "/etc/hostname"}', "is not relative"),
        ('{"prompt": "x", "source": "C:/a.png"}', "colon"),
        ('{"prompt": "x", "source": "a\\u0000.png"}', "NUL"),
        ('{"prompt": "x", "source": "out/a.png"}', "leads out of"),
        ('{"prompt": "x", "source": "link.png"}', "leads out of"),
        ('{"prompt": "x", "source": "own.png"}', "leads out of"),
    ],
)
def test_a_source_never_lies_outside_the_folder_of_its_list(tmp_path: Path, line: str, words: str) -> None:
    path = write_rows(tmp_path, line)
    (tmp_path / "secret.png").touch()
    (path.parent / "own.png").touch()
    (path.parent / "out").symlink_to(tmp_path)
    (path.parent / "link.png").symlink_to(tmp_path / "secret.png")
    (path.parent / "own.2.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match=words) as caught:
        read_prompt_rows(path)
    assert caught.value.field == "rlhf_prompts_file"
    assert "line 1" in str(caught.value)
