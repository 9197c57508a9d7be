"""Grids of images from the command line, with one loading of the model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from modules.runner.RunDirectory import RunDirectory
from modules.trainer.evaluate import sample_grid
from modules.trainer.evaluate.grid_axes import Cell, last_save, read_axis
from modules.trainer.evaluate.grid_sheet import MOST_PIXELS, MOST_SIDE, cell_side, wrapped
from modules.util.config.SampleConfig import SampleConfig
from modules.util.errors import ConfigError
from modules.util.image_metadata_util import read_metadata
from modules.util.jsonio import write_bytes
from scripts import sample
from tests.scripts.test_merge import lora
from tests.scripts.test_sample import pixels
from tests.tiny import tiny_folder, tiny_model
from tests.tools.pictures import damaged_avif

SMALL = ["--steps", "2", "--width", "64", "--height", "64", "--device", "cpu"]


def call(*words: object) -> int:
    return sample.main(["--model", str(tiny_folder()), *SMALL, *map(str, words)])


def single(out: Path, *words: object) -> np.ndarray:
    assert call("--out", out, *words) == 0
    return pixels(next(out.glob("0000-*.png")))


def cells(out: Path) -> dict[str, Path]:
    """The images of a grid by their labels."""
    return {path.stem.rpartition(" ")[0]: path for path in (out / "cells").iterdir()}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    load = sample.load
    monkeypatch.setattr(
        sample, "load", lambda options, *rest: (seen.append(options.model), load(options, *rest))[1]
    )
    return seen


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return lora(tmp_path / "a.safetensors", 1)


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return lora(tmp_path / "b.safetensors", 2, rank=3, alpha=3.0)


def test_cells_are_the_images_made_one_by_one(tmp_path: Path, a: Path, b: Path, loads: list[str]) -> None:
    out, prompt = tmp_path / "out", "a red circle"
    axes = ("--x", "strength=0,0.5,1", "--y", f"checkpoint=none;{a};{b}")
    assert call("--out", out, "--prompt", prompt, *axes) == 0
    assert len(loads) == 1
    made = cells(out)
    plain = single(tmp_path / "plain", "--prompt", prompt)
    # strength 0 and no adapter are one and the same image
    assert len(made) == 5
    (zero,) = [path for label, path in made.items() if "no adapter" in label]
    assert np.array_equal(pixels(zero), plain)
    for path in (a, b):
        for strength in (0.5, 1):
            alone = single(
                tmp_path / f"{path.stem}{strength}", "--prompt", prompt, "--adapter", f"{path}={strength}"
            )
            assert np.array_equal(pixels(made[f"strength {strength}, {path.stem}"]), alone)
            assert not np.array_equal(alone, plain)
    about = read_metadata(made["strength 0.5, a"])
    assert (about.prompt, about.seed) == (prompt, 42)
    (sheet,) = out.glob("grid-*.png")
    assert pixels(sheet).shape[1] > 3 * 64


def test_a_cell_that_cannot_be_decoded_is_made_again(tmp_path: Path) -> None:
    grid = sample_grid.SampleGrid(Cell(SampleConfig()), None, None, tmp_path, {}, [])
    (cell,) = grid.missing()
    cell.path.parent.mkdir()
    # Pillow has an error of its own kind for it
    damaged_avif(tmp_path / "a.avif").rename(cell.path)
    assert grid.missing() == [cell]


def test_what_is_there_is_not_made_again(
    tmp_path: Path,
    a: Path,
    loads: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--out", tmp_path / "out", "--adapter", a, "--prompt", "x", "--x", "seed=1-3")
    written: list[Path] = []

    def stops(path: Path, data: bytes) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        write_bytes(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(sample, "write_bytes", stops)
        assert call(*words) == 130
    times = {path: path.stat().st_mtime_ns for path in written}
    assert call(*words) == 0 and len(loads) == 2
    assert "1 of 3 images made; the others already existed" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert call(*words) == 0 and len(loads) == 2, "nothing is missing, so no model is loaded"
    written[0].write_bytes(written[0].read_bytes()[:100])
    assert call(*words, "--dry-run") == 0
    assert "1 of 3 images would be made" in capsys.readouterr().out
    lora(a, 5)
    assert call(*words, "--dry-run") == 0
    assert "3 of 3 images would be made" in capsys.readouterr().out


def test_a_part_that_is_left_out_makes_other_images_and_none_the_same_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, object]] = []
    monkeypatch.setattr(sample_grid, "SampleGrid", lambda *given: seen.append(dict(given[4])))
    key = "STABLE_DIFFUSION_3"
    words = [
        "--model",
        str(tiny_folder(key)),
        "--model-type",
        key,
        "--prompt",
        "x",
        "--x",
        "seed=1,2",
        *SMALL,
    ]
    words += ["--out", str(tmp_path)]
    for more in ([], ["--without", "text_encoder_3"]):
        sample.grid_of(sample.arguments([*words, *more]))
    without, left_out = seen
    assert "without" not in without and left_out == {**without, "without": ["text_encoder_3"]}


def test_several_adapters_add_up(tmp_path: Path, a: Path, b: Path) -> None:
    both = single(tmp_path / "both", "--prompt", "x", "--adapter", f"{a}=0.5; {b}=-1")
    one = single(tmp_path / "one", "--prompt", "x", "--adapter", f"{a}=0.5; {b}=0")
    assert np.array_equal(one, single(tmp_path / "a", "--prompt", "x", "--adapter", f"{a}=0.5"))
    assert not np.array_equal(both, one)
    twice = single(tmp_path / "twice", "--prompt", "x", "--adapter", f"{a}=0.5;{a}=0.5")
    whole = single(tmp_path / "whole", "--prompt", "x", "--adapter", a)
    assert np.abs(twice.astype(int) - whole.astype(int)).max() <= 1


def test_the_vectors_of_a_file_for_a_word(tmp_path: Path) -> None:
    width = tiny_model().module("text_encoder").get_input_embeddings().weight.shape[1]
    file = tmp_path / "cat.safetensors"
    save_file({"emb_params": 3 * torch.randn(2, width, generator=torch.Generator().manual_seed(1))}, file)
    words = ("--prompt", "a <mycat>")
    plain = single(tmp_path / "plain", *words)
    given = single(tmp_path / "given", *words, "--embedding", f"<mycat>={file}")
    assert not np.array_equal(given, plain)
    other = single(tmp_path / "other", "--prompt", "a cat", "--embedding", f"<mycat>={file}")
    assert np.array_equal(other, single(tmp_path / "none", "--prompt", "a cat"))


def test_all_saves_of_a_run_and_its_last(tmp_path: Path, a: Path, b: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.save_dir.mkdir(parents=True)
    for source, name in ((b, "out-10"), (a, "out-9")):
        shutil.copy(source, run.save_dir / f"{name}.safetensors")
    os.utime(run.save_dir / "out-9.safetensors", ns=(1, 1))
    out = tmp_path / "out"
    assert call("--out", out, "--prompt", "x", "--y", f"checkpoint={run.path}") == 0
    assert sorted(cells(out)) == ["out-10", "out-9"]
    last = single(tmp_path / "last", "--prompt", "x", "--adapter", run.path)
    assert np.array_equal(last, pixels(cells(out)["out-10"]))


def test_a_grid_of_prompts_and_samplers(tmp_path: Path) -> None:
    out, long = tmp_path / "out", "a very long prompt about \u732b and more " * 20
    assert call("--out", out, "--x", f"prompt=a cat|{long}", "--y", "sampler=ddim,EULER") == 0
    assert {read_metadata(path).prompt for path in cells(out).values()} == {"a cat", long.strip()}
    (sheet,) = out.glob("grid-*.png")
    width, height = Image.open(sheet).size
    assert width < 1000 and height < 600


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--x", "size=1,2"], "known: checkpoint"),
        (["--x", "seed=one"], "'one' is not a whole number"),
        (["--x", "seed=1-9999"], "more than 100 values"),
        (["--x", "steps=0"], "diffusion_steps"),
        (["--x", "cfg=nan"], "cfg_scale"),
        (["--x", "seed="], "0 values"),
        (["--x", "sampler=NONE"], "there is no sampler NONE"),
        (["--x", "strength=0,1"], "no adapter"),
        (["--x", "strength=nan"], "not between -10 and 10"),
        (["--x", "checkpoint=no/such"], "no/such does not exist"),
        (["--x", "seed=1,2", "--y", "seed=3"], "both axes vary the seed"),
        (["--x", "seed=1-100", "--y", "steps=1,2,3,4,5"], "are more than 400"),
        (["--x", "seed=1,2", "--count", "2"], "one seed, unless one of them is an axis"),
        (["--x", "prompt=a|b"], "one prompt, or an axis of prompts"),
        (["--adapter", "no/such=2"], "no/such does not exist"),
        (["--embedding", "x"], "is not WORD=FILE"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(
    words: list[str], expected: str, tmp_path: Path, loads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--prompt", "x", "--out", tmp_path / "out", *words) == 2
    assert expected in capsys.readouterr().err
    assert not loads and not (tmp_path / "out").exists()


def test_sheets_are_bounded_and_labels_are_cut() -> None:
    for columns, rows in ((1, 1), (100, 4), (4, 100), (20, 20)):
        side = cell_side(columns, rows, 2048)
        assert (
            96 <= side <= 512
            and columns * rows * side**2 <= MOST_PIXELS
            and side * max(columns, rows) <= MOST_SIDE
        )
    lines = wrapped("word " * 500 + "x" * 500, 100, lambda text: 8.0 * len(text))
    assert len(lines) == 4 and all(8 * len(line) <= 100 for line in lines) and lines[-1].endswith("...")


def test_an_image_that_is_there_is_not_overwritten(tmp_path: Path, a: Path) -> None:
    out = tmp_path / "out"
    for prompt in ("a red circle", "a blue square"):
        assert call("--out", out, "--prompt", prompt, "--adapter", a, "--strengths", "1") == 0
    names = {path.name for path in out.iterdir()}
    assert names == {"0000-42-at-1.png", "0000-42-at-1-2.png", "strengths.png", "strengths-2.png"}
    assert not np.array_equal(pixels(out / "0000-42-at-1.png"), pixels(out / "0000-42-at-1-2.png"))


def test_cells_of_another_number_format_or_model_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--out", tmp_path / "out", "--prompt", "x", "--x", "seed=1,2")
    assert call(*words) == 0
    for more in (("--dtype", "BFLOAT_16"), ("--negative-prompt", "blue")):
        capsys.readouterr()
        assert call(*words, *more, "--dry-run") == 0
        assert "2 of 2 images would be made" in capsys.readouterr().out
    assert call(*words, "--dtype", "FLOAT_32", "--dry-run") == 0
    assert "0 of 2" in capsys.readouterr().out, "the usual format by its name"
    # a card that is there by now takes another format by itself
    monkeypatch.setattr("modules.trainer.distributed.choose_device", lambda asked: torch.device("cuda"))
    assert call(*words, "--dry-run") == 0
    assert "2 of 2" in capsys.readouterr().out


def test_adapters_of_one_name_are_told_apart(tmp_path: Path, a: Path, b: Path) -> None:
    places = [tmp_path / name / "model.safetensors" for name in ("first", "second")]
    for source, place in zip((a, b), places, strict=True):
        place.parent.mkdir()
        shutil.copy(source, place)
    axis = read_axis(f"checkpoint=none;{places[0]};{places[1]}", "--x")
    assert [value.label for value in axis.values] == ["no adapter", "first/model", "second/model"]
    for name in ("first", "second"):
        (tmp_path / name / "save").mkdir()
        shutil.copy(a, tmp_path / name / "save" / "model-10.safetensors")
    axis = read_axis(f"checkpoint={tmp_path / 'first' / 'save'};{tmp_path / 'second' / 'save'};{a}", "--x")
    found = [value.label for value in axis.values]
    assert found == ["first/save/model-10", "second/save/model-10", a.stem]


def test_a_file_that_another_run_wrote_before_is_not_this_run_s(tmp_path: Path, a: Path) -> None:
    """Runs share the usual name of the file that they write at the end."""
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    run.events_path.touch()
    write_bytes(run.config_path, json.dumps({"output_model_destination": str(a)}).encode())
    os.utime(a, ns=(1, 1))
    with pytest.raises(ConfigError, match="holds no adapter file"):
        last_save(run.path, "--adapter")
    os.utime(a)
    assert last_save(run.path, "--adapter") == a


@pytest.mark.parametrize("out", ["/proc/self", "file", "file/images", "new/images"])
@pytest.mark.parametrize("more", [(), ("--x", "seed=1,2")], ids=["images", "grid"])
def test_a_dry_run_needs_no_folder_that_can_be_written(
    tmp_path: Path, out: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    place = tmp_path / out
    assert call("--out", place, "--prompt", "x", *more, "--dry-run") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 of 2 images" if more else "1 ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "mine"
    if out.startswith("file"):
        assert call("--out", place, "--prompt", "x", *more) == 2
        assert "file is not a folder" in capsys.readouterr().err
