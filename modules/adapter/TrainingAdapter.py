"""A training adapter: a LoRA that undoes the distillation of a model during training."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modules.adapter.AdapterFile import AdapterFile
from modules.adapter.reading import read_adapter
from modules.model.gguf_layers import GgufLinear
from modules.model.Model import Model
from modules.util.errors import UnsupportedError, UserError, blamed_on

FIELD = "training_adapter.model_name"


@dataclass
class TrainingAdapter:
    """A LoRA that is added to the weights of the denoiser before training, and removed in samples.

    With weights W and factors B and A, the model trains on W + s B A, which is also its reference. A sample
    adds - s B A to the outputs of the layers, so that it is made by W plus what was trained.

    Args:
        file: the LoRA, matched to the model.
        strength: s without the LoRA's own scaling.
        digest: SHA-256 of the file, and of settings next to it that were read.
    """

    file: AdapterFile
    strength: float
    digest: str

    @classmethod
    def read(cls, path: Path, model: Model, strength: float) -> TrainingAdapter:
        """Read a file for a model, which may have no values.

        Raises:
            UserError: the file is damaged, of another family, or not a LoRA of linear layers of the denoiser.
        """
        with blamed_on(FIELD):
            file = read_adapter(path, model)
            _check(file, model)
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
        # settings that decide the strength are part of the adapter
        if file.settings is not None:
            digest.update(file.settings.read_bytes())
        return cls(file, strength, digest.hexdigest())

    @torch.no_grad()
    def add_to(self, model: Model) -> None:
        """Add it to the weights, layer by layer in float32. Must be called before they are quantised."""
        for (part, path), layer in self.file.layers.items():
            linear: Any = model.module(part).get_submodule(path)
            change_OI = layer.tensors["lora_B"].float() @ layer.tensors["lora_A"].float()
            weight_OI = linear.weight.float() + self.strength * layer.scaling * change_OI
            linear.weight.data = weight_OI.to(linear.weight.dtype)

    @contextmanager
    def taken_back(self, model: Model) -> Iterator[None]:
        """Inside the block, the model computes as if it had never been added. It is not compiled meanwhile: compiled
        code is reused for other layers, with the factors of the first.
        """
        hooks = []
        try:
            for (part, path), layer in self.file.layers.items():
                linear = model.module(part).get_submodule(path)
                down_RI, up_OR = (layer.tensors[name].to(model.device) for name in ("lora_A", "lora_B"))
                hook = _subtract(down_RI, up_OR, self.strength * layer.scaling)
                hooks.append(linear.register_forward_hook(hook))
            with _as_written():
                yield
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def bytes(self) -> int:
        """Memory of the factors, which are on the device during sampling."""
        tensors = (tensor for layer in self.file.layers.values() for tensor in layer.tensors.values())
        return sum(tensor.nbytes for tensor in tensors)


def _as_written() -> AbstractContextManager[object]:
    """The block in which nothing runs compiled."""
    # torch imports its compiler with this, which takes seconds
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _subtract(down_RI: torch.Tensor, up_OR: torch.Tensor, scale: float) -> Any:
    def hook(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        x = inputs[0]
        change = nn.functional.linear(nn.functional.linear(x, down_RI.to(x.dtype)), up_OR.to(x.dtype))
        return (output - scale * change).to(output.dtype)

    return hook


def _check(file: AdapterFile, model: Model) -> None:
    if file.kind != "LORA" or file.decomposed:
        kind = "LoRA with magnitudes (DoRA)" if file.decomposed else file.kind
        raise UnsupportedError(f"{file.source} is a {kind}; only a plain LoRA can be a training adapter")
    others = [part for part in file.parts() if part != model.spec.denoiser]
    if others:
        raise UnsupportedError(
            f"{file.source} also changes {', '.join(others)}; a training adapter changes the denoiser alone"
        )
    for part, path in file.layers:
        layer: Any = model.module(part).get_submodule(path)
        shape = tuple(file.layers[part, path].tensors["lora_A"].shape)
        if not isinstance(layer, nn.Linear):
            raise UnsupportedError(f"{file.source} changes {path}, which is not a linear layer")
        if isinstance(layer, GgufLinear):
            raise UnsupportedError(
                f"{file.source} cannot be added to the weights of a GGUF file, which stay as they are",
                hint="use the version of this model in 8 or 16 bits",
            )
        if len(shape) != 2 or shape[1] != layer.in_features:
            raise UserError(
                f"{file.source} does not fit {model.spec.label}: {path} has {layer.in_features} inputs, not {shape[1]}",
                hint="the adapter was made for a model of another size",
            )
