"""Migrates OneTrainer configs from formats 0 to 10 to format 11.

Unlike in OneTrainer, these steps never require a key to be present: a short file written by hand migrates
like a complete one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Data = dict[str, Any]

TRAIN_FORMAT = 11

_PARTS = (
    "unet",
    "prior",
    "transformer",
    "text_encoder",
    "text_encoder_2",
    "text_encoder_3",
    "text_encoder_4",
    "vae",
    "effnet_encoder",
    "decoder",
    "decoder_text_encoder",
    "decoder_vqgan",
)


def _part(data: Data, name: str) -> Data:
    """The settings of a part, created if needed, as a copy in ``data`` that may be modified."""
    given = data.get(name)
    data[name] = dict(given) if isinstance(given, Mapping) else {}
    made: Data = data[name]
    return made


def _gather_optimizer(data: Data) -> Data:
    """0: ``optimizer`` and ``optimizer_*`` become one object."""
    if isinstance(data.get("optimizer"), Mapping):
        return data
    made = {key: value for key, value in data.items() if not key.startswith("optimizer")}
    gathered: Data = {}
    for key, value in data.items():
        if key == "optimizer":
            gathered["optimizer"] = value
        elif key == "optimizer_defaults":
            made[key] = value
        elif key.startswith("optimizer_"):
            gathered[key.removeprefix("optimizer_")] = value
    if gathered:
        made["optimizer"] = gathered
    return made


def _gather_parts(data: Data) -> Data:
    """1: ``train_unet``, ``unet_learning_rate`` and similar become one object per part."""
    made = dict(data)
    for name in _PARTS:
        moves = {
            f"train_{name}": "train",
            f"{name}_learning_rate": "learning_rate",
            f"{name}_weight_dtype": "weight_dtype",
            f"{name}_model_name": "model_name",
            f"train_{name}_epochs": "stop_training_after",
        }
        for old, new in moves.items():
            if old in made:
                part = _part(made, name)
                part[new] = made.pop(old)
                if new == "stop_training_after":
                    part["stop_training_after_unit"] = "EPOCH"
    return made


def _min_snr(data: Data) -> Data:
    """2: ``min_snr_gamma`` becomes a loss weight function with a strength."""
    gamma = data.pop("min_snr_gamma", 0)
    if gamma:
        data |= {"loss_weight_fn": "MIN_SNR_GAMMA", "loss_weight_strength": gamma}
    return data


def _timestep_distribution(data: Data) -> Data:
    """3: a noising weight means the sigmoid distribution, and its bias is relative to the middle."""
    if "timestep_distribution" in data:
        return data
    weight = data.pop("noising_weight", 0)
    bias = data.pop("noising_bias", 0.5)
    if weight and isinstance(bias, (int, float)):
        data |= {"timestep_distribution": "SIGMOID", "noising_weight": weight, "noising_bias": bias - 0.5}
    return data


def _checkpointing_name(data: Data) -> Data:
    """4: the checkpointing switch becomes one of ON, OFF, CPU_OFFLOADED."""
    if isinstance(data.get("gradient_checkpointing"), bool):
        data["gradient_checkpointing"] = "ON" if data["gradient_checkpointing"] else "OFF"
    return data


def _rename(*pairs: tuple[str, str]) -> Callable[[Data], Data]:
    def step(data: Data) -> Data:
        for old, new in pairs:
            if old in data:
                data[new] = data.pop(old)
        return data

    return step


def _layer_preset(data: Data) -> Data:
    """6: an empty layer preset means all layers."""
    if data.get("lora_layer_preset", "") is None:
        data["lora_layer_preset"] = "full"
    return data


def _prior_to_transformer(data: Data) -> Data:
    """8: except in cascades, what was called prior is the transformer."""
    if "prior" in data and data.get("model_type") not in ("STABLE_CASCADE_1", "WUERSTCHEN_2"):
        data["transformer"] = data["prior"]
    return data


def _weight_dtype_to_parts(data: Data) -> Data:
    """9: the number format of the whole model becomes that of the parts without one of their own."""
    common = data.pop("weight_dtype", None)
    for name in _PARTS:
        given = data.get(name)
        own = given.get("weight_dtype", "NONE") if isinstance(given, Mapping) else "NONE"
        if own != "NONE":
            continue
        if common is not None:
            _part(data, name)["weight_dtype"] = common
        elif isinstance(given, Mapping) and "weight_dtype" in given:
            del _part(data, name)["weight_dtype"]
    return data


def _offloading_to_parts(data: Data) -> Data:
    """10: checkpointing and offloading move to the parts; the meaning of SAFETENSORS depends on what is trained."""
    method = data.pop("gradient_checkpointing", None)
    activations = data.pop("enable_activation_offloading", True)
    fraction = data.pop("layer_offload_fraction", 0.0)
    if "enable_async_offloading" in data:
        data["async_offloading"] = data.pop("enable_async_offloading")
    if method is not None:
        offloaded = method == "CPU_OFFLOADED"
        for name in _PARTS:
            _part(data, name).update(
                gradient_checkpointing=method != "OFF",
                activation_offloading=offloaded and bool(activations),
                offload_fraction=fraction if offloaded else 0.0,
            )
    if data.get("output_model_format") == "SAFETENSORS":
        lora = data.get("training_method") == "LORA"
        data["output_model_format"] = "LEGACY_LORA" if lora else "LEGACY_SAFETENSORS"
    return data


_TRAIN_STEPS: tuple[Callable[[Data], Data], ...] = (
    _gather_optimizer,
    _gather_parts,
    _min_snr,
    _timestep_distribution,
    _checkpointing_name,
    _rename(("save_after", "save_every"), ("save_after_unit", "save_every_unit")),
    _layer_preset,
    _rename(
        ("lora_layers", "layer_filter"),
        ("lora_layer_preset", "layer_filter_preset"),
        ("lora_layers_regex", "layer_filter_regex"),
    ),
    _prior_to_transformer,
    _weight_dtype_to_parts,
    _offloading_to_parts,
)


def upgrade_train(data: Mapping[str, Any]) -> Data:
    """Migrate a training config of any format up to 11 to format 11. In newer ones, renames are undone."""
    made = dict(data)
    for step in _TRAIN_STEPS[_format_of(made) :]:
        made = step(made)
    # prompts are cached unless their encoding is trained
    made.pop("text_caching", None)
    return _rename(("image_caching", "latent_caching"), ("caching_threads", "dataloader_threads"))(made)


def upgrade_concept(data: Mapping[str, Any]) -> Data:
    """Migrate a concept of any format up to 2 to format 2."""
    made = dict(data)
    version = _format_of(made)
    if version < 1 and "repeats" in made:
        made["balancing"] = made.pop("repeats")
    if version < 2 and made.pop("validation_concept", False) is True:
        made["type"] = "VALIDATION"
    return made


def _format_of(data: Data) -> int:
    version = data.pop("__version", 0)
    return version if isinstance(version, int) and version > 0 else 0
