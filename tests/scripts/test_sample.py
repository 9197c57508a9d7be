"""Images from the command line."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modules.model.Model import Model
from modules.trainer import distributed
from modules.ui.state.runs.strengths import StrengthImages
from modules.util.image_metadata_util import read_metadata
from modules.weights.one_file import save_file
from modules.weights.saving import save_folder
from scripts.sample import main
from tests.tiny import small_folder, tiny_folder, tiny_model
from tests.trainer.builders import run_here, write_config

FLUX, SD_3 = "FLUX_DEV_1", "STABLE_DIFFUSION_3"
FEW = {"layer_filter_preset": "custom", "layer_filter": "attn.to_q"}
"""An adapter of few layers, where it only has to be there."""


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_images_with_and_without_an_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(write_config(tmp_path / "run", learning_rate=0.05))
    common = ["--model", str(small_folder()), "--prompt", "a red circle", "--steps", "2", "--width", "64", "--height",
              "64", "--device", "cpu", "--count", "2"]  # fmt: skip
    assert main([*common, "--out", str(tmp_path / "base")]) == 0
    assert main([*common, "--out", str(tmp_path / "again")]) == 0
    adapter = str(tmp_path / "run" / "out.safetensors")
    assert main([*common, "--out", str(tmp_path / "adapter"), "--adapter", adapter]) == 0
    names = ["0000-42.png", "0001-43.png"]
    assert sorted(p.name for p in (tmp_path / "base").iterdir()) == names
    for name in names:
        assert np.array_equal(pixels(tmp_path / "base" / name), pixels(tmp_path / "again" / name))
        assert not np.array_equal(pixels(tmp_path / "base" / name), pixels(tmp_path / "adapter" / name))
    about = read_metadata(tmp_path / "base" / names[0])
    assert (about.prompt, about.seed) == ("a red circle", 42)
    grid = tmp_path / "grid"
    capsys.readouterr()
    assert main([*common, "--out", str(grid), "--adapter", adapter, "--strengths", "-.5,0,1"]) == 0
    out, told = capsys.readouterr()
    made = [
        f"{name.removesuffix('.png')}-at-{strength}.png" for strength in ("-0.5", "0", "1") for name in names
    ]
    assert out.splitlines() == [str(grid / name) for name in (*made, "strengths.png")]
    assert "rank" not in told, "nobody has chosen one that the file could override"
    assert len(list(grid.iterdir())) == 7 and pixels(grid / "strengths.png").shape == (20 + 2 * 64, 3 * 64, 3)
    for name in names:
        none, whole = (name.replace(".png", f"-at-{strength}.png") for strength in ("0", "1"))
        assert np.array_equal(pixels(grid / none), pixels(tmp_path / "base" / name))
        assert np.array_equal(pixels(grid / whole), pixels(tmp_path / "adapter" / name))


def test_long_prompts_are_read_in_chunks_unless_cut(tmp_path: Path) -> None:
    common = [
        "--model",
        str(tiny_folder()),
        "--steps",
        "2",
        "--width",
        "64",
        "--height",
        "64",
        "--device",
        "cpu",
    ]

    def image(end: str, *arguments: str) -> np.ndarray:
        out = tmp_path / "-".join([end, *arguments])
        assert main([*common, "--prompt", "a red " * 10 + end, *arguments, "--out", str(out)]) == 0
        return pixels(out / "0000-42.png")

    assert not np.array_equal(image("cat"), image("dog"))
    cut = ("--max-prompt-chunks", "1")
    assert np.array_equal(image("cat", *cut), image("dog", *cut))


def sampled(key: str, out: Path, *arguments: str) -> np.ndarray:
    """The pixels of one small image of a family."""
    common = ["--model", str(tiny_folder(key)), "--model-type", key, "--steps", "2", "--width", "64", "--height", "64",
              "--device", "cpu", "--out", str(out)]  # fmt: skip
    assert main([*common, *arguments]) == 0
    return pixels(out / "0000-42.png")


def test_a_part_from_elsewhere(tmp_path: Path) -> None:
    tuned = tiny_model(FLUX)
    with torch.no_grad():
        tuned.denoiser.proj_out.weight += 0.3
    file, folder = save_file(tuned, tmp_path / "a.safetensors"), save_folder(tuned, tmp_path / "folder")
    plain = sampled(FLUX, tmp_path / "plain", "--prompt", "a cat")
    other = sampled(FLUX, tmp_path / "other", "--prompt", "a cat", "--part", f"transformer={file}")
    whole = sampled(FLUX, tmp_path / "whole", "--prompt", "a cat", "--model", str(folder))
    assert np.array_equal(other, whole) and not np.array_equal(other, plain)


def test_images_at_a_strength_are_those_of_the_run_that_skips_layers(tmp_path: Path) -> None:
    sample = {
        "prompt": "a red house",
        "width": 64,
        "height": 64,
        "diffusion_steps": 2,
        "cfg_scale": 3.0,
        "seed": 7,
    }
    config = write_config(
        tmp_path / "run", samples=[sample], sample_before_training=True, max_steps=1, text_encoder={"layer_skip": 1},
        sample_image_format="PNG",
    )  # fmt: skip
    trainer = run_here(config)
    (own,) = (tmp_path / "run" / "run" / "samples").rglob("*.png")
    settings = trainer.config.to_dict()
    adapter = tmp_path / "run" / "out.safetensors"
    wanted = StrengthImages(tmp_path / "run", settings, (adapter,), ("a red house",), (0.0, 1.0))
    assert main(wanted.command(0)[2:]) == 0
    assert np.array_equal(pixels(wanted.target(0) / "0000-7-at-0.png"), pixels(own))
    line = [one for one in wanted.command(0)[2:] if not one.startswith("--layer-skip")]
    assert len(line) == len(wanted.command(0)[2:]) - 1 and main(line) == 0
    assert not np.array_equal(pixels(wanted.target(0) / "0000-7-at-0.png"), pixels(own))


def test_requests_that_read_their_prompts_differently_are_made_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = {"prompt": "a red house", "width": 64, "height": 64, "diffusion_steps": 2, "cfg_scale": 3.0}
    lines = [shared, {**shared, "text_encoder_1_layer_skip": 1}]
    (tmp_path / "lines").write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    common = ["--model", str(tiny_folder()), "--device", "cpu"]
    assert main([*common, "--requests", str(tmp_path / "lines"), "--batch-size", "2"]) == 0
    made = [base64.b64decode(json.loads(line)["png"]) for line in capsys.readouterr().out.splitlines()]
    usual, skipped = (np.asarray(Image.open(io.BytesIO(png))) for png in made)
    more = ["--prompt", "a red house", "--steps", "2", "--cfg-scale", "3", "--width", "64", "--height", "64"]
    assert main([*common, *more, "--layer-skip", "text_encoder=1", "--out", str(tmp_path / "out")]) == 0
    assert np.array_equal(pixels(tmp_path / "out" / "0000-42.png"), skipped)
    assert not np.array_equal(usual, skipped)
    lines[1] = {**shared, "text_encoder_2_layer_skip": 1}
    (tmp_path / "lines").write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    assert main([*common, "--requests", str(tmp_path / "lines")]) == 2
    assert "has no text_encoder_2" in capsys.readouterr().err


def test_images_at_a_strength_read_prompts_as_the_first_sample_does(tmp_path: Path) -> None:
    def told(family: str, sample: dict[str, object], **run: object) -> list[str]:
        config = {"base_model_name": "m", "model_type": family, "samples": [sample], **run}
        line = StrengthImages(tmp_path, config, (tmp_path / "a.safetensors",), ("a",), (1.0,)).command(0)
        return [one for one in line if one.startswith(("--layer-skip", "--sequence-length", "--attention"))]

    skip = {"text_encoder": {"layer_skip": 2}}
    sd = "STABLE_DIFFUSION_15"
    assert told(sd, {}, **skip) == ["--layer-skip=text_encoder=2"]
    assert told(sd, {"text_encoder_1_layer_skip": 1}, **skip) == ["--layer-skip=text_encoder=1"]
    assert told(sd, {"text_encoder_1_layer_skip": 0}, **skip) == []
    own = {"text_encoder_2_sequence_length": 20, "transformer_attention_mask": "MASKED"}
    assert told(FLUX, own) == ["--attention-mask=MASKED", "--sequence-length=text_encoder_2=20"]


@pytest.mark.parametrize(
    ("key", "option", "own"),
    [
        (FLUX, "--sequence-length", {"text_encoder_2": {"sequence_length": 4}}),
        (FLUX, "--attention-mask", {"transformer": {"train": True, "attention_mask": "MASKED"}}),
        (SD_3, "--without", {"text_encoder_3": {"include": False}}),
    ],
)
def test_images_at_a_strength_are_those_of_the_run_that_reads_prompts_in_its_own_way(
    key: str, option: str, own: dict[str, object], tmp_path: Path
) -> None:
    prompt = "a red house" + " of stone" * (option == "--sequence-length")
    sample = {"prompt": prompt, "width": 64, "height": 64, "diffusion_steps": 2, "cfg_scale": 3.0, "seed": 7}
    config = write_config(
        tmp_path / "run", samples=[sample], sample_before_training=True, max_steps=1, sample_image_format="PNG",
        **{"model_type": key, "base_model_name": str(tiny_folder(key)), "unet": {}, **own}, **FEW,
    )  # fmt: skip
    settings = run_here(config).config.to_dict()
    (image,) = (tmp_path / "run" / "run" / "samples").rglob("*.png")
    adapter = tmp_path / "run" / "out.safetensors"
    wanted = StrengthImages(tmp_path / "run", settings, (adapter,), (prompt,), (0.0, 1.0))
    line, made = wanted.command(0)[2:], wanted.target(0) / "0000-7-at-0.png"
    assert main(line) == 0
    assert np.array_equal(pixels(made), pixels(image))
    less = [one for one in line if not one.startswith(option)]
    assert len(less) == len(line) - 1 and main(less) == 0
    assert not np.array_equal(pixels(made), pixels(image))


@pytest.mark.parametrize(
    ("key", "arguments", "expected"),
    [
        (FLUX, ["--sequence-length", "text_encoder=20"], "reads a fixed number of tokens"),
        (FLUX, ["--sequence-length", "vae=20"], "vae reads no prompts"),
        (FLUX, ["--sequence-length", "text_encoder_2=some"], "'some' is not a number of tokens"),
        (FLUX, ["--sequence-length", "text_encoder_2=513"], "reads 1 to 512 tokens"),
        (FLUX, ["--attention-mask", "HIDDEN"], "unknown choice HIDDEN"),
        ("QWEN", ["--attention-mask", "SEEN"], "never sees padding"),
        ("STABLE_DIFFUSION_15", ["--attention-mask", "SEEN"], "hides no padding"),
        ("CHROMA_1", ["--sequence-length", "text_encoder=13"], "up to 12 tokens"),
        (SD_3, ["--without", "text_encoder"], "possible: text_encoder_3"),
        (FLUX, ["--without", "text_encoder_2"], "not a text encoder that FLUX.1 dev can do without"),
    ],
)
def test_ways_of_reading_there_are_not(
    key: str, arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--model", str(tiny_folder(key)), "--model-type", key, "--prompt", "x", "--device", "cpu"]
    assert main([*common, "--width", "64", "--height", "64", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_weights_in_eight_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Model] = []
    place = Model.place
    monkeypatch.setattr(Model, "place", lambda model, *rest: (seen.append(model), place(model, *rest))[1])
    words = ("--prompt", "a cat", "--weight-dtype", "transformer=FLOAT_8", "--weight-dtype", "vae=BFLOAT_16")
    sampled(FLUX, tmp_path / "a", *words)
    sampled(FLUX, tmp_path / "b", "--prompt", "a cat")
    (kept, plain) = ({str(p.dtype) for p in model.denoiser.parameters()} for model in seen)
    assert kept == {"torch.float32", "torch.float8_e4m3fn"} and plain == {"torch.float32"}
    assert next(seen[0].vae.parameters()).dtype == torch.bfloat16


def test_brackets_are_emphasis_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, brackets = "STABLE_DIFFUSION_15", "a (red:1.8) cat"
    weighted = sampled(key, tmp_path / "a", "--prompt", brackets, "--prompt-weighting")
    assert not np.array_equal(weighted, sampled(key, tmp_path / "b", "--prompt", brackets))
    plain = sampled(key, tmp_path / "c", "--prompt", "a red cat", "--prompt-weighting")
    assert not np.array_equal(weighted, plain)
    assert np.array_equal(plain, sampled(key, tmp_path / "d", "--prompt", "a red cat"))
    words = [
        "--model",
        str(tiny_folder("QWEN")),
        "--model-type",
        "QWEN",
        "--prompt",
        "x",
        "--prompt-weighting",
    ]
    assert main(words) == 2
    assert "--prompt-weighting" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "arguments", "said"),
    [
        (FLUX, ["--negative-prompt", "dog"], "FLUX.1 dev has its guidance built in"),
        (FLUX, [], ""),
        (
            "STABLE_DIFFUSION_15",
            ["--negative-prompt", "dog", "--cfg-scale", "1"],
            "no guidance at a scale of 1",
        ),
        ("STABLE_DIFFUSION_15", ["--negative-prompt", "dog"], ""),
    ],
)
def test_negative_prompts_that_are_not_read(
    key: str, arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled(key, tmp_path, "--prompt", "a cat", *arguments)
    out, told = capsys.readouterr()
    assert ("--negative-prompt is not read" in told) == bool(said) and said in told
    assert out.splitlines() == [str(tmp_path / "0000-42.png")], "what reads the output takes a line for an image"


@pytest.mark.parametrize(
    ("device", "arguments", "dtype"),
    [
        ("cpu", [], torch.float32),
        ("cuda:0", [], torch.bfloat16),
        ("cuda:0", ["--dtype", "FLOAT_32"], torch.float32),
    ],
)
def test_the_denoiser_alone_stays_on_the_device(
    device: str, arguments: list[str], dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: list[tuple[str, tuple[str, ...] | None]] = []
    types: list[torch.dtype] = []

    def place(model: Model, where: torch.device, parts: tuple[str, ...] | None = None) -> Model:
        placed.append((str(where), parts))
        types.append(next(model.denoiser.parameters()).dtype)
        return model

    monkeypatch.setattr(distributed, "choose_device", lambda name: torch.device(device))
    monkeypatch.setattr(Model, "place", place)
    common = [
        "--model",
        str(tiny_folder()),
        "--prompt",
        "x",
        "--steps",
        "1",
        "--width",
        "64",
        "--height",
        "64",
    ]
    assert main([*common, *arguments, "--out", str(tmp_path)]) == 0
    assert placed == [(device, ("unet",))] and types == [dtype]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--width", "65"], "width"),
        (["--steps", "0"], "diffusion_steps"),
        (["--count", "0"], "--count"),
        (["--max-prompt-chunks", "0"], "--max-prompt-chunks"),
        (["--max-prompt-chunks", "9"], "--max-prompt-chunks"),
        (["--model-type", "NOTHING"], "NOTHING"),
        (["--model-type", "sanna"], "did you mean 'SANA'"),
        (["--dtype", "INT_3"], "INT_3"),
        (["--model", "no/such/model"], "no/such/model"),
        (["--adapter", "no/such/adapter.safetensors"], "no/such/adapter"),
        (["--strengths", "0,1"], "--adapter"),
        (["--adapter", "x", "--strengths", "0,much"], "not a list of numbers"),
        (["--adapter", "x", "--strengths", "11"], "--strengths"),
        (["--device", "cuda:77"], "--device: there is no device cuda:77"),
        (["--device", "cpu,cpu"], "--device: 'cpu,cpu' lists several"),
        (["--part", "transformer=a"], "no part 'transformer'"),
        (["--part", "unet=no/such/part"], "no/such/part"),
        (["--layer-skip", "unet=1"], "layers of unet cannot be skipped"),
        (["--layer-skip", "text_encoder=one"], "'one' is not a number of layers"),
        (["--layer-skip", "text_encoder=99"], "text_encoder has "),
        (["--weight-dtype", "unet=INT_3"], "unet cannot be kept as INT_3"),
        (["--weight-dtype", "vae=FLOAT_8"], "vae cannot be kept as FLOAT_8"),
    ],
)
def test_mistakes(
    arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [
        "--model",
        str(tiny_folder()),
        "--prompt",
        "x",
        "--out",
        str(tmp_path / "out"),
        "--device",
        "cpu",
    ]
    assert main([*common, "--width", "64", "--height", "64", *arguments]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [["--prompt", "x"], ["--x", "prompt=a|b"]])
def test_a_folder_that_cannot_be_made_is_told_before_a_model_is_loaded(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    for out in ("file", "file/images"):
        assert main(["--model", str(tmp_path / "gone"), *more, "--out", str(tmp_path / out)]) == 2
        said = capsys.readouterr().err
        assert "--out" in said and "file is not a folder" in said
    assert (tmp_path / "file").read_text() == "mine"
