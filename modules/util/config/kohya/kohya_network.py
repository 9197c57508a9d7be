"""The trained parts of a kohya config: the adapter, its layers, and the parts with their learning rates."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from modules.util.config.faults import show
from modules.util.config.foreign.Fields import Fields
from modules.util.config.foreign.Notes import Notes
from modules.util.enum.ModelType import ModelType
from modules.util.errors import UnsupportedError

Data = dict[str, Any]

FAMILY_OF_NETWORK: Mapping[str, str] = {
    "networks.lora_flux": "FLUX_DEV_1",
    "networks.lora_sd3": "STABLE_DIFFUSION_3",
}
_ALGORITHMS = {"lora": "LORA", "locon": "LORA", "loha": "LOHA", "lokr": "LOKR"}
_IN_BLOCKS, _WITH_CONVOLUTIONS = "attentions", "attentions,resnets,downsamplers,upsamplers"
_CONVOLUTIONS = ("conv1", "conv2", "downsamplers", "upsamplers")
"""Convolutions larger than 1x1. Those of 1x1 have the rank of linear layers."""
_RANK, _ALPHA = 4, 1.0
_NO_EFFECT = ("verbose", "bypass_mode")


def key_values(given: Any, place: str, notes: Notes) -> Data:
    """Parse ``name=value`` texts. Values are read as Python literals if possible."""
    made: Data = {}
    for text in given if isinstance(given, list) else []:
        name, equals, value = str(text).partition("=")
        if not equals:
            notes.add(place, text, "not name=value", faulty=True)
            continue
        try:
            made[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            made[name.strip()] = {"true": True, "false": False}.get(value.strip().lower(), value.strip())
    return made


def import_network(fields: Fields, family: ModelType, notes: Notes) -> Data:
    """Our settings of the adapter, or of full fine-tuning if no network is named.

    Raises:
        UnsupportedError: the network type is not supported.
    """
    module = fields.text("network_module")
    arguments = Fields(key_values(fields.raw("network_args"), "network_args", notes), notes, "network_args")
    if not module:
        return {"training_method": "FINE_TUNE", "output_model_format": "SAFETENSORS"}
    kind = _kind(module, arguments)
    rank = fields.whole("network_dim", _RANK)
    alpha = fields.number("network_alpha", _ALPHA) or float(rank)
    made: Data = {
        "training_method": "LORA",
        "peft_type": kind,
        "lora_rank": rank,
        "lora_alpha": float(alpha),
        "lora_model_name": fields.text("network_weights"),
        "dropout_probability": fields.number("network_dropout", 0.0),
        "output_model_format": "KOHYA_LORA",
        **_layers(arguments, family, notes),
    }
    arguments.without_meaning(_NO_EFFECT)
    arguments.note_rest()
    return made


def _kind(module: str, arguments: Fields) -> str:
    if module.startswith("networks.lora"):
        return "LORA"
    algorithm = arguments.text("algo", "lora").lower()
    if module.startswith("lycoris.") and algorithm in _ALGORITHMS:
        return _ALGORITHMS[algorithm]
    what = f"{module} with algo {algorithm}" if module.startswith("lycoris.") else module
    raise UnsupportedError(
        f"the network {show(what)} is not supported",
        "network_module",
        "nearest: networks.lora, or lycoris.kohya with algo loha or lokr",
    )


def _layers(arguments: Fields, family: ModelType, notes: Notes) -> Data:
    """The trained layers: those of the blocks. In a UNet those in attention blocks, and other convolutions if
    requested.
    """
    rank = arguments.number("conv_dim", None)
    alpha = arguments.number("conv_alpha", 1.0)
    if family.denoiser != "unet":
        if rank is not None:
            notes.add("network_args.conv_dim", rank, "without effect: there are no convolutions in blocks")
        return {"layer_filter_preset": "blocks"}
    made: Data = {"layer_filter_preset": "custom"}
    if not rank:
        return {**made, "layer_filter": _IN_BLOCKS}
    return {**made, **with_convolutions(rank, alpha or rank)}


def with_convolutions(rank: float, alpha: float) -> Data:
    """Attention blocks of a UNet and its larger convolutions, which have their own rank and alpha."""
    return {
        "layer_filter": _WITH_CONVOLUTIONS,
        "lora_rank_pattern": ",".join(f"{name}={int(rank)}" for name in _CONVOLUTIONS),
        "lora_alpha_pattern": ",".join(f"{name}={alpha:g}" for name in _CONVOLUTIONS),
    }


def import_parts(fields: Fields, family: ModelType, adapter: bool) -> Data:
    """Our sections of the parts: whether trained, learning rate, number format."""
    denoiser, encoders = family.denoiser, list(family.text_encoders)
    made: dict[str, Data] = {part: {} for part in family.parts}
    # the large encoder, whose length is set, is trained in no case
    small = [name for name in encoders if name != family.spec.length_of] or encoders[:1]
    wanted = adapter or fields.flag("train_text_encoder")
    texts = set(small if family.spec.flow_matching else encoders) if wanted else set()
    if fields.flag("network_train_unet_only"):
        texts = set()
    made[denoiser]["train"] = not fields.flag("network_train_text_encoder_only")
    rate = fields.number("unet_lr", None)
    if rate is not None:
        made[denoiser] |= {"learning_rate": rate} if rate > 0 else {"train": False}
    for part, own in zip(encoders, _rates(fields, len(encoders)), strict=True):
        made[part]["train"] = part in texts and own != 0
        if part in texts and own:
            made[part]["learning_rate"] = own
    checkpointing = fields.flag("gradient_checkpointing")
    for part in (denoiser, *encoders):
        made[part]["gradient_checkpointing"] = checkpointing
    return dict(made)


def _rates(fields: Fields, count: int) -> list[float | None]:
    """The learning rates of the text encoders. A single number applies to all of them."""
    given = fields.raw("text_encoder_lr")
    values: Sequence[Any] = given if isinstance(given, list) else [given] * count
    made = [float(v) if isinstance(v, (int, float)) and not isinstance(v, bool) else None for v in values]
    return [*made, *[None] * count][:count]
