"""Modules built for their shapes alone are those of the meta device, and real tensors keep getting values."""

from __future__ import annotations

import torch
from torch import nn

from modules.model.lazy_modules import ShapesOnly
from modules.util.jsonio import read_json
from modules.weights.loading import part_class
from modules.weights.part_files import outline
from tests.tiny import tiny_folder, tiny_setup


def seen(module: nn.Module) -> list[tuple[object, ...]]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [(name, one.shape, one.dtype, one.device.type, one.requires_grad) for name, one in tensors]


def test_a_part_is_what_it_is_on_the_meta_device() -> None:
    spec = tiny_setup().spec
    part = spec.part(spec.denoiser)
    config = read_json(tiny_folder() / part.place / "config.json", "model config")
    assert isinstance(config, dict)
    with torch.device("meta"):
        plain = part_class(part).from_config(config)
    assert seen(outline(part, config)) == seen(plain)


def test_new_tensors_have_no_memory_and_real_ones_get_their_values() -> None:
    real = torch.zeros(2, 3)
    with ShapesOnly():
        layer = nn.Linear(3, 2)
        nn.init.ones_(real)
        real[0].fill_(2.0)
        nn.init.constant_(tensor=layer.bias, val=1.0)
        table = torch.arange(3, device="cpu").mul_(2)
    assert layer.weight.is_meta and layer.bias.is_meta and tuple(layer.weight.shape) == (2, 3)
    assert real.tolist() == [[2.0] * 3, [1.0] * 3] and table.tolist() == [0, 2, 4]
    assert nn.Linear(3, 2).weight.abs().sum() > 0, "outside of the block everything is as before"
