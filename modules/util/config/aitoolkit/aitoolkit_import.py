"""Import of ai-toolkit configs (YAML or JSON)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.util.config.aitoolkit.aitoolkit_data import import_dataset, import_samples
from modules.util.config.aitoolkit.aitoolkit_rates import import_optimizer, import_schedule
from modules.util.config.faults import show
from modules.util.config.foreign.base_family import family_of_base
from modules.util.config.foreign.building import build
from modules.util.config.foreign.dropout import common_dropout
from modules.util.config.foreign.Fields import Fields
from modules.util.config.foreign.MaskKinds import MaskKinds
from modules.util.config.foreign.Notes import Notes
from modules.util.config.foreign.step_counts import in_optimizer_steps
from modules.util.config.kohya.kohya_network import with_convolutions
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.ModelType import ModelType
from modules.util.errors import ConfigError, UnsupportedError

Data = dict[str, Any]

_ARCHITECTURES = {
    "sd1": "STABLE_DIFFUSION_15", "sd15": "STABLE_DIFFUSION_15", "sd2": "STABLE_DIFFUSION_21",
    "sdxl": "STABLE_DIFFUSION_XL_10_BASE", "sd3": "STABLE_DIFFUSION_3", "sd35": "STABLE_DIFFUSION_35",
    "flux": "FLUX_DEV_1", "flux_kontext": "FLUX_KONTEXT_DEV_1",
    "flux_schnell": "FLUX_SCHNELL_1", "chroma": "CHROMA_1", "pixart": "PIXART_ALPHA",
    "pixart_sigma": "PIXART_SIGMA", "qwen_image": "QWEN", "qwen_image_edit": "QWEN_EDIT",
    "qwen_image_edit_plus": "QWEN_EDIT_PLUS", "zimage": "Z_IMAGE", "flux2_klein_4b": "FLUX_2",
    "flux2_klein_9b": "FLUX_2", "sana": "SANA", "krea2": "KREA_2", "lumina2": "LUMINA_2",
    "ernie_image": "ERNIE", "longcat_image": "LONGCAT_IMAGE", "flux2": "FLUX_2_DEV",
    "hidream": "HI_DREAM_FULL",
    "ideogram4": "IDEOGRAM_4",
}  # fmt: skip
_SWITCHES = {
    "is_xl": "sdxl", "is_flux": "flux", "is_v3": "sd3", "is_pixart": "pixart", "is_pixart_sigma": "pixart_sigma",
    "is_v2": "sd2",
}  # fmt: skip
_KINDS = ("sd_trainer", "diffusion_trainer", "ui_trainer")
_DTYPES = {
    "bf16": "BFLOAT_16",
    "fp16": "FLOAT_16",
    "float16": "FLOAT_16",
    "float32": "FLOAT_32",
    "fp32": "FLOAT_32",
}
_FEW_BITS = {
    "qfloat8": "FLOAT_8",
    "float8": "FLOAT_8",
    "qint8": "INT_8",
    "int8": "INT_8",
    "uint4": "NFLOAT_4",
}
_NETWORKS = {"lora": "LORA", "lokr": "LOKR", "locon": "LORA"}
_LOSSES = {"mse": "mse_strength", "mae": "mae_strength"}
_OTHER = (
    "noise_scheduler",
    "gradient_checkpointing",
    "log_every",
    "performance_log_every",
    "device",
    "sqlite_db_path",
)
_LOST_OF_TRAINING = {
    "do_guidance_loss": "not supported",
    "do_differential_guidance": "not supported",
    "guidance_loss_target": "not supported",
    "diff_output_preservation": "use a concept of the type PRIOR_PREDICTION",
    "blank_prompt_preservation": "not supported",
    "cache_text_embeddings": "text states are always cached",
    "unload_text_encoder": "text states are always cached",
    "bypass_guidance_embedding": "set transformer.guidance_scale",
    "noise_multiplier": "not supported",
    "ip_adapter": "not supported",
    "feature_extractor": "not supported",
    "loss_target": "not supported",
    "switch_boundary_every": "not supported",
    "train_refiner": "not supported",
    "short_and_long_captions": "not supported",
    "force_first_sample": "set sample_before_training",
    "disable_sampling": "set sample_after_unit to NEVER",
    "max_denoising_steps_per_image": "not supported",
}
_SAME_THERE = ("cache_text_embeddings", "unload_text_encoder", "force_first_sample", "disable_sampling")


def read_aitoolkit(data: Mapping[str, Any], family: str = "") -> tuple[TrainConfig, Notes]:
    """Read a config with its concepts and samples.

    Args:
        data: the content of the file.
        family: the model family, if the file does not tell it.

    Raises:
        UserError: the file asks for something unsupported, or is of another kind.
    """
    notes = Notes()
    outer = data.get("config")
    processes = outer.get("process") if isinstance(outer, Mapping) else None
    if not isinstance(processes, list) or not processes or not isinstance(processes[0], Mapping):
        raise ConfigError("not a config of ai-toolkit: it has no config.process", "config.process")
    if len(processes) > 1:
        notes.add("config.process", f"{len(processes)} processes", "only the first is imported")
    kind = processes[0].get("type")
    if kind not in _KINDS or data.get("job") not in (None, "extension", "train"):
        raise UnsupportedError(
            f"the process {show(kind)} is not supported", "config.process[0].type", "nearest: sd_trainer"
        )
    fields = Fields(processes[0], notes, "")
    name = outer.get("name") if isinstance(outer, Mapping) else None
    return _config(fields, str(name or "model"), family, notes), notes


def _config(fields: Fields, name: str, given: str, notes: Notes) -> TrainConfig:
    model, train, network = fields.inner("model"), fields.inner("train"), fields.inner("network")
    adapter = "type" in network or "linear" in network
    family = _family(model, given)
    parts: dict[str, Data] = {part: {} for part in family.parts}
    made: Data = {
        "model_type": family.value,
        "base_model_name": model.text("name_or_path"),
        "rlhf_enabled": False,
        **_network(network, family, adapter, notes),
    }
    _weights(model, train, family, parts, adapter, made)
    inside, together = _accumulation(train, notes)
    made |= {"gradient_accumulation_steps": inside * together}
    made |= _training(train, family, parts, together, notes) | _levels(train, family, notes)
    made["max_steps"] = in_optimizer_steps("train.steps", made["max_steps"], together, notes)
    made |= _saving(fields, name, together, notes)
    trigger = fields.text("trigger_word")
    rates: list[float] = []
    masks, sets = MaskKinds(), fields.items("datasets")
    # the weight of black, from the first data set that sets one
    least = [value for one in sets if (value := one.number("mask_min_value", None)) is not None]
    made["concepts"] = [import_dataset(one, trigger, rates, masks, notes) for one in sets]
    if len(set(least)) > 1:
        notes.add("mask_min_value", least[1], f"one weight for the run here: {least[0]:g}", ours=least[0])
    made |= masks.settings(notes, normalized=True, least=least[0] if least else 0.0)
    if family.text_encoders:
        parts[family.text_encoders[0]]["dropout_probability"] = common_dropout(rates, notes)
    made |= parts
    sample = fields.inner("sample")
    every = in_optimizer_steps("sample.sample_every", sample.whole("sample_every", 0), together, notes, False)
    made |= {"sample_after": every, "sample_after_unit": "STEP"} if every else {}
    made["samples"] = import_samples(sample, trigger, notes)
    sample.without_meaning(("sampler", "format", "ext", "num_frames", "fps"))
    fields.without_meaning(
        ("type", "training_folder", "device", "sqlite_db_path", "performance_log_every", "logging")
    )
    for section in (fields, model, train, network, sample):
        section.note_rest()
    return build(TrainConfig, made, "", notes)


def _family(model: Fields, given: str) -> ModelType:
    """The family named by the architecture or suggested by the model's name."""
    named = model.text("arch")
    switched = [arch for name, arch in _SWITCHES.items() if model.flag(name)]
    arch = (named or (switched[0] if switched else "")).partition(":")[0]
    known = _ARCHITECTURES.get(arch)
    if arch and known is None and not given:
        raise UnsupportedError(
            f"the architecture {show(arch)} is not supported", "model.arch", "docs/models.md lists what is"
        )
    return family_of_base(str(model.peek("name_or_path") or ""), (known,), "model.name_or_path", given)


def _network(network: Fields, family: ModelType, adapter: bool, notes: Notes) -> Data:
    if not adapter:
        return {"training_method": "FINE_TUNE"}
    kind = network.text("type", "lora").lower()
    if kind not in _NETWORKS:
        raise UnsupportedError(f"the network {show(kind)} is not supported", "network.type", "nearest: lora")
    rank = network.whole("linear", network.whole("rank", 4))
    alpha = network.number("linear_alpha", network.number("alpha", 1.0))
    made: Data = {
        "training_method": "LORA", "peft_type": _NETWORKS[kind], "lora_rank": rank, "lora_alpha": alpha,
        "output_model_format": "AUTO", "dropout_probability": network.number("dropout", 0.0),
        "layer_filter_preset": "blocks" if family.denoiser == "transformer" else "custom",
    }  # fmt: skip
    if family.denoiser == "unet":
        made["layer_filter"] = "attentions"
    conv = network.number("conv", None)
    conv_alpha = network.number("conv_alpha", conv)
    if conv and family.denoiser != "unet":
        why = "the layers that are trained have no convolutions"
        notes.add("network.conv", conv, why, changes_weights=False)
    if conv and family.denoiser == "unet":
        made |= with_convolutions(conv, conv_alpha or conv)
    factor = network.number("lokr_factor", -1)
    if kind == "lokr" and factor != -1:
        notes.add(
            "network.lokr_factor", factor, "not supported: the factors are those nearest to the square root"
        )
    network.without_meaning(("lokr_full_rank", "old_lokr_format") if kind != "lokr" else ())
    more = network.inner("network_kwargs")
    only = more.raw("only_if_contains")
    if isinstance(only, list) and only:
        made |= {"layer_filter_preset": "custom", "layer_filter": ",".join(_plain(one) for one in only)}
    left_out = more.raw("ignore_if_contains")
    if isinstance(left_out, list) and left_out:
        words = "|".join(_plain(one).replace(".", r"\.") for one in left_out)
        kept = "|".join(str(made.get("layer_filter", "transformer_blocks")).split(","))
        made |= {
            "layer_filter_preset": "custom", "layer_filter": f"^(?!.*({words})).*({kept})", "layer_filter_regex": True,
        }  # fmt: skip
    more.note_rest()
    return made


def _plain(name: object) -> str:
    """Part of a layer's name, without the prefix of its model."""
    return str(name).removeprefix("transformer.").removeprefix("unet.").strip()


def _weights(
    model: Fields, train: Fields, family: ModelType, parts: Data, adapter: bool, made: Data
) -> None:
    """Import the number formats of weights, and layer offloading to main memory."""
    dtype = train.text("dtype", "fp32")
    if dtype not in _DTYPES:
        raise UnsupportedError(f"{show(dtype)} is not supported", "train.dtype", "nearest: bf16")
    made["train_dtype"] = _DTYPES[dtype]
    for part in family.parts:
        parts[part]["weight_dtype"] = _DTYPES[dtype]
    whole = model.flag("quantize")
    large = (family.spec.length_of,) if family.spec.length_of else ()
    # unless it is set, the large text encoder follows the denoiser
    texts = model.flag("quantize_te", whole and bool(large))
    for wanted, kind, places in (
        (whole, "qtype", (family.denoiser,)),
        (texts, "qtype_te", large or family.text_encoders),
    ):
        bits = model.text(kind, "qfloat8")
        if not wanted:
            continue
        if bits.partition("|")[0] not in _FEW_BITS:
            raise UnsupportedError(f"{show(bits)} is not supported", f"model.{kind}", "nearest: qfloat8")
        for part in places:
            if adapter or part != family.denoiser:
                parts[part]["weight_dtype"] = _FEW_BITS[bits.partition("|")[0]]
    share = model.number("layer_offloading_transformer_percent", 1.0)
    if model.flag("layer_offloading"):
        parts[family.denoiser]["offload_fraction"] = share
    made["force_v_prediction"] = model.flag("is_v_pred") and not family.spec.flow_matching
    model.without_meaning(("low_vram", "layer_offloading_text_encoder_percent", "compile"))
    model.lost("model_kwargs", "not read", unless=(None, {}))
    if adapter and (assistant := model.text("assistant_lora_path")):
        # it is on during training there too, and off in samples and in the saved file
        made["training_adapter"] = {"model_name": assistant}
    model.lost("assistant_lora_path", "left out: only adapters are trained with it here", unless=(None, ""))
    model.lost("lora_path", "merge it first")
    model.lost("accuracy_recovery_adapter", "not supported")


def _training(train: Fields, family: ModelType, parts: Data, together: int, notes: Notes) -> Data:
    loss = train.text("loss_type", "mse")
    if loss not in _LOSSES:
        raise UnsupportedError(f"the loss {show(loss)} is not supported", "train.loss_type", "nearest: mse")
    encoders = train.flag("train_text_encoder")
    checkpointing = train.flag("gradient_checkpointing", True)
    for part in (family.denoiser, *family.text_encoders):
        denoiser = part == family.denoiser
        rate = train.number("unet_lr" if denoiser else "text_encoder_lr", None)
        trained = encoders and part in family.spec.trained_encoders
        parts[part] |= {"train": train.peek("train_unet") is not False if denoiser else trained}
        parts[part] |= {"learning_rate": rate, "gradient_checkpointing": checkpointing}
    train.without_meaning(("train_unet",))
    ema = train.inner("ema_config")
    rate = train.number("lr", 1e-6)
    made: Data = {
        "optimizer": import_optimizer(train, notes), "learning_rate": rate,
        **import_schedule(train, rate, together, notes),
        "max_steps": train.whole("steps", 1000), "epochs": 1_000_000, "batch_size": train.whole("batch_size", 1),
        "clip_grad_norm": train.number("max_grad_norm", 1.0), "mse_strength": 0.0, _LOSSES[loss]: 1.0,
        "offset_noise_weight": train.number("noise_offset", 0.0), "ema_update_step_interval": 1,
    }  # fmt: skip
    if ema.flag("use_ema"):
        made |= {"ema": "GPU", "ema_decay": ema.number("ema_decay", 0.999)}
    gamma = train.number("min_snr_gamma", 0.0)
    if gamma:
        made |= {"loss_weight_fn": "MIN_SNR_GAMMA", "loss_weight_strength": gamma}
    made["sample_before_training"] = not train.flag("skip_first_sample")
    for name, why in _LOST_OF_TRAINING.items():
        train.lost(name, why, changes_weights=False if name in _SAME_THERE else None)
    if "seed" in train:
        made["seed"] = train.whole("seed", 0)
    train.without_meaning((*_OTHER, "ema_config"))
    ema.without_meaning(("ema_decay",))
    ema.note_rest()
    return made


def _levels(train: Fields, family: ModelType, notes: Notes) -> Data:
    """Import how noise levels are drawn. Its step indices count from full noise, ours from none."""
    kind, stress = train.text("timestep_type", "sigmoid"), train.text("content_or_style", "balanced")
    for name in ("linear_timesteps", "linear_timesteps2"):
        if train.flag(name):
            kind = "linear"
            notes.add(f"train.{name}", True, "timesteps are drawn evenly; loss weights by timestep are not supported")
    low, high = train.number("min_denoising_steps", 0) or 0, train.number("max_denoising_steps", 999) or 999
    made: Data = {
        "min_noising_strength": (999 - high) / 1000,
        "max_noising_strength": (1000 - low) / 1000,
        "noising_weight": 0.0, "noising_bias": 0.0,
    }  # fmt: skip
    if stress in ("content", "style"):
        bias = 1.0 if stress == "content" else -1.0
        if kind != "linear" and family.spec.flow_matching:
            why = f"POWER draws from even levels here, but in ai-toolkit from the levels of timestep_type {kind}"
            notes.add("train.content_or_style", stress, why, ours="POWER")
        return made | {"timestep_distribution": "POWER", "noising_weight": 3.0, "noising_bias": bias}
    if kind == "linear" or not family.spec.flow_matching:
        # timestep_type is that of flow matching there
        return made | {"timestep_distribution": "UNIFORM"}
    if kind == "shift" and family.spec.shifts_by_size:
        return made | {"timestep_distribution": "UNIFORM", "dynamic_timestep_shifting": True}
    if kind == "weighted":
        why = "timesteps are drawn evenly, as in ai-toolkit; its loss weights by timestep are not supported"
        notes.add("train.timestep_type", kind, why, ours="UNIFORM")
        return made | {"timestep_distribution": "UNIFORM"}
    if kind != "sigmoid":
        notes.add("train.timestep_type", kind, "not supported; sigmoid instead", ours="LOGIT_NORMAL")
    return made | {"timestep_distribution": "LOGIT_NORMAL"}


def _accumulation(train: Fields, notes: Notes) -> tuple[int, int]:
    """Return how many batches a step has there, and how many such steps make an optimizer step.

    Its steps, and with them the intervals, count passes of the training loop. ``gradient_accumulation`` batches
    belong to one pass; ``gradient_accumulation_steps`` passes end in one optimizer step (``BaseSDTrainProcess.run``).
    """
    inside, together = (train.whole(f"gradient_accumulation{end}", 1) for end in ("", "_steps"))
    if together == -1:
        place = "train.gradient_accumulation_steps"
        why = "in ai-toolkit, an epoch is one optimizer step; set the accumulation"
        notes.add(place, -1, why, ours=1)
        together = 1
    return inside, together


def _saving(fields: Fields, name: str, together: int, notes: Notes) -> Data:
    save = fields.inner("save")
    every = in_optimizer_steps("save.save_every", save.whole("save_every", 0), together, notes, False)
    dtype = save.text("dtype", "float16")
    made: Data = {
        "output_model_destination": str(
            Path(fields.text("training_folder", "output")) / f"{Path(name).name}.safetensors"
        ),
        "output_dtype": _DTYPES.get(dtype, "FLOAT_16"),
    }
    if every:
        made |= {"save_every": every, "save_every_unit": "STEP"}
    save.without_meaning(("save_format", "push_to_hub", "hf_repo_id", "hf_private"))
    save.lost("max_step_saves_to_keep", "all saves are kept", changes_weights=False)
    save.note_rest()
    return made
