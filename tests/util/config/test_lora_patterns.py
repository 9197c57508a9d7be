"""Ranks and alphas by layer, as the config has them."""

from __future__ import annotations

from typing import Any

import pytest

from modules.util.config.load import find_problems, read_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import PeftType
from modules.util.errors import ConfigError


def faults(**changes: Any) -> list[str]:
    config = TrainConfig.model_construct(**{**TrainConfig().__dict__, **changes})
    return [str(fault) for fault in find_problems(config).errors if "pattern" in str(fault.field)]


def test_entries_are_read_in_order() -> None:
    config = TrainConfig.from_dict(
        {"lora_rank_pattern": "attn1 = 32, ff=8,", "lora_alpha_pattern": "a=b=0.5, text_encoder=4"}
    )
    assert list(config.rank_patterns().items()) == [("attn1", 32), ("ff", 8)]
    assert config.alpha_patterns() == {"a=b": 0.5, "text_encoder": 4.0}
    assert TrainConfig().rank_patterns() == {} == TrainConfig().alpha_patterns()


@pytest.mark.parametrize(
    "text", ["attn1", "=3", "attn1=x", "a=0", "a=-1", "a=2.5", "a=5000", "a=1,a=2", "a=inf"]
)
def test_bad_entries_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="pattern"):
        read_config({"lora_rank_pattern": text})
    assert len(faults(lora_rank_pattern=text)) == 1


def test_kinds_and_expressions() -> None:
    assert len(faults(lora_alpha_pattern="a=2", peft_type=PeftType.OFT_2)) == 1
    assert len(faults(lora_alpha_pattern="(=2", layer_filter_regex=True)) == 1
    assert not faults(lora_alpha_pattern="(=2")
    assert not faults(lora_rank_pattern="attn=4", peft_type=PeftType.LOHA)
