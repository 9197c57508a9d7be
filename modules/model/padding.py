"""What a convolution sees beyond the edge of an image."""

from __future__ import annotations

from torch import nn

from modules.model.Model import Model
from modules.util.errors import UnsupportedError

_MARK = "circular padding"


def wrap_edges(module: nn.Module) -> int:
    """Let the 2-d convolutions of a module see its opposite edge beyond each edge, as on a torus; how many do.

    Those of adapters count. A convolution that pads by hand, or along a third axis, stays as it is.
    """
    count = 0
    for layer in module.modules():
        padded = isinstance(layer, nn.Conv2d) and layer.padding != "valid" and any(layer.padding)
        if padded and isinstance(layer, nn.Conv2d):
            layer.padding_mode = "circular"
            count += 1
    before = str(getattr(module, "stored_as", ""))
    if count and _MARK not in before:
        # latents that are kept depend on it, and the weights do not tell
        module.stored_as = f"{before} {_MARK}".strip()  # type: ignore[assignment]
    return count


def wrap_model(model: Model) -> None:
    """``wrap_edges`` for the denoiser and the VAE.

    Raises:
        UnsupportedError: neither has such a convolution.
    """
    parts = [name for name in (model.spec.denoiser, model.spec.vae) if name in model.modules()]
    if not sum(wrap_edges(model.module(name)) for name in parts):
        raise UnsupportedError(
            f"no convolution of {model.spec.label} has edges that can be wrapped around",
            "force_circular_padding",
            "set it to false",
        )
