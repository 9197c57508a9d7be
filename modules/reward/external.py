"""Rewards whose packages pin old versions of others. They are used if installed, preferably in a separate
environment.

Neither package is compatible with this program's versions. Install it with ``torch``, ``pillow`` and
``pydantic`` in a second environment, run ``scripts/reward_server.py`` there, and use the ``remote`` reward in
the run. Both read their checkpoints with pickle: use only files from their authors.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from modules.reward.base import REWARDS, Reward, RewardBatch, RewardError, to_uint8
from modules.util.errors import ConfigError, DataError, UnsupportedError


def load_package(module: str, package: str) -> Any:
    """Import an optional package. Raises ``UnsupportedError`` that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnsupportedError(
            f"this reward needs the package {package!r}: {error}",
            hint=(
                "it needs old versions of other packages: make a second environment, 'pip install "
                f"{package} -r requirements-server.txt' there, start scripts/reward_server.py in it and "
                "use the reward 'remote'"
            ),
        ) from error


def pictures(images_BCHW: Tensor) -> list[Image.Image]:
    """The images as 8-bit RGB pictures."""
    return [Image.fromarray(one.numpy()) for one in to_uint8(images_BCHW).permute(0, 2, 3, 1).contiguous()]


def _existing(path: str, field: str) -> str:
    if path and not Path(path).exists():
        raise DataError(f"{path} does not exist", field, "give the downloaded file, or leave it empty")
    return path


@REWARDS.register("hpsv2")
class HumanPreferenceScore(Reward):
    """Score of how much people like an image for its prompt, by HPS v2 (Wu et al. 2023, arXiv 2306.09341).

    Args:
        version: of the weights, ``v2.0`` or ``v2.1``.
        weights: a downloaded checkpoint; empty lets the package download it.
    """

    needs = "the package hpsv2"
    has_weights = True
    required_fields = ("prompt",)

    def __init__(self, version: str = "v2.1", weights: str = "") -> None:
        super().__init__()
        if version not in ("v2.0", "v2.1"):
            raise ConfigError(f"{version!r} is not 'v2.0' or 'v2.1'", "version")
        self.version, self.weights = version, weights
        self._package: Any = None

    def load(self, device: torch.device | str = "cpu") -> None:
        """Do nothing: the package loads its weights with the first score, onto a device of its own choice."""
        super().load(device)
        _existing(self.weights, "weights")
        self._package = load_package("hpsv2.img_score", "hpsv2")

    def weights_file(self) -> Path | None:
        return Path(self.weights) if self.weights else None

    def unload(self) -> None:
        self._package = None

    def _score(self, batch: RewardBatch) -> Tensor:
        if self._package is None:
            raise RuntimeError(f"reward {self.name!r}: load() first")
        more = {"cp": self.weights} if self.weights else {}
        made = pictures(batch.images_BCHW)
        scores_B = torch.zeros(len(batch))
        # the package reads its checkpoint again on every call, so there is one call per prompt
        for prompt in dict.fromkeys(batch.prompts):
            index = [i for i, text in enumerate(batch.prompts) if text == prompt]
            answer = self._package.score([made[i] for i in index], prompt, hps_version=self.version, **more)
            if not isinstance(answer, list) or len(answer) != len(index):
                raise RewardError(f"reward {self.name!r} answered {answer!r:.60} for {len(index)} images")
            scores_B[index] = torch.tensor([_one_number(one, self.name) for one in answer])
        return scores_B


@REWARDS.register("image_reward")
class ImageReward(Reward):
    """Score of how much people like an image for its prompt, by ImageReward (Xu et al. 2023, arXiv 2304.05977).

    Args:
        weights: a downloaded ``ImageReward.pt``, or the name that the package downloads.
        folder: where the package keeps its downloads (``med_config.json`` is one); empty for its usual place.
    """

    needs = "the package image-reward"
    has_weights = True
    required_fields = ("prompt",)

    def __init__(self, weights: str = "ImageReward-v1.0", folder: str = "") -> None:
        super().__init__()
        self.weights, self.folder = weights, folder
        self._model: Any = None

    def load(self, device: torch.device | str = "cpu") -> None:
        super().load(device)
        if self._model is None:
            _existing(self.folder, "folder")
            package = load_package("ImageReward", "image-reward")
            more = {"download_root": self.folder} if self.folder else {}
            self._model = package.load(self.weights, device=str(device), **more)

    def weights_file(self) -> Path:
        return Path(self.weights)

    def unload(self) -> None:
        self._model = None

    def _score(self, batch: RewardBatch) -> Tensor:
        if self._model is None:
            raise RuntimeError(f"reward {self.name!r}: load() first")
        pairs = zip(pictures(batch.images_BCHW), batch.prompts, strict=True)
        return torch.tensor(
            [_one_number(self._model.score(prompt, picture), self.name) for picture, prompt in pairs]
        )


def _one_number(answer: Any, name: str) -> float:
    try:
        return float(answer)
    except (TypeError, ValueError) as error:
        raise RewardError(f"reward {name!r} answered {answer!r:.60}, not a number") from error
