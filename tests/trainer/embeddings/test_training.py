"""Embeddings that are trained: what moves, what stays, what is written, what a resumed run does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from modules.model.text.LearnedWords import PREFIX
from tests.tiny import small_folder
from tests.trainer.builders import run_here, same_weights, write_config

WORD = "<cat-toy>"
XL = "STABLE_DIFFUSION_XL_10_BASE"


def captioned(folder: Path, text: str = f"photo of {WORD}") -> list[dict[str, Any]]:
    """Concepts of one folder of images whose captions hold the word, but for one."""
    from tests.trainer.builders import write_pairs

    concepts = write_pairs(folder / "data", count=4)
    for number in range(4):
        for side in ("chosen", "rejected"):
            caption = "a red circle" if number == 3 else text
            (folder / "data" / side / f"{number:03d}.txt").write_text(caption, encoding="utf-8")
    return concepts


def words_config(folder: Path, **changes: Any) -> Path:
    """Supervised training of a LoRA with one word of two tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    concepts = captioned(folder)
    if not changes.get("rlhf_enabled"):
        concepts = [{**concepts[0], "type": "STANDARD"}]
    made: dict[str, Any] = {
        "rlhf_enabled": False,
        "concepts": concepts,
        "additional_embeddings": [{"placeholder": WORD, "token_count": 2, "initial_embedding_text": "cat"}],
        "embedding_learning_rate": 1e-2,
        "text_encoder": {"train": False},
        "epochs": 2,
    }
    return write_config(folder, **{**made, **changes})


def words_of(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: rows.clone() for name, rows in trainer.parts.model.words.state_dict().items()}


def test_only_the_new_vectors_move(tmp_path: Path) -> None:
    trainer = run_here(words_config(tmp_path))
    model = trainer.parts.model
    fresh = type(trainer.parts.setup)().load(str(small_folder()))
    for name, weight in model.module("text_encoder").state_dict().items():
        assert torch.equal(weight, fresh.module("text_encoder").state_dict()[name]), name
    (word,) = model.words.words
    rows = word.vectors["text_encoder"]
    began = model.words.start[f"{PREFIX}{WORD}.text_encoder"]
    table = fresh.module("text_encoder").get_input_embeddings().weight
    tokenizer = fresh.parts["tokenizer"]
    cat, fill = (tokenizer(text, add_special_tokens=False).input_ids[0] for text in ("cat", "*"))
    assert torch.equal(began, table[[cat, fill]])
    assert (rows != began).all(1).all()
    plain = ["a red circle", ""]
    setup = trainer.parts.setup
    for one, other in zip(
        setup.encode_text(model, plain).unbind(), setup.encode_text(fresh, plain).unbind(), strict=True
    ):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole = run_here(words_config(tmp_path / "whole"))
    half = tmp_path / "half"
    config = words_config(half)
    first = run_here(config, "epochs=1", "backup_after_unit=EPOCH", "backup_after=1")
    again = run_here(config, "continue_last_backup=true")
    assert same_weights(tmp_path / "whole/out.safetensors", half / "out.safetensors")
    end, middle = words_of(again), words_of(first)
    assert all(torch.equal(rows, end[name]) for name, rows in words_of(whole).items())
    # what was resumed is what was trained before, and it moved on
    assert all(not torch.equal(rows, end[name]) for name, rows in middle.items())
    began = again.parts.model.words.start
    assert all(not torch.equal(rows, began[name]) for name, rows in middle.items())
