"""The GPU memory that a run needs, estimated from its config and the configs of its model.

Every phase of a run holds something else; the plan is the largest of them. Weights, adapter, gradients and
optimizer state are counted exactly, activations by running the step on meta tensors (``memory_step``). The
overhead of CUDA and the allocator is assumed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch
from torch import nn

from modules.model.Model import Model
from modules.model.offloaded import staying, staying_trained
from modules.modelSetup.registry import create_model_setup
from modules.trainer.evaluate.sample_texts import are_samples_due
from modules.trainer.memory.memory_step import ShapeDryRun
from modules.trainer.memory.RewardMemory import RewardMemory
from modules.trainer.memory.shape_only import ShapeOnlyModel, shape_only_model
from modules.trainer.online.settings import needs_old_policy, needs_reference, rollout_batch_size
from modules.trainer.optim.optimizers import create_optimizer
from modules.trainer.optim.StochasticRounding import rounding_bytes
from modules.util.config.rules.online_values import rollout_size
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import EMAMode
from modules.util.enum.DPOExecutionMode import DPOExecutionMode
from modules.util.enum.DPORefMode import DPORefMode
from modules.util.errors import UnsupportedError

GIB = 2**30
CONTEXT_BYTES = 450 << 20
"""Assumed size of kernels and library handles of one process on the GPU."""
SLACK = 0.05
"""Assumed share of temporary memory lost to fragmentation of the allocator."""
_MEASURED_NUMEL = 1 << 20
_SHARED = "qmap"
"""Tables of the 8-bit optimizers that all parameters share."""
MODES = ("FULL_CONCURRENT", "POLICY_CONCURRENT", "SEQUENTIAL")
"""Execution modes of preference steps, fastest first."""


@dataclass(frozen=True)
class Phase:
    """Memory on the GPU during one phase of a run.

    Args:
        name: displayed name.
        items: bytes by purpose.
    """

    name: str
    items: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.items.values())


@dataclass(frozen=True)
class MemoryPlan:
    """The phases of a run.

    Args:
        mode: execution mode of preference steps; empty for other runs.
        size: (height, width) of the largest images.
        notes: what the figures do not include.
        source_size: (height, width) of the images that are edited; ``None`` without any.
    """

    phases: tuple[Phase, ...]
    mode: str
    size: tuple[int, int]
    notes: tuple[str, ...] = field(default=())
    source_size: tuple[int, int] | None = None

    @property
    def largest(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def total(self) -> int:
        return self.largest.total

    def to_dict(self) -> dict[str, Any]:
        return {
            "total_bytes": self.total,
            "largest_phase": self.largest.name,
            "phases": {phase.name: {**phase.items, "total": phase.total} for phase in self.phases},
            "execution_mode": self.mode,
            "height": self.size[0],
            "width": self.size[1],
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """A table in GiB, phase by phase."""
        made = [
            f"predicted GPU memory at {self.size[1]}x{self.size[0]}: {_gib(self.total)} ({self.largest.name})"
        ]
        for phase in self.phases:
            made.append(f"  {phase.name:<44}{_gib(phase.total):>12}")
            made += [f"    {name:<42}{_gib(size):>12}" for name, size in phase.items.items() if size]
        return made + [f"  note: {note}" for note in self.notes]


def _possible(size: tuple[int, int], step: int) -> tuple[int, int]:
    """The nearest (height, width) that are multiples of ``step``, in pixels."""
    height, width = (max(step, round(side / step) * step) for side in size)
    return height, width


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB // 100 else f"{size / 2**20:.2f} MiB"


def plan_memory(config: TrainConfig, mode: str | None = None, cuda: bool = True) -> MemoryPlan:
    """Estimate the memory of a run without reading weights.

    Args:
        mode: execution mode of preference steps; the config's by default.
        cuda: estimate for a CUDA device, including its context and allocator.

    Raises:
        UserError: the model's configs are not available.
    """
    setup = create_model_setup(config.model_type)
    model = shape_only_model(setup, config)
    dry_run = ShapeDryRun(setup, model, config, cuda)
    return Planner(config, dry_run, cuda).plan(mode or config.rlhf_dpo_execution_mode.value)


def parts_of_a_step(config: TrainConfig, model: Model) -> tuple[str, ...]:
    """The parts that stay on the device during training: the denoiser, trained text encoders and, if images
    and prompts are not cached, all encoders.
    """
    online = config.trains_online
    encodes = not online and not config.latent_caching
    encoders = model.text_encoders if encodes or model.trains_text else ()
    return (model.spec.denoiser, *encoders, *((model.spec.vae,) if encodes else ()))


def fills_the_cache_alone(config: TrainConfig) -> bool:
    """Return whether the run ends with the cache and stores no reference scores in it, which would need
    the denoiser.
    """
    return config.only_cache and not (config.trains_pairs and config.rlhf_dpo_reference_cache)


class Planner:
    """The phases of one run.

    Args:
        dry_run: the model on the meta device.
        cuda: whether to add the overhead of CUDA.
    """

    def __init__(self, config: TrainConfig, dry_run: ShapeDryRun, cuda: bool) -> None:
        self.config, self.dry_run, self.cuda = config, dry_run, cuda
        self.model: ShapeOnlyModel = dry_run.model
        self.spec = self.model.spec
        side = max(config.resolutions())
        self._multiple = math.lcm(self.spec.size_multiple, self.model.latent_factor)
        self.size = _possible((side, side), self._multiple)
        self._rewards = RewardMemory(config, dry_run)
        if config.trains_online:
            self.size = rollout_size(config)
        elif config.aspect_ratio_bucketing:
            self.size = dry_run.setup.costliest_size(self.model, self.size, self._multiple)

    def plan(self, mode: str) -> MemoryPlan:
        mode = MODES[0] if mode == DPOExecutionMode.AUTO else mode
        phases = [*self._encoding(), *self._making(), self._training(mode), *self._sampling()]
        if fills_the_cache_alone(self.config):
            denoiser = f"weights: {self.spec.denoiser}"
            phases = [phase for phase in phases if denoiser not in phase.items] or phases[:1]
        if self.cuda:
            phases = [_with_overhead(phase) for phase in phases]
        source_size = self.dry_run.source_size(self.size) if self.dry_run.edits else None
        mode = mode if self.config.trains_pairs else ""
        return MemoryPlan(tuple(phases), mode, self.size, tuple(self._notes()), source_size)

    def _notes(self) -> Iterator[str]:
        """Notes on what the figures do not include."""
        for one in self.config.acceleration.rollout if self.config.trains_online else ():
            yield f"these figures do not include what {one.name} keeps of earlier denoising steps"
        yield from self._rewards.notes()

    def _lasting(self) -> dict[str, int]:
        """Memory that stays occupied on the device during training, also between steps: the parts every step
        needs with adapters, the optimizer's state and copies, and rewards that are not unloaded.
        """
        made = {**self._weights(*parts_of_a_step(self.config, self.model)), "adapter": self.adapter_bytes()}
        rewards = {} if self.config.rlhf_reward_swap else self._rewards.weights()
        return {**made, "optimizer state": self.optimizer_bytes(), **self._copies(), **rewards}

    def _weights(self, *parts: str) -> dict[str, int]:
        return {f"weights: {part}": self.part_bytes(part) for part in parts}

    def _encoding(self) -> Iterator[Phase]:
        """Phases of encoding. With a cache, encoders are alone on the device; without one, or if images are
        made during training, everything else is there too.
        """
        config = self.config
        online = config.trains_online
        # images and prompts on disk are encoded one at a time
        resident = self._lasting() if online or not config.latent_caching else {}
        encoders = () if self.model.trains_text else self.model.text_encoders
        if encoders:
            working = self.dry_run.texts(rollout_batch_size(config) if online else 1, self.size)
            yield Phase(
                "encoding prompts", {**resident, **self._weights(*encoders), "working memory": working}
            )
        edits = online and self.dry_run.edits
        if not online or edits:
            working = self.dry_run.images(1, self.dry_run.source_size(self.size) if edits else self.size)
            vae = self._weights(self.spec.vae)
            yield Phase("encoding images", {**resident, **vae, "working memory": working})

    def _making(self) -> Iterator[Phase]:
        """Phases of making and scoring the images of online training."""
        config = self.config
        if not config.trains_online:
            return
        lasting, count = self._lasting(), rollout_batch_size(config)
        working = self.dry_run.rollout(count, self.size)
        yield Phase("making images", {**lasting, **self._visiting_policy(), "working memory": working})
        working = self.dry_run.samples(count, self.size)
        vae = self._weights(self.spec.vae)
        yield Phase("decoding images", {**lasting, **vae, "working memory": working})
        if rewards := self._rewards.weights():
            left = ("adapter", f"weights: {self.spec.denoiser}") if config.rlhf_reward_swap else ()
            there = {name: size for name, size in lasting.items() if name not in left}
            yield Phase("scoring images", {**there, **rewards, "working memory": self._rewards.working()})

    def _visiting_policy(self) -> dict[str, int]:
        """The old policy makes the images; from main memory, it is copied to the device for that."""
        config = self.config
        visits = needs_old_policy(config) and config.rlhf_ema_ref_device is EMAMode.CPU
        return {"old policy": sum(p.nbytes for p in self.dry_run.trained())} if visits else {}

    def _training(self, mode: str) -> Phase:
        config, gradients = self.config, self.gradient_bytes()
        step = self.dry_run.step(config.batch_size, self.size, mode)
        moving = max(step.peak, gradients) - gradients
        items = {**self._lasting(), "gradients": gradients, "activations and working memory": moving}
        if config.optimizer.stochastic_rounding:
            items["weights that are rounded"] = rounding_bytes([p.numel() for p in self.dry_run.trained()])
        if config.optimizer.fused_back_pass and config.trains_in_main_memory():
            items["optimizer step of weights in main memory"] = self.visiting_bytes()
        return Phase("training step", items)

    def _copies(self) -> dict[str, int]:
        """Copies of trained weights."""
        config, named = self.config, self.dry_run.trained()
        items = {}
        if config.ema is EMAMode.GPU:
            items["moving average"] = sum(4 * p.numel() for p in named)
        if needs_old_policy(config) and config.rlhf_ema_ref_device is EMAMode.GPU:
            items["old policy"] = sum(p.nbytes for p in named)
        if needs_reference(config) and config.effective_dpo_ref_mode() is DPORefMode.EXISTING_ADAPTER:
            items["reference snapshot"] = self.adapter_bytes()
        return items

    def _sampling(self) -> Iterator[Phase]:
        if not are_samples_due(self.config):
            return
        # the check of samples reports sizes that are impossible
        sizes = dict.fromkeys(_possible(one.size, self._multiple) for one in self.dry_run.wanted_samples())
        if not sizes:
            return
        size = max(sizes, key=math.prod)
        encoders = () if self.model.trains_text else self.model.text_encoders
        if encoders:
            # prompt and negative prompt, encoded in advance
            working = self.dry_run.texts(2, size)
            yield Phase(
                "encoding prompts of samples", {**self._weights(*encoders), "working memory": working}
            )
        other = self.model.sample_denoiser
        # smaller ones take less than the training step
        if other is not None or math.prod(size) > math.prod(self.size):
            yield Phase(
                "denoising samples",
                {
                    **self._lasting(),
                    **({} if other is None else {"weights: sample_model_name": _bytes_of(other.module)}),
                    "working memory": self.dry_run.denoising(size),
                },
            )
        # large images are decoded in tiles, so the largest need not take the most
        working = max(self.dry_run.samples(1, each) for each in sizes)
        yield Phase(
            "making samples",
            {
                **self._lasting(),
                **self._weights(self.spec.vae),
                "training adapter": self.model.training_adapter.bytes if self.model.training_adapter else 0,
                "working memory": working,
            },
        )

    # -- what can be counted -------------------------------------------------------------------------------

    def part_bytes(self, part: str) -> int:
        """Bytes of a part's weights and buffers on the device, without adapters and what stays in main memory."""
        adapter = self.model.adapter
        return _bytes_of(
            self.model.module(part),
            () if adapter is None else (tensor for _, tensor in adapter.named_tensors()),
        )

    def adapter_bytes(self) -> int:
        """Bytes of all adapter tensors."""
        handle = self.model.adapter
        return 0 if handle is None else sum(tensor.nbytes for _, tensor in handle.named_tensors())

    def gradient_bytes(self) -> int:
        """Bytes of all gradients; only the largest if each is used as soon as it is complete."""
        sizes = [parameter.nbytes for parameter in self.dry_run.trained_here()]
        return max(sizes, default=0) if self.config.optimizer.fused_back_pass else sum(sizes)

    def optimizer_bytes(self) -> int:
        """Bytes of the optimizer's state on the device after its first step."""
        return _state_of(self.config, self.dry_run.trained_here())

    def visiting_bytes(self) -> int:
        """Bytes of the largest weight of main memory with its gradient and state, which visits the device for
        its step.
        """
        shapes = {(tuple(p.shape), p.dtype): 2 * p.nbytes for p in staying_trained(self.model.denoiser)}
        return max((size + state_bytes(self.config, *key) for key, size in shapes.items()), default=0)


def check_main_memory(config: TrainConfig, model: Model) -> None:
    """Check that weights trained in main memory fit there with gradients, state and average.

    Args:
        model: the model of the run, or one on the meta device.

    Raises:
        UnsupportedError: they do not fit.
    """
    staying_here = staying_trained(model.denoiser)
    weights = sum(p.nbytes for p in staying_here)
    gradients = 0 if config.optimizer.fused_back_pass else weights
    average = sum(4 * p.numel() for p in staying_here) if config.ema is EMAMode.CPU else 0
    needed = weights + gradients + average + _state_of(config, staying_here)
    free = psutil.virtual_memory().available
    if staying_here and needed > free:
        denoiser = model.spec.denoiser
        raise UnsupportedError(
            f"the weights trained in main memory need {_gib(needed)} with their optimizer state, but only "
            f"{_gib(free)} are free",
            f"{denoiser}.offload_fraction",
            "lower it, use ADAFACTOR with fused_back_pass, close other programs, or train a LORA",
        )


def _state_of(config: TrainConfig, parameters: Sequence[nn.Parameter]) -> int:
    """Bytes of the optimizer's state for parameters."""
    shapes = Counter((tuple(parameter.shape), parameter.dtype) for parameter in parameters)
    return sum(count * state_bytes(config, *key) for key, count in shapes.items())


def _bytes_of(module: nn.Module, others: Iterable[torch.Tensor] = ()) -> int:
    """A module's weights and buffers on the device, without what stays in main memory.

    Args:
        others: tensors in it that do not count.
    """
    left_out = {id(tensor) for tensor in (*staying(module), *others)}
    return sum(t.nbytes for t in (*module.parameters(), *module.buffers()) if id(t) not in left_out)


def state_bytes(config: TrainConfig, shape: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes of optimizer state for a parameter, measured by taking a step.

    For large parameters, smaller ones are measured, because the state grows linearly with the longest side.
    """
    if math.prod(shape) <= _MEASURED_NUMEL:
        return _measured_state(config, tuple(shape), dtype)
    axis = max(range(len(shape)), key=shape.__getitem__)
    across = math.prod(shape) // shape[axis]
    unit = max(1, _MEASURED_NUMEL // across // 2)
    short, double = (
        _measured_state(config, (*shape[:axis], length, *shape[axis + 1 :]), dtype)
        for length in (unit, 2 * unit)
    )
    return short + round((double - short) * (shape[axis] - unit) / unit)


def _measured_state(config: TrainConfig, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    if config.optimizer.stochastic_rounding and dtype is torch.bfloat16:
        dtype = torch.float32
    parameter = nn.Parameter(torch.zeros(shape, dtype=dtype))
    parameter.grad = torch.zeros_like(parameter)
    optimizer = create_optimizer(config.optimizer, [("one", 1e-4, [("block", parameter)])])
    optimizer.step()
    # scalar counters stay on the CPU
    return sum(
        value.nbytes
        for values in optimizer.state.values()
        for name, value in values.items()
        if isinstance(value, torch.Tensor) and value.dim() > 0 and not name.startswith(_SHARED)
    )


def _with_overhead(phase: Phase) -> Phase:
    moving = ("working memory", "activations and working memory", "gradients")
    slack = sum(round(SLACK * size) for name, size in phase.items.items() if name in moving)
    return Phase(
        phase.name, {**phase.items, "gaps of the allocator (assumed)": slack, "CUDA (assumed)": CONTEXT_BYTES}
    )
