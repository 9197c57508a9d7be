"""CLIP models: image and text features for other rewards, and how well an image matches its prompt.

Sources: Radford et al. 2021 (CLIP), Hessel et al. 2021 (CLIPScore). ``transformers`` is imported when a model
is loaded, so that the rest of the package works without it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from modules.reward.base import REWARDS, Reward, RewardBatch, RewardOutline, to_uint8
from modules.util.errors import ConfigError, DataError
from modules.util.files.hub_names import UNREADABLE, fetched, repository

log = logging.getLogger(__name__)

CLIP_L14 = "openai/clip-vit-large-patch14"
CLIP_H14 = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
PICKSCORE = "yuvalkirstain/PickScore_v1"

FloatType = Literal["float32", "float16", "bfloat16"]


def _tower(width: int, layers: int, heads: int, **more: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **more,
    }


_H14 = {
    "projection_dim": 1024,
    "text_config": _tower(1024, 24, 16),
    "vision_config": _tower(1280, 32, 16, patch_size=14),
}
_SIZES: dict[str, dict[str, Any]] = {
    CLIP_L14: {
        "projection_dim": 768,
        "text_config": _tower(768, 12, 12),
        "vision_config": _tower(1024, 24, 16, patch_size=14),
    },
    CLIP_H14: _H14,
    PICKSCORE: _H14,
}
"""Differences of the published models from the defaults of transformers, by repository name."""


class ClipFeatures:
    """A CLIP model with its tokenizer and image preparation.

    Args:
        source: a folder in the Hugging Face layout, or a repository name, with ``@revision`` for a certain
            revision.
        processor: location of the tokenizer and the image preparation, if not with the model.
        dtype: number format of the weights; features are always float32.
        batch_size: images (or texts) per forward pass.
    """

    def __init__(
        self,
        source: str,
        processor: str | None = None,
        dtype: FloatType = "float32",
        batch_size: int = 16,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"{batch_size} is not at least 1", "batch_size")
        self.source = source
        self.processor = processor or source
        self.dtype = getattr(torch, dtype)
        self.batch_size = batch_size
        self.model: Any = None
        self._tokenizer: Any = None
        self._images: Any = None

    def load(self, device: torch.device | str) -> None:
        """Read the model once. A missing or damaged one raises a ``DataError`` that says what to do."""
        if self.model is None:
            from safetensors import SafetensorError
            from transformers import CLIPImageProcessor, CLIPModel, CLIPTokenizer

            try:
                model = fetched(CLIPModel, self.source, dtype=self.dtype)
                self._tokenizer = fetched(CLIPTokenizer, self.processor)
                self._images = fetched(CLIPImageProcessor, self.processor)
            except (*UNREADABLE, SafetensorError) as error:
                raise self._cannot_load(error) from error
            self.model = model.requires_grad_(False).eval()
        self.model.to(device)

    def _cannot_load(self, error: Exception) -> DataError:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        places = dict.fromkeys([self.source, self.processor])
        return DataError(
            f"the CLIP model {' with '.join(map(repr, places))} cannot be loaded: {reason}",
            field="source",
            hint="give a folder with config.json, model.safetensors, preprocessor_config.json and the tokenizer"
            " (download the repository where there is a network), or a repository name that can be downloaded",
        )

    def outline(self) -> RewardOutline | None:
        """The model without weights; ``None`` if its config is not on this machine."""
        from transformers import CLIPModel

        config = self._config()
        if config is None:
            return None
        with torch.device("meta"):
            module: Any = CLIPModel(config).to(self.dtype).requires_grad_(False).eval()
        side, length = config.vision_config.image_size, config.text_config.max_position_embeddings

        def score(count: int) -> object:
            count = min(count, self.batch_size)
            with torch.no_grad():
                texts_BL = torch.zeros(count, length, dtype=torch.int64, device="meta")
                found = [projected(module.get_text_features(input_ids=texts_BL))]
                del texts_BL
                pixels_BCHW = torch.empty(count, 3, side, side, dtype=self.dtype, device="meta")
                found.append(projected(module.get_image_features(pixel_values=pixels_BCHW)))
            return found

        return RewardOutline(module, score)

    def _config(self) -> Any:
        from transformers import CLIPConfig

        if not Path(self.source).exists() and (name := repository(self.source)) in _SIZES:
            return CLIPConfig(**_SIZES[name])
        try:
            return fetched(CLIPConfig, self.source, local_files_only=True)
        except UNREADABLE:
            return None

    def unload(self) -> None:
        self.model = self._tokenizer = self._images = None

    def to(self, device: torch.device | str) -> None:
        if self.model is not None:
            self.model.to(device)

    def _loaded(self) -> Any:
        if self.model is None:
            raise RuntimeError(f"{self.source}: load() first")
        return self.model

    def embed_images(self, images_BCHW: Tensor) -> Tensor:
        """Normalised projected features, float32 (B, D) on the CPU."""
        model, found = self._loaded(), []
        for part in images_BCHW.split(self.batch_size):
            arrays = list(to_uint8(part).permute(0, 2, 3, 1).numpy())
            pixels = self._images(arrays, return_tensors="pt", input_data_format="channels_last")[
                "pixel_values"
            ]
            with torch.no_grad():
                answer = model.get_image_features(pixel_values=pixels.to(model.device, self.dtype))
            found.append(normalised(projected(answer)))
        return torch.cat(found)

    def embed_texts(self, texts: list[str]) -> Tensor:
        """Normalised projected features, float32 (B, D) on the CPU. Texts longer than the model's limit are
        truncated.
        """
        model, found = self._loaded(), []
        limit = min(model.config.text_config.max_position_embeddings, self._tokenizer.model_max_length)
        for start in range(0, len(texts), self.batch_size):
            tokens = self._tokenizer(
                texts[start : start + self.batch_size],
                padding=True,
                truncation=True,
                max_length=limit,
                return_tensors="pt",
            ).to(model.device)
            with torch.no_grad():
                answer = model.get_text_features(
                    input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
                )
            found.append(normalised(projected(answer)))
        return torch.cat(found)

    @property
    def width(self) -> int:
        """Length of a feature."""
        return int(self._loaded().config.projection_dim)

    @property
    def logit_scale(self) -> float:
        """The trained factor between a cosine and a logit."""
        return float(self._loaded().logit_scale.float().exp())


def projected(answer: Any) -> Tensor:
    """The projected feature of either form of answer: a tensor, or an output object with ``pooler_output``."""
    return answer if isinstance(answer, Tensor) else answer.pooler_output


def normalised(features_BD: Tensor) -> Tensor:
    """Rows of length 1, float32 on the CPU."""
    return torch.nn.functional.normalize(features_BD.float().cpu(), dim=1)


class ClipReward(Reward):
    """A reward on top of one CLIP model."""

    needs = "model weights"
    has_weights = True

    def __init__(
        self,
        source: str = CLIP_L14,
        processor: str | None = None,
        dtype: FloatType = "float32",
        batch_size: int = 16,
    ) -> None:
        super().__init__()
        self.clip = ClipFeatures(source, processor, dtype, batch_size)

    def load(self, device: torch.device | str = "cpu") -> None:
        super().load(device)
        self.clip.load(device)

    def model_folders(self) -> list[Path]:
        places = dict.fromkeys([self.clip.source, self.clip.processor])
        return [Path(place) for place in places if Path(place).is_dir()]

    def outline(self) -> RewardOutline | None:
        return self.clip.outline()

    def unload(self) -> None:
        self.clip.unload()

    def to(self, device: torch.device | str) -> None:
        super().to(device)
        self.clip.to(device)

    def cosine(self, batch: RewardBatch) -> Tensor:
        """(B,) cosine between every image and its prompt. Equal prompts are encoded once."""
        unique = list(dict.fromkeys(batch.prompts))
        texts_UD = self.clip.embed_texts(unique)
        where = {text: place for place, text in enumerate(unique)}
        texts_BD = texts_UD[[where[text] for text in batch.prompts]]
        return (self.clip.embed_images(batch.images_BCHW) * texts_BD).sum(dim=1)


@REWARDS.register("clip_score")
class ClipScore(ClipReward):
    """Match between an image and its prompt by CLIP: 100 * max(cosine, 0), or the cosine itself.

    Args:
        source: CLIP folder or repository name.
        scaled: ``False`` for the plain cosine, which also tells misfits apart.
        processor, dtype, batch_size: as ``ClipFeatures``.
    """

    required_fields = ("prompt",)

    def __init__(
        self,
        source: str = CLIP_L14,
        scaled: bool = True,
        processor: str | None = None,
        dtype: FloatType = "float32",
        batch_size: int = 16,
    ) -> None:
        super().__init__(source, processor, dtype, batch_size)
        self.scaled = scaled

    def _score(self, batch: RewardBatch) -> Tensor:
        cosine_B = self.cosine(batch)
        return 100 * cosine_B.clamp(min=0) if self.scaled else cosine_B


@REWARDS.register("clip_source")
class ClipSource(ClipReward):
    """Likeness of an edit to its (first) source image by CLIP: cosine of both images.

    Args:
        source: CLIP folder or repository name.
        processor, dtype, batch_size: as ``ClipFeatures``.
    """

    required_fields = ("source",)

    def _score(self, batch: RewardBatch) -> Tensor:
        unique = {id(images[0]): images[0] for images in batch.sources}
        rows = {
            name: self.clip.embed_images(image_chw[None].float() / 255)[0]
            for name, image_chw in unique.items()
        }
        sources_BD = torch.stack([rows[id(images[0])] for images in batch.sources])
        return (self.clip.embed_images(batch.images_BCHW) * sources_BD).sum(dim=1)


def has_processor(source: str) -> bool:
    """Return whether a model folder contains its own image preparation."""
    return (Path(source) / "preprocessor_config.json").is_file()
