"""What checkpointed blocks keep of their inputs in main memory, and how it comes back."""

from __future__ import annotations

import torch
from torch import nn

from modules.model.activations import CHECKPOINT, Kept
from tests.tiny import tiny_model


def test_a_tensor_comes_back_as_it_was() -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    expected = tensor.clone()
    kept = Kept(tensor)
    tensor.zero_()
    back = kept.back()
    assert torch.equal(back, expected)
    assert back.stride() == expected.stride()


def test_of_a_meta_tensor_the_outline_comes_back() -> None:
    back = Kept(torch.empty(2, 3, dtype=torch.bfloat16, device="meta").t()).back()
    assert (back.is_meta, back.shape, back.stride(), back.dtype) == (True, (3, 2), (1, 3), torch.bfloat16)


def checkpoints(module: nn.Module) -> set[str]:
    return {type(found).__name__ for one in module.modules() if (found := getattr(one, CHECKPOINT, None))}


def test_without_it_blocks_checkpoint_as_before() -> None:
    model = tiny_model()
    for part in ("unet", "text_encoder"):
        model.set_gradient_checkpointing(part, True)
        plain = checkpoints(model.module(part))
        model.set_gradient_checkpointing(part, True, offloaded=True)
        assert plain.isdisjoint(checkpoints(model.module(part)))
        model.set_gradient_checkpointing(part, True)
        assert checkpoints(model.module(part)) == plain
