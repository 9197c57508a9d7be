"""Batches of made-up latents for tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from modules.model.batch import ImageBatch, PairBatch
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from tests.tiny import SIZE

PROMPTS = ("a red circle", "a large blue square on the left", "", "photo of a cat")


def image_batch(
    setup: BaseModelSetup,
    model: Model,
    ids: Sequence[str],
    seed: int = 0,
    size: tuple[int, int] = SIZE,
    encoded: bool = True,
    dtype: torch.dtype = torch.float32,
) -> ImageBatch:
    """Random latents with prompts; item i has the same numbers whatever else is in the batch."""
    latents, prompts = [], []
    for name in ids:
        number = sum(ord(letter) for letter in name)
        source = torch.Generator().manual_seed(1000 * seed + number)
        side = (size[0] // model.latent_factor, size[1] // model.latent_factor)
        latents.append(torch.randn(model.latent_channels, *side, generator=source))
        prompts.append(PROMPTS[number % len(PROMPTS)])
    return ImageBatch(
        latents_BChw=torch.stack(latents).to(dtype),
        cond=setup.encode_text(model, prompts).to("cpu", dtype) if encoded else None,
        prompts=prompts,
        ids=list(ids),
        visits=[0] * len(ids),
        size=size,
        loss_weight_B=torch.ones(len(ids)),
    )


def pair_batch(
    setup: BaseModelSetup,
    model: Model,
    ids: Sequence[str],
    encoded: bool = True,
    dtype: torch.dtype = torch.float32,
) -> PairBatch:
    """Pairs whose sides share prompts and differ in latents."""
    chosen = image_batch(setup, model, ids, seed=1, encoded=encoded, dtype=dtype)
    rejected = image_batch(setup, model, ids, seed=2, encoded=encoded, dtype=dtype)
    return PairBatch(list(ids), chosen, rejected)
