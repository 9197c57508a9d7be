"""Options that name a file of results: a file of a person is never replaced, an earlier result is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from modules.util.errors import UserError
from modules.util.files import result_file
from scripts import benchmark, curate, curves, track
from tests.curation.test_favourites import write_image
from tests.faults.pair_folders import contents, make_pairs
from tests.scripts.test_benchmark import FAKE

VERBS = {
    "scan": ["in"],
    "finalize": ["out"],
    "check": ["out"],
    "review": ["out"],
    "likes": ["out"],
    "stats": ["out"],
    "import": ["pairs.jsonl", "other"],
    "export": ["out", "copy"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images, pairs of them, and a file with a pair to import."""
    monkeypatch.chdir(tmp_path)
    make_pairs(tmp_path, finalised=True)
    first, second = sorted((tmp_path / "in").iterdir())[:2]
    row = {"prompt": "a fox", "chosen": str(first), "rejected": str(second)}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path


@pytest.mark.parametrize("mine", ["out/manifest.json", "out/concepts.json", "in/mine.png", "notes.txt", "config.json"])
@pytest.mark.parametrize("verb", ["scan", "finalize", "stats", "import"])
def test_a_file_of_a_person_is_not_replaced_and_nothing_else_is_changed(
    verb: str, mine: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (folder / mine).exists():
        (folder / mine).write_text('{"pairs": [], "seed": 1}' if mine == "config.json" else "mine")
    before = contents(folder)
    assert curate.main([verb, *VERBS[verb], "--json", mine]) == 2
    assert "--json" in (said := capsys.readouterr().err) and "left as it is" in said
    assert contents(folder) == before


@pytest.mark.parametrize("verb", VERBS)
def test_an_earlier_result_is_replaced(verb: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "empty.json").touch()
    for name in ("new/result.json", "empty.json"):
        for turn in range(2):
            given = [f"copy-{name[:3]}-{turn}" if text == "copy" else text for text in VERBS[verb]]
            assert curate.main([verb, *given, "--json", name]) in (0, curate.FAULTS_FOUND), capsys.readouterr().err
            assert json.loads((folder / name).read_text())


def test_a_scan_with_the_line_ends_of_windows_is_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source in ("in", "nothing"):
        (folder / source).mkdir(exist_ok=True)
        assert curate.main(["scan", source, "--json", "result.json"]) == 0
        made = (folder / "result.json").read_bytes()
        (folder / "result.json").write_bytes(made.replace(b"\n", b"\r\n"))
        assert curate.main(["scan", source, "--json", "result.json"]) == 0
        assert (folder / "result.json").read_bytes() == made


def test_a_list_of_other_things_is_not_replaced_by_a_scan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("[\n1,\n2\n]", '[\n["path", "prompt", "group", "error"]\n]', "[", '[\n"x'):
        (folder / "mine.json").write_text(text)
        assert curate.main(["scan", "in", "--json", "mine.json"]) == 2
        assert "left as it is" in capsys.readouterr().err and (folder / "mine.json").read_text() == text


@pytest.mark.skipif(os.name == "nt", reason="no links without special rights")
def test_a_link_to_an_empty_file_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As /dev/stdout is, if a shell writes the output to a file."""
    (folder / "empty.json").touch()
    (folder / "link").symlink_to("empty.json")
    assert curate.main(["stats", "out", "--json", "link"]) == 2
    assert (folder / "link").is_symlink() and not (folder / "empty.json").read_bytes()


def test_a_drive_that_does_not_exist_is_one_clear_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os.path, "lexists", lambda _: False)
    monkeypatch.setattr(Path, "is_dir", lambda _: False)
    with pytest.raises(UserError, match="is not a folder"):
        result_file.check_result_folder(folder / "new", "--out")


def test_the_result_of_another_command_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert curate.main(["stats", "out", "--json", "result.json"]) == 0
    before = (folder / "result.json").read_bytes()
    assert curate.main(["review", "out", "--json", "result.json"]) == 2
    assert (folder / "result.json").read_bytes() == before


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_changed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "file").write_text("x")
    (folder / "device").symlink_to("/dev/null")
    before = contents(folder)
    for name in ("file/result.json", "in", "/dev/null", "device"):
        assert curate.main(["import", "pairs.jsonl", "other", "--json", name]) == 2
        assert contents(folder) == before


def test_likes_are_not_written_over_a_file_of_a_person(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.json").write_text('{"seed": 1}')
    before = contents(folder)
    assert curate.main(["import", "in", "other", "--likes", "mine.json"]) == 2
    assert "--likes" in capsys.readouterr().err and contents(folder) == before
    write_image(folder / "marked" / "a.png", "a fox", 1, starred=True)
    write_image(folder / "marked" / "b.png", "a fox", 2)
    for _ in range(2):
        assert curate.main(["import", "marked", "other", "--likes", "likes.json", "--json", "result.json"]) == 0


def test_a_picture_replaces_only_an_earlier_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, made = tmp_path / "mine.svg", tmp_path / "made.svg"
    mine.write_text('<svg xmlns="http://www.w3.org/2000/svg"></svg>')
    assert curves.main(["--picture", str(mine)]) == 2
    assert "left as it is" in capsys.readouterr().err and mine.read_text().endswith("></svg>")
    for _ in range(2):
        assert curves.main(["--picture", str(made)]) == 0
        assert made.read_text().startswith("<svg")


def test_figures_of_a_benchmark_replace_only_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    import scripts.benchmarks

    folder = tmp_path / "scripts" / "benchmarks"
    folder.mkdir(parents=True)
    (folder / "made_up.py").write_text(FAKE)
    monkeypatch.setattr(benchmark, "ROOT", tmp_path)
    monkeypatch.setattr(scripts.benchmarks, "__path__", [*scripts.benchmarks.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "scripts.benchmarks.made_up", raising=False)
    mine = tmp_path / "config.json"
    mine.write_text('{"seed": 1}')
    with pytest.raises(benchmark.UserError, match="left as it is"):
        benchmark.main(["made_up", "--json", str(mine)])
    assert mine.read_text() == '{"seed": 1}'
    for _ in range(2):
        assert benchmark.main(["made_up", "--json", str(tmp_path / "out.json")]) == 0


@pytest.mark.skipif(not hasattr(os, "symlink") or os.name == "nt", reason="no links without special rights")
def test_links_in_a_circle_are_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "circle").symlink_to("circle")
    assert track.main([str(tmp_path / "circle"), "--to", "webhook", "--url", "http://localhost:1/x"]) == 2
    assert "circle" in (said := capsys.readouterr().err) and "Traceback" not in said
