"""The reference weights of preference training: the base model, or the adapter as it was at the start.

Learned words have their initial vectors in both, because they would mean nothing to the base model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from modules.adapter.PeftAdapter import AdapterHandle, check_same
from modules.util.errors import DataError, UnsupportedError

NEW_ADAPTER = "NEW_ADAPTER"
EXISTING_ADAPTER = "EXISTING_ADAPTER"
PERTURBATION = 0.1


class Reference:
    """Provides the contexts in which a model computes with its reference weights.

    NEW_ADAPTER disables the adapters. EXISTING_ADAPTER clones every adapter tensor on creation, and points
    the live tensors at the clones inside a context. Nothing is copied, and the optimizer's state is
    unaffected. Embeddings have their initial values in both. Contexts must not be nested, and must end before
    a backward pass that recomputes.

    Raises:
        ValueError: the mode is unknown.
    """

    def __init__(self, handle: AdapterHandle, mode: object) -> None:
        self.mode = str(getattr(mode, "value", mode))
        if self.mode not in (NEW_ADAPTER, EXISTING_ADAPTER):
            raise ValueError(
                f"unknown reference mode {self.mode!r}; known: {NEW_ADAPTER}, {EXISTING_ADAPTER}"
            )
        self.handle = handle
        self._active = False
        # the tensor objects stay the same whatever happens to their values; looking them up is what takes
        # time
        self._tensors = dict(handle.named_tensors())
        self._snapshot: dict[str, torch.Tensor] = {}
        if self.mode == EXISTING_ADAPTER:
            self._snapshot = {name: t.clone() for name, t in handle.state_dict().items()}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use the reference weights inside the block, and always the trained ones again afterwards.

        Raises:
            RuntimeError: the reference is already active.
        """
        if self._active:
            raise RuntimeError("the reference context was entered inside itself")
        self._active = True
        words = self.handle.model.words
        try:
            with (
                self.handle.disabled() if self.mode == NEW_ADAPTER else self._swapped(),
                nullcontext() if words is None else words.as_at_the_start(),
            ):
                yield
        finally:
            self._active = False

    __call__ = active

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        live = {name: tensor.data for name, tensor in self._tensors.items()}
        try:
            for name, tensor in self._tensors.items():
                frozen = self._snapshot[name]
                if frozen.device != tensor.device or frozen.dtype != tensor.dtype:
                    # the model moved after the snapshot was taken; follow it once
                    frozen = self._snapshot[name] = frozen.to(tensor.device, tensor.dtype)
                tensor.data = frozen
            yield
        finally:
            for name, tensor in self._tensors.items():
                tensor.data = live[name]

    def snapshot_state(self) -> dict[str, torch.Tensor]:
        """The frozen tensors by name, for a backup; empty for NEW_ADAPTER."""
        return dict(self._snapshot)

    def load_snapshot(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore the snapshot of a backup.

        Raises:
            DataError: it does not belong to this adapter, or to this mode.
        """
        if self.mode == NEW_ADAPTER:
            if state:
                raise DataError("a backup with a reference snapshot cannot continue with a bare reference")
            return
        check_same(dict(self.handle.named_tensors()), state, "the reference snapshot")
        for name, tensor in self.handle.named_tensors():
            self._snapshot[name] = state[name].detach().to(tensor.device, tensor.dtype).clone()

    @torch.no_grad()
    def self_check(self) -> None:
        """Verify that the context really switches weights here, and restore everything.

        Some parameter wrappers silently ignore pointer swaps, and training would then compare the model with
        itself.

        Raises:
            RuntimeError: the switch has no effect or is not undone.
        """
        kept = {name: tensor.detach().clone() for name, tensor in self.handle.named_tensors()}
        try:
            for _, tensor in self.handle.named_tensors():
                if tensor.is_floating_point():
                    tensor.add_(PERTURBATION)
            moved = {name: tensor.detach().clone() for name, tensor in self.handle.named_tensors()}
            with self.active():
                problem = self._inside_problem()
            if not problem and not _equal(moved, self.handle.state_dict()):
                problem = "the trained weights were not restored"
        finally:
            for name, tensor in self.handle.named_tensors():
                tensor.copy_(kept[name])
        if problem:
            raise RuntimeError(f"the {self.mode} reference does not work on this model: {problem}")

    def _inside_problem(self) -> str:
        if self.mode == EXISTING_ADAPTER:
            same = _equal(self._snapshot, self.handle.state_dict())
            return "" if same else "the swapped weights are not the snapshot"
        if not all(layer.disable_adapters for layer in self.handle.layers.values()):
            return "an adapter is still switched on"
        for layer in self.handle.layers.values():
            base = layer.get_base_layer()
            if type(base) is not nn.Linear:
                continue
            x = torch.linspace(-1.0, 1.0, base.in_features, device=base.weight.device)[None]
            x = x.to(base.weight.dtype)
            return "" if torch.equal(layer(x), base(x)) else "a layer differs from its base"
        return ""


def _equal(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def create_reference(training_method: object, mode: object, handle: AdapterHandle | Any | None) -> Reference:
    """Create the reference of a preference run.

    Raises:
        NotImplementedError: full fine-tuning. RuntimeError: no adapter is attached. ValueError: the mode is
            unknown.
    """
    method = str(getattr(training_method, "value", training_method))
    if method != "LORA":
        raise UnsupportedError(
            f"preference training needs an adapter: the base model is the reference, and {method} changes it",
            field="training_method",
            hint="set training_method to LORA",
        )
    if handle is None:
        raise RuntimeError("preference training needs an adapter, but none is attached to the model")
    return Reference(handle, mode)
