"""Makes images to learn from, and later computes how likely their steps are.

Both use ``guided_prediction`` and ``transitions.step`` with the same numbers in the same layout, so that
right after a rollout the ratio of new to old probability is exactly 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch

from modules.model.batch import Conditioning, Sources
from modules.model.Model import Model
from modules.model.noising.sampling import Progress, SamplingCancelled, initial_noise
from modules.model.text.NegativePrompt import NegativePrompt
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.rollout import transitions
from modules.rollout.Rollouts import JOINT, Rollouts, RolloutSettings
from modules.util.errors import DataError, UnsupportedError, list_offenders
from modules.util.rng import digest64, generator


def _nothing(*_: object) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class RolloutHooks:
    """Hooks for accelerators.

    Args:
        rollout_context: entered around the making of each batch of images.
        branch: (name, timestep) entered around each call of the denoiser; the name is ``cond``, ``uncond``, or
            ``joint`` for both at once.
    """

    rollout_context: Callable[[], AbstractContextManager[object]] = _nothing
    branch: Callable[[str, float], AbstractContextManager[object]] = _nothing


NO_HOOKS = RolloutHooks()


@dataclass(frozen=True, eq=False)
class RolloutSource:
    """The images that a prompt edits; the same object for all images of a prompt, so that it is encoded once.

    Args:
        pixels: (3, H, W) uint8 each, on the CPU; those of one place have one size in all requests of a rollout.
        names: their names, for people.
    """

    pixels: tuple[torch.Tensor, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class RolloutRequest:
    """A request for one image.

    Args:
        group: index of its prompt in the epoch; not derived from the prompt, which may occur twice.
        seed: seed of all its noise; see ``image_seed``.
        id: an id that is unique in the run.
        start_seed: seed of its initial noise, if that is shared with other images; ``None`` means ``seed``.
        source: what it edits; ``None`` for an image of a prompt alone. All requests of a rollout have one, or none has.
    """

    prompt: str
    group: int
    seed: int
    id: str
    negative: str = ""
    start_seed: int | None = None
    source: RolloutSource | None = None


def image_seed(seed: int, epoch: int, group: int, member: int) -> int:
    """Seed of member ``member`` (0 to K - 1 over all processes) of a group; 63 bits."""
    return digest64("rollout/image", seed, epoch, group, member) & 0x7FFF_FFFF_FFFF_FFFF


@dataclass(frozen=True)
class StepOutput:
    """A trained step under the current model.

    Args:
        logp_B: log-probability of the step that was taken, float32.
        mean_BChw: mean of the transition.
        std: its standard deviation, temperature and step size included.
        predicted_BChw: the guided prediction, float32.
    """

    logp_B: torch.Tensor
    mean_BChw: torch.Tensor
    std: float
    predicted_BChw: torch.Tensor


# -- the denoiser ---------------------------------------------------------------------------------------------


def is_guided(model: Model, cfg: float) -> bool:
    """Return whether an unconditional prediction is needed."""
    return cfg > 1.0 and model.spec.reads_negatives


def guided_prediction(
    setup: BaseModelSetup,
    model: Model,
    x_BChw: torch.Tensor,
    t_B: torch.Tensor,
    cond: Conditioning,
    negative: Conditioning | None,
    settings: RolloutSettings,
    hooks: RolloutHooks = NO_HOOKS,
) -> torch.Tensor:
    """Prediction with guidance, (B, C, h, w) float32; no gradient flows through the unconditional half.

    Args:
        t_B: the same level for all, on the CPU.
        negative: ``None`` for no guidance.
    """

    def ask(name: str, x: torch.Tensor, t: torch.Tensor, texts: Conditioning) -> torch.Tensor:
        if model.spec.embeds_guidance:
            texts = texts.plus(guidance_B=torch.full((len(texts),), settings.cfg, device=x.device))
        with hooks.branch(name, level), model.autocast():
            return setup.denoise(model, x, t, texts, settings.size).float()

    x_BChw = x_BChw.to(model.device, model.input_dtype())
    # reading it from the device would have to wait
    level = float(t_B[0])
    t_B = t_B.to(model.device, non_blocking=True)
    if negative is None:
        return ask("cond", x_BChw, t_B, cond)
    if settings.layout == JOINT:
        both = ask("joint", x_BChw.repeat(2, 1, 1, 1), t_B.repeat(2), Conditioning.cat([cond, negative]))
        wanted, unwanted = both.chunk(2)
        unwanted = unwanted.detach()
    else:
        with torch.no_grad():
            unwanted = ask("uncond", x_BChw, t_B, negative).detach()
        wanted = ask("cond", x_BChw, t_B, cond)
    return setup.guide(wanted, unwanted, settings.cfg)


# -- rollout --------------------------------------------------------------------------------------------------


@torch.no_grad()
def generate(
    setup: BaseModelSetup,
    model: Model,
    requests: Sequence[RolloutRequest],
    settings: RolloutSettings,
    batch_size: int,
    progress: Progress | None = None,
    hooks: RolloutHooks = NO_HOOKS,
    watch: Callable[[Rollouts], None] | None = None,
) -> Rollouts:
    """Make images, kept on the CPU. The mode of the model is preserved.

    An image's noise depends only on its seed. Log-probabilities are those of batches of ``batch_size`` in the
    order of ``requests``; in other batches they differ by rounding.

    Args:
        progress: called with (steps done, total steps); returning ``False`` cancels.
        watch: called with the images of every finished batch.

    Raises:
        SamplingCancelled: ``progress`` cancelled it.
        DataError: an image became NaN or infinite. UnsupportedError: the text encoder is trained.
    """
    if not requests or batch_size < 1:
        raise ValueError(f"{len(requests)} images in batches of {batch_size} cannot be made")
    if model.trains_text:
        raise UnsupportedError(
            "online training does not train the text encoder",
            field="text_encoder.train",
            hint="switch off training of the text encoder",
        )
    setup.check_size(model, settings.size)
    empty = _unfinished(setup, model, requests, settings, batch_size)
    chunks, done = empty.batches(batch_size), 0
    total = len(chunks) * len(settings.plan)

    def report() -> None:
        nonlocal done
        done += 1
        if progress is not None and progress(done, total) is False:
            raise SamplingCancelled

    starts = [r.seed if r.start_seed is None else r.start_seed for r in requests]
    made, mode = [], model._mode
    model.set_mode("eval")
    try:
        for number, chunk in enumerate(chunks):
            with hooks.rollout_context():
                first = number * batch_size
                made.append(_roll(setup, model, chunk, starts[first : first + batch_size], hooks, report))
            if watch is not None:
                watch(made[-1])
    finally:
        if mode is not None:
            model.set_mode(mode)
    return Rollouts.cat(made)


def _unfinished(
    setup: BaseModelSetup,
    model: Model,
    requests: Sequence[RolloutRequest],
    settings: RolloutSettings,
    batch_size: int,
) -> Rollouts:
    """The rollouts with only their texts encoded. Every different text is encoded once."""
    guided = is_guided(model, settings.cfg)
    prompts = [_Text(r.prompt, False, r.source) for r in requests]
    negatives = [_Text(r.negative, True, r.source) for r in requests]
    row = {text: i for i, text in enumerate(dict.fromkeys([*prompts, *(negatives if guided else ())]))}
    count = len(requests)
    shape = (model.latent_channels, *(side // model.latent_factor for side in settings.size))
    points, trained = len(settings.plan.points), len(settings.plan.trained)
    return Rollouts(
        prompts=[r.prompt for r in requests],
        negatives=[r.negative for r in requests],
        seeds=[r.seed for r in requests],
        ids=[r.id for r in requests],
        group_N=torch.tensor([r.group for r in requests], dtype=torch.int64),
        texts=_encode(setup, model, list(row), batch_size),
        text_N=torch.tensor([row[text] for text in prompts]),
        negative_N=torch.tensor([row[text] for text in negatives]) if guided else None,
        final_NChw=torch.empty(count, *shape),
        states_NPChw=torch.empty(count, points, *shape, dtype=settings.dtype),
        logp_NS=torch.empty(count, trained),
        mask_NS=torch.ones(count, trained, dtype=torch.bool),
        settings=settings,
    )


@dataclass(frozen=True)
class _Text:
    """A unit that is encoded once: a text that is wanted or not, with what it edits."""

    text: str
    negative: bool
    source: RolloutSource | None

    @property
    def encoded(self) -> str:
        return NegativePrompt(self.text) if self.negative else self.text


def _encode(setup: BaseModelSetup, model: Model, texts: list[_Text], batch_size: int) -> Conditioning:
    with model.borrowed_encoders():
        chunks = [texts[i : i + batch_size] for i in range(0, len(texts), batch_size)]
        made = Conditioning.cat([_states(setup, model, chunk).to("cpu") for chunk in chunks])
    edited = [one.source for one in texts if one.source is not None]
    if len(edited) not in (0, len(texts)):
        raise ValueError(f"{len(edited)} of {len(texts)} texts have source images")
    return made.editing(_latents(setup, model, edited)) if edited else made


def _states(setup: BaseModelSetup, model: Model, texts: list[_Text]) -> Conditioning:
    """The conditioning of texts, whose encoder is shown what they edit where it sees that."""
    shown = [one.source.pixels for one in texts if one.source is not None] if model.spec.sees_sources else []
    seen = Sources(torch.stack(place) for place in zip(*shown, strict=True))
    return setup.encode_text(model, [one.encoded for one in texts], seen=seen)


def _latents(setup: BaseModelSetup, model: Model, edited: list[RolloutSource]) -> Sources:
    """Clean latents of what texts edit, on the CPU; each image is encoded once and by itself."""
    made: dict[RolloutSource, list[torch.Tensor]] = {}
    with model.borrowed(model.spec.vae):
        for one in edited:
            if one not in made:
                rgb = [pixels_CHW[None].float() / 255.0 for pixels_CHW in one.pixels]
                made[one] = [setup.encode_image(model, rgb_1CHW).float().cpu() for rgb_1CHW in rgb]
    return Sources(torch.cat(place) for place in zip(*(made[one] for one in edited), strict=True))


def _roll(
    setup: BaseModelSetup,
    model: Model,
    chunk: Rollouts,
    starts: list[int],
    hooks: RolloutHooks,
    report: Callable[[], None],
) -> Rollouts:
    """Run one batch from noise to latents."""
    settings, plan = chunk.settings, chunk.settings.plan
    cond, negative = chunk.condition(model.device), chunk.negative(model.device)
    shape = chunk.final_NChw.shape[1:]
    noise_BChw, _ = initial_noise(starts, shape)
    x_BChw = noise_BChw.to(model.device)
    states, logps = [], []
    for index in range(len(plan)):
        if index in plan.points:
            x_BChw = x_BChw.to(settings.dtype)
            states.append(x_BChw.cpu())
        t_B = plan.timestep(index, len(chunk), model.schedule)
        # where gradients are forced, the graph of this step must not outlive it
        predicted = guided_prediction(setup, model, x_BChw, t_B, cond, negative, settings, hooks).detach()
        made = _transition(model, settings, index, x_BChw, predicted)
        if index in plan.trained:
            normal = torch.stack(
                [torch.randn(shape, generator=generator("rollout/step", s, index)) for s in chunk.seeds]
            )
            x_BChw = transitions.sample(made, normal.to(model.device), settings.dtype)
            logps.append(transitions.log_prob(x_BChw, made, settings.reduction, settings.form).cpu())
        else:
            x_BChw = made.mean
        report()
    final = x_BChw.float().cpu()
    _require_finite(final, chunk.ids, "the image became NaN or infinite while it was made")
    return replace(
        chunk,
        final_NChw=final,
        states_NPChw=torch.stack(states, 1) if states else chunk.states_NPChw,
        logp_NS=torch.stack(logps, 1) if logps else chunk.logp_NS,
    )


def _transition(
    model: Model, settings: RolloutSettings, index: int, x: torch.Tensor, predicted: torch.Tensor
) -> transitions.Transition:
    plan = settings.plan
    return transitions.step(
        plan.kind_of(index),
        x,
        predicted,
        plan.positions[index],
        model.schedule.prediction,
        plan.noise_level,
        plan.temperature,
    )


def _require_finite(values: torch.Tensor, ids: Sequence[str], what: str) -> None:
    bad = ~values.flatten(1).isfinite().all(dim=1)
    if bool(bad.any()):
        names = [name for name, flag in zip(ids, bad.tolist(), strict=True) if flag]
        raise DataError(f"{what}:\n{list_offenders(names)}", hint="lower the learning rate or use bfloat16")


@torch.no_grad()
def decode(
    setup: BaseModelSetup,
    model: Model,
    latents_NChw: torch.Tensor,
    batch_size: int,
    progress: Progress | None = None,
) -> torch.Tensor:
    """Decode finished latents to [0, 1] images (N, 3, H, W), float32 on the CPU.

    A batch that does not fit into the device's memory is halved.

    Args:
        progress: called with (images done, total images); returning ``False`` cancels.

    Raises:
        SamplingCancelled: ``progress`` cancelled it.
    """
    images = []
    with model.borrowed(model.spec.vae):
        for start in range(0, len(latents_NChw), batch_size):
            chunk = latents_NChw[start : start + batch_size]
            images.append(setup.decode_to_cpu(model, chunk))
            done = start + len(chunk)
            if progress is not None and progress(done, len(latents_NChw)) is False:
                raise SamplingCancelled
    return torch.cat(images)


# -- training -------------------------------------------------------------------------------------------------


def step_log_prob(
    setup: BaseModelSetup,
    model: Model,
    rollouts: Rollouts,
    step: int,
    settings: RolloutSettings,
    hooks: RolloutHooks = NO_HOOKS,
) -> StepOutput:
    """The current log-probability of a past step, in the current gradient mode. Dropout is off. With the
    batches of the rollout and unchanged weights, the result equals the stored log-probability bit for bit.

    Args:
        rollouts: the images of a micro-batch.
        step: number of a trained step.
        settings: the settings of training, which must be those of the rollout.
        hooks: only ``branch`` is used.

    Raises:
        RuntimeError: the settings differ. DataError: a log-probability is NaN or infinite.
    """
    rollouts.settings.require_same(settings)
    model.set_mode("no_dropout")
    x_BChw = rollouts.x(step).to(model.device)
    t_B = settings.plan.timestep(step, len(rollouts), model.schedule)
    predicted = guided_prediction(
        setup,
        model,
        x_BChw,
        t_B,
        rollouts.condition(model.device),
        rollouts.negative(model.device),
        settings,
        hooks,
    )
    made = _transition(model, settings, step, x_BChw, predicted)
    x_next_BChw = rollouts.x_next(step).to(model.device)
    logp_B = transitions.log_prob(x_next_BChw, made, settings.reduction, settings.form)
    _require_finite(
        logp_B.detach()[:, None], rollouts.ids, f"the log-probability of step {step} is not finite"
    )
    return StepOutput(logp_B, made.mean, made.std, predicted)
