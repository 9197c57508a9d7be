"""The LAION aesthetic predictor: a small network on CLIP image features, about 1 to 10."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import torch
from torch import Tensor, nn

from modules.reward.base import REWARDS, RewardBatch
from modules.reward.clip import CLIP_L14, ClipReward, FloatType
from modules.util.errors import DataError

WEIGHTS_NAME = "sac+logos+ava1-l14-linearMSE.pth"
WEIGHTS_HINT = (
    f"download {WEIGHTS_NAME} from github.com/christophschuhmann/improved-aesthetic-predictor "
    "and give its path as 'weights'"
)
_LINEAR = re.compile(r"(?:.*\.)?(\d+)\.(weight|bias)")


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Tensors of a ``.safetensors`` file or of a torch file, which cannot run code while it is read.

    Raises:
        DataError: the file is missing, damaged, or contains anything but named tensors.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"the weights {file} do not exist", "weights", WEIGHTS_HINT)
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            found = load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError):
            raise DataError(f"{file} holds more than tensors and is not read", "weights") from error
        raise DataError(f"the weights {file} cannot be read: {error}", "weights") from error
    if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
        raise DataError(f"{file} is not a set of named tensors", "weights")
    return found


def linear_stack(tensors: dict[str, Tensor], width: int, name: str) -> nn.Sequential:
    """The linear layers of a file, in numerical order, with nothing in between.

    Dropout between the layers has no effect on scoring and is left out.

    Raises:
        DataError: the layers do not connect from ``width`` to 1.
    """
    layers: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        match = _LINEAR.fullmatch(key)
        if match is None:
            raise DataError(f"{name}: unexpected tensor {key!r}", "weights")
        layers.setdefault(int(match[1]), {})[match[2]] = value
    stack, size = [], width
    for number, parts in sorted(layers.items()):
        if set(parts) != {"weight", "bias"} or parts["weight"].ndim != 2:
            raise DataError(f"{name}: layer {number} is not a linear layer", "weights")
        rows, columns = parts["weight"].shape
        if columns != size or parts["bias"].shape != (rows,):
            raise DataError(
                f"{name}: layer {number} takes {columns} numbers and gets {size}",
                "weights",
                "the weights belong to another CLIP model",
            )
        layer = nn.Linear(columns, rows)
        layer.load_state_dict({key: value.float() for key, value in parts.items()})
        stack.append(layer)
        size = rows
    if size != 1 or not stack:
        raise DataError(f"{name}: the last layer gives {size} numbers, not 1", "weights")
    return nn.Sequential(*stack).requires_grad_(False).eval()


@REWARDS.register("aesthetic")
class Aesthetic(ClipReward):
    """Aesthetic quality of an image by LAION's predictor, about 1 to 10.

    Args:
        weights: file of the small network (``.pth`` or ``.safetensors``).
        source: the CLIP model it was trained on.
        processor, dtype, batch_size: as ``ClipFeatures``.
    """

    def __init__(
        self,
        weights: str = WEIGHTS_NAME,
        source: str = CLIP_L14,
        processor: str | None = None,
        dtype: FloatType = "float32",
        batch_size: int = 16,
    ) -> None:
        super().__init__(source, processor, dtype, batch_size)
        self.weights = weights
        self.head: nn.Sequential | None = None

    def weights_file(self) -> Path:
        return Path(self.weights)

    def load(self, device: torch.device | str = "cpu") -> None:
        tensors = read_tensors(self.weights)
        super().load(device)
        self.head = linear_stack(tensors, self.clip.width, self.weights)

    def unload(self) -> None:
        super().unload()
        self.head = None

    def _score(self, batch: RewardBatch) -> Tensor:
        features_BD = self.clip.embed_images(batch.images_BCHW)
        if self.head is None:
            raise RuntimeError(f"reward {self.name!r}: load() first")
        scores_B1: Tensor = self.head(features_BD)
        return scores_B1.squeeze(1)
