"""Image folders, configs and a model that encodes by averaging: everything the loader tests need."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.create import create_data_loader
from modules.model.batch import Conditioning
from modules.spec.FamilySpec import FamilySpec, PartSpec
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.TrainConfig import TrainConfig

FACTOR = 8


class AveragingModel:
    """Stands in for a ``Model``: counts what it encodes."""

    def __init__(self) -> None:
        self.parts = {"vae": object(), "text_encoder": object(), "tokenizer": object()}
        self.vae = self.parts["vae"]
        self.fingerprints = {name: f"{name}-1" for name in self.parts}
        self.latent_factor = FACTOR
        self.latent_scale, self.latent_shift = 1.0, 0.0
        self.device = torch.device("cpu")
        self.trains_text = False
        self.words = None
        self.prompt_weighting = False
        self.layer_skips: dict[str, int] = {}
        self.prompt_length = 0
        self.prompt_chunks = 1
        self.masks_padding: bool | None = None
        self.text_encoders = ("text_encoder",)
        self.images_encoded: list[int] = []
        self.texts_encoded: list[list[str]] = []
        self.borrowed_parts: list[str] = []

    def fingerprint(self, part: str) -> str:
        return self.fingerprints[part]

    def borrowed(self, part: str) -> Any:
        from contextlib import nullcontext

        self.borrowed_parts.append(part)
        return nullcontext()


class AveragingSetup:
    """Stands in for a model setup: latents are block means, text states count bytes."""

    spec = FamilySpec(
        key="AVERAGING",
        label="Averaging",
        parts=(
            PartSpec("unet", "denoiser", ()),
            PartSpec("text_encoder", "text_encoder", ()),
            PartSpec("vae", "vae", ()),
            PartSpec("tokenizer", "tokenizer", ()),
        ),
        pipeline_class="",
        prediction="epsilon",
        prompt_tokens=40,
        model_architecture="",
    )

    def encode_image(self, model: AveragingModel, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        model.images_encoded.append(rgb_BCHW.shape[0])
        assert rgb_BCHW.min() >= 0 and rgb_BCHW.max() <= 1
        mean_BChw = torch.nn.functional.avg_pool2d(rgb_BCHW, FACTOR)
        return torch.cat([mean_BChw, mean_BChw[:, :1]], 1)

    def text_states(self, model: AveragingModel, prompts: Sequence[str]) -> Conditioning:
        model.texts_encoded.append(list(prompts))
        rows = [[float(zlib.crc32(prompt.encode()) % 1000), float(len(prompt))] for prompt in prompts]
        return Conditioning({"hidden_BLE": torch.tensor(rows)[:, None, :]})

    def encode_text(self, model: AveragingModel, prompts: Sequence[str]) -> Conditioning:
        return self.text_states(model, prompts)

    def cut_prompts(self, model: AveragingModel, prompts: Sequence[str]) -> list[str]:
        return [prompt for prompt in prompts if len(prompt) > 40]


def write_image(
    path: Path, size: tuple[int, int] = (64, 64), seed: int = 0, caption: str | None = ""
) -> Path:
    """A noise image; ``size`` is (width, height). An empty caption becomes one made of the stem."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(values).save(path)
    if caption is not None:
        path.with_suffix(".txt").write_text(caption or f"a picture of {path.stem}", encoding="utf-8")
    return path


def write_pairs(
    root: Path, count: int, sizes: Sequence[tuple[int, int]] = ((64, 64),), prompts: int | None = None
) -> tuple[Path, Path]:
    """Folders ``chosen`` and ``rejected`` with matching images; pair i has prompt i modulo ``prompts``."""
    for index in range(count):
        for number, side in enumerate(("chosen", "rejected")):
            caption = f"prompt {index % (prompts or count)}"
            name = f"pair_{index:04d}.png"
            write_image(root / side / name, sizes[index % len(sizes)], 2 * index + number, caption)
    return root / "chosen", root / "rejected"


def concept(path: Path, kind: str = "STANDARD", **more: Any) -> ConceptConfig:
    plain = {"image": {"enable_crop_jitter": False}, "seed": 1}
    return ConceptConfig.from_dict({"path": str(path), "type": kind, "name": f"{path.name}", **plain, **more})


def config(root: Path, concepts: Sequence[ConceptConfig], **more: Any) -> TrainConfig:
    return TrainConfig.from_dict(
        {
            "__version": TrainConfig.VERSION,
            "concepts": [c.to_dict() for c in concepts],
            "workspace_dir": str(root / "workspace"),
            "cache_dir": str(root / "cache"),
            "output_model_destination": str(root / "models" / "model.safetensors"),
            "resolution": "64",
            "epochs": 3,
            "batch_size": 2,
            "dataloader_threads": 2,
            **more,
        }
    )


def dpo_config(root: Path, count: int = 6, **more: Any) -> TrainConfig:
    """A config on freshly written pairs."""
    chosen, rejected = write_pairs(root, count)
    concepts = [concept(chosen, "DPO_CHOSEN"), concept(rejected, "DPO_REJECTED")]
    return config(root, concepts, rlhf_enabled=True, **more)


def loader(
    made: TrainConfig, model: Any = None, prepare: bool = True, setup: Any = None, **more: Any
) -> BaseDataLoader:
    """A prepared loader of ``made`` with the averaging model."""
    result = create_data_loader(made, model or AveragingModel(), setup or AveragingSetup(), **more)
    if prepare:
        result.prepare()
    return result


def at(epoch: int = 0, epoch_step: int = 0) -> Any:
    """A position in a run."""
    return SimpleNamespace(epoch=epoch, epoch_step=epoch_step)
