"""Choosing layers."""

from __future__ import annotations

import pytest
from torch import nn

from modules.adapter.layers import adaptable_layers, filter_patterns, select_layers
from modules.util.errors import ConfigError

NAMES = ["conv_in", "down.0.attn1.to_q", "down.0.attn2.to_k", "down.0.ff.net.0", "up.1.attn1.to_q"]
PRESETS = {"attn-only": ("attn1", "attn2"), "full": ()}


def test_presets_and_custom_lists() -> None:
    assert filter_patterns("attn-only", "ignored", PRESETS) == ["attn1", "attn2"]
    assert filter_patterns("full", "", PRESETS) == []
    assert filter_patterns("custom", " attn1 , ff,", PRESETS) == ["attn1", "ff"]
    with pytest.raises(ConfigError, match="'attn'") as caught:
        filter_patterns("attn", "", PRESETS)
    assert caught.value.field == "layer_filter_preset"
    with pytest.raises(ConfigError, match="empty"):
        filter_patterns("custom", " , ", PRESETS)


def test_substrings_and_expressions() -> None:
    assert select_layers(NAMES, []) == NAMES
    assert select_layers(NAMES, ["attn1"]) == [NAMES[1], NAMES[4]]
    assert select_layers(NAMES, [r"^down.*to_[qk]$"], regex=True) == NAMES[1:3]
    assert select_layers(["a.b", "axb"], ["a.b"]) == ["a.b"], "a dot in a plain entry is a dot"


def test_entries_that_match_nothing_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        select_layers(NAMES, ["attn1", "atn2", "mlp"])
    assert "atn2" in str(caught.value) and "mlp" in str(caught.value)
    assert "    attn1" not in caught.value.message
    assert caught.value.field == "layer_filter"
    with pytest.raises(ConfigError, match="not a regular expression"):
        select_layers(NAMES, ["("], regex=True)


def test_layers_of_a_module() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Conv2d(2, 2, 1), nn.ReLU(), nn.Embedding(2, 2))
    assert adaptable_layers(module) == ["0", "1"]
    assert adaptable_layers(module, convolutions=False) == ["0"]
