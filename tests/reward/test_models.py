"""CLIP score, PickScore and the aesthetic predictor on tiny random models, against transformers itself."""

from __future__ import annotations

import math
import pickle
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import CLIPImageProcessor, CLIPModel, CLIPTokenizer
from transformers.modeling_outputs import BaseModelOutputWithPooling

from modules.reward.base import create_reward
from modules.reward.clip import ClipFeatures, projected
from modules.util.errors import ConfigError, DataError
from tests.reward.builders import batch_of, noise_images
from tests.reward.tiny_clip import save_tiny_clip

PROMPTS = ["a red cat", "dog", "a red cat", "a very long prompt that goes on and on"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_clip(tmp_path_factory.mktemp("clip") / "model")


@pytest.fixture(scope="module")
def cosines(folder):
    """Cosines out of the two towers, one image and one text at a time, through files as people use them."""
    model = CLIPModel.from_pretrained(folder).eval()
    tokenizer, prepare = CLIPTokenizer.from_pretrained(folder), CLIPImageProcessor.from_pretrained(folder)
    found = []
    for image, prompt in zip(noise_images(4, 20), PROMPTS, strict=True):
        picture = Image.fromarray(np.rint(image.numpy().transpose(1, 2, 0) * 255).astype(np.uint8))
        pixels = prepare(picture, return_tensors="pt")["pixel_values"]
        ids = tokenizer(prompt)["input_ids"]
        if len(ids) > 16:
            ids = [*ids[:15], ids[-1]]
        with torch.no_grad():
            seen = model.visual_projection(model.vision_model(pixels).pooler_output)[0]
            read = model.text_projection(model.text_model(torch.tensor([ids])).pooler_output)[0]
        found.append(float(seen @ read / seen.norm() / read.norm()))
    return found


def batch():
    return batch_of(noise_images(4, 20), prompts=PROMPTS)


def test_clip_score(folder, cosines):
    plain = create_reward("clip_score", {"source": str(folder), "scaled": False, "batch_size": 3})
    plain.load()
    assert plain.score(batch()).tolist() == pytest.approx(cosines, abs=1e-5)
    assert min(cosines) < 0 < max(cosines), "both sides of the clamp are to be seen"
    scaled = create_reward("clip_score", {"source": str(folder)})
    scaled.load()
    assert scaled.score(batch()).tolist() == pytest.approx([100 * max(c, 0) for c in cosines], abs=1e-3)


def test_likeness_of_an_image_to_its_source_by_clip(folder):
    reward = create_reward("clip_source", {"source": str(folder)})
    reward.load()
    images = noise_images(3, 20)
    first, second = ((one * 255).round().to(torch.uint8) for one in images[:2])
    found = reward.score(batch_of(images, sources=[(first,), (second, first), (first,)]))
    rows = ClipFeatures(str(folder))
    rows.load("cpu")
    seen_BD = rows.embed_images(images)
    assert found.tolist() == pytest.approx([1.0, 1.0, float(seen_BD[2] @ seen_BD[0])], abs=2e-3)
    assert float(found[2]) < 0.999


def test_pickscore(folder, cosines):
    reward = create_reward("pickscore", {"source": str(folder)})
    reward.load()
    expected = [math.exp(3) * c / 26 for c in cosines]
    assert reward.score(batch()).tolist() == pytest.approx(expected, abs=1e-5)


def test_pickscore_takes_the_processor_it_was_trained_with(folder, tmp_path):
    assert create_reward("pickscore").clip.processor == "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    assert create_reward("pickscore", {"source": str(folder)}).clip.processor == str(folder)
    other = create_reward("pickscore", {"source": str(tmp_path), "processor": str(folder)})
    assert other.clip.processor == str(folder)


def aesthetic_weights(width=24):
    torch.manual_seed(1)
    sizes = [width, 12, 8, 1]
    return {
        f"layers.{number}.{part}": torch.randn(*shape)
        for number, (columns, rows) in zip((0, 2, 10), pairwise(sizes), strict=True)
        for part, shape in (("weight", (rows, columns)), ("bias", (rows,)))
    }


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_aesthetic(folder, tmp_path, suffix):
    weights = aesthetic_weights()
    path = tmp_path / f"head{suffix}"
    save_file(weights, path) if suffix == ".safetensors" else torch.save(weights, path)
    reward = create_reward("aesthetic", {"weights": str(path), "source": str(folder)})
    reward.load()
    features = reward.clip.embed_images(noise_images(4, 20))
    assert features.norm(dim=1).tolist() == pytest.approx([1] * 4, abs=1e-5)
    x = features
    for number in (0, 2, 10):
        x = x @ weights[f"layers.{number}.weight"].T + weights[f"layers.{number}.bias"]
    assert reward.score(batch_of(noise_images(4, 20))).tolist() == pytest.approx(x[:, 0].tolist(), abs=1e-4)


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran code')",))


def broken(kind):
    weights = aesthetic_weights()
    if kind == "width":
        return aesthetic_weights(20)
    if kind == "end":
        del weights["layers.10.weight"], weights["layers.10.bias"]
    if kind == "bias":
        del weights["layers.2.bias"]
    if kind == "name":
        weights["optimizer"] = torch.zeros(1)
    return [1, 2] if kind == "list" else weights


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("width", "takes 20 numbers and gets 24"),
        ("end", "gives 8 numbers"),
        ("bias", "layer 2 is not"),
        ("name", "'optimizer'"),
        ("list", "named tensors"),
    ],
)
def test_other_weights_are_refused(folder, tmp_path, kind, words):
    path = tmp_path / "head.pth"
    torch.save(broken(kind), path)
    with pytest.raises(DataError, match=words):
        create_reward("aesthetic", {"weights": str(path), "source": str(folder)}).load()


def test_weights_cannot_run_code(tmp_path, folder):
    path = tmp_path / "head.pth"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="head.pth"):
        create_reward("aesthetic", {"weights": str(path), "source": str(folder)}).load()
    torch.save({"layers.0.weight": Bomb()}, path)
    with pytest.raises(DataError, match="more than tensors"):
        create_reward("aesthetic", {"weights": str(path), "source": str(folder)}).load()
    (tmp_path / "head.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ?")
    with pytest.raises(DataError, match="cannot be read"):
        create_reward("aesthetic", {"weights": str(tmp_path / "head.safetensors")}).load()
    with pytest.raises(DataError, match="improved-aesthetic-predictor"):
        create_reward("aesthetic").load()


@pytest.mark.parametrize("key", ["clip_score", "pickscore"])
def test_a_missing_model_is_named(tmp_path, key):
    missing = tmp_path / "nowhere"
    with pytest.raises(DataError, match="nowhere") as caught:
        create_reward(key, {"source": str(missing)}).load()
    assert "model.safetensors" in str(caught.value)


def test_a_damaged_model_is_named(folder, tmp_path):
    copy = save_tiny_clip(tmp_path / "model")
    (copy / "model.safetensors").write_bytes(b"no tensors here")
    with pytest.raises(DataError, match="cannot be loaded"):
        create_reward("clip_score", {"source": str(copy)}).load()


def test_both_forms_of_answer_are_understood():
    feature = torch.ones(1, 2)
    assert projected(feature) is feature
    assert projected(BaseModelOutputWithPooling(pooler_output=feature)) is feature


def test_loading_is_explicit_and_can_be_undone(folder):
    reward = create_reward("clip_score", {"source": str(folder)})
    with pytest.raises(RuntimeError, match="load"):
        reward.score(batch())
    reward.to("cpu")
    reward.load()
    first = reward.clip.model
    reward.load()
    assert reward.clip.model is first
    before = reward.score(batch())
    reward.unload()
    assert reward.clip.model is None
    reward.load()
    assert torch.equal(reward.score(batch()), before)


def test_half_precision_features_are_close(folder):
    exact, half = ClipFeatures(str(folder)), ClipFeatures(str(folder), dtype="bfloat16")
    exact.load("cpu"), half.load("cpu")
    images = noise_images(4, 20)
    found = half.embed_images(images)
    assert found.dtype == torch.float32
    assert (found * exact.embed_images(images)).sum(dim=1).min() > 0.995


def test_a_prompt_is_needed(folder):
    reward = create_reward("clip_score", {"source": str(folder)})
    with pytest.raises(ConfigError, match="prompt"):
        reward.score(batch_of(noise_images(1), prompts=[""]))
    with pytest.raises(ConfigError, match="batch_size"):
        create_reward("clip_score", {"batch_size": 0})
    with pytest.raises(ConfigError, match=r"dtype"):
        create_reward("clip_score", {"dtype": "float8"})


@pytest.mark.parametrize("key", ["clip_score", "pickscore"])
@pytest.mark.parametrize("content", ["hostile", "empty", "garbage"])
def test_a_hostile_pickle_is_an_error_of_the_model(tmp_path, folder, key, content):
    place = shutil.copytree(folder, tmp_path / "model")
    for file in place.glob("*.safetensors"):
        file.unlink()
    ran = tmp_path / "ran"

    class Hostile:
        def __reduce__(self):
            return (open, (str(ran), "w"))

    data = {"hostile": pickle.dumps({"logit_scale": Hostile()}), "empty": b"", "garbage": b"x" * 100}[content]
    (place / "pytorch_model.bin").write_bytes(data)
    reward = create_reward(key, {"source": str(place)})
    with pytest.raises(DataError, match="cannot be loaded") as caught:
        reward.load()
    assert caught.value.field == "source" and not ran.exists()
