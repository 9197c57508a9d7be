"""Import of OneTrainer configs, concept lists and sample lists (formats 0 to 11, newer ones as far as known).

A key that is missing in a file has OneTrainer's default, not ours. Every setting that this program does not
support is listed, so that nobody unknowingly trains something else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from modules.spec.registry import PARTS
from modules.util.config.BaseConfig import VERSION_KEY, BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.faults import unwrap
from modules.util.config.foreign.building import build
from modules.util.config.foreign.ignored_rates import leave_out_ignored_rates
from modules.util.config.foreign.Notes import Note, Notes
from modules.util.config.load import find_problems
from modules.util.config.onetrainer.devices_import import import_devices
from modules.util.config.onetrainer.embeddings_import import import_embeddings
from modules.util.config.onetrainer.idle import note_rest
from modules.util.config.onetrainer.intervals_import import import_intervals
from modules.util.config.onetrainer.layers_import import import_layers, import_rounded_layers
from modules.util.config.onetrainer.masks_import import import_masks
from modules.util.config.onetrainer.noise_import import noise_and_rates, without_schedule
from modules.util.config.onetrainer.offered import offered
from modules.util.config.onetrainer.onetrainer_migrations import (
    TRAIN_FORMAT,
    upgrade_concept,
    upgrade_train,
)
from modules.util.config.onetrainer.parts_import import SAME_NUMBERS, import_part
from modules.util.config.onetrainer.remote_import import import_remote
from modules.util.config.onetrainer.samples_import import SWITCH, import_painting, import_reading
from modules.util.config.overrides import merge
from modules.util.config.rules.optimizer_rules import ROUNDED, trained_dtypes
from modules.util.config.SampleConfig import READING, SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.ModelType import ModelType
from modules.util.errors import ConfigError
from modules.util.jsonio import read_json
from modules.util.program_files import RESOURCES

_DEFAULTS = RESOURCES / "onetrainer" / "defaults.json"

_FORMATS = {
    "LEGACY_LORA": "LEGACY_LORA",
    "COMFY_LORA": "COMFY_LORA",
    "ORIGINAL_LORA": "COMFY_LORA",
    "LEGACY_SAFETENSORS": "SAFETENSORS",
    "ORIGINAL_SINGLE_FILE": "SAFETENSORS",
    "ORIGINAL_TRANSFORMER": "SAFETENSORS",
    "KOHYA_LORA": "KOHYA_LORA",
    "DIFFUSERS_LORA": "DIFFUSERS_LORA",
    "DIFFUSERS": "DIFFUSERS",
}
_BACKENDS = {"XFORMERS": "xformers", "FLASH": "flash", "FLASH_ATTN": "flash", "CUDNN": "_native_cudnn"}
_USUAL_ATTENTION = ("SDP", "DEFAULT", "TORCH")
_WITH_BACKENDS = (
    "FLUX_DEV_1",
    "FLUX_SCHNELL_1",
    "FLUX_2",
    "FLUX_2_DEV",
    "CHROMA_1",
    "QWEN",
    "Z_IMAGE",
    "KREA_2",
)
"""Families whose denoiser supports other attention kernels."""
_LIST_FILES = {"concepts": "concept_file_name", "samples": "sample_definition_file_name"}
_AXIS = "lora_decompose_output_axis"
_EMBEDDINGS = {"embedding", "additional_embeddings"}
_LAYERS = {"layer_filter", "layer_filter_preset", "layer_filter_regex"}
_SPECIAL = {
    *("optimizer", "output_model_format", "concepts", "samples", "train_device", "lora_rank"),
    _AXIS,
    *_LAYERS,
    "quantization",
    *_EMBEDDINGS,
    *PARTS,
}

Config = TypeVar("Config", bound=BaseConfig)
Data = dict[str, Any]


@cache
def _defaults() -> Mapping[str, Any]:
    data: Mapping[str, Any] = read_json(_DEFAULTS, "table of OneTrainer's defaults")
    return data


def their_settings() -> Collection[str]:
    """The top-level names of OneTrainer's settings."""
    names: Collection[str] = _defaults()["train"].keys()
    return names


def read_onetrainer(path: str | os.PathLike[str], lenient: bool = False) -> tuple[TrainConfig, Notes]:
    """Read a OneTrainer config with its concepts and samples.

    Concepts and samples are taken from the config or else from the files it names, relative to the current
    folder or to that of the config. They are stored in the config itself, in our format.

    Args:
        lenient: replace unsupported values by the nearest supported ones.

    Returns:
        The config, and notes on values that differ from OneTrainer's defaults and were not carried over.

    Raises:
        UserError: the file cannot be read, is not a OneTrainer config, or asks for an unsupported model
            family, training method, adapter type or optimizer.
    """
    source = Path(path)
    data = read_json(source, "OneTrainer config")
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source} is not a OneTrainer config: it must be an object {{...}}")
    notes = Notes()
    version = data.get(VERSION_KEY, 0)
    if isinstance(version, int) and version > TRAIN_FORMAT:
        notes.add(VERSION_KEY, version, f"newer than the format known here, {TRAIN_FORMAT}")
    given = upgrade_train(data)
    defaults = _defaults()["train"]
    full = merge(defaults, given)
    full |= _limit_of_gradients(full)
    family, chosen = offered(full, defaults, notes, lenient)
    made: Data = {
        name: SAME_NUMBERS.get(value, value) if isinstance(value, str) else value
        for name, value in full.items()
        if name in TrainConfig.model_fields and name not in _SPECIAL
    }
    full |= _counts(full, defaults)
    made |= {"model_type": family.value, **{name: value for name, value in chosen.items() if name not in PARTS}}
    made |= import_devices(given, full, notes)
    made["output_model_format"] = _output_format(full, notes)
    for part in (name for name in family.parts if not family.spec.part(name).frozen):
        made[part] = import_part(part, family, full, defaults[part], notes)
        if part in family.spec.skips_layers_of:
            made[part]["layer_skip"] = full[f"{part}_layer_skip"]
        if part in chosen:
            made[part] |= chosen[part]
        if "learning_rate" in chosen:
            made[part]["learning_rate"] = None
    made |= _adapter(full, notes) | import_layers(full, family, notes)
    made |= import_rounded_layers(full, made[family.denoiser], family, defaults["quantization"], notes)
    made |= _acceleration(full, family, notes)
    made |= _warmup(full, notes) | import_remote(given, full, notes) | import_intervals(full, notes)
    made |= noise_and_rates(full, family, notes) | import_masks(full, family, notes)
    made |= import_embeddings(full, family, made["training_method"], defaults["embedding"], notes)
    note_rest(given, full, family, {*TrainConfig.model_fields, *_SPECIAL}, defaults, notes)
    ours = {**defaults, "optimizer": {}, "lora_rank": defaults[_name_of_size(full)]}
    config = build(TrainConfig, made, "", notes, ours)
    _set_rounding(config, full, notes)
    _import_lists(config, full, given, source.parent, notes)
    _leave_out_what_contradicts(config, notes)
    return config, notes


def import_onetrainer_concepts(
    source: str | os.PathLike[str] | Sequence[Any],
) -> tuple[list[ConceptConfig], list[Note]]:
    """Import a OneTrainer concept list from a file or plain data, with notes on what could not be carried over."""
    return _import_list(source, "concepts", "OneTrainer concept list", _import_concept)


def import_onetrainer_samples(
    source: str | os.PathLike[str] | Sequence[Any], model_type: ModelType | None = None
) -> tuple[list[SampleConfig], list[Note]]:
    """Import a OneTrainer sample list from a file or plain data, with notes on what could not be carried
    over.

    Args:
        source: path of the JSON file, or the list.
        model_type: determines the size, steps and guidance of samples that do not set them; ours by default.
    """

    family = model_type or TrainConfig().model_type

    def import_sample(data: Data, where: str, notes: Notes) -> SampleConfig:
        defaults = _defaults()["sample"] | _defaults()["sample_by_model_type"].get(family.value, {})
        data.pop(VERSION_KEY, None)
        full = defaults | data
        made = {name: value for name, value in full.items() if name in SampleConfig.model_fields}
        made |= import_painting(full, family, where, notes) | import_reading(full, family, where, notes)
        notes.differences(data, defaults, {*SampleConfig.model_fields, SWITCH}, where)
        # values of how prompts are read that nobody set are those of the run
        theirs = {name: value for name, value in defaults.items() if name not in READING}
        return build(SampleConfig, made, where, notes, theirs)

    return _import_list(source, "samples", "OneTrainer sample list", import_sample)


def import_onetrainer_list(
    path: str | os.PathLike[str],
) -> tuple[list[ConceptConfig] | list[SampleConfig], list[Note]]:
    """Import a concept list or a sample list, whichever the file holds (samples have prompts)."""
    data = read_json(path, "OneTrainer list")
    if isinstance(data, list) and any(isinstance(item, Mapping) and "prompt" in item for item in data):
        return import_onetrainer_samples(data)
    return import_onetrainer_concepts(data if isinstance(data, list) else path)


def _limit_of_gradients(full: Data) -> Data:
    """An infinite norm, which means no clipping there, as our 0."""
    limit = full["clip_grad_norm"]
    infinite = isinstance(limit, (str, float)) and str(limit).strip().lower() in ("inf", "+inf", "infinity")
    return {"clip_grad_norm": 0.0} if infinite else {}


def _counts(full: Data, defaults: Mapping[str, Any]) -> Data:
    """The numbers that other settings depend on, as the config will have them: faulty ones are replaced there."""
    names = ("epochs", "gradient_accumulation_steps")
    config = build(TrainConfig, {name: full[name] for name in names}, "", Notes(), defaults)
    return {name: getattr(config, name) for name in names}


# -- parts of a config -------------------------------------------------------------------------------------


def _output_format(full: Data, notes: Notes) -> str:
    """Our name for the format. SAFETENSORS means whatever suits what is trained."""
    name = str(full["output_model_format"])
    if name == "SAFETENSORS":
        return "AUTO"
    if name == "DIFFUSERS_LORA" and _decomposes(full) and full[_AXIS] is False:
        notes.add("output_model_format", name, "diffusers reads no DoRA of inputs; AUTO instead", ours="AUTO")
        return "AUTO"
    ours = _FORMATS.get(name, "AUTO")
    if name not in _FORMATS:
        notes.add("output_model_format", name, "not supported; the training method decides", ours=ours)
    elif name == "ORIGINAL_LORA":
        notes.add("output_model_format", name, "COMFY_LORA instead, whose layer names have a prefix", ours=ours)
    elif ours != name:
        notes.moved("output_model_format", name, ours, "a single file")
    return ours


def _adapter(full: Data, notes: Notes) -> Data:
    """The size of an adapter, which has other names for OFT and LoKr, and DoRA where it acts: there, other kinds of
    adapters ignore it.
    """
    name = _name_of_size(full)
    if name != "lora_rank":
        notes.moved(name, full[name], f"lora_rank = {full[name]}", "one setting for the size of every kind of adapter")
    made: Data = {"lora_rank": full[name]} | ({_AXIS: full[_AXIS]} if _decomposes(full) else {})
    return made if full["peft_type"] == "LORA" else made | {"lora_decompose": False}


def _name_of_size(full: Data) -> str:
    return {"OFT_2": "oft_block_size", "LOKR": "lokr_dim"}.get(str(full["peft_type"]), "lora_rank")


def _decomposes(full: Data) -> bool:
    return (full["training_method"], full["peft_type"], full["lora_decompose"]) == ("LORA", "LORA", True)


def _acceleration(full: Data, family: ModelType, notes: Notes) -> Data:
    """Compilation and other attention kernels, which are accelerators here."""
    shared: list[Data] = []
    attention = str(full["attention_mechanism"])
    if attention in _BACKENDS and family.value in _WITH_BACKENDS:
        shared.append({"name": "attention_backend", "params": {"backend": _BACKENDS[attention]}})
        notes.moved("attention_mechanism", attention, "acceleration.shared", "set as an accelerator")
    elif attention not in _USUAL_ATTENTION:
        notes.add("attention_mechanism", attention, f"not supported for {family.label}")
    if full["compile"] is True and _trains_in_main_memory(full, family):
        notes.add("compile", True, "left out: weights that are trained in main memory cannot be compiled")
    elif full["compile"] is True:
        shared.append({"name": "torch_compile", "params": {}})
        notes.moved("compile", True, "acceleration.shared", "set as an accelerator")
    return {"acceleration": {"shared": shared}} if shared else {}


def _trains_in_main_memory(full: Data, family: ModelType) -> bool:
    section = full[family.denoiser]
    fraction = section.get("offload_fraction") if isinstance(section, Mapping) else None
    offloaded = isinstance(fraction, (int, float)) and fraction > 0
    return offloaded and full["training_method"] == "FINE_TUNE" and section.get("train") is True


def _warmup(full: Data, notes: Notes) -> Data:
    """The warm-up in optimizer steps. Values above 1 count batches in the file, several of which make a step."""
    batches, together = full["learning_rate_warmup_steps"], full["gradient_accumulation_steps"]
    counted = all(isinstance(value, (int, float)) and value == value for value in (batches, together))
    if without_schedule(full) or not counted or batches <= 1 or together <= 1 or math.isinf(batches):
        return {}
    steps = float(batches // together)
    if steps <= 1:
        notes.add("learning_rate_warmup_steps", batches, "no warm-up: it would be 1 optimizer step or less", ours=0)
        return {"learning_rate_warmup_steps": 0.0}
    why = "the file counts batches, not optimizer steps"
    notes.moved("learning_rate_warmup_steps", batches, f"{steps:g}", why)
    return {"learning_rate_warmup_steps": steps}


def _set_rounding(config: TrainConfig, full: Data, notes: Notes) -> None:
    """Enable stochastic rounding as in OneTrainer, where it acts on trained 16-bit weights."""
    given = full["optimizer"]
    if not isinstance(given, Mapping) or given.get("stochastic_rounding") is not True:
        return
    dtypes = trained_dtypes(config)
    short = [place for place, dtype in dtypes.items() if dtype == "BFLOAT_16"]
    offered_here = config.optimizer.optimizer in ROUNDED and "FLOAT_16" not in dtypes.values()
    config.optimizer.stochastic_rounding = bool(short) and offered_here
    for place in short if not offered_here else ():
        notes.add(place, "BFLOAT_16", "no stochastic rounding here, so small steps are lost; use FLOAT_32")


def _leave_out_what_contradicts(config: TrainConfig, notes: Notes) -> None:
    """Empty rates that the optimizer ignores, and disable the fused backward step where other settings exclude it
    here. Other contradictions are listed for the user.
    """
    leave_out_ignored_rates(config, notes)
    errors = find_problems(config).errors
    if config.optimizer.fused_back_pass and any("fused_back_pass" in error.message for error in errors):
        config.optimizer.fused_back_pass = False
        notes.add("optimizer.fused_back_pass", True, "off: other settings exclude it here", ours=False)
        errors = find_problems(config).errors
    for error in errors:
        notes.say(error.field or "", f"{error.message}; change it")


# -- lists -------------------------------------------------------------------------------------------------


def _import_lists(config: TrainConfig, full: Data, given: Data, folder: Path, notes: Notes) -> None:
    concepts = _inline_or_file(full, given, "concepts", folder, notes)
    if concepts is not None:
        config.concepts, found = import_onetrainer_concepts(concepts)
        notes.extend(found)
    samples = _inline_or_file(full, given, "samples", folder, notes)
    if samples is not None:
        config.samples, found = import_onetrainer_samples(samples, config.model_type)
        notes.extend(found)


def _inline_or_file(full: Data, given: Data, inline: str, folder: Path, notes: Notes) -> Any:
    """The list itself or the path of its file. A missing file is noted if the config names it explicitly."""
    file = _LIST_FILES[inline]
    if full[inline] is not None:
        if isinstance(full[inline], list):
            return full[inline]
        notes.add(inline, full[inline], "not a list", faulty=True)
    name = full[file]
    if not isinstance(name, str) or not name:
        return None
    for path in (Path(name), folder / name):
        if path.is_file():
            return path
    if file in given:
        notes.add(file, name, "there is no such file; import it later")
    return None


def _import_concept(data: Data, where: str, notes: Notes) -> ConceptConfig:
    defaults = _defaults()["concept"]
    given = upgrade_concept(data)
    full = merge(defaults, given)
    made = {name: value for name, value in full.items() if name in ConceptConfig.model_fields}
    for part in ("image", "text"):
        owner, _ = unwrap(ConceptConfig.model_fields[part].annotation)
        inner = full[part] if isinstance(full[part], Mapping) else {}
        made[part] = {name: value for name, value in inner.items() if name in owner.model_fields}
        notes.differences(inner, defaults[part], {*owner.model_fields, VERSION_KEY}, f"{where}.{part}")
    mode = made["text"].get("tag_dropout_mode")
    if isinstance(mode, str):
        made["text"]["tag_dropout_mode"] = mode.replace(" ", "_")
    notes.differences(given, defaults, {*ConceptConfig.model_fields, "concept_stats"}, where)
    return build(ConceptConfig, made, where, notes, defaults)


def _import_list(
    source: str | os.PathLike[str] | Sequence[Any],
    field: str,
    what: str,
    import_item: Callable[[Data, str, Notes], Config],
) -> tuple[list[Config], list[Note]]:
    data = read_json(source, what) if isinstance(source, (str, os.PathLike)) else list(source)
    if not isinstance(data, list):
        raise ConfigError(f"{source} is not a {what}: it must be a list [...]", field)
    made: list[Config] = []
    notes = Notes()
    for index, item in enumerate(data):
        where = f"{field}[{index}]"
        if isinstance(item, Mapping):
            made.append(import_item(dict(item), where, notes))
        else:
            notes.add(where, item, "not an object", faulty=True)
    return made, notes.listed()
