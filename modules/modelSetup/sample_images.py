"""Images from prompts: encoding, the sampling loop, guidance and decoding, in batches that do not affect the
result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import torch

from modules.model.batch import Conditioning, Sources
from modules.model.Model import Model
from modules.model.noising.sampling import Denoise, Progress, from_last_timestep, run_sampler
from modules.model.text.NegativePrompt import NegativePrompt
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.training import checked_length, checked_skips, hides_padding
from modules.util.config.SampleConfig import READING, FilledSample


@dataclass(frozen=True)
class PaintedInto:
    """An image that is painted into.

    Args:
        kept_CHW: its pixels in [0, 1], middle grey where it is painted.
        mask_hw: 1 in the latent cells to paint, 0 elsewhere.
    """

    kept_CHW: torch.Tensor
    mask_hw: torch.Tensor


@dataclass(frozen=True)
class SampleRequest:
    """A request for samples.

    Args:
        negative: one for all images, or one for each prompt; used when ``cfg`` is above 1, by models that do
            not embed the guidance scale.
        seeds: one for each prompt; 0, 1, 2... when empty.
        steps, cfg, size, scheduler: ``None`` means the model's usual value; size is (height, width) in
            pixels.
        batch_size: images sampled at once; affects only memory.
        sources: the source images, (3, H, W) in [0, 1] each, the same for all prompts.
        last_timestep: start at the noisiest timestep even if the sampler would leave it out.
        painted: what inpainting models paint into, the same for all prompts; ``None`` for whole images.
        reading: how prompts are read where that differs from the run, see ``SampleConfig.reading``.
    """

    prompts: Sequence[str]
    negative: Sequence[str] | str = ""
    seeds: Sequence[int] = ()
    steps: int | None = None
    cfg: float | None = None
    size: tuple[int, int] | None = None
    scheduler: object = None
    batch_size: int = 4
    sources: Sequence[torch.Tensor] = ()
    last_timestep: bool = False
    painted: PaintedInto | None = None
    reading: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        sample: FilledSample,
        seed: int,
        sources: Sequence[torch.Tensor] = (),
        painted: PaintedInto | None = None,
    ) -> SampleRequest:
        """The request for one image of a config's sample."""
        return cls(
            [sample.prompt],
            sample.negative_prompt,
            [seed],
            sample.diffusion_steps,
            sample.cfg_scale,
            sample.size,
            sample.noise_scheduler,
            sources=sources,
            last_timestep=sample.config.force_last_timestep,
            painted=painted,
            reading=sample.config.reading(),
        )


@dataclass(frozen=True)
class _Batch:
    """Images that are sampled together, with all values filled in and a prompt and seed each."""

    prompts: list[str]
    negatives: list[str]
    seeds: list[int]
    steps: int
    cfg: float
    size: tuple[int, int]
    scheduler: object
    sources: Sequence[torch.Tensor]
    last_timestep: bool
    painted: PaintedInto | None


def _batches(request: SampleRequest, model: Model) -> list[_Batch]:
    """Split a request into batches of at most ``batch_size`` images, with the model's usual values filled in.

    Raises:
        ValueError: the numbers of seeds or negative prompts and of prompts differ.
    """
    spec, published = model.spec, model.published
    usual = (spec.default_steps, spec.default_cfg)
    steps, cfg = usual if published is None else (published.steps, published.cfg)
    prompts = list(request.prompts)
    negative = request.negative
    negatives = [negative] * len(prompts) if isinstance(negative, str) else list(negative)
    seeds = list(request.seeds) or list(range(len(prompts)))
    if not prompts or not len(prompts) == len(seeds) == len(negatives):
        raise ValueError(f"{len(prompts)} prompts, {len(seeds)} seeds, {len(negatives)} negatives")
    whole = _Batch(
        prompts,
        negatives,
        seeds,
        steps if request.steps is None else request.steps,
        cfg if request.cfg is None else request.cfg,
        request.size or (spec.default_resolution, spec.default_resolution),
        request.scheduler or spec.default_sampler,
        request.sources,
        request.last_timestep,
        request.painted,
    )
    count = max(1, request.batch_size)
    slices = [slice(start, start + count) for start in range(0, len(prompts), count)]
    return [replace(whole, prompts=prompts[s], negatives=negatives[s], seeds=seeds[s]) for s in slices]


def unguided(model: Model, cfg: float) -> str:
    """A message about guided samples for which the model lacks a part; empty if it has all."""
    guide = model.spec.guide
    if cfg <= 1.0 or not guide or guide in model.parts:
        return ""
    return (
        f"samples are made without guidance, because {guide} is not loaded: a cfg_scale above 1 has no effect, "
        "and the samples look worse than the model's best"
    )


@contextmanager
def reading_as(model: Model, asked: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """The block in which a model reads prompts as a sample says, and else as in the run.

    Args:
        asked: part -> settings, see ``SampleConfig.reading``.

    Raises:
        ConfigError: a text encoder has fewer layers, or its tokenizer reads fewer tokens.
    """
    fields = {f"{part}.{own}": f"samples.{name}" for name, (part, own) in READING.items()}
    of_run = model.layer_skips, model.prompt_length, model.masks_padding
    skips = {part: own["layer_skip"] for part, own in asked.items() if "layer_skip" in own}
    for part, skip in skips.items():
        checked_skips(model, {part: skip}, fields[f"{part}.layer_skip"])
    length = asked.get(model.spec.length_of, {}).get("sequence_length")
    mask = asked.get("transformer", {}).get("attention_mask")
    try:
        if skips:
            model.layer_skips = {part: n for part, n in {**model.layer_skips, **skips}.items() if n}
        if length is not None:
            model.prompt_length = checked_length(
                model, length, fields[f"{model.spec.length_of}.sequence_length"]
            )
        if mask is not None:
            model.masks_padding = hides_padding(model, mask)
        yield
    finally:
        model.layer_skips, model.prompt_length, model.masks_padding = of_run


def check_sample(setup: BaseModelSetup, model: Model, sample: FilledSample) -> None:
    """Raise ``UserError`` if an image of that size, with that sampler or with prompts read like that cannot be
    made.
    """
    with reading_as(model, sample.config.reading()):
        pass
    setup.check_size(model, sample.size)
    setup.make_sampler(model, sample.noise_scheduler, sample.diffusion_steps, sample.size)


@torch.no_grad()
def sample(
    setup: BaseModelSetup,
    model: Model,
    request: SampleRequest,
    progress: Progress | None = None,
    adapter: AbstractContextManager[object] | None = None,
) -> torch.Tensor:
    """Sample images (B, 3, H, W), float32 in [0, 1] on the CPU. The mode of the model is preserved.

    An image depends on its prompt, seed and settings, not on the other images of its batch.

    Args:
        progress: called with (steps done, total steps) over all batches; returning ``False`` cancels.
        adapter: a context to sample in, such as the reference's.

    Raises:
        SamplingCancelled: ``progress`` cancelled it. ConfigError: the size, sampler or step count is
            impossible.
    """
    with model.as_sampled():
        batches = _batches(request, model)
    steps, images = batches[0].steps, []
    setup.check_size(model, batches[0].size)
    total, done = steps * len(batches), 0

    def report(step: int, _: int) -> object:
        # some samplers need more evaluations than steps
        return None if progress is None else progress(done + min(step, steps), total)

    with (
        model.in_mode("eval"),
        model.as_sampled(),
        reading_as(model, request.reading),
        adapter or nullcontext(),
    ):
        for batch in batches:
            images.append(_sample_batch(setup, model, batch, report))
            done += steps
    return torch.cat(images)


def sample_texts(
    model: Model, prompts: Sequence[str], negatives: Sequence[str], cfg: float
) -> tuple[str, ...]:
    """The texts to encode for a batch of images, and the key under which the model may keep the result."""
    guided = cfg > 1.0 and model.spec.reads_negatives
    return (*prompts, *(map(NegativePrompt, negatives) if guided else ()))


def kept_name(model: Model, texts: tuple[str, ...], sources: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """The key of the states of texts as the model reads them now, including the images they depend on, if the text
    encoder sees them.

    Args:
        sources: (3, H, W) each.
    """
    # the same text can have other states as a negative prompt
    names = tuple(f"negative: {text}" if isinstance(text, NegativePrompt) else text for text in texts)
    read = (model.layer_skips, model.prompt_length, model.masks_padding)
    if read != ({}, 0, None):
        names = (*names, f"read: {sorted(read[0].items())} {read[1:]}")
    if not model.spec.sees_sources:
        return names
    return (*names, *(f"{tuple(one.shape)} {blake2b(one.numpy().tobytes()).hexdigest()}" for one in sources))


def seen_sources(model: Model, images: Sequence[torch.Tensor], count: int) -> Sources:
    """The source images as shown to a text encoder with each of ``count`` prompts; empty in most families.

    Args:
        images: (3, H, W) in [0, 1] each.
    """
    shown = images if model.spec.sees_sources else ()
    bytes_ = [(one.cpu() * 255.0).round().to(torch.uint8) for one in shown]
    return Sources(one[None].expand(count, -1, -1, -1) for one in bytes_)


def _sources(setup: BaseModelSetup, model: Model, images: Sequence[torch.Tensor], count: int) -> Sources:
    """Latents of the source images, the same for ``count`` samples."""
    with model.borrowed(model.spec.vae):
        latents = [setup.encode_image(model, rgb_CHW[None]).to(model.device) for rgb_CHW in images]
    return Sources(one_1Chw.expand(count, -1, -1, -1) for one_1Chw in latents)


def _painted(setup: BaseModelSetup, model: Model, painted: PaintedInto, count: int) -> torch.Tensor:
    """Mask and latents of what is kept, the same for ``count`` samples, (B, 1 + C, h, w)."""
    with model.borrowed(model.spec.vae), torch.autocast(model.device.type, enabled=False):
        kept_1Chw = setup.encode_image(model, painted.kept_CHW[None]).to(model.device)
    mask_11hw = painted.mask_hw[None, None].to(kept_1Chw.device, kept_1Chw.dtype)
    return torch.cat([mask_11hw, kept_1Chw], dim=1).expand(count, -1, -1, -1)


def _sample_batch(setup: BaseModelSetup, model: Model, request: _Batch, progress: Progress) -> torch.Tensor:
    embedded = model.spec.embeds_guidance
    texts = sample_texts(model, request.prompts, request.negatives, request.cfg)
    kept = model.kept_texts.get(kept_name(model, texts, request.sources))
    if kept is None:
        seen = seen_sources(model, request.sources, len(texts))
        with model.borrowed_encoders():
            cond = setup.encode_text(model, texts, seen=seen)
    else:
        cond = kept.to(model.device)
    if embedded:
        cond = cond.plus(guidance_B=torch.full((len(cond),), request.cfg, device=model.device))
    if request.sources:
        cond = cond.editing(_sources(setup, model, request.sources, len(cond)))
    if request.painted is not None:
        cond = cond.plus(inpaint_BChw=_painted(setup, model, request.painted, len(cond)))
    sampler = setup.make_sampler(model, request.scheduler, request.steps, request.size)
    if request.last_timestep:
        sampler = from_last_timestep(sampler, model.schedule, request.steps)
    noise_BChw, generators = setup.start_noise(model, request.seeds, request.size)
    scales = setup.guidance_scales(request.cfg, len(sampler.timesteps))
    apart = request.cfg > 1.0 and model.spec.guide in model.parts
    with model.denoising_samples(), model.borrowed(model.spec.guide) if apart else nullcontext():
        denoise = (_denoise_apart if apart else _denoise_together)(setup, model, cond, request.size, scales)
        latents_BChw = run_sampler(sampler, denoise, noise_BChw.to(model.device), generators, progress)
    with model.borrowed(model.spec.vae):
        return setup.decode_to_cpu(model, latents_BChw)


def _denoise_together(
    setup: BaseModelSetup, model: Model, cond: Conditioning, size: tuple[int, int], scales: Sequence[float]
) -> Denoise:
    """Predict for all texts in one pass: for prompts, or for prompts and then negative ones, with guidance."""
    left = iter(scales)

    def denoise(x_BChw: torch.Tensor, t_B: torch.Tensor) -> torch.Tensor:
        scale, repeats = next(left), len(cond) // len(x_BChw)
        x_BChw = x_BChw.repeat(repeats, 1, 1, 1).to(model.input_dtype())
        with model.autocast():
            out_BChw = setup.denoise(model, x_BChw, t_B.repeat(repeats), cond, size)
        if repeats == 1:
            return out_BChw
        wanted, unwanted = out_BChw.float().chunk(2)
        return setup.guide(wanted, unwanted, scale)

    return denoise


def _denoise_apart(
    setup: BaseModelSetup, model: Model, cond: Conditioning, size: tuple[int, int], scales: Sequence[float]
) -> Denoise:
    """Predict for prompts, guided by the denoiser that sees none."""
    left = iter(scales)

    def denoise(x_BChw: torch.Tensor, t_B: torch.Tensor) -> torch.Tensor:
        x_BChw = x_BChw.to(model.input_dtype())
        with model.autocast():
            wanted = setup.denoise(model, x_BChw, t_B, cond, size)
            unwanted = setup.unprompted(model, x_BChw, t_B)
        return setup.guide(wanted.float(), unwanted.float(), next(left))

    return denoise
