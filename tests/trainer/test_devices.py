"""What a GPU needs to be told, played without one: which it is, and whose addresses change."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modules.trainer.distributed import Processes
from modules.trainer.online.settings import acceleration_plan
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError


@pytest.mark.parametrize(
    ("wanted", "chosen"), [("cuda:1", ["cuda:1"]), ("cuda", ["cuda:0"]), ("auto", ["cuda:0"]), ("cpu", [])]
)
def test_a_single_process_works_on_its_device_alone(
    monkeypatch: pytest.MonkeyPatch, wanted: str, chosen: list[str]
) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    told: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: told.append(str(device)))
    processes = Processes.start(wanted)
    assert told == chosen and processes.world_size == 1
    assert str(processes.device) == (chosen or ["cpu"])[0]


@pytest.mark.parametrize(
    ("changes", "swaps"),
    [
        ({"rlhf_mode": "NFT"}, True),
        ({"rlhf_mode": "DGPO", "rlhf_dgpo_use_ema_ref": True}, True),
        ({"rlhf_mode": "GRPO"}, False),
        ({"rlhf_mode": "GRPO", "rlhf_kl_beta": 0.1, "lora_model_name": "first.safetensors"}, True),
        ({"rlhf_mode": "GRPO", "rlhf_kl_beta": 0.1}, False),
        ({"rlhf_mode": "DPO", "lora_model_name": "first.safetensors"}, True),
        ({"rlhf_mode": "DPO"}, False),
    ],
)
def test_cuda_graphs_are_refused_where_weights_are_swapped(changes: dict[str, Any], swaps: bool) -> None:
    graphs = [{"name": "torch_compile", "params": {"mode": "reduce-overhead"}}]
    values = {"rlhf_enabled": True, "acceleration": {"shared": graphs}, **changes}
    if values["rlhf_mode"] != "DPO":
        values |= {"rlhf_prompts_file": "prompts.txt", "rlhf_reward": "brightness"}
    config = TrainConfig.from_dict(values)
    if swaps:
        with pytest.raises(ConfigError, match="addresses of the weights"):
            acceleration_plan(config)
    else:
        assert acceleration_plan(config).names == ["torch_compile"]
