"""CLIP text encoders in OpenCLIP's format: query, key and value in one tensor, the projection transposed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch

from modules.util.tensors.lazy_tensors import LazyTensor

State = dict[str, torch.Tensor]
_ENDS = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
}
_LAYER = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}
_PROJECTION = "text_projection"
PROJECTION = f"{_PROJECTION}.weight"
"""The projection's name in transformers, which some files use too; then it is not transposed."""
_FUSED = re.compile(r"transformer\.resblocks\.(\d+)\.attn\.in_proj_(weight|bias)")
_BLOCK = re.compile(r"transformer\.resblocks\.(\d+)\.(.+)\.(weight|bias)")
_SPLIT = re.compile(r"encoder\.layers\.(\d+)\.self_attn\.(q|k|v)_proj\.(weight|bias)")
_BACK = {new: old for old, new in _ENDS.items()}
_LAYER_BACK = {new: old for old, new in _LAYER.items()}


def from_open_clip(state: Mapping[str, torch.Tensor]) -> State:
    """Tensors under their names in transformers, without ``text_model.``. Others are left out."""
    made: State = {}
    for key, tensor in state.items():
        if fused := _FUSED.fullmatch(key):
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                made[f"encoder.layers.{fused[1]}.self_attn.{letter}_proj.{fused[2]}"] = part
        elif key == _PROJECTION:
            made[PROJECTION] = tensor.T.contiguous()
        elif key == PROJECTION:
            made[PROJECTION] = tensor
        elif key in _BACK:
            made[_BACK[key]] = tensor
        elif (match := _BLOCK.fullmatch(key)) and match[2] in _LAYER_BACK:
            made[f"encoder.layers.{match[1]}.{_LAYER_BACK[match[2]]}.{match[3]}"] = tensor
    return made


def lazily_from_open_clip(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """``from_open_clip`` for tensors that are still in a file."""
    made: dict[str, LazyTensor] = {}
    for key, tensor in tensors.items():
        for name in from_open_clip({key: tensor.empty()}):
            made[name] = tensor.then(lambda t, key=key, name=name: from_open_clip({key: t})[name])  # type: ignore[misc]
    return made


def joined_in_open_clip(names: Iterable[str]) -> list[tuple[str, ...]]:
    """The names in transformers, grouped by the tensor that holds them there."""
    groups: list[tuple[str, ...]] = []
    for name in names:
        split = _SPLIT.fullmatch(name.removeprefix("text_model."))
        if split is None:
            groups.append((name,))
        elif split[2] == "q":
            groups.append(tuple(name.replace(".q_proj.", f".{letter}_proj.") for letter in "qkv"))
    return groups


def to_open_clip(state: Mapping[str, torch.Tensor]) -> State:
    """The inverse of ``from_open_clip``. Raises ``KeyError`` for a tensor without a place in such a file."""
    made: State = {}
    for key, tensor in state.items():
        if split := _SPLIT.fullmatch(key):
            if split[2] == "q":
                parts = [state[key.replace(".q_proj.", f".{letter}_proj.")] for letter in "qkv"]
                made[f"transformer.resblocks.{split[1]}.attn.in_proj_{split[3]}"] = torch.cat(parts)
        elif key == PROJECTION:
            made[_PROJECTION] = tensor.T.contiguous()
        elif key in _ENDS:
            made[_ENDS[key]] = tensor
        elif match := re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)\.(weight|bias)", key):
            made[f"transformer.resblocks.{match[1]}.{_LAYER[match[2]]}.{match[3]}"] = tensor
        elif not key.endswith("position_ids"):
            raise KeyError(key)
    return made
