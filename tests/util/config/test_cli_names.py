"""Settings of parts on a command line."""

from __future__ import annotations

import pytest

from modules.util.config.cli_names import known_word, part_settings
from modules.util.enum.ModelType import ModelType
from modules.util.errors import ConfigError


def test_both_ways_to_write_them() -> None:
    words = ["transformer=a=b.safetensors", "text_encoder_2.model_name = owner/name"]
    found = part_settings(words, "--part", "model_name", "FLUX_DEV_1")
    assert found == {"transformer": "a=b.safetensors", "text_encoder_2": "owner/name"}
    assert part_settings([], "--part", "model_name", "FLUX_DEV_1") == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["transformer"], "is not PART=VALUE"),
        (["transformer="], "is not PART=VALUE"),
        (["unet=a"], "there is no part 'unet'"),
        (["transformer.weight_dtype=a"], "there is no part"),
        (["vae=a", "vae.model_name=b"], "vae is given twice"),
    ],
)
def test_mistakes(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        part_settings(words, "--part", "model_name", "FLUX_DEV_1")
    assert caught.value.field == "--part"


def test_names_there_are_not_get_the_nearest_there_is() -> None:
    known_word("SANA", ModelType, "--family", "family")
    known_word(None, ModelType, "--family", "family")
    with pytest.raises(ConfigError, match="unknown family SANNA") as caught:
        known_word("SANNA", ModelType, "--family", "family")
    assert "did you mean 'SANA'? known: STABLE_DIFFUSION_15" in str(caught.value)
