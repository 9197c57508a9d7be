"""The memory of a training step besides weights and optimizer, measured by running it on meta tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from modules.accelerator.forced_grad import forced_grad
from modules.adapter.reference import Reference, create_reference
from modules.dataLoader.create import sides_multiple
from modules.model.batch import NO_SOURCES, Conditioning, ImageBatch, NoiseDraw, PairBatch, Sources
from modules.model.Model import Model
from modules.model.offloaded import staying_trained
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.ModelPairScorer import ModelPairScorer
from modules.objective import execution
from modules.objective.preference import ObjectiveOptions, get_preference_loss
from modules.objective.scores import ReferenceOut
from modules.pipeline.nodes.sources import source_size
from modules.reward.base import RewardOutline
from modules.trainer.memory.live_bytes import LiveBytes, tensors_in
from modules.trainer.memory.OnlinePasses import OnlinePasses
from modules.trainer.memory.SavedBytes import SavedBytes
from modules.trainer.memory.shape_only import ShapeOnlyModel
from modules.trainer.memory.ShapeMemo import ShapeMemo
from modules.trainer.online.settings import acceleration_plan, needs_reference
from modules.util.config.SampleConfig import FilledSample
from modules.util.config.TrainConfig import TrainConfig
from modules.util.pairs.source_files import most_sources
from modules.util.prompts_file import read_prompt_rows

PROMPT = " ".join(["picture"] * 64)
"""A caption of ordinary length. Most families pad to a fixed length anyway."""
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_HALF = frozenset(
    (
        nn.functional.linear,
        nn.functional.conv1d,
        nn.functional.conv2d,
        nn.functional.conv3d,
        nn.functional.conv_transpose2d,
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.bmm,
        torch.Tensor.bmm,
        torch.baddbmm,
        torch.einsum,
    )
)
"""Operations that autocast computes in half precision."""
_WIDE_ON_CUDA = (
    nn.functional.layer_norm,
    nn.functional.group_norm,
    nn.functional.softmax,
    torch.softmax,
    torch.pow,
    torch.Tensor.pow,
    torch.exp,
    torch.rsqrt,
    torch.Tensor.rsqrt,
    torch.sum,
    torch.Tensor.sum,
    torch.cumsum,
)
"""Operations that autocast computes in float32 on CUDA but leaves unchanged on the CPU."""


@dataclass(frozen=True)
class StepBytes:
    """Memory of one step's forward and backward passes.

    Args:
        saved: peak of what is held for the backward passes, outside checkpoints.
        peak: peak of all live tensors, including gradients.
    """

    saved: int
    peak: int


class _FusedAttention(torch.autograd.Function):
    """Holds what fused kernels hold: queries, keys, values, the output and one number per query."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        sums = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, sums, *([] if mask is None else [mask]))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v = ctx.saved_tensors[:3]
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None


class ShapesOnly(TorchFunctionMode):
    """Lets models run on the meta device. It provides autocast, which is missing there, attention as one
    kernel, and shapes that depend on the content of a mask, all of whose tokens count here.

    Args:
        dtype: the type of autocast; float32 for none.
        cuda: follow CUDA's list of autocast operations instead of the CPU's.
    """

    def __init__(self, dtype: torch.dtype, cuda: bool) -> None:
        super().__init__()
        self.dtype, self.cuda = dtype, cuda
        # autocast also applies inside operations that are written in Python
        self.memo = ShapeMemo(lambda: self.dtype)
        self._counts: dict[int, tuple[torch.Tensor, int]] = {}
        self._replaced: list[Any] = []

    def __enter__(self) -> ShapesOnly:
        self._replaced.append(torch.autocast)
        torch.autocast = self._autocast  # type: ignore[assignment,misc]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.autocast = self._replaced.pop()  # type: ignore[misc]

    def _autocast(self, device_type: str, *args: Any, **options: Any) -> AbstractContextManager[object]:
        """``torch.autocast``, which models disable for parts of their own. It does not support the meta device."""
        if device_type != "meta":
            return self._replaced[0](device_type, *args, **options)  # type: ignore[no-any-return]
        return nullcontext() if options.get("enabled", True) else self._wide()

    @contextmanager
    def _wide(self) -> Iterator[None]:
        before, self.dtype = self.dtype, torch.float32
        try:
            yield
        finally:
            self.dtype = before

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "__get__":
            # most calls ask for a property of a tensor
            return func(*args, **kwargs)
        if func is torch.Tensor.backward:
            # what is recomputed on the way back needs all this again
            with torch.device("meta"), self:
                return _run_backward(args[0])
        if func is torch.Tensor.__bool__ and args[0].is_meta:
            # called only with masks: whether there is no padding
            return True
        if func is torch.Tensor.item and args[0].is_meta and args[0].dtype == torch.bool:
            # whether there are as many image tokens as image states
            return True
        if func is torch.Tensor.cpu and args[0].is_meta:
            return args[0]
        if func is torch.Tensor.tolist and args[0].is_meta:
            return [self._counts[id(args[0])][1]] * args[0].numel()
        if func is torch.Tensor.repeat_interleave and args[0].is_meta and _has_numbers(args[1]):
            # the number of repetitions of each token determines the shape
            kwargs = {**kwargs, "output_size": int(args[1].sum())}
        if func not in (torch.Tensor.__setitem__, torch.ops.aten.index.Tensor):
            # what a CPU mask selects is known, in the backward pass too
            args, kwargs = _together(args, kwargs)
        if func is nn.functional.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if self.dtype != torch.float32:
            args, kwargs = self._cast(func, args, kwargs)
        out = func(*args, **kwargs)
        if func is torch.Tensor.sum and args[0].dtype == torch.bool and args[0].is_meta and out.numel():
            self._counts[id(out)] = (out, args[0].numel() // out.numel())
        return out

    def _cast(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if func in _HALF:
            change = partial(_in_type, dtype=self.dtype)
        elif self.cuda and func in _WIDE_ON_CUDA:
            change = partial(_in_type, dtype=torch.float32)
        else:
            return args, kwargs
        return tuple(map(change, args)), {name: change(value) for name, value in kwargs.items()}

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        *_args: Any,
        **_options: Any,
    ) -> torch.Tensor:
        if self.dtype != torch.float32:
            query, key, value = (_in_type(tensor, self.dtype) for tensor in (query, key, value))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            # kernels take a bias: each call makes one of the mask, and holds it
            attn_mask = attn_mask.new_empty(attn_mask.shape, dtype=query.dtype)
        return _FusedAttention.apply(query, key, value, attn_mask)  # type: ignore[no-any-return,no-untyped-call]


def _has_numbers(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_meta


def _run_backward(total: torch.Tensor) -> None:
    """``backward`` that keeps the surrounding modes active."""
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward(
        (total,), (torch.ones_like(total),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def _together(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move CPU tables that meet tensors on the meta device to that device."""
    with torch._C.DisableTorchFunction():
        places = {tensor.is_meta for tensor in tensors_in((args, kwargs))}
    if len(places) < 2:
        return args, kwargs
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))  # type: ignore[no-any-return]


def _in_type(value: Any, dtype: torch.dtype) -> Any:
    cast = isinstance(value, torch.Tensor) and value.dtype in _FLOATS
    return value.to(dtype) if cast else value


class ShapeDryRun:
    """Runs operations on a shape-only model and measures the bytes they would need.

    Args:
        cuda: estimate the memory of a CUDA device.
        cond: the conditioning of prompts, for models without tokenizers; their encoding is then not
            estimated.
    """

    def __init__(
        self,
        setup: BaseModelSetup,
        model: ShapeOnlyModel,
        config: TrainConfig,
        cuda: bool = True,
        cond: Callable[[int], Conditioning] | None = None,
    ) -> None:
        self.setup, self.model, self.config = setup, model, config
        self._shapes = ShapesOnly(model.compute_dtype, cuda)
        self._plain = ShapesOnly(torch.float32, cuda)
        self._conds: dict[int, Conditioning] = {}
        self._cond = cond

    @contextmanager
    def _counting(self, autocast: bool) -> Iterator[tuple[SavedBytes, LiveBytes]]:
        tensors = _tensors(self.model)
        shapes = self._shapes if autocast else self._plain
        with torch.device("meta"), shapes, LiveBytes(tensors, shapes.memo) as live, SavedBytes(tensors) as saved:
            yield saved, live

    def texts(self, count: int, size: tuple[int, int]) -> int:
        """Peak of live bytes while ``count`` prompts are encoded, without the encoders themselves.

        Args:
            size: (height, width) of images shown to the encoder.
        """
        if self._cond is not None:
            self._conds[count] = self._cond(count)
            return 0
        with self._counting(autocast=False) as (_, live):
            seen = self._seen(count, size)
            self._conds[count] = self.setup.encode_text(self.model, [PROMPT] * count, seen=seen)
        return live.peak

    def images(self, count: int, size: tuple[int, int]) -> int:
        """Peak of live bytes while images of ``size`` (height, width) are encoded, without the VAE itself."""
        with self._counting(autocast=False) as (_, live), torch.no_grad():
            self.setup.encode_image(self.model, torch.empty(count, 3, *size))
        return live.peak

    def samples(self, count: int, size: tuple[int, int]) -> int:
        """As ``images``, for decoding latents."""
        with self._counting(autocast=False) as (_, live), torch.no_grad():
            self.setup.decode_latents(self.model, torch.empty(self._latents(count, size)))
        return live.peak

    def wanted_samples(self) -> list[FilledSample]:
        """The samples that the run makes."""
        with self.model.as_sampled():
            usual = self.model.published
        return [one.filled(self.setup.spec, usual) for one in self.config.load_samples() if one.enabled]

    def denoising(self, size: tuple[int, int]) -> int:
        """The same of one denoising step of a sample, guided if any of the run's is."""
        spec, model = self.setup.spec, self.model
        count = 1 + (spec.reads_negatives and any(one.cfg_scale > 1.0 for one in self.wanted_samples()))
        if count not in self._conds:
            self.texts(count, size)
        with self._counting(autocast=True) as (_, live), torch.no_grad():
            cond = self._conds[count]
            if spec.embeds_guidance:
                cond = cond.plus(guidance_B=torch.ones(count))
            latents_BChw = torch.empty(self._latents(count, size))
            if self._sources:
                own_BChw = torch.empty(self._latents(count, self.source_size(size)))
                cond = cond.editing(Sources([own_BChw] * self._sources))
            x_BChw = latents_BChw.to(model.input_dtype())
            self.setup.denoise(model, x_BChw, torch.zeros(count), cond, size)
        return live.peak

    def step(self, batch_size: int, size: tuple[int, int], mode: str = "FULL_CONCURRENT") -> StepBytes:
        """The passes of one micro-batch: of pairs in the execution mode ``mode``, or of images."""
        config = self.config
        here = self.trained_here()
        kept = set() if config.optimizer.fused_back_pass else {id(parameter) for parameter in here}
        for parameter in self.trained():
            parameter.grad = None
            if id(parameter) not in kept:
                parameter.register_post_accumulate_grad_hook(_drop_gradient)
        if config.trains_online:
            return self._online_step(batch_size, size, here)
        before = self._gradients_before(here, int(config.gradient_accumulation_steps > 1))
        if config.trains_pairs:
            rejected, chosen = self._batch(batch_size, size), self._batch(batch_size, size)
            pair = PairBatch(chosen.ids, chosen, rejected)
            reference = None
            if needs_reference(config):
                reference = create_reference(
                    config.training_method, config.effective_dpo_ref_mode(), self.model.adapter
                )
            with self._counting(autocast=True) as (saved, live):
                self._pairs(pair, reference, mode)
        else:
            batch = self._batch(batch_size, size)
            draw = self._draw(batch)
            self.model.set_mode("train")
            with self._counting(autocast=True) as (saved, live):
                self.setup.calculate_loss(self.model, batch, draw).mean().backward()
        return StepBytes(saved.peak, live.peak + before)

    def _gradients_before(self, parameters: list[nn.Parameter], sets: int) -> int:
        """Let gradients of earlier passes exist, to which those of the next one are added; returns the bytes of
        ``sets`` of them. With a fused backward pass there are none.
        """
        if not sets or self.config.optimizer.fused_back_pass:
            return 0
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        return sets * sum(parameter.nbytes for parameter in parameters)

    def rollout(self, count: int, size: tuple[int, int]) -> int:
        """Peak of live bytes while ``count`` images of ``size`` (height, width) are made together."""
        passes = OnlinePasses(self.setup, self.model, self.config, self._batch(count, size))
        self.model.set_mode("eval")
        forces = acceleration_plan(self.config).forces_grad
        graph = forced_grad([self.model.denoiser]) if forces else nullcontext()
        with self._counting(autocast=True) as (_, live), torch.no_grad(), graph:
            passes.coupled(0)
        return live.peak + passes.conditions_bytes

    def _online_step(self, count: int, size: tuple[int, int], here: list[nn.Parameter]) -> StepBytes:
        """The passes of one micro-batch of images that the run made, after others of the optimizer step.

        Args:
            here: the trained parameters that are on the device.
        """
        passes = OnlinePasses(self.setup, self.model, self.config, self._batch(count, size))
        before = self._gradients_before(here, passes.gradients_before)
        self.model.set_mode("no_dropout")
        with self._counting(autocast=True) as (saved, live):
            passes.learn(self._draw(passes.batch))
        return StepBytes(saved.peak, live.peak + passes.conditions_bytes + before)

    def reward(self, outline: RewardOutline, count: int) -> int:
        """Peak of live bytes while a reward scores ``count`` images, without its weights."""
        tensors = [*outline.module.parameters(), *outline.module.buffers()]
        live = LiveBytes(tensors, self._plain.memo)
        with torch.device("meta"), self._plain, live, torch.no_grad():
            outline.score(count)
        return live.peak

    def _pairs(self, pair: PairBatch, reference: Reference | None, mode: str) -> None:
        config = self.config
        draw = self._draw(pair.chosen)
        known = None
        if config.rlhf_dpo_reference_cache:
            column_B = torch.empty(len(pair), device="meta")
            known = ReferenceOut((column_B, column_B), (column_B, column_B))
        self.model.set_mode("no_dropout")
        execution.run(
            mode,
            config.rlhf_dpo_sequential_strategy.value,
            ModelPairScorer(
                self.setup,
                self.model,
                pair,
                (draw, draw),
                errors=config.dpo_safeguard_mu is not None,
                norms=config.rlhf_norm_guard > 0,
                predictions=config.rlhf_dpo_anchor_weight > 0,
            ),
            reference,
            get_preference_loss(config.rlhf_dpo_objective),
            ObjectiveOptions(beta=config.rlhf_dpo_beta),
            parameters=self.trained(),
            supervised_mix=config.rlhf_supervised_mix,
            cached_reference=known,
            safeguard_mu=config.dpo_safeguard_mu,
            norm_guard=config.rlhf_norm_guard,
            anchor=config.rlhf_dpo_anchor_weight,
        )

    def trained(self) -> list[nn.Parameter]:
        """The parameters given to the optimizer."""
        groups = training.trainable_parameters(self.model, self.config)
        return [parameter for _, _, named in groups for _, parameter in named]

    def trained_here(self) -> list[nn.Parameter]:
        """Those of them that are on the device."""
        elsewhere = {id(parameter) for parameter in staying_trained(self.model.denoiser)}
        return [parameter for parameter in self.trained() if id(parameter) not in elsewhere]

    def _latents(self, count: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
        factor = self.model.latent_factor
        return count, self.model.latent_channels, size[0] // factor, size[1] // factor

    def _batch(self, count: int, size: tuple[int, int]) -> ImageBatch:
        if not self.model.trains_text and count not in self._conds:
            self.texts(count, size)
        latents_BChw = torch.empty(self._latents(count, size), device="meta")
        cond = None if self.model.trains_text else self._conds[count]
        names = [str(number) for number in range(count)]
        seen = None
        if self.setup.spec.inpainting:
            _, channels, height, width = latents_BChw.shape
            seen = torch.empty(count, 1 + channels, height, width, device="meta")
        return ImageBatch(
            latents_BChw=latents_BChw,
            cond=cond,
            prompts=[PROMPT] * count,
            ids=names,
            visits=[0] * count,
            size=size,
            loss_weight_B=torch.ones(count, device="meta"),
            inpaint_BChw=seen,
            sources=Sources(
                [torch.empty(self._latents(count, self.source_size(size)), device="meta")] * self._sources
            ),
            seen=self._seen(count, size) if self.model.trains_text else NO_SOURCES,
        )

    def _seen(self, count: int, size: tuple[int, int]) -> Sources:
        """Source images for a text encoder that sees them. They are black rather than meta tensors, because
        they are cut into patches before they are moved to the device.
        """
        shown = self._sources if self.setup.spec.sees_sources else 0
        black_BCHW = torch.zeros(count, 3, *self.source_size(size), dtype=torch.uint8, device="cpu")
        return Sources([black_BCHW] * shown)

    def source_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of the images that are edited, of one shape with the result, as most edits are."""
        shape = (size[1], size[0])
        multiple = sides_multiple(self.setup, self.model)
        return source_size(shape, shape, size, multiple, self.config.source_resolution)

    @property
    def edits(self) -> bool:
        """True if the run has source images."""
        return self._sources > 0

    @cached_property
    def _sources(self) -> int:
        """Maximum number of images trained together with one image, by the file names in the concepts' folders."""
        config, spec = self.config, self.setup.spec
        if spec.sources and config.needs_no_images():
            return max(
                int(spec.edits_only), _sources_of_prompts(Path(config.rlhf_prompts_file), spec.sources)
            )
        known = config.concepts is not None or Path(config.concept_file_name).is_file()
        if not spec.sources or not known:
            return int(spec.edits_only)
        folders = [one.source_path for one in config.load_concepts() if one.enabled and one.source_path]
        found = max((most_sources(Path(folder), spec.sources) for folder in folders), default=0)
        return max(found, int(spec.edits_only))

    def _draw(self, batch: ImageBatch) -> NoiseDraw:
        kind = torch.float32 if self.setup.spec.prediction == "flow" else torch.int64
        timestep_B = torch.zeros(len(batch), dtype=kind, device="meta")
        return NoiseDraw(timestep_B, torch.empty_like(batch.latents_BChw))


def _sources_of_prompts(file: Path, most: int) -> int:
    """Return how many images a prompt of a file edits at most, up to ``most``; none while the file is not
    there.
    """
    rows = read_prompt_rows(file) if file.is_file() else []
    return min(most, max((len(row.sources) for row in rows), default=0))


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _tensors(model: Model) -> list[torch.Tensor]:
    return [
        tensor for module in model.modules().values() for tensor in (*module.parameters(), *module.buffers())
    ]
