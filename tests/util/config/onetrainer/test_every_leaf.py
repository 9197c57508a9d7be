"""Each of OneTrainer's settings, set to another value: it is imported, noted, or listed as one without meaning."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modules.util.config.foreign.Notes import MOST_CHARACTERS
from modules.util.config.onetrainer.idle import WITHOUT_MEANING
from modules.util.errors import UserError
from modules.util.program_files import RESOURCES
from tests.usual import usual
from tests.util.config.onetrainer.reading import import_onetrainer

DEFAULTS = json.loads((RESOURCES / "onetrainer" / "defaults.json").read_text())
LISTS = {"concepts": [], "samples": []}

CHOICES: dict[str, Any] = {
    "training_method": "LORA", "model_type": "STABLE_DIFFUSION_21", "peft_type": "LOHA", "ema": "CPU",
    "optimizer.optimizer": "LION", "learning_rate_scheduler": "COSINE", "loss_weight_fn": "P2",
    "timestep_distribution": "LOGIT_NORMAL", "train_dtype": "BFLOAT_16", "fallback_train_dtype": "FLOAT_16",
    "output_dtype": "BFLOAT_16", "output_model_format": "DIFFUSERS", "resolution": "768", "loss_scaler": "BATCH",
    "learning_rate_scaler": "BOTH", "attention_mechanism": "XFORMERS", "sample_image_format": "PNG",
    "layer_filter_preset": "attn-only", "layer_filter": "attn1", "device_indexes": "0,1", "samples": [{}],
    "concepts": [{}], "scheduler_params": [{"key": "max_lr", "value": "1"}],
    "additional_embeddings": [{"placeholder": "<a>"}], "custom_learning_rate_scheduler": "torch.optim.X",
    "learning_rate_warmup_steps": 100.0, "quantization.layer_filter_preset": "attn-mlp",
    "quantization.layer_filter": "attn", "gradient_reduce_precision": "BFLOAT_16", "train_device": "cuda",
    "optimizer.growth_rate": 2.0, "cloud.type": "LINUX", "optimizer_defaults": {"ADAMW": {"optimizer": "ADAMW"}},
    "timestep_shift": 3.0, "min_noising_strength": 0.25, "max_noising_strength": 0.5,
}  # fmt: skip
UNITS = ("_unit",)
DTYPES = ("weight_dtype",)


def leaves(data: dict[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        place = f"{where}.{name}" if where else name
        if isinstance(value, dict) and value:
            yield from leaves(value, place)
        else:
            yield place, value


def other(place: str, value: Any) -> Any:
    """Another legal value."""
    if place in CHOICES:
        return CHOICES[place]
    if place.endswith(UNITS):
        return "HOUR" if value != "HOUR" else "STEP"
    if place.endswith(DTYPES):
        return "BFLOAT_16"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 3
    if isinstance(value, float):
        return value / 2 if value else 0.25
    if isinstance(value, str):
        return "other"
    return 0.25 if value is None else [1]


def base(place: str) -> dict[str, Any]:
    """A config in which the setting acts."""
    made: dict[str, Any] = {"__version": 11, **LISTS}
    part = place.partition(".")[0]
    if place.startswith("lokr"):
        made |= {"training_method": "LORA", "peft_type": "LOKR", "lokr_weight_decompose": "dora" in place}
    elif place.startswith("oft"):
        made |= {"training_method": "LORA", "peft_type": "OFT_2"}
    elif place.startswith(("lora", "layer_filter", "peft", "dropout", "bundle", "quantization")):
        made |= {"training_method": "LORA", "lora_decompose": "decompose_" in place}
    if place == "layer_filter_regex":
        made |= {"layer_filter": "attn1", "layer_filter_preset": "custom"}
    if part in ("transformer", "text_encoder_2", "text_encoder_3") or place == "text_encoder_3_layer_skip":
        made |= {"model_type": "STABLE_DIFFUSION_3", "training_method": "LORA"}
    if part == "text_encoder_4" or place == "text_encoder_4_layer_skip":
        made |= {"model_type": "HI_DREAM_FULL", "training_method": "LORA"}
    if place == "text_encoder_2_layer_skip":
        made["model_type"] = "STABLE_DIFFUSION_XL_10_BASE"
    if place == "text_encoder_2_sequence_length":
        made["model_type"] = "FLUX_DEV_1"
    if place == "vb_loss_strength":
        made["model_type"] = "PIXART_ALPHA"
    if place.startswith("quantization"):
        made["unet"] = {"weight_dtype": "INT_8"}
        made["quantization"] = (
            {"svd_dtype": "FLOAT_32"} if "svd" in place else {"layer_filter_preset": "custom"}
        )
        if place.endswith("regex"):
            made["quantization"] |= {"layer_filter": "attn"}
    if part == "embedding":
        made["training_method"] = "EMBEDDING"
    elif "embedding" in place and place != "additional_embeddings":
        made["additional_embeddings"] = [{"placeholder": "<a>"}]
    if place.startswith(("unmasked", "normalize_masked", "masked_prior")):
        made |= {"masked_training": True, "model_type": "STABLE_DIFFUSION_15_INPAINTING"}
    if place == "custom_conditioning_image":
        made["model_type"] = "STABLE_DIFFUSION_15_INPAINTING"
    if place in ("custom_learning_rate_scheduler", "scheduler_params"):
        made["learning_rate_scheduler"] = "CUSTOM"
    if place == "generalized_offset_noise":
        made["offset_noise_weight"] = 0.1
    if place.endswith("_skip_first"):
        made |= {"sample_after": 1, "save_every": 1, "sample_after_unit": "STEP", "save_every_unit": "STEP"}
    if place == "device_indexes":
        made["multi_gpu"] = True
    if place.endswith(".learning_rate"):
        made[part] = {"train": True}
    if ".stop_training_after" in place:
        made[part] = {
            **made.get(part, {}),
            "train": True,
            "stop_training_after": 7,
            "stop_training_after_unit": "EPOCH",
        }
    if part == "cloud" and place != "cloud.enabled":
        made["cloud"] = {"enabled": True}
    if place == "optimizer.decouple":
        made["optimizer"] = {"optimizer": "PRODIGY", "weight_decay": 0.1}
    return made


def put(data: dict[str, Any], place: str, value: Any) -> None:
    *owners, name = place.split(".")
    for owner in owners:
        data = data.setdefault(owner, {})
    data[name] = value


def outcome(folder: Path, data: dict[str, Any]) -> Any:
    (folder / "in.json").write_text(json.dumps(data))
    try:
        config, notes = import_onetrainer(folder / "in.json")
    except UserError as error:
        return str(error)
    assert max((len(note) for note in notes), default=0) <= MOST_CHARACTERS
    return config.to_dict(), [str(note) for note in notes]


WITHIN = {
    **{f"optimizer.{name}": "how the same step is computed" for name in ("fused", "block_wise")},
    **{f"optimizer.{name}": "memory or messages alone" for name in (
        "slice_p", "log_every", "fsdp_in_use", "use_triton", "min_8bit_size", "quant_block_size")},
    "optimizer.stochastic_rounding": "acts on weights of 16 bits, which test_strictness.py looks at",
    "quantization.cache_dir": "where it keeps quantised weights",
    "quantization.svd_rank": "is noted with its number format",
    "sample_after_unit": "carried",
}  # fmt: skip
"""Settings of parts without meaning of their own."""


def meaningless(place: str) -> bool:
    part, _, name = place.partition(".")
    if part in WITHOUT_MEANING or place in WITHIN or name == "__version":
        return True
    if part in ("cloud", "secrets"):
        return True  # one note about all of it, of its own test
    if name == "guidance_scale":
        return part != "transformer"
    if part == "vae":
        return name not in ("model_name", "weight_dtype")
    if name == "train_embedding":
        return part not in ("text_encoder", "text_encoder_2")
    return name == "attention_mask" and part != "transformer"


PARTS = ["settings", *(k for k, v in DEFAULTS["train"].items() if isinstance(v, dict) and v)]
# the other parts have the same settings
USUAL = [
    "settings",
    "unet",
    "transformer",
    "text_encoder",
    "text_encoder_4",
    "vae",
    "quantization",
    "embedding",
    "optimizer",
    "secrets",
]


@pytest.mark.parametrize("part", usual(PARTS, *USUAL))
def test_no_setting_of_a_config_is_dropped_in_silence(part: str, tmp_path: Path) -> None:
    given = {
        k: v
        for k, v in DEFAULTS["train"].items()
        if (part == k) or (part == "settings" and not isinstance(v, dict))
    }
    silent, known = [], {}
    for place, value in leaves(given):
        data = base(place)
        key = json.dumps(data, sort_keys=True)
        if key not in known:
            known[key] = outcome(tmp_path, data)
        changed = copy.deepcopy(data)
        put(changed, place, other(place, value))
        assert changed != data, place
        if outcome(tmp_path, changed) == known[key] and not meaningless(place):
            silent.append(place)
    assert silent == []


def test_no_setting_of_a_concept_or_a_sample_is_dropped_in_silence(tmp_path: Path) -> None:
    words = {
        "type": "VALIDATION",
        "balancing_strategy": "SAMPLES",
        "image.resolution_override": "768",
        "text.prompt_source": "concept",
        "text.tag_dropout_mode": "RANDOM",
        "concept_stats": {"image_count": 2},
        "text.tag_dropout_special_tags_mode": "WHITELIST",
        "noise_scheduler": "EULER",
        "height": 768,
        "width": 768,
    }
    silent = []
    for name, defaults in (("concepts", DEFAULTS["concept"]), ("samples", DEFAULTS["sample"])):
        usual = outcome(tmp_path, {"__version": 11, **LISTS, name: [{}]})
        for place, value in leaves(defaults):
            item: dict[str, Any] = {}
            put(item, place, words[place] if place in words else other(place, value))
            if outcome(tmp_path, {"__version": 11, **LISTS, name: [item]}) == usual:
                silent.append(place)
    assert silent == []


def test_settings_without_meaning_are_theirs_and_say_why() -> None:
    assert WITHOUT_MEANING.keys() - {"__version", "temp_device"} <= DEFAULTS["train"].keys()
    assert all(WITHOUT_MEANING.values())
