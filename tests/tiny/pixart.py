"""Tiny PixArt folders with random weights."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny.pieces import T5_LENGTH, build_t5, build_vae, write_folder, write_t5_tokenizer


def build_transformer(sized: bool) -> torch.nn.Module:
    from diffusers.models.transformers.pixart_transformer_2d import PixArtTransformer2DModel

    return PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        norm_num_groups=4,
        cross_attention_dim=24,
        # the size at which the model is told resolution and aspect ratio
        sample_size=128 if sized else 16,
        patch_size=2,
        caption_channels=20,
        use_additional_conditions=sized,
        interpolation_scale=1,
    )


def _write(folder: Path, pipeline: str, factor: int, sized: bool) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_t5_tokenizer(folder / "tokenizer")
        modules = {
            "transformer": build_transformer(sized),
            "text_encoder": build_t5(size),
            "vae": build_vae(factor),
        }
        scheduler = {
            "_class_name": "DPMSolverMultistepScheduler",
            "num_train_timesteps": 1000,
            "beta_start": 0.0001,
            "beta_end": 0.02,
            "beta_schedule": "linear",
            "prediction_type": "epsilon",
            "solver_order": 2,
        }
        write_folder(folder, pipeline, modules, {"tokenizer": "T5Tokenizer"}, scheduler)


def write_alpha(folder: Path, prediction: str, factor: int) -> None:
    _write(folder, "PixArtAlphaPipeline", factor, sized=True)


def write_sigma(folder: Path, prediction: str, factor: int) -> None:
    _write(folder, "PixArtSigmaPipeline", factor, sized=False)


def _pipeline(cfg: float) -> dict[str, object]:
    return {
        "max_sequence_length": T5_LENGTH,
        "use_resolution_binning": False,
        "clean_caption": False,
    }


FAMILIES = {"PIXART_ALPHA": write_alpha, "PIXART_SIGMA": write_sigma}
PIPELINE = dict.fromkeys(FAMILIES, _pipeline)
