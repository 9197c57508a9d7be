"""Which layers of a part are kept in few bits, and which parts cannot be."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from modules.adapter.layers import filter_patterns, select_layers
from modules.model.compact import roundable_names
from modules.model.dtypes import QUANTIZED
from modules.model.gguf_layers import holds_blocks
from modules.util.config.section.ModelPartConfig import BLOCKS, CUSTOM
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UnsupportedError

_FIELD = "quantization.layer_filter"


def check_rounding(module: nn.Module, part: str, kind: str) -> None:
    """Refuse to round weights again that came from a GGUF file in fewer bits.

    Raises:
        UnsupportedError: names the setting.
    """
    if kind in QUANTIZED and holds_blocks(module):
        raise UnsupportedError(
            f"weights of a GGUF file stay in their blocks and are not rounded to {kind}",
            f"{part}.weight_dtype",
            "choose BFLOAT_16, which is meant for the few weights outside of the blocks",
        )


def rounded_names(module: nn.Module, part: str, config: TrainConfig) -> Collection[str] | None:
    """The paths of the layers of a part that are kept in few bits; ``None`` for all of those in its blocks.

    The filter is about the denoiser; text encoders have all their blocks in few bits.

    Raises:
        ConfigError: a preset that the family has not, or an entry of the filter that matches no linear layer.
    """
    own, spec = config.quantization, config.model_type.spec
    if part != spec.denoiser or own.layer_filter_preset == BLOCKS:
        return None
    patterns = filter_patterns(own.layer_filter_preset, own.layer_filter, spec.layer_presets, _FIELD)
    regex = own.layer_filter_regex and own.layer_filter_preset == CUSTOM
    return frozenset(select_layers(roundable_names(module), patterns, regex, _FIELD))
