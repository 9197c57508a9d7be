"""Cases of embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.house.acts import outcomes as see
from tests.house.acts.bases import concept, flux, pictures, stable_diffusion_3
from tests.house.acts.case import Case, shared_folder
from tests.tiny import small_folder

WORD = "<word>"
LIST = "additional_embeddings.0."


def worded(folder: Path) -> dict[str, Any]:
    """A LoRA of the denoiser and a word that all captions begin with."""
    return {
        **pictures(folder),
        "concepts": [concept(text={"trigger_word": WORD})],
        "additional_embeddings": [{"placeholder": WORD, "token_count": 2, "initial_embedding_text": "cat"}],
        "text_encoder.train": False,
    }


def alone(folder: Path) -> dict[str, Any]:
    """The word alone."""
    own = {
        "embedding.placeholder": WORD,
        "embedding.token_count": 2,
        "embedding.initial_embedding_text": "cat",
    }
    return {**worded(folder), **own, "additional_embeddings": [], "training_method": "EMBEDDING"}


def worded_xl(folder: Path) -> dict[str, Any]:
    key = "STABLE_DIFFUSION_XL_10_BASE"
    return {**worded(folder), "model_type": key, "base_model_name": str(small_folder(key)), "max_steps": 1}


def worded_3(folder: Path) -> dict[str, Any]:
    word = {
        name: worded(folder)[name] for name in ("concepts", "additional_embeddings", "text_encoder.train")
    }
    return {**stable_diffusion_3(folder), **word, "max_steps": 1}


def _in_flux(made: dict[str, Any], folder: Path) -> dict[str, Any]:
    kept = ("concepts", "additional_embeddings", "text_encoder.train", "training_method")
    word = {name: made[name] for name in made if name in kept or name.startswith("embedding.")}
    return {**flux(folder), **word}


def worded_flux(folder: Path) -> dict[str, Any]:
    return _in_flux(worded(folder), folder)


def alone_flux(folder: Path) -> dict[str, Any]:
    return _in_flux(alone(folder), folder)


def _file(folder: Path) -> None:
    rows = torch.linspace(-1, 1, 24)[None]
    save_file({"emb_params": rows}, folder / "word.safetensors")


def file() -> str:
    return str(shared_folder("word", _file) / "word.safetensors")


def of(prefix: str, base: see.Any) -> list[Case]:
    """The settings of an embedding."""
    ended = {f"{prefix}stop_training_after": 1, f"{prefix}stop_training_after_unit": "STEP", "max_steps": 2}
    return [
        Case(f"{prefix}placeholder", base, "<other>", see.end),
        Case(f"{prefix}model_name", base, lambda folder: file(), see.weights),
        Case(f"{prefix}token_count", base, 1, see.weights),
        Case(f"{prefix}initial_embedding_text", base, "dog", see.weights),
        Case(f"{prefix}stop_training_after", base, 2, see.weights, ended),
        Case(f"{prefix}stop_training_after_unit", base, "NEVER", see.weights, ended),
    ]


CASES = [
    *of(LIST, worded),
    Case(f"{LIST}is_output_embedding", worded_flux, True, see.weights),
    Case("embedding.is_output_embedding", alone_flux, True, see.weights),
    Case(f"{LIST}train", worded, False, see.weights),
    *of("embedding.", alone),
    Case("embedding.train", alone, False, see.end),
    Case("additional_embeddings", worded, [], see.names),
    Case("embedding_learning_rate", worded, 0.1, see.rates),
    Case("embedding_weight_dtype", worded, "BFLOAT_16", see.weights),
    Case("preserve_embedding_norm", worded, True, see.weights),
    Case("bundle_additional_embeddings", worded, False, see.names),
    Case("text_encoder.train_embedding", worded_xl, False, see.weights),
    Case("text_encoder_2.train_embedding", worded_xl, False, see.weights),
    Case("text_encoder_3.train_embedding", worded_3, False, see.weights),
]
