"""Images and batches for the reward tests."""

from __future__ import annotations

import torch
from torch import Tensor

from modules.reward.base import RewardBatch


def noise_images(count: int, size: int = 16, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def batch_of(images_BCHW: Tensor, groups: list[int] | None = None, **more) -> RewardBatch:
    prompts = more.pop("prompts", None) or [f"prompt {g}" for g in groups or range(len(images_BCHW))]
    group_B = None if groups is None else torch.tensor(groups)
    return RewardBatch(images_BCHW, prompts, group_B, **more)
