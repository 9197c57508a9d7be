"""Words in every family that takes them: what they change, what learns, and what is written and read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.adapter.embedding_files import bundled, read_embedding, save_embedding
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.util.config.load import find_problems, read_config
from modules.util.errors import DataError
from tests.tiny import tiny_model, tiny_setup
from tests.tiny.batches import image_batch
from tests.usual import usual

WORD = "<cat-toy>"
FILES = {
    "STABLE_DIFFUSION_3": ["clip_g", "clip_l", "t5"],
    "FLUX_DEV_1": ["clip_l", "t5"],
    "PIXART_SIGMA": ["t5"],
    "CHROMA_1": ["t5"],
    "SANA": ["gemma"],
}
"""What the file of an embedding holds."""


def learning(key: str, **changes: Any) -> tuple[BaseModelSetup, Model]:
    """A tiny model with a word of two tokens that is trained alone."""
    setup, model = tiny_setup(key), tiny_model(key)
    config = read_config({
        "__version": 1, "model_type": key, "training_method": "EMBEDDING",
        "embedding": {"placeholder": WORD, "token_count": 2, "initial_embedding_text": "cat"}, **changes,
    })  # fmt: skip
    assert find_problems(config).errors == []
    training.attach_or_unfreeze(model, config)
    model.set_mode("train")
    return setup, model


def losses(setup: BaseModelSetup, model: Model, prompts: list[str], steps: int) -> list[float]:
    """Of steps on one batch with one noise."""
    batch = replace(image_batch(setup, model, ["a", "b"], encoded=False), prompts=prompts)
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    words = [rows for _, rows in model.words.named()] if model.words is not None else []
    optimizer = torch.optim.Adam(words, lr=0.1)
    made = []
    for _ in range(steps):
        loss = setup.calculate_loss(model, batch, draw).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.append(float(loss.detach()))
    return made


# its two kinds of encoders are those of "FLUX_DEV_1"
@pytest.mark.parametrize("key", usual(FILES, *(key for key in FILES if key != "STABLE_DIFFUSION_3")))
def test_the_word_learns_and_nothing_else_moves(key: str, tmp_path: Path) -> None:
    setup, model = learning(key)
    fresh = tiny_model(key)
    before = {n: p.clone() for part in model.modules().values() for n, p in part.state_dict().items()}
    plain, worded = ["a red circle", ""], [f"photo of {WORD}", f"{WORD} on a {WORD}"]
    first = setup.encode_text(model, worded)
    values = losses(setup, model, worded, steps=6)
    assert values[-1] < values[0]
    assert model.words is not None
    for name, rows in model.words.named():
        assert (rows != model.words.start[name]).all(1).all(), name
    after = {n: p for part in model.modules().values() for n, p in part.state_dict().items()}
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    for one, other in zip(
        setup.encode_text(model, plain).unbind(), setup.encode_text(fresh, plain).unbind(), strict=True
    ):
        assert all(torch.equal(one[name], other[name]) for name in one), "prompts without the word stay"
    now = setup.encode_text(model, worded)
    assert all(
        not torch.equal(first[name], now[name]) for name in now.tensors if name.endswith(("BLE", "BE"))
    )


@pytest.mark.parametrize("key", FILES)
def test_its_file_gives_the_same_states(key: str, tmp_path: Path) -> None:
    setup, model = learning(key)
    losses(setup, model, [WORD, WORD], steps=1)
    assert model.words is not None
    path = save_embedding(model.words.words[0], model, tmp_path / "word.safetensors", None, {})
    assert sorted(load_file(path)) == FILES[key]
    own = {"placeholder": WORD, "model_name": str(path)}
    _, again = learning(key, embedding=own)
    one, other = (setup.encode_text(m, [f"photo of {WORD}"]) for m in (model, again))
    assert all(torch.equal(one[name], other[name]) for name in one.tensors)
    if "clip_g" not in FILES[key]:
        with pytest.raises(DataError, match="is not an embedding of|cannot be used"):
            read_embedding(path, tiny_model("STABLE_DIFFUSION_XL_10_BASE"), "embedding.model_name")


def test_a_model_without_its_largest_encoder_has_words_too(tmp_path: Path) -> None:
    _, whole = learning("STABLE_DIFFUSION_3")
    assert whole.words is not None
    path = save_embedding(whole.words.words[0], whole, tmp_path / "word.safetensors", None, {})
    small = tiny_model("STABLE_DIFFUSION_3")
    small.release("text_encoder_3", "tokenizer_3")
    read = read_embedding(path, small, "embedding.model_name")
    assert sorted(read) == ["text_encoder", "text_encoder_2"]
    rows = {f"bundle_emb.{WORD}.{key}": torch.zeros(1, 4) for key in ("clip_l", "clip_g")}
    assert sorted(bundled(rows, whole.spec, "file")[0][WORD]) == ["clip_g", "clip_l"]
    del rows[f"bundle_emb.{WORD}.clip_l"]
    found, notes = bundled(rows, whole.spec, "file")
    assert found == {} and len(notes) == 1
