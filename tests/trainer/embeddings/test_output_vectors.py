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
from modules.modelSetup.sample_images import SampleRequest, sample
from modules.spec.registry import FAMILIES
from modules.trainer.evaluate.sample_texts import keep_sample_texts
from modules.trainer.memory.memory_plan import plan_memory
from modules.util.config.load import find_problems
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import DataError, UserError
from tests.tiny import small_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch
from tests.usual import usual

WORD = "<cat-toy>"
OWN = {"placeholder": WORD, "token_count": 2, "initial_embedding_text": "cat", "is_output_embedding": True}
SD, XL, SD_3 = "STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE", "STABLE_DIFFUSION_3"
FILES = {
    "FLUX_DEV_1": ["t5_out"], "PIXART_SIGMA": ["t5_out"], "CHROMA_1": ["t5_out"], "SANA": ["gemma_out"],
    "QWEN": ["qwen_out"], "Z_IMAGE": ["qwen_out"], "FLUX_2": ["qwen_out"], "FLUX_2_DEV": ["mistral_out"],
    SD: ["emp_params_out"], "STABLE_DIFFUSION_15_INPAINTING": ["emp_params_out"], XL: ["clip_g_out", "clip_l_out"],
    SD_3: ["clip_g_out", "clip_l_out", "t5_out"],
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


def all_rows(model: Model) -> list[torch.Tensor]:
    """The vectors of the word, by encoder."""
    assert model.words is not None
    return [rows for _, rows in model.words.named()]


def rows_of(model: Model) -> torch.Tensor:
    (rows,) = all_rows(model)
    return rows


def in_states(model: Model) -> torch.Tensor:
    """The vectors as they follow each other in the states of a prompt with the word, (tokens, E)."""
    rows = [one.detach() for one in all_rows(model)]
    # both CLIPs side by side; T5, if there is one too, after them
    clips = [torch.cat(rows[:2], dim=-1)] if len(rows) > 1 else rows[:1]
    return torch.cat([*clips, *rows[2:]])


# each kind of text encoder once
@pytest.mark.parametrize("key", usual(FILES, "FLUX_DEV_1", "PIXART_SIGMA", "CHROMA_1", "SANA", "QWEN", SD, SD_3))
def test_the_word_learns_from_cached_prompts_and_nothing_else_moves(key: str, tmp_path: Path) -> None:
    setup, model = learning(key)
    fresh, vectors = tiny_model(key), all_rows(model)
    assert not model.trains_text, "prompts stay cached"
    prompts = [f"photo of {WORD}", f"{WORD} on a {WORD}"]
    cached = setup.encode_text(model, prompts)
    before = {n: p.clone() for part in model.modules().values() for n, p in part.state_dict().items()}
    batch = replace(image_batch(setup, model, ["a", "b"]), prompts=prompts, cond=cached)
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    optimizer, losses = torch.optim.Adam(vectors, lr=0.1), []
    began = [rows.detach().clone() for rows in vectors]
    for _ in range(6):
        loss = setup.calculate_loss(model, batch, draw).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert all(bool((rows != first).all()) for rows, first in zip(vectors, began, strict=True))
    after = {n: p for part in model.modules().values() for n, p in part.state_dict().items()}
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    assert all(p.grad is None for part in model.modules().values() for p in part.parameters())
    # the vectors are where the word is, and nowhere else
    shown = setup.hidden_states(model, cached)
    assert cached[PLACES].gt(0).sum(1).tolist() == [len(in_states(model)), 2 * len(in_states(model))]
    one, two = (shown[n][cached[PLACES][n].argsort(stable=True)][cached[PLACES][n].eq(0).sum() :] for n in (0, 1))
    assert torch.equal(one, in_states(model))
    assert torch.equal(two, in_states(model).repeat_interleave(2, 0))
    assert torch.equal(shown[cached[PLACES] == 0], cached["hidden_BLE"][cached[PLACES] == 0])
    # the word changes no pooled state while it is trained
    if "pooled_BE" in cached.tensors:
        assert torch.equal(setup.encode_text(model, prompts)["pooled_BE"], cached["pooled_BE"])
    # a prompt without the word is what it was
    plain = ["a red circle", ""]
    one, other = setup.encode_text(model, plain), setup.encode_text(fresh, plain)
    assert all(torch.equal(one[name], other[name]) for name in other.tensors)
    assert torch.equal(setup.hidden_states(model, one), other["hidden_BLE"])
    _check_file(setup, model, FILES[key], tmp_path)


def _check_file(setup: BaseModelSetup, model: Model, keys: list[str], folder: Path) -> None:
    """What is written is read again, and gives the same prediction."""
    assert model.words is not None
    path = save_embedding(model.words.words[0], model, folder / "word.safetensors", None, {})
    assert sorted(load_file(path)) == keys
    own = {**OWN, "model_name": str(path)}
    _, again = learning(setup.spec.key, embedding=own)
    conds = [(m, setup.encode_text(m, [f"photo of {WORD}"])) for m in (model, again)]
    one, other = (setup.hidden_states(m, cond) for m, cond in conds)
    assert torch.equal(one, other)


def test_it_begins_as_the_states_of_its_initial_text() -> None:
    setup, model = learning("QWEN", embedding={**OWN, "token_count": 1, "initial_embedding_text": "cat"})
    states = setup.encode_text(tiny_model("QWEN"), ["cat"])["hidden_BLE"][0]
    assert torch.equal(rows_of(model).detach(), states[:1])


@pytest.mark.parametrize("key", [SD, XL, SD_3])
def test_it_begins_as_the_states_of_a_clip(key: str) -> None:
    setup, model = learning(key, embedding={**OWN, "token_count": 1, "initial_embedding_text": "cat"})
    states_LE = setup.encode_text(tiny_model(key), ["cat"])["hidden_BLE"][0]
    first = in_states(model)
    assert torch.equal(first[:1], states_LE[1:2])
    if key == SD_3:
        assert torch.equal(first[1:], states_LE[16:17])


def test_places_are_found_in_every_chunk() -> None:
    setup, model = learning(XL)
    model.prompt_chunks = 3
    prompts = ["a red circle " * 8 + WORD, WORD]
    cond = setup.encode_text(model, prompts)
    places_BL, length = cond[PLACES], setup.encode_text(model, ["a"])["hidden_BLE"].shape[1]
    assert places_BL.shape == cond["hidden_BLE"].shape[:2] and places_BL.shape[1] > length
    assert not bool(places_BL[0, :length].any()) and places_BL[0].sum() == places_BL[1].sum() == 3
    shown = setup.hidden_states(model, cond)
    assert all(torch.equal(shown[n][places_BL[n] > 0], in_states(model)) for n in (0, 1))


def test_without_t5_there_are_vectors_for_the_clips_alone(tmp_path: Path) -> None:
    setup = tiny_setup(SD_3)
    whole = learning(SD_3)[1]
    assert whole.words is not None
    model = tiny_model(SD_3)
    model.release("text_encoder_3", "tokenizer_3")
    training.attach_or_unfreeze(model, config_of(SD_3))
    assert len(all_rows(model)) == 2
    cond = setup.encode_text(model, [WORD])
    assert cond[PLACES].shape == cond["hidden_BLE"].shape[:2]
    assert torch.equal(setup.hidden_states(model, cond)[cond[PLACES] > 0], in_states(model))
    # a file that was made with T5 can be used without it
    path = save_embedding(whole.words.words[0], whole, tmp_path / "whole.safetensors", None, {})
    read = read_embedding(path, model, "embedding.model_name", True)
    assert list(read) == ["text_encoder_out", "text_encoder_2_out"]


def test_vectors_that_are_narrower_than_the_states_have_zeros_behind_them() -> None:
    _, model = learning(XL)
    assert model.words is not None
    states_BLE, places_BL = torch.ones(1, 4, 60), torch.tensor([[0, 1, 2, 0]])
    shown = model.words.put_in(states_BLE, places_BL, model.spec.output_groups)
    assert torch.equal(shown[0, 1:3, :48], in_states(model)) and not bool(shown[0, 1:3, 48:].any())
    assert torch.equal(shown[0, ::3], states_BLE[0, ::3])


@pytest.mark.parametrize("key", usual([SD, XL, SD_3], SD, SD_3))
def test_samples_show_the_vectors_as_they_are_now(key: str) -> None:
    setup, model = learning(key)
    wanted = [
        SampleConfig(prompt=prompt, width=64, height=64, diffusion_steps=2, cfg_scale=3.0)
        for prompt in (f"a {WORD}", "a red circle")
    ]
    keep_sample_texts(setup, model, wanted, lambda *_: True)
    model.release(*model.text_encoders)

    def images() -> list[torch.Tensor]:
        requests = [SampleRequest.of(one.filled(model.spec), 7) for one in wanted]
        return [sample(setup, model, request) for request in requests]

    before = images()
    for rows in all_rows(model):
        rows.data += 1.0
    after = images()
    assert not torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])


def test_zeros_next_to_output_vectors_are_those_of_onetrainer(tmp_path: Path) -> None:
    for key, tensors in (
        (SD, {"emp_params": torch.zeros(2, 24), "emp_params_out": torch.ones(2, 24)}),
        (XL, {**{f"clip_{n}": torch.zeros(2, 24) for n in "lg"}, **{f"clip_{n}_out": torch.ones(2, 24) for n in "lg"}}),
    ):
        save_file(tensors, tmp_path / "theirs.safetensors")
        read = read_embedding(tmp_path / "theirs.safetensors", tiny_model(key), "embedding.model_name", True)
        assert all(bool(rows.eq(1).all()) and rows.shape == (2, 24) for rows in read.values())
        rows = {f"bundle_emb.{WORD}.{name.replace('emp_params', 'clip_l')}": rows for name, rows in tensors.items()}
        found, notes = bundled(rows, FAMILIES[key], "file")
        assert notes == () and all(name.endswith("_out") for name in found[WORD])


def test_two_words_keep_their_order() -> None:
    more = {**OWN, "placeholder": "<dog-toy>", "token_count": 3, "initial_embedding_text": "dog"}
    setup, model = learning("PIXART_SIGMA", embedding={**OWN, "token_count": 3},
                            additional_embeddings=[{**more, "train": False}])  # fmt: skip
    cond = setup.encode_text(model, [f"<dog-toy> and {WORD}"])
    assert [int(place) for place in cond[PLACES][0] if place] == [4, 5, 6, 1, 2, 3]


@pytest.mark.parametrize("outputs_first", [True, False])
def test_a_word_of_each_kind_in_one_prompt(outputs_first: bool) -> None:
    """The encoder reads the input vectors, and a * for each output vector."""
    own = {"placeholder": "<dog-toy>", "token_count": 2, "initial_embedding_text": "cat dog"}
    words = [OWN, own] if outputs_first else [own, OWN]
    setup, model = learning(SD, embedding=words[0], additional_embeddings=[{**words[1], "train": False}])
    cond = setup.encode_text(model, [f"a <dog-toy> a {WORD}", f"{WORD} <dog-toy>", WORD])
    read = setup.encode_text(tiny_model(SD), ["a cat dog a * *", "* * cat dog", "* *"])
    assert torch.equal(cond["hidden_BLE"], read["hidden_BLE"])
    assert [places.nonzero()[:, 0].tolist() for places in cond[PLACES]] == [[5, 6], [1, 2], [1, 2]]


LAYOUTS = ("KOHYA_LORA", "DIFFUSERS_LORA", "COMFY_LORA", "LEGACY_LORA")


@pytest.mark.parametrize(
    ("key", "layout"),
    usual(
        [*(("FLUX_DEV_1", layout) for layout in LAYOUTS), *((key, LAYOUTS[0]) for key in (SD, XL, SD_3))],
        *(("FLUX_DEV_1", layout) for layout in LAYOUTS),
        (SD_3, LAYOUTS[0]),
    ),
)
def test_they_travel_in_the_file_of_an_adapter(key: str, layout: str, tmp_path: Path) -> None:
    lora = {"training_method": "LORA", "additional_embeddings": [OWN], "embedding": {}}
    _, model = learning(key, **lora)
    made = training.save(model, tmp_path / "out.safetensors", layout)
    keys = {"FLUX_DEV_1": ["t5"], SD: ["clip_l"], XL: ["clip_l", "clip_g"], SD_3: ["clip_l", "clip_g", "t5"]}[key]
    saved = {n: t for n, t in load_file(made).items() if n.startswith("bundle_emb.")}
    assert sorted(saved) == sorted(f"bundle_emb.{WORD}.{one}_out" for one in keys)
    held = read_adapter(made, tiny_model(key)).embeddings[WORD]
    _, again = learning(key, **{**lora, "additional_embeddings": [], "lora_model_name": str(made)})
    for one, rows, read in zip(keys, all_rows(model), all_rows(again), strict=True):
        written = saved[f"bundle_emb.{WORD}.{one}_out"]
        assert torch.equal(written, rows.detach()) and torch.equal(held[f"{one}_out"], written)
        assert torch.equal(read, written) and not read.requires_grad
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
    with pytest.raises(DataError, match="no vectors for clip_l_out, which Stable Diffusion 1.5"):
        read_embedding(tmp_path / "out.safetensors", tiny_model(), "embedding.model_name", None)
    save_file({"clip_l_out": torch.ones(1, 24)}, tmp_path / "half.safetensors")
    with pytest.raises(DataError, match="no vectors for clip_g_out"):
        read_embedding(tmp_path / "half.safetensors", tiny_model(XL), "embedding.model_name", True)
    with pytest.raises(DataError, match="not supported for Lumina"):
        read_embedding(tmp_path / "out.safetensors", tiny_model("LUMINA_2"), "embedding.model_name", None)


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


def test_some_families_take_no_others() -> None:
    config = config_of("QWEN", embedding={**OWN, "is_output_embedding": False})
    errors = find_problems(config).errors
    assert [error.field for error in errors] == ["embedding.is_output_embedding"]
    assert "cannot learn new words" in errors[0].message


def test_families_with_words_take_output_vectors_too() -> None:
    """No rule has to say which do not."""
    assert [key for key, spec in FAMILIES.items() if spec.embedding_keys and not spec.output_keys] == []


@pytest.mark.slow
def test_the_forecast_counts_the_pass_through_the_denoiser_and_no_encoder() -> None:
    made = {"base_model_name": str(small_folder("QWEN")), "resolution": "64", "concepts": []}
    lora = {"training_method": "LORA", "embedding": {}, "lora_rank": 1}
    word, adapter = (
        plan_memory(config_of("QWEN", **made, **more), cuda=False).phases[-1] for more in ({}, lora)
    )
    assert word.name == adapter.name == "training step"
    assert not any("text_encoder" in name for name in word.items)
    assert word.items["gradients"] == rows_of(learning("QWEN")[1]).numel() * 4
    activations = "activations and working memory"
    assert 0.5 * adapter.items[activations] < word.items[activations] < adapter.items[activations]
