import re
from functools import partial
from typing import ClassVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import Float, PathText, setting
from modules.util.enum.choices import DataType, PeftType
from modules.util.errors import ConfigError

_LORA = "training_method=LORA"
_MAX_RANK = 4096
_LIMIT = 65536

_adapter = partial(setting, group="Adapter", visible=_LORA, free=False)
_layers = partial(setting, group="Layers", cost="value", free=False)


class LoraSection(BaseConfig):
    """The trained adapter."""

    SECTION: ClassVar[str] = "LoRA"

    peft_type: PeftType = _adapter(
        PeftType.LORA,
        cost="value",
        title="Adapter type",
        tip="LORA files work in every program. The other kinds are variants that not every program reads.",
    )
    lora_model_name: PathText = _adapter(
        "",
        widget="file",
        free=True,
        title="Start from adapter",
        tip=(
            "An adapter file to continue training from. In preference training a frozen copy of it is the "
            "reference. Empty: start with a new adapter."
        ),
    )
    lora_rank: int = _adapter(
        16,
        within=(1, _MAX_RANK),
        cost="value",
        title="Rank",
        tip="Size of the adapter. A higher rank can learn more and makes a larger file. For OFT_2: the block size.",
    )
    lora_alpha: Float = _adapter(
        16.0,
        gt=0,
        le=_LIMIT,
        title="Alpha",
        tip="The adapter's output is multiplied by alpha / rank.",
    )
    lora_rank_pattern: str = _adapter(
        "",
        visible=f"{_LORA},peft_type=LORA|LOHA|LOKR",
        cost="value",
        title="Ranks by layer",
        tip=(
            "Different ranks for some layers, as pattern=rank, separated by commas. A pattern is part of a "
            "layer's name, such as attn or text_encoder. The first matching pattern counts."
        ),
    )
    lora_alpha_pattern: str = _adapter(
        "",
        visible=f"{_LORA},peft_type=LORA|LOHA|LOKR",
        title="Alphas by layer",
        tip="Different alphas for some layers, as pattern=alpha, separated by commas.",
    )
    lora_decompose: bool = _adapter(
        False,
        visible=f"{_LORA},peft_type=LORA",
        cost="value",
        title="DoRA",
        tip="Train the magnitude and the direction of the weights separately (weight-decomposed LoRA).",
    )
    lora_decompose_output_axis: bool = _adapter(
        True,
        visible=f"{_LORA},peft_type=LORA,lora_decompose",
        cost="value",
        title="DoRA output axis",
        tip=(
            "On: one magnitude for each output of a layer, which diffusers can read. Off: one magnitude for each "
            "input of a layer, OneTrainer's default."
        ),
    )
    lora_rs: bool = _adapter(
        False,
        visible=f"{_LORA},peft_type=LORA",
        title="Rank-stabilised",
        tip="Scale by alpha / sqrt(rank), so that one learning rate suits every rank.",
    )
    lora_weight_dtype: DataType = _adapter(
        DataType.FLOAT_32,
        cost="value",
        title="Adapter weights",
        tip="Number format of the adapter's weights. Keep FLOAT_32: in 16 bits small steps are lost.",
    )
    dropout_probability: Float = _adapter(
        0.0,
        ge=0,
        lt=1,
        title="Dropout",
        tip=(
            "Share of the adapter's input that is dropped in supervised training. Never applied to "
            "preference pairs."
        ),
    )
    layer_filter_preset: str = _layers(
        "attn-mlp",
        min_length=1,
        widget="layers",
        title="Layers",
        tip=(
            "The layers of the denoiser that are trained. Choose a preset of the model family, \u201cfull\u201d (all "
            "layers) or \u201ccustom\u201d (your own filter)."
        ),
    )
    layer_filter: str = _layers(
        "",
        visible="layer_filter_preset=custom",
        tip="Parts of layer names, separated by commas; a layer whose name contains any of them is trained.",
    )
    layer_filter_regex: bool = _layers(
        False,
        visible="layer_filter_preset=custom",
        title="Regex layer filter",
        tip="Read the parts of the filter as regular expressions.",
    )

    def rank_patterns(self) -> dict[str, int]:
        """The entries of ``lora_rank_pattern``. Raises ``ConfigError`` for an entry that is not pattern=integer."""
        return {p: int(n) for p, n in _table(self.lora_rank_pattern, "lora_rank_pattern", whole=True).items()}

    def alpha_patterns(self) -> dict[str, float]:
        """The entries of ``lora_alpha_pattern``. Raises ``ConfigError`` for an entry that is not pattern=number."""
        return _table(self.lora_alpha_pattern, "lora_alpha_pattern", whole=False)

    def layer_patterns(self) -> tuple[str, ...]:
        """The patterns in ``layer_filter``; empty unless the preset is ``custom``."""
        if self.layer_filter_preset != "custom":
            return ()
        return tuple(part.strip() for part in self.layer_filter.split(",") if part.strip())

    def bad_layer_patterns(self) -> list[str]:
        """The patterns of the filter that are invalid regular expressions."""
        if not self.layer_filter_regex:
            return []
        return [pattern for pattern in self.layer_patterns() if not is_regular_expression(pattern)]


def _table(text: str, field: str, whole: bool) -> dict[str, float]:
    """Parse ``pattern=number`` entries, separated by commas. A pattern may contain =."""
    table: dict[str, float] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        pattern, _, number = (piece.strip() for piece in entry.rpartition("="))
        try:
            value = float(int(number) if whole else float(number))
        except ValueError:
            value = 0.0
        if not pattern or not 0.0 < value <= _LIMIT or (whole and value > _MAX_RANK):
            what = f"a whole number from 1 to {_MAX_RANK}" if whole else f"a number above 0, at most {_LIMIT}"
            raise ConfigError(f"{entry!r} is not a pattern with {what}", field, "write it like attn=32, ff=8")
        if pattern in table:
            raise ConfigError(f"the pattern {pattern!r} is listed twice", field)
        table[pattern] = value
    return table


def is_regular_expression(text: str) -> bool:
    """Return whether the text compiles as a regular expression."""
    try:
        re.compile(text)
    except re.error:
        return False
    return True
