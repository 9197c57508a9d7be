"""Images from prompts: encoding, the sampling loop, guidance and decoding, in batches that do not matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from modules.model.Model import Model
from modules.model.noising.sampling import Progress, initial_noise, run_sampler

if TYPE_CHECKING:
    from modules.modelSetup.BaseModelSetup import BaseModelSetup


@dataclass(frozen=True)
class SampleRequest:
    """What to sample; one prompt, negative prompt and seed for each image, ``size`` is (height, width)."""

    prompts: list[str]
    negatives: list[str]
    seeds: list[int]
    steps: int
    cfg: float
    size: tuple[int, int]
    scheduler: object
    batch_size: int

    def __post_init__(self) -> None:
        if not self.prompts or not len(self.prompts) == len(self.seeds) == len(self.negatives):
            raise ValueError(
                f"{len(self.prompts)} prompts, {len(self.seeds)} seeds, {len(self.negatives)} negatives"
            )

    def chunks(self) -> list[SampleRequest]:
        """The same, at most ``batch_size`` images each."""
        starts = range(0, len(self.prompts), self.batch_size)
        slices = [slice(start, start + self.batch_size) for start in starts]
        return [
            replace(self, prompts=self.prompts[s], negatives=self.negatives[s], seeds=self.seeds[s])
            for s in slices
        ]


@torch.no_grad()
def sample_images(
    setup: BaseModelSetup,
    model: Model,
    request: SampleRequest,
    progress: Progress | None = None,
    adapter: AbstractContextManager[object] | None = None,
) -> torch.Tensor:
    """Images (B, 3, H, W) float32 in [0, 1] on the CPU; the model is left in the mode it was in.

    Args:
        progress: called with (steps done, steps in all) over all batches; returning ``False`` cancels.
        adapter: a context to sample in.
    """
    setup.check_size(model, request.size)
    chunks, images = request.chunks(), []
    total, done = request.steps * len(chunks), 0

    def report(step: int, _: int) -> object:
        # some samplers take more evaluations than steps
        return None if progress is None else progress(done + min(step, request.steps), total)

    mode = model._mode
    model.set_mode("eval")
    try:
        with adapter or nullcontext():
            for chunk in chunks:
                images.append(_sample_batch(setup, model, chunk, report))
                done += request.steps
    finally:
        if mode is not None:
            model.set_mode(mode)
    return torch.cat(images)


def sample_texts(
    model: Model, prompts: Sequence[str], negatives: Sequence[str], cfg: float
) -> tuple[str, ...]:
    """What is encoded for a batch of images, and what the model may keep the result under."""
    guided = cfg > 1.0 and not model.spec.embeds_guidance
    return (*prompts, *(negatives if guided else ()))


@contextmanager
def borrowed_encoders(model: Model) -> Iterator[None]:
    """All text encoders on the compute device for the length of a block."""
    with ExitStack() as stack:
        for part in model.text_encoders:
            stack.enter_context(model.borrowed(part))
        yield


def _sample_batch(
    setup: BaseModelSetup, model: Model, request: SampleRequest, progress: Progress
) -> torch.Tensor:
    embedded = model.spec.embeds_guidance
    guided = request.cfg > 1.0 and not embedded
    texts = sample_texts(model, request.prompts, request.negatives, request.cfg)
    kept = model.kept_texts.get(texts)
    if kept is None:
        with borrowed_encoders(model):
            cond = setup.encode_text(model, texts)
    else:
        cond = kept.to(model.device)
    if embedded:
        cond = cond.plus(guidance_B=torch.full((len(cond),), request.cfg, device=model.device))
    sampler = setup.make_sampler(model, request.scheduler, request.steps, request.size)
    shape = (model.latent_channels, *(side // model.latent_factor for side in request.size))
    noise_BChw, generators = initial_noise(request.seeds, shape)

    def denoise(x_BChw: torch.Tensor, t_B: torch.Tensor) -> torch.Tensor:
        repeats = 2 if guided else 1
        x_BChw = x_BChw.repeat(repeats, 1, 1, 1).to(model.input_dtype())
        with model.autocast():
            out_BChw = setup.denoise(model, x_BChw, t_B.repeat(repeats), cond, request.size)
        if not guided:
            return out_BChw
        wanted, unwanted = out_BChw.float().chunk(2)
        return setup.guide(wanted, unwanted, request.cfg)

    latents_BChw = run_sampler(sampler, denoise, noise_BChw.to(model.device), generators, progress)
    with model.borrowed(model.spec.vae):
        return setup.decode_to_cpu(model, latents_BChw)
