"""A real ComfyUI: ``pytest tests/generator/test_real_comfyui.py --comfyui-url http://127.0.0.1:8188``."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from PIL import Image

from modules.generator.ComfyUi import ComfyUi
from modules.generator.Generator import ImageRequest, MakingNews

REQUEST = ImageRequest("a photo of a fox", 5, "blurry", 64, 64, 2, 4.0, "euler")


@pytest.fixture
def comfy(request) -> ComfyUi:
    url = request.config.getoption("--comfyui-url")
    if not url:
        pytest.skip("no real ComfyUI was tried: --comfyui-url names one")
    models = ComfyUi({"url": url, "checkpoint": "any"}).describe().models
    if not models:
        pytest.skip(f"ComfyUI at {url} has no checkpoint")
    return ComfyUi({"url": url, "checkpoint": models[0]})


def test_the_same_seed_makes_the_same_image(comfy):
    news: list[MakingNews] = []
    comfy.on_news = news.append
    requests = [REQUEST, replace(REQUEST, seed=6), REQUEST]
    comfy.check(requests)
    made = [image.data for image in comfy.generate(requests)]
    pixels = [Image.open(io.BytesIO(data)).convert("RGB").tobytes() for data in made]
    assert pixels[0] == pixels[2] != pixels[1]
    assert {one.steps for one in news if one.steps} == {2}


def test_it_describes_itself(comfy):
    said = comfy.describe()
    assert said.version and "euler" in said.samplers
