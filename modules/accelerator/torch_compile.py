"""Compiles the denoiser in place: its repeated blocks (quick to compile) or all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from modules.accelerator.base import Accelerator, Params, peel, register
from modules.util.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from torch import nn

_GRAPH_MODES = ("reduce-overhead", "max-autotune")
MODES = ("default", *_GRAPH_MODES, "max-autotune-no-cudagraphs")


@register
class TorchCompile(Accelerator):
    """Compiles the denoiser with ``torch.compile``.

    The plain model inside adapters and wrappers is compiled in place (``Module.compile``), so that no name in a state
    dict changes. Parameters: ``scope`` (``regional``, ``full``), ``backend``, ``mode``, ``dynamic``, ``fullgraph``,
    ``options``.
    """

    name = "torch_compile"
    safety = "lossy"
    stage = "both"
    requires_grad_rollout = True

    def __init__(self, params: Params) -> None:
        self._field = params.field
        self._regional = params.text("scope", "regional", allowed=("regional", "full")) == "regional"
        backend = params.text("backend", "inductor") or "inductor"
        mode = params.text("mode", allowed=MODES)
        options = params.mapping("options")
        if mode is not None and options:
            raise params.fault("options", "mode and options exclude each other", "give one of them")
        self._arguments: dict[str, Any] = {
            "backend": backend,
            "mode": mode,
            "dynamic": params.flag("dynamic", None),
            "fullgraph": params.flag("fullgraph", False),
            "options": options or None,
        }
        self._before: list[tuple[nn.Module, Callable[..., Any] | None]] = []
        super().__init__(params)

    @property
    def uses_cuda_graphs(self) -> bool:
        """True if recorded CUDA graphs hold the addresses of the weights."""
        options = self._arguments["options"] or {}
        return (
            self._arguments["mode"] in _GRAPH_MODES
            or self._arguments["backend"] == "cudagraphs"
            or bool(options.get("triton.cudagraphs"))
        )

    def setup(self, models: Mapping[str, nn.Module]) -> None:
        self._check_backend()
        targets = [one for role, model in models.items() for one in self._targets(role, peel(model))]
        for module in targets:
            self._before.append((module, module._compiled_call_impl))
            try:
                module.compile(**self._arguments)
            except (RuntimeError, ValueError, TypeError, ImportError, AssertionError) as error:
                raise ConfigError(f"torch.compile refuses these settings: {error}", self._field) from error

    def _check_backend(self) -> None:
        import torch

        known = torch._dynamo.list_backends(exclude_tags=())
        if self._arguments["backend"] not in known:
            raise ConfigError(
                f"unknown compile backend {self._arguments['backend']!r}",
                field=f"{self._field}.backend",
                hint=f"known: {', '.join(sorted(known))}",
            )

    def _targets(self, role: str, model: nn.Module) -> list[nn.Module]:
        if not self._regional:
            return [model]
        names = getattr(model, "_repeated_blocks", None) or ()
        blocks = [module for module in model.modules() if type(module).__name__ in names]
        if not blocks:
            what = f"has no block of the kinds {', '.join(names)}" if names else "names no repeated blocks"
            raise UnsupportedError(
                f"regional compilation does not work on {type(model).__name__} ({role}): it {what}",
                field=f"{self._field}.scope",
                hint="use scope full for this model, or remove torch_compile",
            )
        return blocks

    def teardown(self) -> None:
        """Return to eager mode. Compiled graphs stay in Dynamo's own caches."""
        for module, before in reversed(self._before):
            module._compiled_call_impl = before
        self._before.clear()
