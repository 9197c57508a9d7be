"""OneTrainer settings without a counterpart: which never matter, which matter only sometimes, and which are noted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from modules.util.config.BaseConfig import VERSION_KEY
from modules.util.config.foreign.Notes import Notes
from modules.util.config.onetrainer.devices_import import DEVICES
from modules.util.enum.ModelType import ModelType

Data = dict[str, Any]
Acts = Callable[[Mapping[str, Any]], bool]

WITHOUT_MEANING: Mapping[str, str] = {
    VERSION_KEY: "the format of the file",
    "optimizer_defaults": "what its window remembers of other optimizers",
    "debug_mode": "for developers of OneTrainer",
    "debug_dir": "for developers of OneTrainer",
    "include_train_config": "ours is always in the run folder",
    "clear_cache_before_training": "the cache here notices what changed",
    "temp_device": "parts are moved as memory needs it",
    "enable_autocast_cache": "memory only",
    "tensorboard_expose": "the window starts TensorBoard",
    "tensorboard_always_on": "the window starts TensorBoard",
    "samples_to_tensorboard": "samples are files of the run folder",
    "sample_video_format": "no videos are made",
    "sample_audio_format": "no sound is made",
    "frames": "no videos are made",
    "async_offloading": "how layers are copied",
    "gradient_reduce_precision": "how gradients of several GPUs are added up",
    "fused_gradient_reduce": "how gradients of several GPUs are added up",
    "async_gradient_reduce": "how gradients of several GPUs are added up",
    "async_gradient_reduce_buffer": "how gradients of several GPUs are added up",
    "lora_decompose_norm_epsilon": "norms of 0 are always handled",
    "lokr_vec_trick": "another order of the same computation",
    "secrets": "tokens are never copied into configs",
    "prior": "of families that are not supported",
    "unconditional_transformer": "for samples only; a run does not load it",
    "effnet_encoder": "of families that are not supported",
    "decoder": "of families that are not supported",
    "decoder_text_encoder": "of families that are not supported",
    "decoder_vqgan": "of families that are not supported",
}
"""Settings whose value has no consequence here, and why."""


def _of_kind(kind: str) -> Acts:
    return lambda full: bool(full["training_method"] == "LORA" and full["peft_type"] == kind)


ACTS_ONLY: Mapping[str, Acts] = {
    "oft_block_share": _of_kind("OFT_2"),
    "oft_scaled": _of_kind("OFT_2"),
    "lokr_decompose_both": _of_kind("LOKR"),
    "lokr_decompose_factor": _of_kind("LOKR"),
    "lokr_use_tucker": _of_kind("LOKR"),
    "lokr_weight_decompose": _of_kind("LOKR"),
    "lokr_full_matrix": _of_kind("LOKR"),
    "lokr_dora_on_output": lambda full: full["lokr_weight_decompose"] is True,
}
"""Settings that act only with certain values of others."""
_ELSEWHERE = (
    "attention_mechanism",
    "compile",
    "quantization",
    "cloud",
    "oft_block_size",
    "lokr_dim",
    *DEVICES,
)
"""Settings that are handled individually elsewhere."""
_ENVIRONMENT = {
    "huggingface_cache_dir": "set the environment variable HF_HUB_CACHE to this folder before the start",
    "offline_mode": "set the environment variable HF_HUB_OFFLINE to 1 before the start",
}
"""Settings of the hub's library, which reads them when it is loaded."""
_SIZES = ("oft_block_size", "lokr_dim")
"""Other names for the rank."""
_THEIR_TOKENS = 512
"""Number of tokens that OneTrainer's first text encoder reads unless the file sets it."""
_LENGTHS = ("text_encoder_sequence_length", "text_encoder_2_sequence_length")


def note_rest(
    given: Mapping[str, Any],
    full: Mapping[str, Any],
    family: ModelType,
    carried: Collection[str],
    defaults: Mapping[str, Any],
    notes: Notes,
) -> None:
    """Note settings without counterpart that differ from OneTrainer's default and act in this config.

    Args:
        given: the settings in the file, in the newest format.
        full: the same with the defaults.
        carried: top-level settings that are already handled.
    """
    idle = {name for name, acts in ACTS_ONLY.items() if not acts(full)}
    skips = {f"{part}_layer_skip" for part in family.spec.skips_layers_of}
    known = {*carried, *WITHOUT_MEANING, *_ELSEWHERE, *_SIZES, *idle, *_LENGTHS, *skips, *_ENVIRONMENT}
    notes.differences(given, defaults, known, "")
    _lengths(full, family, defaults, notes)
    for name, instead in _ENVIRONMENT.items():
        if full[name] != defaults[name]:
            notes.add(name, full[name], instead)
    if family.spec.guide in given:
        notes.say(family.spec.guide, "not loaded in training, so samples during a run have no guidance")
    secrets = given.get("secrets")
    if isinstance(secrets, Mapping) and any(v for k, v in secrets.items() if k not in (VERSION_KEY, "cloud")):
        notes.say("secrets", "never copied; enter the token in the settings")


def length_of_prompts(encoder: str, full: Mapping[str, Any], family: ModelType) -> Any:
    """The number of tokens a text encoder of a config reads in OneTrainer; ``None`` if it is the usual number
    here.
    """
    spec = family.spec
    # families whose usual length differs from the default do not read this setting
    read = encoder == spec.length_of and (encoder != "text_encoder" or spec.prompt_length == _THEIR_TOKENS)
    length = full.get(f"{encoder}_sequence_length") if read else None
    return None if length == spec.prompt_length else length


def _lengths(full: Mapping[str, Any], family: ModelType, defaults: Mapping[str, Any], notes: Notes) -> None:
    """Note prompt lengths of text encoders that this family lacks, or that are too long for it."""
    spec = family.spec
    for name in _LENGTHS:
        length = length_of_prompts(name.removesuffix("_sequence_length"), full, family)
        if length is None:
            if full[name] not in (defaults[name], spec.prompt_length):
                notes.add(name, full[name], f"not supported; prompts have up to {spec.prompt_tokens} tokens")
        elif not fits_prompts(length, family):
            notes.add(
                name, length, f"prompts have {spec.template_tokens + 1} to {spec.most_tokens} tokens here"
            )


def fits_prompts(length: Any, family: ModelType) -> bool:
    """Return whether prompts of this family can have this many tokens."""
    return type(length) is int and family.spec.template_tokens < length <= family.spec.most_tokens
