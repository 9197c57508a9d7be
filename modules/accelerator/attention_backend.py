"""Another attention kernel for the denoiser only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from modules.accelerator.base import Accelerator, Params, peel, register
from modules.util.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    import torch
    from torch import nn


@contextmanager
def keep_global_backend() -> Iterator[None]:
    """Restore the global backend of the process after the block, whatever happens inside.

    ``set_attention_backend`` of one model also changes it for every other model without a choice of its own
    (the VAE, reward models).
    """
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

    active = Registry._active_backend
    try:
        yield
    finally:
        Registry._active_backend = active


def switchable_processors(model: nn.Module) -> list[Any]:
    """The attention processors that accept a backend; those of SD3 and of the UNets do not."""
    from diffusers.models.attention import AttentionModuleMixin
    from diffusers.models.attention_processor import Attention, MochiAttention

    kinds = (Attention, MochiAttention, AttentionModuleMixin)
    found = (module.processor for module in model.modules() if isinstance(module, kinds))
    return [processor for processor in found if hasattr(processor, "_attention_backend")]


@register
class AttentionBackend(Accelerator):
    """Another attention kernel of diffusers for the denoiser.

    Both stages use the same kernel, so it changes no ratio. Parameters: ``backend``, a name of diffusers'
    ``AttentionBackendName`` (``native``, ``flash``, ``flex``, ``_native_math``, ...).
    """

    name = "attention_backend"
    safety = "lossless"
    stage = "both"

    def __init__(self, params: Params) -> None:
        backend = params.text("backend")
        if not backend:
            raise params.fault("backend", "no backend is named", hint="for example native, flash or flex")
        self._backend = backend.lower()
        self._field = f"{params.field}.backend"
        self._before: list[tuple[Any, Any]] = []
        super().__init__(params)

    def setup(self, models: Mapping[str, nn.Module]) -> None:
        self._check_name()
        found = {role: switchable_processors(peel(model)) for role, model in models.items()}
        for role, processors in found.items():
            if not processors:
                raise UnsupportedError(
                    f"attention_backend changes nothing in {type(peel(models[role])).__name__} ({role}): "
                    "none of its attention processors takes a backend",
                    field=self._field,
                    hint="remove attention_backend from the acceleration settings for this model",
                )
        for role, model in models.items():
            self._before += [(one, one._attention_backend) for one in found[role]]
            self._switch(peel(model))
        self._probe(next(iter(models.values())))

    def _check_name(self) -> None:
        from diffusers.models.attention_dispatch import AttentionBackendName

        names = [one.value for one in AttentionBackendName]
        if self._backend not in names:
            raise ConfigError(
                f"unknown attention backend {self._backend!r}", self._field, f"known: {', '.join(names)}"
            )

    def _switch(self, model: Any) -> None:
        with keep_global_backend():
            try:
                model.set_attention_backend(self._backend)
            except (RuntimeError, ImportError, ValueError, OSError) as error:
                raise UnsupportedError(
                    f"attention backend {self._backend!r} cannot be used here: {error}",
                    field=self._field,
                    hint="install the package it needs, or choose native",
                ) from error

    def _probe(self, model: nn.Module) -> None:
        """Run a small attention with gradients, because some kernels (quantised ones) have no backward pass."""
        import torch
        from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        query = torch.zeros(1, 128, 2, 64, device=device, dtype=dtype, requires_grad=True)
        try:
            out: torch.Tensor = dispatch_attention_fn(
                query, query, query, backend=AttentionBackendName(self._backend)
            )
            if out.requires_grad:
                out.float().sum().backward()
        except (RuntimeError, ImportError, ValueError, TypeError, NotImplementedError) as error:
            raise UnsupportedError(
                f"attention backend {self._backend!r} does not run on {device}: {error}", self._field
            ) from error
        if query.grad is None:
            raise UnsupportedError(
                f"attention backend {self._backend!r} does not pass gradients: attention would not be "
                "trained",
                field=self._field,
                hint="choose a backend with a backward pass, such as native or flash",
            )

    def teardown(self) -> None:
        for processor, backend in reversed(self._before):
            processor._attention_backend = backend
        self._before.clear()
