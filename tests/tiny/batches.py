"""Batches of made-up latents for tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from modules.model.batch import NO_SOURCES, Conditioning, ImageBatch, NoiseDraw, PairBatch, Sources
from modules.model.Model import Model
from modules.model.noising.sampling import Progress
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from modules.modelSetup.sample_images import SampleRequest, sample
from modules.objective import execution
from modules.objective.preference import ObjectiveOptions, PreferenceLoss
from modules.objective.scores import PairOut, ReferenceFactory
from modules.objective.supervised import LossOptions
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
    seen = seen_images(setup, ids, size)
    return ImageBatch(
        latents_BChw=torch.stack(latents).to(dtype),
        cond=setup.encode_text(model, prompts, seen=seen).to("cpu", dtype) if encoded else None,
        prompts=prompts,
        ids=list(ids),
        visits=[0] * len(ids),
        size=size,
        loss_weight_B=torch.ones(len(ids)),
        sources=_sources(setup, ids, side, model.latent_channels, dtype),
        seen=NO_SOURCES if encoded else seen,
        blank=_blank(setup, model, seen, dtype) if encoded and seen else None,
    )


def seen_images(setup: BaseModelSetup, ids: Sequence[str], size: tuple[int, int] = SIZE) -> Sources:
    """The pixels of as many images as the family takes, if its text encoder sees them.

    Args:
        size: (height, width) of what is made of them.
    """
    # the denoiser has their latents in place of what the text encoder makes of them, or both
    shown = (64, 64) if setup.spec.keeps_shown else size

    def one(name: str, number: int) -> torch.Tensor:
        source = torch.Generator().manual_seed(sum(ord(letter) for letter in name) + 91 * number)
        return torch.randint(0, 256, (3, *shown), generator=source, dtype=torch.uint8)

    count = setup.spec.sources if setup.spec.sees_sources else 0
    return Sources(torch.stack([one(name, number) for name in ids]) for number in range(count))


def _blank(setup: BaseModelSetup, model: Model, seen: Sources, dtype: torch.dtype) -> Conditioning:
    """The empty prompt with each of the images."""
    rows = [Sources(one[row : row + 1] for one in seen) for row in range(len(seen[0]))]
    return Conditioning.cat([setup.encode_text(model, [""], seen=row) for row in rows]).to("cpu", dtype)


def _sources(
    setup: BaseModelSetup, ids: Sequence[str], side: tuple[int, int], channels: int, dtype: torch.dtype
) -> Sources:
    """As many images to edit as the family takes, of both sides of a pair the same."""

    def one(name: str, number: int) -> torch.Tensor:
        source = torch.Generator().manual_seed(sum(ord(letter) for letter in name) + 77 * number)
        return torch.randn(channels, *side, generator=source)

    return Sources(
        torch.stack([one(name, number) for name in ids]).to(dtype) for number in range(setup.spec.sources)
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


def images(
    setup: BaseModelSetup,
    model: Model,
    prompts: Sequence[str],
    negative: Sequence[str] | str = "",
    *,
    progress: Progress | None = None,
    adapter: AbstractContextManager[object] | None = None,
    **request: Any,
) -> torch.Tensor:
    """Sampled images (B, 3, H, W); further arguments are those of ``SampleRequest``."""
    return sample(setup, model, SampleRequest(prompts, negative, **request), progress, adapter)


def train_pairs(
    setup: BaseModelSetup,
    model: Model,
    pair: PairBatch,
    draws: tuple[NoiseDraw, NoiseDraw],
    reference: ReferenceFactory | None,
    objective: PreferenceLoss,
    options: ObjectiveOptions,
    mode: str,
    strategy: str = "AUTO",
    loss_options: LossOptions | None = None,
    **more: Any,
) -> PairOut:
    """Forward and backward of one micro-batch of pairs, as a preference step does it."""
    model.set_mode("no_dropout")
    scorer = ModelPairScorer(setup, model, pair, draws, loss_options or LossOptions())
    return execution.run(mode, strategy, scorer, reference, objective, options, **more)
