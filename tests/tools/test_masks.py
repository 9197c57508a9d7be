"""Masks by colour and by words: which pixels are white, what becomes of masks that exist, and undo."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from modules.pipeline.loss_masks.reading import load_mask
from modules.pipeline.nodes.images import load_rgb
from modules.tools.dataset.masking import opened_image, opened_mask
from modules.util.errors import DataError
from modules.util.program_files import ROOT
from scripts.mask import main
from tests.captioner.models import clipseg
from tests.tools.pictures import contents, damaged_avif, picture

GREEN, GREY = (10, 180, 60), (90, 90, 90)


def call(*words: object) -> int:
    return main([str(word) for word in words])


def pixels(path: Path) -> numpy.ndarray:
    with Image.open(path) as mask:
        assert mask.mode == "L" and mask.format == "PNG"
        return numpy.asarray(mask)


def square(background: Any = GREY, colour: Any = GREEN, mode: str = "RGB") -> Image.Image:
    """16 wide, 12 high; columns 4 to 8 of rows 3 to 7 have the colour."""
    image = Image.new(mode, (16, 12), background)
    image.paste(colour, (4, 3, 9, 8))
    return image


def test_an_image_of_any_damage_is_told_by_its_name(tmp_path: Path) -> None:
    path = damaged_avif(tmp_path / "damaged.avif")
    for read in (opened_image, opened_mask):
        with pytest.raises(DataError, match="damaged.avif is unreadable"):
            read(path)


def area(left: int, top: int, right: int, bottom: int) -> numpy.ndarray:
    expected = numpy.zeros((12, 16), numpy.uint8)
    expected[top:bottom, left:right] = 255
    return expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], area(4, 3, 9, 8)),
        (["--invert"], 255 - area(4, 3, 9, 8)),
        (["--expand", "2"], area(2, 1, 11, 10)),
        (["--expand", "-1"], area(5, 4, 8, 7)),
        (["--expand", "5"], area(0, 0, 14, 12)),
        (["--smooth", "5"], area(0, 0, 0, 0)),
        (["--tolerance", "255"], area(0, 0, 16, 12)),
        (["--tolerance", "79"], area(4, 3, 9, 8)),
        (["--tolerance", "90"], area(0, 0, 16, 12)),
        (["--color", "#0ab43d", "--tolerance", "0"], area(0, 0, 0, 0)),
        (["--color", "#0ab43d", "--tolerance", "1"], area(4, 3, 9, 8)),
    ],
)
def test_white_is_where_the_colour_is(tmp_path: Path, words: list[str], expected: numpy.ndarray) -> None:
    square().save(tmp_path / "a.png")
    given = [] if "--color" in words else ["--color", "#0ab43c"]
    assert call("color", *given, *words, tmp_path) == 0
    assert (pixels(tmp_path / "a-masklabel.png") == expected).all()


def test_a_mask_lies_as_a_person_sees_the_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the first row is the right side
    square().save(tmp_path / "a.png", exif=exif)
    assert call("color", "--color", "#0ab43c", tmp_path) == 0
    assert (pixels(tmp_path / "a-masklabel.png") == numpy.rot90(area(4, 3, 9, 8), -1)).all()


def test_specks_go_and_edges_become_soft(tmp_path: Path) -> None:
    image = square()
    image.putpixel((0, 11), GREEN)
    image.putpixel((6, 5), GREY)
    image.save(tmp_path / "a.png")
    assert call("color", "--color", "#0ab43c", "--smooth", 1, tmp_path) == 0
    expected = area(4, 3, 9, 8)
    expected[[3, 3, 7, 7], [4, 8, 4, 8]] = 0  # of the nine pixels around a corner four are white
    expected[11, 0] = 0  # the border goes on outside: four of nine
    assert (pixels(tmp_path / "a-masklabel.png") == expected).all()
    assert call("color", "--color", "#0ab43c", "--blur", 1, "--mode", "REPLACE", tmp_path) == 0
    assert 0 < pixels(tmp_path / "a-masklabel.png")[5, 9] < 255


def test_transparent_and_white_backgrounds(tmp_path: Path) -> None:
    clear = square((0, 0, 0, 0), (*GREEN, 255), "RGBA")
    clear.putpixel((0, 0), (0, 0, 0, 31))
    clear.save(tmp_path / "a.png")
    square((250, 255, 226)).save(tmp_path / "b.png")
    assert call("color", "--color", "transparent", "--invert", tmp_path) == 0
    expected = area(4, 3, 9, 8)
    expected[0, 0] = 255
    assert (pixels(tmp_path / "a-masklabel.png") == expected).all()
    assert (pixels(tmp_path / "b-masklabel.png") == 255).all(), "an image without transparency is opaque"
    assert call("color", "--invert", "--mode", "REPLACE", tmp_path) == 0
    assert (pixels(tmp_path / "b-masklabel.png") == area(4, 3, 9, 8)).all()


@pytest.mark.parametrize(
    ("mode", "left", "inside", "missing"),
    [
        # the old mask is 100 everywhere; the new one is white in the square
        ("BLANK", 100, 100, (0, 255)),
        ("REPLACE", 0, 255, (0, 255)),
        ("ADD", 100, 255, (0, 255)),
        ("SUBTRACT", 100, 0, (255, 0)),
        ("BLEND", 75, 139, (0, 255)),  # 100 * 0.75 and 100 * 0.75 + 255 * 0.25 = 138.75
    ],
)
def test_what_becomes_of_masks_that_exist(
    tmp_path: Path, mode: str, left: int, inside: int, missing: tuple[int, int], capsys: Any
) -> None:
    square().save(tmp_path / "a.png")
    square().save(tmp_path / "b.png")
    Image.new("L", (32, 24), 100).save(tmp_path / "a-masklabel.png")
    before = contents(tmp_path)
    words = ["color", "--color", "#0ab43c", "--mode", mode, "--alpha", "0.25"]
    assert call(*words, "--dry-run", tmp_path) == 0
    assert f"{1 if mode == 'BLANK' else 2} image" in capsys.readouterr().out and contents(tmp_path) == before
    assert call(*words, tmp_path) == 0
    first, second = pixels(tmp_path / "a-masklabel.png"), pixels(tmp_path / "b-masklabel.png")
    assert (first[0, 0], first[first.shape[0] // 2, first.shape[1] // 2 - 1]) == (left, inside)
    assert (second[0, 0], second[5, 6]) == missing
    assert mode == "BLANK" or first.shape == (12, 16)
    assert call("undo", tmp_path) == 0
    assert contents(tmp_path) == before


def test_what_cannot_be_read_is_named_and_the_others_are_done(tmp_path: Path, capsys: Any) -> None:
    for name in "abc":
        square().save(tmp_path / f"{name}.png")
    (tmp_path / "a.png").write_bytes(b"no image")
    Image.new("L", (12, 12)).save(tmp_path / "b-masklabel.png")
    before = contents(tmp_path)
    assert call("color", "--mode", "ADD", tmp_path) == 0
    said = capsys.readouterr().out
    assert said.count("a.png is unreadable") == 1
    assert "b.png: left as it is: the shape of b-masklabel.png is not that of its image" in said
    assert "1 mask written" in said
    assert contents(tmp_path).keys() - before.keys() == {"c-masklabel.png"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--color", "greenish"], "is not a colour"),
        (["--tolerance", "256"], "not between 0 and 255"),
        (["--expand", "501"], "not between -500 and 500"),
        (["--blur", "nan"], "not between 0 and 500"),
    ],
)
def test_values_out_of_range_are_refused(tmp_path: Path, words: list[str], said: str, capsys: Any) -> None:
    square().save(tmp_path / "a.png")
    assert call("color", *words, tmp_path) == 2
    assert said in capsys.readouterr().err and list(contents(tmp_path)) == ["a.png"]
    square().save(tmp_path / "a.jpg")
    assert call("color", tmp_path) == 2
    assert "a-masklabel.png (a.jpg, a.png)" in capsys.readouterr().err


def test_a_model_finds_what_the_words_name(tmp_path: Path, capsys: Any) -> None:
    model = clipseg(tmp_path / "model")
    images = tmp_path / "images"
    images.mkdir()
    for number in range(2):
        picture(number).save(images / f"{number}.png")
    seen = probable(model, "a fox", picture(0))
    middle = float(numpy.median(seen))
    words = ["prompt", "--model", model, "--prompt", "a fox", "--mode", "REPLACE"]
    for _ in range(2):
        assert call(*words, "--threshold", middle, images) == 0
        assert (pixels(images / "0-masklabel.png") == (seen >= numpy.float32(middle)) * 255).all()
    assert call(*words, "--threshold", 1, images) == 0
    assert (pixels(images / "0-masklabel.png") == 0).all()
    before = contents(images)
    assert call(*words, "--threshold", 2, images) == 2
    assert call(*words, "--device", "cpu,cpu", images) == 2
    assert "--device: 'cpu,cpu' lists several" in capsys.readouterr().err
    assert call("prompt", "--model", tmp_path / "none", "--prompt", "x", "--mode", "REPLACE", images) == 2
    assert "a folder of CLIPSeg" in capsys.readouterr().err and contents(images) == before


def probable(model: Path, prompt: str, image: Image.Image) -> numpy.ndarray:
    from transformers import AutoImageProcessor, AutoTokenizer, CLIPSegForImageSegmentation

    loaded = CLIPSegForImageSegmentation.from_pretrained(model).eval()
    tokens = AutoTokenizer.from_pretrained(model)(prompt, return_tensors="pt")["input_ids"]
    given = AutoImageProcessor.from_pretrained(model)(images=image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        small = torch.sigmoid(loaded(input_ids=tokens, pixel_values=given).logits).reshape(1, 1, 16, 16)
    return torch.nn.functional.interpolate(small, (48, 64), mode="bilinear")[0, 0].numpy()


def test_a_kill_leaves_whole_files_and_can_be_undone(tmp_path: Path) -> None:
    for name in "abc":
        square().save(tmp_path / f"{name}.png")
        Image.new("L", (16, 12), 100).save(tmp_path / f"{name}-masklabel.png")
    before = contents(tmp_path)
    # killed when the second mask was taken out and the new one is not in its place
    dying = (
        f"import os, signal, sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom scripts import mask\n"
        "from modules.tools import Journal as J\nmove = J.Job.move\nmade = []\n"
        "def counting(self, *words):\n"
        "    made.append(words)\n"
        "    if len(made) == 4: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    move(self, *words)\n"
        "J.Job.move = counting\nmask.main(sys.argv[1:])\n"
    )
    words = ["color", "--color", "#0ab43c", "--mode", "REPLACE", str(tmp_path)]
    assert subprocess.run([sys.executable, "-c", dying, *words], check=False).returncode == -signal.SIGKILL
    assert "b-masklabel.png" not in contents(tmp_path)
    assert (pixels(tmp_path / "a-masklabel.png") == area(4, 3, 9, 8)).all()
    assert call("undo", tmp_path) == 0
    # the command that was killed is put in order first: its second mask is back, its first one is undone
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["RGBA", "LA", "P", "I;16", "1"])
def test_masks_are_read_as_training_reads_them(tmp_path: Path, kind: str) -> None:
    """What is transparent is black, and 16 bits count in full."""
    square().save(tmp_path / "a.png")
    mask = tmp_path / "a-masklabel.png"
    levels = numpy.arange(16 * 12).reshape(12, 16)
    if kind in ("RGBA", "LA"):
        clear = Image.fromarray(numpy.full((12, 16), 255, numpy.uint8)).convert(kind)
        clear.putalpha(Image.fromarray(area(4, 3, 9, 8)))
        clear.save(mask)
    elif kind == "P":
        image = Image.fromarray((levels % 2).astype(numpy.uint8)).convert("P")
        image.putpalette([255, 255, 255, 255, 255, 255])
        image.save(mask, transparency=0)
    elif kind == "1":
        Image.fromarray(area(4, 3, 9, 8)).convert("1").save(mask)
    else:
        Image.fromarray((levels * 341).astype(numpy.uint16)).convert(kind).save(mask)
    trained = numpy.floor(numpy.asarray(load_mask(mask)) * 255 + 0.5)
    assert (trained.min() == 0 and trained.max() == 255) or kind == "I;16"
    # nothing has the colour, so the old mask stays as it is
    assert call("color", "--color", "#ff00ff", "--tolerance", 0, "--mode", "ADD", tmp_path) == 0
    assert (pixels(mask) == trained).all()


@pytest.mark.parametrize(("kind", "top"), [(numpy.float32, 1.0), (numpy.int32, 255), (numpy.uint16, 65535)])
def test_images_of_more_than_eight_bits_are_read_as_training_reads_them(
    tmp_path: Path, kind: Any, top: float
) -> None:
    """A captioner and a colour would otherwise see black where training sees a gradient."""
    path = tmp_path / "a.tif"
    Image.fromarray((numpy.arange(16 * 12).reshape(12, 16) / 191 * top).astype(kind)).save(path)
    seen, trained = numpy.asarray(opened_image(path)), numpy.asarray(load_rgb(path))
    assert (seen == trained).all() and trained.min() == 0 and trained.max() == 255


def test_a_model_of_another_kind_or_without_all_weights_is_refused(tmp_path: Path, capsys: Any) -> None:
    images, model = tmp_path / "images", clipseg(tmp_path / "model")
    images.mkdir()
    square().save(images / "a.png")
    words = (
        "prompt",
        "--prompt",
        "a square",
        "--threshold",
        "0.3",
        "--device",
        "cpu",
        "--model",
        model,
        images,
    )
    weights = load_file(model / "model.safetensors")
    name = next(key for key in weights if key.startswith("decoder."))
    save_file(
        {key: one for key, one in weights.items() if key != name},
        model / "model.safetensors",
        {"format": "pt"},
    )
    assert call(*words) == 2
    assert f"1 weight missing, such as {name}" in capsys.readouterr().err
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "clip"}))
    assert call(*words) == 2
    assert "it is not of the kind clipseg" in capsys.readouterr().err
    assert [path.name for path in images.iterdir() if path.suffix == ".png"] == ["a.png"]


def test_a_model_that_fails_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    images, model = tmp_path / "images", clipseg(tmp_path / "model")
    images.mkdir()
    square().save(images / "a.png")

    def full(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("transformers.CLIPSegForImageSegmentation.forward", full)
    assert call("prompt", "--prompt", "x", "--device", "cpu", "--model", model, images) == 2
    assert "out of memory" in capsys.readouterr().err


def test_a_run_that_wrote_nothing_is_not_what_undo_undoes(tmp_path: Path) -> None:
    square().save(tmp_path / "a.png")
    before = contents(tmp_path)
    assert call("color", "--color", "#0ab43c", tmp_path) == 0
    (tmp_path / "b.png").write_bytes(b"no image")
    assert call("color", "--color", "#0ab43c", tmp_path) == 0
    (tmp_path / "b.png").unlink()
    assert call("undo", tmp_path) == 0
    assert contents(tmp_path) == before


def test_a_long_name_does_not_stop_the_others(tmp_path: Path, capsys: Any) -> None:
    long = f"{'a' * 245}.png"
    square().save(tmp_path / long)
    square().save(tmp_path / "b.png")
    assert call("color", "--color", "#0ab43c", tmp_path) == 0
    assert "too long" in capsys.readouterr().out and (tmp_path / "b-masklabel.png").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("color", "--color", "greenish"), "is not a colour"),
        (("color", "--color", "white", "--tolerance", 999), "not between"),
        (("prompt", "--prompt", "x", "--model", "y", "--threshold", 7), "not between"),
        (("prompt", "--prompt", " ", "--model", "y"), "no words"),
    ],
)
def test_a_preview_refuses_what_a_start_refuses(
    tmp_path: Path, words: tuple[object, ...], said: str, capsys: Any
) -> None:
    square().save(tmp_path / "a.png")
    assert call(*words, "--dry-run", tmp_path) == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_images_is_told(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "deeper").mkdir()
    square().save(tmp_path / "deeper" / "a.png")
    assert call("color", "--color", "white", tmp_path) == 2
    assert "--subfolders" in capsys.readouterr().err
