import re
from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import Float, setting
from modules.util.enum.DataType import DataType
from modules.util.enum.PeftType import PeftType

_LORA = "training_method=LORA"


class LoraSection(BaseConfig):
    """The adapter that is trained."""

    SECTION: ClassVar[str] = "LoRA"

    peft_type: PeftType = setting(
        PeftType.LORA,
        visible=_LORA,
        title="Kind",
        group="Adapter",
        tip="LORA is read by every program; the others are experiments with the same idea.",
    )
    lora_model_name: str = setting(
        "",
        visible=_LORA,
        widget="file",
        title="Start from adapter",
        group="Adapter",
        tip="An adapter to train further. In preference training a frozen copy of it is the reference.",
    )
    lora_rank: int = setting(
        16,
        ge=1,
        le=4096,
        visible=_LORA,
        title="Rank",
        group="Adapter",
        tip="Size of the adapter: more can learn more and weighs more. For OFT_2 the size of its blocks.",
    )
    lora_alpha: Float = setting(
        16.0,
        gt=0,
        le=65536,
        visible=_LORA,
        title="Alpha",
        group="Adapter",
        tip="The adapter's output is multiplied by alpha / rank.",
    )
    lora_decompose: bool = setting(
        False,
        visible=f"{_LORA},peft_type=LORA",
        title="DoRA",
        group="Adapter",
        tip="Train the length of the weights apart from their direction (weight-decomposed LoRA).",
    )
    lora_rs: bool = setting(
        False,
        visible=f"{_LORA},peft_type=LORA",
        title="Rank-stabilised",
        group="Adapter",
        tip="Scale by alpha / sqrt(rank), so that the learning rate need not change with the rank.",
    )
    lora_weight_dtype: DataType = setting(
        DataType.FLOAT_32,
        visible=_LORA,
        title="Adapter weights",
        group="Adapter",
        tip="Number format of the adapter's weights. Small steps get lost in 16 bits: keep FLOAT_32.",
    )
    dropout_probability: Float = setting(
        0.0,
        ge=0,
        lt=1,
        visible=_LORA,
        title="Dropout",
        group="Adapter",
        tip=(
            "Share of the adapter's input that is dropped in supervised training. Never applied to "
            "preference pairs."
        ),
    )
    layer_filter_preset: str = setting(
        "attn-mlp",
        min_length=1,
        widget="layers",
        title="Layers",
        group="Layers",
        tip=(
            "Which layers of the denoiser are trained: a preset of the model family, full for all, or custom "
            "for your own filter."
        ),
    )
    layer_filter: str = setting(
        "",
        visible="layer_filter_preset=custom",
        title="Layer filter",
        group="Layers",
        tip="Parts of layer names, separated by commas; a layer with any of them is trained.",
    )
    layer_filter_regex: bool = setting(
        False,
        visible="layer_filter_preset=custom",
        title="Filter is a pattern",
        group="Layers",
        tip="Read the parts of the filter as regular expressions.",
    )

    def layer_patterns(self) -> tuple[str, ...]:
        """The parts of ``layer_filter``; empty unless the preset is ``custom``."""
        if self.layer_filter_preset != "custom":
            return ()
        return tuple(part.strip() for part in self.layer_filter.split(",") if part.strip())

    def bad_layer_patterns(self) -> list[str]:
        """The parts of the filter that are meant as regular expressions and are none."""
        if not self.layer_filter_regex:
            return []
        return [pattern for pattern in self.layer_patterns() if not _is_pattern(pattern)]


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True
