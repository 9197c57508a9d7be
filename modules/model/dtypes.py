"""Number types by their names in the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from modules.util.errors import ConfigError

DTYPES = {"FLOAT_32": torch.float32, "BFLOAT_16": torch.bfloat16, "FLOAT_16": torch.float16}
FLOAT_8, INT_8, NFLOAT_4 = "FLOAT_8", "INT_8", "NFLOAT_4"
QUANTIZED = (FLOAT_8, INT_8, NFLOAT_4)
"""Types to which frozen weights are rounded; see ``compact``."""
GGUF = "GGUF"
"""Type of weights stored in quantised blocks; see ``gguf_layers``."""


def torch_dtype(name: object, field_name: str | None = None) -> torch.dtype:
    """``FLOAT_32``, ``BFLOAT_16`` or ``FLOAT_16`` (a name or an enum member) as a torch type.

    Raises:
        ConfigError: the name is unknown.
    """
    key = str(getattr(name, "value", name))
    if key not in DTYPES:
        raise ConfigError(
            f"unknown number type {key!r}", field=field_name, hint=f"known: {', '.join(DTYPES)}"
        )
    return DTYPES[key]


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which numbers of a floating-point type are computed with: float32 at least; float64 stays."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True)
class PartDtypes:
    """Number types of the weights of each part, and of the arithmetic.

    Args:
        weights: part name -> type of its weights; other parts get ``default``.
        compute: type the denoiser (and a trained text encoder) computes in under autocast; float32 means no
            autocast.
        half: parts whose ``fp16`` files are read where a folder has these and the full ones; the full ones otherwise.
        variant: the variant of the files of weights, such as ``fp16``, that is read from the base model's folder; empty
            to choose for each part.
        before: part name -> name of the first file of weights that the run read when it began, which a resumed run
            reads again.
        lazy: leave the weights unchanged in their files: modules have only shapes, and ``lazy_base_tensors``
            locates their values.
        configs_only: with ``lazy``, accept folders that have configs but no weights.
    """

    weights: Mapping[str, torch.dtype] = field(default_factory=dict)
    default: torch.dtype = torch.float32
    compute: torch.dtype = torch.float32
    half: frozenset[str] = frozenset()
    variant: str = ""
    before: Mapping[str, str] = field(default_factory=dict)
    lazy: bool = False
    configs_only: bool = False

    def of(self, part: str) -> torch.dtype:
        """The number type of a part's weights."""
        return self.weights.get(part, self.default)
