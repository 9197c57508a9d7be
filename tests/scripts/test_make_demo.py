"""The demo's command line: mistakes are told before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.make_demo import main


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["images", "--out", "file"], "file is not a folder"),
        (["images", "--out", "new", "--threads", "-1"], "--threads"),
        (["data", "--out", "new", "--count", "0"], "--count"),
        (["data", "--out", "new", "--count", "-3"], "--count"),
    ],
)
def test_mistakes_are_one_clear_error(
    given: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    try:
        status = main([*given, *(["--model", "gone"] if given[0] == "images" else [])])
    except SystemExit as ended:
        status = ended.code
    assert status == 2 and said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
