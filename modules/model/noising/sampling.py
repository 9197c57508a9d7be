"""The sampling loop of all families: scheduler by name, guidance, a seed for every image."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from modules.model.noising.schedule import FLOW_STEPS, DiscreteSchedule, Schedule
from modules.util.errors import ConfigError, UnsupportedError

Progress = Callable[[int, int], object]
Denoise = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# name -> (diffusers class, config that makes it match the name)
DISCRETE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "DDIM": ("DDIMScheduler", {"clip_sample": False, "set_alpha_to_one": False}),
    "EULER": ("EulerDiscreteScheduler", {}),
    "EULER_A": ("EulerAncestralDiscreteScheduler", {}),
    "EULER_KARRAS": ("EulerDiscreteScheduler", {"use_karras_sigmas": True}),
    "DPMPP": ("DPMSolverMultistepScheduler", {}),
    "DPMPP_KARRAS": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "DPMPP_SDE": ("DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
    "DPMPP_SDE_KARRAS": (
        "DPMSolverMultistepScheduler",
        {"algorithm_type": "sde-dpmsolver++", "use_karras_sigmas": True},
    ),
    "UNIPC": ("UniPCMultistepScheduler", {}),
    "UNIPC_KARRAS": ("UniPCMultistepScheduler", {"use_karras_sigmas": True}),
}
_FLOW_SIGMAS = {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
# the same for flow matching
FLOW: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "EULER": ("FlowMatchEulerDiscreteScheduler", {}),
    "DPMPP": ("DPMSolverMultistepScheduler", _FLOW_SIGMAS),
    "UNIPC": ("UniPCMultistepScheduler", _FLOW_SIGMAS),
}
# fields of a flow model's scheduler config that affect the steps
FLOW_CONFIG = (
    "shift", "use_dynamic_shifting", "base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len",
    "shift_terminal", "time_shift_type", "num_train_timesteps", "flow_shift", "solver_order",
)  # fmt: skip
# the same for the one sampler that knows them itself; the others' noise levels are respaced here
EULER_CONFIG = ("use_karras_sigmas", "use_exponential_sigmas", "stochastic_sampling")
# fields that a fixed shift replaces
_SHIFTED = frozenset({
    "use_dynamic_shifting", "base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len", "time_shift_type",
    "shift_terminal",
})  # fmt: skip
RESPACED = ("shift_terminal", "use_karras_sigmas", "use_exponential_sigmas")
KARRAS_RHO = 7.0
"""Curvature of the noise levels of Karras et al. 2022 (arXiv 2206.00364, equation 5)."""
# fields of a model's scheduler config about the noise itself, for any sampler
SHARED_CONFIG = ("steps_offset", "timestep_spacing")


class SamplingCancelled(Exception):
    """The progress callback asked to stop."""


def make_sampler(
    schedule: Schedule,
    name: object,
    steps: int,
    config: Mapping[str, Any] | None = None,
    tokens: int = 0,
    even: bool = False,
    levels: Sequence[float] | None = None,
) -> Any:
    """A sampler with its timesteps set.

    Args:
        schedule: training schedule of the model, which determines the sampler's noise levels.
        name: DDIM, EULER, EULER_A, DPMPP... as in ``NoiseScheduler``.
        config: the model's own scheduler config, for spacing, offset and shift of the steps.
        tokens: number of image tokens of the denoiser, by which some flow models shift their steps towards
            noise.
        even: whether flow noise levels decrease by 1 / steps before the shift, instead of ending at the
            model's lowest.
        levels: a flow model's noise levels before the shift, one per step, descending; by default those of
            the family.

    Raises:
        ConfigError: the name is unknown or there are no steps. UnsupportedError: the sampler is for the other
            kind of schedule.
    """
    key = str(getattr(name, "value", name))
    if steps < 1:
        raise ConfigError(f"at least one step is needed, not {steps}", field="diffusion_steps")
    if key not in DISCRETE:
        raise ConfigError(
            f"unknown sampler {key!r}", field="noise_scheduler", hint=f"known: {', '.join(DISCRETE)}"
        )
    if not isinstance(schedule, DiscreteSchedule):
        if key not in FLOW:
            raise UnsupportedError(
                f"{key} cannot sample from a flow-matching model",
                field="noise_scheduler",
                hint=f"use {' or '.join(FLOW)}",
            )
        kind, options, config = _flow_options(key, steps, config or {}, tokens)
        if "flow_shift" in options:
            return _shifted_sampler(kind(**options), steps, config, levels, float(options["flow_shift"]))
        sampler = kind(**options)
        if levels is None and even:
            levels = [1.0 - i / steps for i in range(steps)]
        mu = dynamic_shift(tokens, config) if options.get("use_dynamic_shifting") else None
        sampler.set_timesteps(steps, sigmas=levels, mu=mu)
        return sampler
    return _discrete_sampler(schedule, key, steps, config or {})


def with_shift(config: Mapping[str, Any], shift: float) -> dict[str, Any]:
    """A flow model's scheduler config whose noise levels are shifted by a fixed factor, whatever the image's size.

    Args:
        shift: 0 leaves the config as it is.
    """
    if not shift:
        return dict(config)
    kept = {name: value for name, value in config.items() if name not in _SHIFTED}
    return kept | {"flow_shift" if "flow_shift" in config else "shift": shift}


def dynamic_shift(tokens: int, config: Mapping[str, Any]) -> float:
    """The exponent of a resolution-dependent shift: a line through two (tokens, shift) points of the
    scheduler's config (Esser et al. 2024, arXiv 2403.03206, section 5.3.2, as in FLUX.1).
    """
    config = {name: value for name, value in config.items() if value is not None}
    low, high = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    base, most = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    return float(base + (most - base) * (tokens - low) / (high - low))


def _sampler_class(name: str) -> tuple[Any, set[str]]:
    """A sampler's class in diffusers, and the names of its arguments."""
    kind = getattr(importlib.import_module("diffusers.schedulers"), name)
    return kind, set(inspect.signature(kind.__init__).parameters)


def _flow_options(
    key: str, steps: int, config: Mapping[str, Any], tokens: int
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The class of a flow sampler, its arguments, and the config without irrelevant fields."""
    name, extra = FLOW[key]
    kind, accepted = _sampler_class(name)
    config = {name: value for name, value in config.items() if value is not None}
    options = {name: config[name] for name in FLOW_CONFIG if name in config} | dict(extra)
    if "flow_shift" in accepted:
        # these two support only static shifts; a dynamic one is the static one of its exponential
        shift = config.get("flow_shift", config.get("shift", 1.0))
        if config.get("use_dynamic_shifting"):
            shift = dynamic_shift(tokens, config)
            shift = shift if config.get("time_shift_type") == "linear" else math.exp(shift)
        options["flow_shift"] = shift
        for name in ("use_dynamic_shifting", "time_shift_type", "shift_terminal"):
            options.pop(name, None)
    else:
        options.setdefault("shift", config.get("flow_shift", 1.0))
        options |= {name: config[name] for name in EULER_CONFIG if config.get(name)}
    if steps == 1:
        # a single level cannot both be pure noise and end the schedule
        options.pop("shift_terminal", None)
    return kind, {name: value for name, value in options.items() if name in accepted}, config


def _shifted_sampler(
    sampler: Any, steps: int, config: Mapping[str, Any], levels: Sequence[float] | None, shift: float
) -> Any:
    """A sampler that spaces its steps itself, with the noise levels required by the model."""
    sampler.set_timesteps(steps)
    sigmas_T = sampler.sigmas[:-1].double()
    if levels is not None:
        plain_T = torch.tensor(levels, dtype=torch.float64)
        sigmas_T = shift * plain_T / (1.0 + (shift - 1.0) * plain_T)
    if levels is not None or any(config.get(name) for name in RESPACED):
        sigmas_T = _respaced(sigmas_T, config)
        sampler.sigmas = torch.cat([sigmas_T, sampler.sigmas[-1:].double()]).float()
        sampler.timesteps = (sigmas_T * FLOW_STEPS).round().long()
    return sampler


def _respaced(sigmas_T: torch.Tensor, config: Mapping[str, Any]) -> torch.Tensor:
    """Descending noise levels stretched to end at the config's terminal one, then in Karras' or even ratios
    if set, as in the Euler sampler. (T,) -> (T,).
    """
    terminal, steps = config.get("shift_terminal"), len(sigmas_T)
    if steps == 1:
        return sigmas_T
    if terminal:
        sigmas_T = 1.0 - (1.0 - sigmas_T) * (1.0 - terminal) / (1.0 - sigmas_T[-1])
    high, low = float(sigmas_T[0]), float(sigmas_T[-1])
    if config.get("use_karras_sigmas"):
        ends = high ** (1.0 / KARRAS_RHO), low ** (1.0 / KARRAS_RHO)
        return torch.linspace(*ends, steps, dtype=sigmas_T.dtype) ** KARRAS_RHO
    if config.get("use_exponential_sigmas"):
        return torch.linspace(math.log(high), math.log(low), steps, dtype=sigmas_T.dtype).exp()
    return sigmas_T


def _discrete_sampler(schedule: DiscreteSchedule, key: str, steps: int, config: Mapping[str, Any]) -> Any:
    if steps > schedule.steps:
        raise ConfigError(f"at most {schedule.steps} steps, not {steps}", field="diffusion_steps")
    name, extra = DISCRETE[key]
    kind, accepted = _sampler_class(name)
    zero_snr = float(schedule.alphas_cumprod_T[-1]) < 1e-9
    options = {name: config[name] for name in SHARED_CONFIG if name in config}
    options |= {"prediction_type": schedule.prediction, "num_train_timesteps": schedule.steps, **extra}
    # passing betas keeps sampler and training on one table; a rescaled table is rebuilt by the sampler itself
    alpha_T = schedule.alphas_cumprod_T
    beta_T = 1.0 - alpha_T / torch.cat([torch.ones(1, dtype=alpha_T.dtype), alpha_T[:-1]])
    options["trained_betas"] = beta_T.tolist()
    if zero_snr:
        # pure noise must be among the steps, or the model is never used where it was trained
        options |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    sampler = kind(**{name: value for name, value in options.items() if name in accepted})
    sampler.set_timesteps(steps)
    return sampler


def from_last_timestep(sampler: Any, schedule: Schedule, steps: int) -> Any:
    """A sampler whose steps start at the last timestep of the model's schedule. Those of flow models always do.

    Lin et al. 2023 (arXiv 2305.08891, section 3.3): a model trained on pure noise has to be sampled from it.
    """
    if not isinstance(schedule, DiscreteSchedule):
        return sampler
    moved = type(sampler).from_config(sampler.config, timestep_spacing="trailing")
    moved.set_timesteps(steps)
    return moved


def initial_noise(seeds: Sequence[int], shape: Sequence[int]) -> tuple[torch.Tensor, list[torch.Generator]]:
    """Initial noise (B, C, h, w) and its generators, one per seed, on the CPU.

    Each image's numbers depend only on its seed, and are those that other programs draw for that CPU seed.
    """
    sources = [torch.Generator(device="cpu").manual_seed(seed) for seed in seeds]
    return torch.cat([torch.randn((1, *shape), generator=source) for source in sources]), sources


def run_sampler(
    sampler: Any,
    denoise: Denoise,
    noise_BChw: torch.Tensor,
    generators: list[torch.Generator],
    progress: Progress | None = None,
) -> torch.Tensor:
    """Sample latents from initial noise, (B, C, h, w) float32.

    Args:
        denoise: (x_BChw, t_B) -> guided prediction, (B, C, h, w).
        generators: one CPU generator per image, for samplers that add noise in their steps.
        progress: called with (steps done, steps); returning ``False`` cancels.

    Raises:
        SamplingCancelled: ``progress`` cancelled it.
    """
    accepts_generator = "generator" in inspect.signature(sampler.step).parameters
    extra = {"generator": generators} if accepts_generator else {}
    # flow-matching samplers start from unscaled noise
    x_BChw = noise_BChw * getattr(sampler, "init_noise_sigma", 1.0)
    scaled = getattr(sampler, "scale_model_input", lambda sample, timestep: sample)
    total = len(sampler.timesteps)
    for index, timestep in enumerate(sampler.timesteps):
        t_B = timestep.to(x_BChw.device).expand(x_BChw.shape[0])
        output_BChw = denoise(scaled(x_BChw, timestep), t_B).float()
        x_BChw = sampler.step(output_BChw, timestep, x_BChw, return_dict=False, **extra)[0]
        if progress is not None and progress(index + 1, total) is False:
            raise SamplingCancelled
    return x_BChw
