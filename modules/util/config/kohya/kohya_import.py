"""Import of training and dataset files of kohya's sd-scripts (TOML)."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.faults import show
from modules.util.config.foreign.base_family import family_of_base
from modules.util.config.foreign.building import build
from modules.util.config.foreign.dropout import common_dropout, note_dropout
from modules.util.config.foreign.Fields import Fields
from modules.util.config.foreign.MaskKinds import MaskKinds
from modules.util.config.foreign.Notes import Notes
from modules.util.config.kohya.kohya_data import import_datasets, import_folders, note_shape, resolution_of
from modules.util.config.kohya.kohya_network import FAMILY_OF_NETWORK, import_network, import_parts
from modules.util.config.kohya.kohya_noise import import_noise
from modules.util.config.kohya.kohya_optimizer import import_optimizer
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.ModelType import ModelType
from modules.util.errors import ConfigError, UnsupportedError

Data = dict[str, Any]

_MOST_BYTES = 10_000_000
MODEL = "pretrained_model_name_or_path"
_DTYPES = {"no": "FLOAT_32", "fp16": "FLOAT_16", "bf16": "BFLOAT_16", "float": "FLOAT_32"}
_ENCODER_FILES = {"clip_l": 0, "clip_g": 1, "t5xxl": -1}
_OF_DATA = (
    "caption_extension", "caption_separator", "keep_tokens", "shuffle_caption", "caption_prefix", "caption_suffix",
    "caption_dropout_rate", "caption_dropout_every_n_epochs", "caption_tag_dropout_rate", "color_aug", "flip_aug",
    "face_crop_aug_range", "random_crop", "token_warmup_min", "token_warmup_step", "prior_loss_weight", "alpha_mask",
    "enable_wildcard", "secondary_separator", "conditioning_data_dir", "keep_tokens_separator",
)  # fmt: skip
_IDLE = (
    "xformers", "sdpa", "mem_eff_attn", "torch_compile", "dynamo_backend", "lowram", "highvram",
    "persistent_data_loader_workers",
    "logging_dir", "log_with", "log_prefix", "log_config", "log_tracker_name", "log_tracker_config", "wandb_run_name",
    "wandb_api_key", "huggingface_token", "console_log_level", "console_log_file", "console_log_simple", "config_file",
    "output_config", "training_comment", "no_metadata", "metadata_author", "metadata_title", "metadata_description",
    "metadata_license", "metadata_tags", "cache_latents_to_disk", "cache_text_encoder_outputs",
    "cache_text_encoder_outputs_to_disk", "vae_batch_size", "skip_cache_check", "bucket_no_upscale",
    "bucket_reso_steps", "min_bucket_reso", "max_bucket_reso", "save_model_as", "no_half_vae", "tokenizer_cache_dir",
    "disable_mmap_load_safetensors", "ddp_timeout", "ddp_gradient_as_bucket_view", "ddp_static_graph",
    "mem_eff_save", "dataset_class", "debug_dataset", "max_data_loader_n_workers",
    "sample_sampler", "split_mode", "cpu_offload_checkpointing",
)  # fmt: skip
"""Settings that do not affect training."""
_REPLACED_BY_DATASET_FILE = ("train_data_dir", "reg_data_dir", "in_json")
_LOST = {
    "sample_prompts": "add its prompts to the samples",
    "resume": "a run of kohya cannot be resumed here",
    "save_state": "backups are made instead",
    "save_last_n_epochs": "all saves are kept; only the number of backups is limited",
    "save_last_n_steps": "all saves are kept; only the number of backups is limited",
    "weighted_captions": "set prompt_weighting",
    "train_blocks": "not supported: all blocks are trained",
    "single_blocks_to_swap": "not supported",
    "double_blocks_to_swap": "not supported",
    "scale_weight_norms": "not supported: norms are not limited",
    "base_weights": "not supported: merge it first",
    "dim_from_weights": "not supported: set lora_rank",
    "block_lr": "not supported: one rate for the denoiser",
    "initial_epoch": "not supported",
    "initial_step": "not supported",
    "apply_t5_attn_mask": "not supported: the denoiser sees the padding of T5 too",
}


def read_toml(path: str | os.PathLike[str]) -> Data:
    """The content of a TOML file.

    Raises:
        ConfigError: the file is unreadable, too large, or not TOML.
    """
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"{path} is larger than {_MOST_BYTES:,} bytes", None, "is it a config?")
        return tomllib.loads(data.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {str(error).splitlines()[0]}") from None


def read_kohya(
    path: Path, family: str = "", proceed: Callable[[], object] = lambda: None
) -> tuple[TrainConfig | list[ConceptConfig], Notes]:
    """Read a training file as a config with concepts, or a dataset file as a list of concepts.

    Args:
        family: the model family, if the file does not tell it.
        proceed: called before each caption is read; may raise to end the import.

    Raises:
        UserError: the file is unreadable or asks for something unsupported.
    """
    data = read_toml(path)
    notes = Notes(proceed)
    if "datasets" in data:
        rates: list[float] = []
        masks = MaskKinds()
        concepts, _ = import_datasets(data, {}, rates, masks, notes)
        note_dropout(rates, notes)
        source = masks.settings(notes, normalized=False).get("mask_source")
        if source is not None:
            notes.say("masks", f"set masked_training and mask_source {source} in the config of the run")
        return concepts, notes
    flat: Data = {}
    for name, value in data.items():
        # sections only group settings and have no meaning of their own
        flat |= value if isinstance(value, Mapping) else {name: value}
    if MODEL not in flat:
        raise ConfigError(
            f"{path} is not a config of kohya: it names no model",
            MODEL,
            "name the model; a dataset file must contain [[datasets]]",
        )
    return _config(Fields(flat, notes), path.parent, family, notes), notes


def _config(fields: Fields, folder: Path, given: str, notes: Notes) -> TrainConfig:
    family = _family(fields, given)
    network = import_network(fields, family, notes)
    adapter = network["training_method"] == "LORA"
    made: Data = {
        "model_type": family.value,
        "base_model_name": fields.text(MODEL),
        "rlhf_enabled": False,
        **network,
    }
    parts = import_parts(fields, family, adapter)
    _weights(fields, family, parts, adapter, made, notes)
    _sources(fields, family, parts)
    made |= import_optimizer(fields, notes) | import_noise(fields, family, parts, notes)
    made |= _steps(fields) | _saving(fields)
    rates: list[float] = []
    masks, wanted = MaskKinds(), fields.flag("masked_loss")
    made["concepts"] = _concepts(fields, folder, made, rates, masks, notes)
    found = masks.settings(notes, normalized=False)
    if wanted and not found:
        notes.add("masked_loss", True, "off: no alpha_mask or conditioning_data_dir says where the masks are")
    # there, an alpha channel is always used, a mask folder only with masked_loss
    made |= found if wanted or found.get("mask_source") == "ALPHA" else {}
    if family.text_encoders:
        parts[family.text_encoders[0]]["dropout_probability"] = common_dropout(rates, notes)
    made |= parts
    chunks = fields.whole("max_token_length", 75)
    if family.spec.chunks_prompts:
        made["max_prompt_chunks"] = max(1, chunks // 75)
    length = fields.whole("t5xxl_max_token_length", family.spec.prompt_length)
    if family.spec.length_of and length != family.spec.prompt_length:
        made[family.spec.length_of]["sequence_length"] = length
    skip = fields.whole("clip_skip", 1)
    # there, it applies only to models with a single CLIP
    if len(family.spec.skips_layers_of) == 1:
        made[family.spec.skips_layers_of[0]]["layer_skip"] = max(0, skip - 1)
    for name, why in _LOST.items():
        fields.lost(name, why)
    fields.without_meaning(_IDLE)
    fields.note_rest()
    return build(TrainConfig, made, "", notes)


def _family(fields: Fields, given: str) -> ModelType:
    name = fields.peek(MODEL)
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{show(name)} is not a model", MODEL)
    second = "STABLE_DIFFUSION_21" if fields.peek("v_parameterization") else "STABLE_DIFFUSION_21_BASE"
    network = FAMILY_OF_NETWORK.get(str(fields.peek("network_module")))
    return family_of_base(name, (network, second if fields.flag("v2") else None), MODEL, given)


def _weights(fields: Fields, family: ModelType, parts: Data, adapter: bool, made: Data, notes: Notes) -> None:
    """Import number formats, and blocks that are kept in main memory."""
    mixed = fields.text("mixed_precision", "no")
    if mixed not in _DTYPES:
        raise UnsupportedError(f"{show(mixed)} is not supported", "mixed_precision", "nearest: bf16")
    compute = _DTYPES[mixed]
    made["train_dtype"] = compute
    own = "BFLOAT_16" if fields.flag("full_bf16") else "FLOAT_32"
    if fields.flag("full_fp16"):
        notes.add("full_fp16", True, "not supported for trained weights: they have 32 bits", ours=False)
        own = "FLOAT_32"
    made["lora_weight_dtype"] = own
    for part in family.parts:
        trained = not adapter and parts[part].get("train")
        parts[part]["weight_dtype"] = own if trained else compute
    if fields.flag("no_half_vae"):
        parts[family.spec.vae]["weight_dtype"] = "FLOAT_32"
    eight_bits = [fields.flag(name) for name in ("fp8_base", "fp8_base_unet")]
    if adapter and any(eight_bits):
        parts[family.denoiser]["weight_dtype"] = "FLOAT_8"
    swapped = fields.whole("blocks_to_swap", 0)
    blocks = family.spec.blocks
    if swapped and blocks:
        parts[family.denoiser]["offload_fraction"] = min(1.0, swapped / blocks)
    elif swapped:
        notes.add("blocks_to_swap", swapped, "not imported: set offload_fraction", changes_weights=False)
    saved = fields.text("save_precision", "float")
    made["output_dtype"] = _DTYPES.get(saved, "FLOAT_32")


def _sources(fields: Fields, family: ModelType, parts: Data) -> None:
    """Import the files of single parts."""
    for name in ("vae", "ae"):
        if name in fields:
            parts[family.spec.vae]["model_name"] = fields.text(name)
    encoders = family.text_encoders
    for name, index in _ENCODER_FILES.items():
        if name in fields and index < len(encoders):
            parts[encoders[index]]["model_name"] = fields.text(name)


def _steps(fields: Fields) -> Data:
    epochs = fields.whole("max_train_epochs", 0)
    steps = fields.whole("max_train_steps", 1600)
    made: Data = {"epochs": epochs, "max_steps": 0} if epochs else {"epochs": 1_000_000, "max_steps": steps}
    made |= {
        "batch_size": fields.whole("train_batch_size", 1),
        "gradient_accumulation_steps": fields.whole("gradient_accumulation_steps", 1),
        "clip_grad_norm": fields.number("max_grad_norm", 1.0),
        "seed": fields.whole("seed", 0),
        "latent_caching": fields.flag("cache_latents") or fields.flag("cache_latents_to_disk"),
    }
    if fields.flag("fused_backward_pass"):
        made["clip_each_weight"] = True
    return made


def _saving(fields: Fields) -> Data:
    folder, name = fields.text("output_dir"), fields.text("output_name", "last")
    made: Data = {"output_model_destination": str(Path(folder) / f"{name}.safetensors")}
    for prefix, ours in (("save", "save_every"), ("sample", "sample_after")):
        for unit, word in (("EPOCH", "epochs"), ("STEP", "steps")):
            every = fields.whole(f"{prefix}_every_n_{word}", 0)
            if every:
                made |= {ours: every, f"{ours}_unit": unit}
    if fields.flag("sample_at_first"):
        made["sample_before_training"] = True
    fields.lost("save_n_epoch_ratio", "set save_every", changes_weights=False)
    return made


def _concepts(
    fields: Fields, folder: Path, made: Data, rates: list[float], masks: MaskKinds, notes: Notes
) -> list[ConceptConfig]:
    """Import the data from the named dataset file or from folders, and the run settings found there."""
    size = fields.raw("resolution")
    if size is not None:
        made["resolution"] = resolution_of(size)
    made["aspect_ratio_bucketing"] = fields.flag("enable_bucket")
    base = {name: fields.raw(name) for name in _OF_DATA if name in fields}
    base |= {"enable_bucket": made["aspect_ratio_bucketing"], "batch_size": made["batch_size"]}
    if "dataset_repeats" in fields:
        base["num_repeats"] = fields.raw("dataset_repeats")
    name = fields.text("dataset_config")
    if not name:
        note_shape(size, made["aspect_ratio_bucketing"], notes)
        return import_folders(fields, base, rates, masks, notes)
    fields.without_meaning(_REPLACED_BY_DATASET_FILE)
    path = next((one for one in (Path(name), folder / name) if one.is_file()), None)
    if path is None:
        notes.add("dataset_config", name, "there is no such file; import it later")
        return []
    concepts, shared = import_datasets(read_toml(path), base, rates, masks, notes)
    if "batch_size" in shared:
        made["batch_size"] = shared["batch_size"]
    if "enable_bucket" in shared:
        made["aspect_ratio_bucketing"] = shared["enable_bucket"]
    return concepts
