"""Words whose vectors take the place of what the text encoder puts out: what learns, is cached, is saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.adapter.embedding_files import bundled, read_embedding, save_embedding
from modules.adapter.formats import read_adapter
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.model.text.LearnedWords import PLACES
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.trainer.memory.memory_plan import plan_memory
from modules.util.config.load import find_problems
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import DataError, UserError
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch

WORD = "<cat-toy>"
OWN = {"placeholder": WORD, "token_count": 2, "initial_embedding_text": "cat", "is_output_embedding": True}
FILES = {
    "FLUX_DEV_1": "t5_out", "PIXART_SIGMA": "t5_out", "CHROMA_1": "t5_out", "SANA": "gemma_out",
    "QWEN": "qwen_out", "Z_IMAGE": "qwen_out", "FLUX_2": "qwen_out", "FLUX_2_DEV": "mistral_out",
}  # fmt: skip
"""What the file of an embedding holds."""


def config_of(key: str, **changes: Any) -> TrainConfig:
    made = {"__version": 1, "model_type": key, "training_method": "EMBEDDING", "embedding": OWN}
    return TrainConfig.from_dict({**made, **changes})


def learning(key: str, **changes: Any) -> tuple[BaseModelSetup, Model]:
    """A tiny model with a word of two output vectors that is trained alone."""
    setup, model, config = tiny_setup(key), tiny_model(key), config_of(key, **changes)
    assert find_problems(config).errors == []
    training.attach_or_unfreeze(model, config)
    model.set_mode("train")
    return setup, model


def rows_of(model: Model) -> torch.Tensor:
    assert model.words is not None
    ((_, rows),) = model.words.named()
    return rows


@pytest.mark.parametrize("key", FILES)
def test_the_word_learns_from_cached_prompts_and_nothing_else_moves(key: str, tmp_path: Path) -> None:
    setup, model = learning(key)
    fresh, rows = tiny_model(key), rows_of(model)
    assert not model.trains_text, "prompts stay cached"
    prompts = [f"photo of {WORD}", f"{WORD} on a {WORD}"]
    cached = setup.encode_text(model, prompts)
    before = {n: p.clone() for part in model.modules().values() for n, p in part.state_dict().items()}
    batch = replace(image_batch(setup, model, ["a", "b"]), prompts=prompts, cond=cached)
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    optimizer, began, losses = torch.optim.Adam([rows], lr=0.1), rows.detach().clone(), []
    for _ in range(12):
        loss = setup.calculate_loss(model, batch, draw).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert (rows != began).all(1).all()
    after = {n: p for part in model.modules().values() for n, p in part.state_dict().items()}
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    assert all(p.grad is None for part in model.modules().values() for p in part.parameters())
    # the vectors are where the word is, and nowhere else
    shown = setup.hidden_states(model, cached)
    assert torch.equal(shown[cached[PLACES] > 0], rows.detach().repeat(3, 1))
    assert torch.equal(shown[cached[PLACES] == 0], cached["hidden_BLE"][cached[PLACES] == 0])
    # a prompt without the word is what it was
    plain = ["a red circle", ""]
    one, other = setup.encode_text(model, plain), setup.encode_text(fresh, plain)
    assert all(torch.equal(one[name], other[name]) for name in other.tensors)
    assert torch.equal(setup.hidden_states(model, one), other["hidden_BLE"])
    _check_file(setup, model, FILES[key], tmp_path)


def _check_file(setup: BaseModelSetup, model: Model, key: str, folder: Path) -> None:
    """What is written is read again, and gives the same prediction."""
    assert model.words is not None
    path = save_embedding(model.words.words[0], model, folder / "word.safetensors", None, {})
    assert list(load_file(path)) == [key]
    own = {**OWN, "model_name": str(path)}
    _, again = learning(setup.spec.key, embedding=own)
    conds = [(m, setup.encode_text(m, [f"photo of {WORD}"])) for m in (model, again)]
    one, other = (setup.hidden_states(m, cond) for m, cond in conds)
    assert torch.equal(one, other)


def test_it_begins_as_the_states_of_its_initial_text() -> None:
    setup, model = learning("QWEN", embedding={**OWN, "token_count": 1, "initial_embedding_text": "cat"})
    states = setup.encode_text(tiny_model("QWEN"), ["cat"])["hidden_BLE"][0]
    assert torch.equal(rows_of(model).detach(), states[:1])


def test_two_words_keep_their_order() -> None:
    more = {**OWN, "placeholder": "<dog-toy>", "token_count": 3, "initial_embedding_text": "dog"}
    setup, model = learning("PIXART_SIGMA", embedding={**OWN, "token_count": 3},
                            additional_embeddings=[{**more, "train": False}])  # fmt: skip
    cond = setup.encode_text(model, [f"<dog-toy> and {WORD}"])
    assert [int(place) for place in cond[PLACES][0] if place] == [4, 5, 6, 1, 2, 3]


@pytest.mark.parametrize("layout", ["KOHYA_LORA", "DIFFUSERS_LORA", "COMFY_LORA", "LEGACY_LORA"])
def test_they_travel_in_the_file_of_an_adapter(layout: str, tmp_path: Path) -> None:
    key = "FLUX_DEV_1"
    lora = {"training_method": "LORA", "additional_embeddings": [OWN], "embedding": {}}
    _, model = learning(key, **lora)
    made = training.save(model, tmp_path / "out.safetensors", layout)
    name = f"bundle_emb.{WORD}.t5_out"
    saved = {n: t for n, t in load_file(made).items() if n.startswith("bundle_emb.")}
    assert list(saved) == [name]
    assert torch.equal(saved[name], rows_of(model).detach())
    assert torch.equal(read_adapter(made, tiny_model(key)).embeddings[WORD]["t5_out"], saved[name])
    _, again = learning(key, **{**lora, "additional_embeddings": [], "lora_model_name": str(made)})
    assert torch.equal(rows_of(again).detach(), saved[name])
    assert not rows_of(again).requires_grad
    wrong = {
        **lora,
        "additional_embeddings": [{**OWN, "is_output_embedding": False}],
        "lora_model_name": str(made),
    }
    with pytest.raises(UserError, match="output vectors"):
        learning(key, **wrong)


def test_files_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    model = tiny_model("FLUX_DEV_1")
    width = model.module("text_encoder_2").config.d_model
    for name, tensors in (
        ("out", {"t5_out": torch.ones(1, width)}),
        ("in", {"clip_l": torch.ones(1, 24), "t5": torch.ones(1, width)}),
        ("wide", {"t5_out": torch.ones(1, width + 1)}),
    ):
        save_file(tensors, tmp_path / f"{name}.safetensors")
    with pytest.raises(DataError, match="holds no output vectors, but is_output_embedding is true"):
        read_embedding(tmp_path / "in.safetensors", model, "embedding.model_name", True)
    for name, output, text in (
        ("out", False, "set is_output_embedding to true"),
        ("in", True, "set is_output_embedding to false"),
        ("wide", True, "trained with this kind"),
    ):
        with pytest.raises(DataError) as error:
            read_embedding(tmp_path / f"{name}.safetensors", model, "embedding.model_name", output)
        assert text in str(error.value.hint)
    with pytest.raises(DataError, match="takes no others"):
        read_embedding(tmp_path / "in.safetensors", tiny_model("Z_IMAGE"), "embedding.model_name", None)
    with pytest.raises(DataError, match="not supported for Stable Diffusion 1.5"):
        read_embedding(tmp_path / "out.safetensors", tiny_model(), "embedding.model_name", None)


def test_vectors_of_both_kinds_are_refused_and_not_dropped(tmp_path: Path) -> None:
    model = tiny_model("FLUX_DEV_1")
    both = {
        "clip_l": torch.ones(1, 24),
        "t5_out": torch.ones(1, model.module("text_encoder_2").config.d_model),
    }
    save_file(both, tmp_path / "both.safetensors")
    for wanted in (True, False, None):
        with pytest.raises(DataError, match=r"holds clip_l besides output vectors \(t5_out\)") as error:
            read_embedding(tmp_path / "both.safetensors", model, "embedding.model_name", wanted)
        assert error.value.field == "embedding.model_name" and error.value.hint
    rows = {f"bundle_emb.{WORD}.{key}": tensor for key, tensor in both.items()}
    with pytest.raises(DataError, match="holds clip_l besides") as error:
        bundled(rows, model.spec, "file")
    assert WORD in error.value.message and error.value.hint


@pytest.mark.parametrize(
    ("key", "output", "text"),
    [("STABLE_DIFFUSION_15", True, "takes no output vectors"), ("QWEN", False, "takes no further words")],
)
def test_families_take_one_kind_each(key: str, output: bool, text: str) -> None:
    config = config_of(key, embedding={**OWN, "is_output_embedding": output})
    errors = find_problems(config).errors
    assert [error.field for error in errors] == ["embedding.is_output_embedding"]
    assert text in errors[0].message


def test_the_forecast_counts_the_pass_through_the_denoiser_and_no_encoder() -> None:
    made = {"base_model_name": str(tiny_folder("QWEN")), "resolution": "64", "concepts": []}
    lora = {"training_method": "LORA", "embedding": {}, "lora_rank": 1}
    word, adapter = (
        plan_memory(config_of("QWEN", **made, **more), cuda=False).phases[-1] for more in ({}, lora)
    )
    assert word.name == adapter.name == "training step"
    assert not any("text_encoder" in name for name in word.items)
    assert word.items["gradients"] == rows_of(learning("QWEN")[1]).numel() * 4
    activations = "activations and working memory"
    assert 0.5 * adapter.items[activations] < word.items[activations] < adapter.items[activations]
