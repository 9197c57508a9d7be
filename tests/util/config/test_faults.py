"""Settings that are gone are explained wherever they are given."""

from __future__ import annotations

import pytest

from modules.util.config.load import read_config
from modules.util.config.overrides import override
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError


def test_a_setting_that_became_an_accelerator_is_explained() -> None:
    with pytest.raises(ConfigError) as caught:
        read_config({"__version": 1, "attn_backend": "flash"})
    _, faults = override(TrainConfig, {}, ["attn_backend=flash"])
    for fault in (caught.value, *faults):
        assert fault.field == "attn_backend" and "no such setting" in fault.message
        assert "accelerator attention_backend" in str(fault.hint)
    assert len(faults) == 1
