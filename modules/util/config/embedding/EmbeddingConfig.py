"""Settings of an embedding: a word with its own vectors in the text encoders (textual inversion)."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import PathText, kept_setting
from modules.util.enum.choices import StopUnit
from modules.util.owned_files import shown

MOST_TOKENS = 64
_LONGEST = 64
# characters that separate words, names in files and tags, or mark emphasis
_PLACEHOLDER = re.compile(r"[^\s()\[\]\\,.:\x00-\x1f\x7f\ud800-\udfff\U000f0000-\U0010ffff]+")


def fault_of_placeholder(text: str) -> str:
    """Return the reason why a text cannot be a placeholder; empty if it can."""
    if not text or len(text) > _LONGEST:
        return f"a placeholder has 1 to {_LONGEST} characters"
    if not _PLACEHOLDER.fullmatch(text):
        return "a placeholder is one word without blanks, brackets ( ) [ ] and the characters , . : \\"
    return ""


class EmbeddingConfig(BaseConfig):
    """One embedding."""

    WHAT: ClassVar[str] = "embedding"

    placeholder: str = kept_setting(
        "<embedding>",
        tip=(
            "The word that stands for the embedding in captions and prompts. Capitals make no difference. Choose one "
            "that is not in the vocabulary, such as <my-cat>."
        ),
    )
    model_name: PathText = kept_setting(
        "",
        widget="file",
        title="Start from file",
        tip=(
            "An embedding file to start from: .safetensors, or .pt or .bin from another program. The file "
            "determines the number of tokens. Empty: start from the initial text."
        ),
    )
    train: bool = kept_setting(
        True,
        tip="Train the embedding. Off: captions and prompts can use it, but it does not change.",
    )
    is_output_embedding: bool = kept_setting(
        False,
        cost="switch",
        title="Output vectors",
        tip=(
            "Let the vectors replace the output of the text encoders, not their input. Prompts then stay cached, and "
            "the encoders need not be on the GPU during training. Qwen-Image, Z-Image and FLUX.2 take only output "
            "vectors. Off: the vectors are read like words."
        ),
    )
    token_count: int | None = kept_setting(
        1,
        within=(1, MOST_TOKENS),
        visible="!.model_name",
        cost="value",
        title="Tokens",
        tip=(
            "Number of tokens of the embedding. More tokens can learn more details, but leave less room for the "
            "rest of the prompt. Empty: as many as the initial text has."
        ),
    )
    initial_embedding_text: str = kept_setting(
        "*",
        visible="!.model_name",
        title="Initial text",
        tip=(
            "The embedding starts with the meaning of these words. Missing tokens are filled with *. The general "
            "word for the subject, such as cat, learns fastest."
        ),
    )
    stop_training_after: int = kept_setting(
        0,
        within=(0, 1_000_000_000),
        visible=".train,!.stop_training_after_unit=NEVER",
        tip="How long the embedding is trained, in the unit next to this field. After that, it no longer changes.",
    )
    stop_training_after_unit: StopUnit = kept_setting(
        StopUnit.NEVER,
        visible=".train",
        title="Stop training (unit)",
        tip="Unit of the training time: EPOCH, or STEP for optimizer steps. NEVER: train it to the end.",
    )

    @field_validator("placeholder")
    @classmethod
    def _is_a_word(cls, value: str) -> str:
        fault = fault_of_placeholder(value)
        if fault:
            what = f"{shown(value, 60)!r} cannot be a placeholder"
            raise PydanticCustomError("setting", "{what}", {"what": what, "hint": fault})
        return value
