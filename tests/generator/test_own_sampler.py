"""The program's own sampler as a generator, in its own process."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from PIL import Image

from modules.generator.Generator import ImageRequest
from modules.generator.OwnSampler import OwnSampler
from modules.util.errors import UserError
from modules.util.image_metadata_util import read_metadata
from modules.util.program_files import ROOT
from scripts import sample
from tests.tiny import tiny_folder
from tests.trainer.builders import run_here, write_config

pytestmark = pytest.mark.child
REQUEST = ImageRequest("a red fox", 7, "blurry", 64, 64, 2, 2.0, "DDIM")


def sampler() -> OwnSampler:
    return OwnSampler({"model_type": "STABLE_DIFFUSION_15", "base": str(tiny_folder()), "device": "cpu"})


def pixels(data: bytes | Path) -> bytes:
    with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data) as image:
        return image.tobytes()


@pytest.mark.slow  # starts the sampler three times
def test_images_adapters_and_metadata(tmp_path):
    """The same as ``scripts/sample.py`` makes; with an adapter the same noise and another image."""
    run_here(write_config(tmp_path / "run", learning_rate=0.05))
    adapter = tmp_path / "run" / "out.safetensors"
    requests = [REQUEST, replace(REQUEST, seed=8), replace(REQUEST, adapter=adapter),
                replace(REQUEST, adapter=adapter, strength=0.0)]  # fmt: skip
    generator = sampler()
    generator.check(requests)
    made = {image.number: image.data for image in generator.generate(requests)}
    assert sorted(made) == [0, 1, 2, 3]
    arguments = ["--model", str(tiny_folder()), "--prompt", "a red fox", "--negative-prompt", "blurry", "--seed", "7",
                 "--width", "64", "--height", "64", "--steps", "2", "--cfg-scale", "2", "--scheduler", "DDIM",
                 "--device", "cpu", "--out", str(tmp_path / "out")]  # fmt: skip
    assert sample.main(arguments) == 0
    assert pixels(made[0]) == pixels(tmp_path / "out" / "0000-7.png")
    assert len({pixels(made[i]) for i in range(3)}) == 3 and pixels(made[3]) == pixels(made[0])
    (tmp_path / "x.png").write_bytes(made[2])
    about = read_metadata(tmp_path / "x.png")
    assert (about.prompt, about.negative_prompt, about.seed) == ("a red fox", "blurry", 7)


@pytest.mark.slow  # starts the sampler three times
def test_sources_are_seen_at_the_size_that_is_asked_for(tmp_path):
    """The same as ``scripts/sample.py`` makes with sources of this size."""
    source = tmp_path / "source.png"
    Image.effect_noise((96, 96), 80).convert("RGB").save(source)
    key = "FLUX_KONTEXT_DEV_1"
    one = ImageRequest("make it night", 7, "", 64, 64, 2, 2.0, sources=(source,))
    generator = OwnSampler({"model_type": key, "base": str(tiny_folder(key)), "device": "cpu"})
    requests = [one, replace(one, source_resolution=128)]
    made = {image.number: image.data for image in generator.generate(requests)}
    assert pixels(made[0]) != pixels(made[1])
    row = {"prompt": "make it night", "seed": 7, "negative_prompt": "", "width": 64, "height": 64,
           "diffusion_steps": 2, "cfg_scale": 2.0, "source_path": str(source)}  # fmt: skip
    (tmp_path / "requests.jsonl").write_text(json.dumps(row))
    command = [sys.executable, str(ROOT / "scripts" / "sample.py"), "--requests", str(tmp_path / "requests.jsonl"),
               "--model", str(tiny_folder(key)), "--model-type", key, "--device", "cpu",
               "--source-resolution", "128"]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert pixels(base64.b64decode(json.loads(said)["png"])) == pixels(made[1])


def test_what_can_be_known_before(tmp_path):
    with pytest.raises(UserError, match="no adapter file"):
        sampler().check([replace(REQUEST, adapter=tmp_path / "none.safetensors")])
    with pytest.raises(UserError, match="no base model"):
        OwnSampler({"model_type": "STABLE_DIFFUSION_15", "base": str(tmp_path / "none")}).check([REQUEST])


@pytest.mark.slow
def test_a_fault_of_the_child_is_its_message():
    with pytest.raises(UserError, match="65"):
        list(sampler().generate([replace(REQUEST, width=65)]))


@pytest.mark.slow
def test_closing_ends_the_child():
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with closing(sampler().generate([replace(REQUEST, seed=seed) for seed in range(500)])) as images:
        next(images)
        assert {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert not {child.pid for child in psutil.Process().children(recursive=True)} - before
