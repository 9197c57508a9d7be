"""The table of a tagger's classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.captioner.Tagger import read_tags
from modules.util.errors import DataError

COLUMNS = "tag_id,name,category,count\n"


def test_a_table_in_another_encoding_is_refused_instead_of_writing_broken_tags(tmp_path: Path) -> None:
    path = tmp_path / "selected_tags.csv"
    path.write_bytes(f"{COLUMNS}0,café,0,1\n".encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8 text \\(byte 32\\)"):
        read_tags(path)


def test_a_table_saved_by_a_spreadsheet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "selected_tags.csv"
    path.write_text("name,category\ncafé,0\n", encoding="utf-8-sig")
    assert read_tags(path) == [("café", 0)]
