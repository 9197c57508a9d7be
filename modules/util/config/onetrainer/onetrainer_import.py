"""Reading configs, concept lists and sample lists of OneTrainer (formats 0 to 11, newer as far as known).

A key that is missing in a file has OneTrainer's default, not ours. Whatever is set to something that this
program does not do is listed, so that nobody trains something else than they think.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from modules.util.config.BaseConfig import VERSION_KEY, BaseConfig
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.faults import raise_all, show, translate, type_at, unwrap
from modules.util.config.load import find_problems
from modules.util.config.onetrainer.layers_import import import_layers
from modules.util.config.onetrainer.Notes import Note, Notes
from modules.util.config.onetrainer.onetrainer_migrations import (
    TRAIN_FORMAT,
    upgrade_concept,
    upgrade_train,
)
from modules.util.config.onetrainer.optimizer_import import import_optimizer
from modules.util.config.overrides import merge
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import PeftType, TrainingMethod
from modules.util.enum.ModelType import ModelType
from modules.util.errors import ConfigError, UnsupportedError, UserError
from modules.util.jsonio import read_json
from modules.util.program_files import RESOURCES

_DEFAULTS = RESOURCES / "onetrainer" / "defaults.json"

_FORMATS = {
    "LEGACY_LORA": "LEGACY_LORA",
    "COMFY_LORA": "COMFY_LORA",
    "LEGACY_SAFETENSORS": "SAFETENSORS",
    "ORIGINAL_SINGLE_FILE": "SAFETENSORS",
    "ORIGINAL_TRANSFORMER": "SAFETENSORS",
    "KOHYA_LORA": "KOHYA_LORA",
    "DIFFUSERS_LORA": "DIFFUSERS_LORA",
    "DIFFUSERS": "DIFFUSERS",
}
_DTYPES = {"TFLOAT_32": "FLOAT_32"}
_WEIGHTS = {
    "INT_W8A8": ("INT_8", "only the weights have 8 bits, computation uses more"),
    "FLOAT_W8A8": ("FLOAT_8", "only the weights have 8 bits, computation uses more"),
    "GGUF": ("NFLOAT_4", "take the plain weights as the model, not a .gguf file"),
    "GGUF_A8_FLOAT": ("NFLOAT_4", "take the plain weights as the model, not a .gguf file"),
    "GGUF_A8_INT": ("NFLOAT_4", "take the plain weights as the model, not a .gguf file"),
}
"""Number formats of weights that are not offered, the nearest one, and what else is different."""
_BACKENDS = {"XFORMERS": "xformers", "FLASH": "flash", "FLASH_ATTN": "flash", "CUDNN": "_native_cudnn"}
_USUAL_ATTENTION = ("SDP", "DEFAULT", "TORCH")
_WITH_BACKENDS = ("FLUX_DEV_1", "FLUX_SCHNELL_1", "FLUX_2", "CHROMA_1", "QWEN", "Z_IMAGE")
"""Families whose denoiser can be given another attention kernel."""
_PARTS = ("unet", "transformer", "text_encoder", "text_encoder_2", "text_encoder_3", "vae")
_OTHER_PARTS = (
    "prior",
    "unconditional_transformer",
    "text_encoder_4",
    "effnet_encoder",
    "decoder",
    "decoder_text_encoder",
    "decoder_vqgan",
)
_LAYERS = {"layer_filter", "layer_filter_preset", "layer_filter_regex"}
_SPECIAL = {
    *("optimizer", "output_model_format", "concepts", "samples", "secrets", "train_device", "lora_rank"),
    *("attention_mechanism", "compile", "oft_block_size", "lokr_dim"),
    *_LAYERS,
    *_PARTS,
}
_OF_KINDS = {"OFT_2": "oft_", "LOKR": "lokr_"}
"""Prefixes of settings that only these kinds of adapters have."""
_WITHOUT_MEANING = {
    "optimizer_defaults",
    "debug_dir",
    "clear_cache_before_training",
    "temp_device",
    VERSION_KEY,
    *_OTHER_PARTS,
}

Config = TypeVar("Config", bound=BaseConfig)
Data = dict[str, Any]


@cache
def _defaults() -> Mapping[str, Any]:
    data: Mapping[str, Any] = read_json(_DEFAULTS, "table of OneTrainer's defaults")
    return data


def import_onetrainer(path: str | os.PathLike[str]) -> tuple[TrainConfig, list[Note]]:
    """Read a OneTrainer config with its concepts and samples.

    Concepts and samples are taken from the config or else from the files it names, looked for from the
    current folder and from the config's own; they end up in the config itself, in our format.

    Returns:
        The config, and what could not be carried over, one line each (values that differ from OneTrainer's
        defaults only), what changes the trained weights first.

    Raises:
        UserError: the file cannot be read, is not a OneTrainer config, or asks for a model family, a way of
            training, a kind of adapter or an optimizer that is not offered.
    """
    source = Path(path)
    data = read_json(source, "OneTrainer config")
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source} is not a OneTrainer config: it must be an object {{...}}")
    notes = Notes()
    version = data.get(VERSION_KEY, 0)
    if isinstance(version, int) and version > TRAIN_FORMAT:
        notes.add(VERSION_KEY, f" = {version}: newer than the format known here, {TRAIN_FORMAT}")
    given = upgrade_train(data)
    full = merge(_defaults()["train"], given)
    family, optimizer = _offered(full, notes)
    made: Data = {
        name: _carried(value)
        for name, value in full.items()
        if name in TrainConfig.model_fields and name not in _SPECIAL
    }
    if "train_device" in given:
        made["train_device"] = given["train_device"]
    made["output_model_format"] = _output_format(full, notes)
    for part in family.parts:
        made[part] = _import_part(part, full, notes)
    made |= {"optimizer": optimizer, "lora_rank": _rank(full), **import_layers(full, family, notes)}
    made |= _acceleration(full, family, notes)
    _note_rest(given, notes)
    config = _build(TrainConfig, made, "", notes)
    _note_rounding(config, full, notes)
    _import_lists(config, full, source.parent, notes)
    _leave_out_what_contradicts(config, notes)
    return config, notes.listed()


def _offered(full: Data, notes: Notes) -> tuple[ModelType, Data]:
    """The model family and our optimizer section.

    Raises:
        UserError: what is asked for is not offered; several faults together.
    """
    faults: list[UserError] = []
    named, method, kind = full["model_type"], full["training_method"], full["peft_type"]
    family = next((one for one in ModelType if one.value == named), None)
    for field, value, offered in (
        ("model_type", named, ModelType),
        ("training_method", method, TrainingMethod),
        ("peft_type", kind if method == "LORA" else PeftType.LORA.value, PeftType),
    ):
        if not isinstance(value, str) or value not in offered.__members__:
            hint = f"choose another one in OneTrainer and export the config again: {', '.join(offered.__members__)}"
            faults.append(UnsupportedError(f"{show(value)} is not offered", field, hint))
    optimizer: Data = {}
    try:
        optimizer = import_optimizer(full["optimizer"], _defaults()["train"]["optimizer"], notes)
    except UserError as fault:
        faults.append(fault)
    raise_all(faults, f"this OneTrainer config asks for {len(faults)} things that are not offered")
    assert family is not None  # its fault has been raised
    return family, optimizer


def import_onetrainer_concepts(
    source: str | os.PathLike[str] | Sequence[Any],
) -> tuple[list[ConceptConfig], list[Note]]:
    """A OneTrainer concept list, from a file or as plain data, and what could not be carried over."""
    return _import_list(source, "concepts", "OneTrainer concept list", _import_concept)


def import_onetrainer_samples(
    source: str | os.PathLike[str] | Sequence[Any], model_type: ModelType | None = None
) -> tuple[list[SampleConfig], list[Note]]:
    """A OneTrainer sample list, from a file or as plain data, and what could not be carried over.

    Args:
        source: path of the JSON file, or the list.
        model_type: decides the size, steps and guidance of samples that do not give them; ours by default.
    """

    family = (model_type or TrainConfig().model_type).value

    def import_sample(data: Data, where: str, notes: Notes) -> SampleConfig:
        defaults = _defaults()["sample"] | _defaults()["sample_by_model_type"].get(family, {})
        data.pop(VERSION_KEY, None)
        full = defaults | data
        made = {name: value for name, value in full.items() if name in SampleConfig.model_fields}
        notes.differences(data, defaults, SampleConfig.model_fields, where)
        return _build(SampleConfig, made, where, notes)

    return _import_list(source, "samples", "OneTrainer sample list", import_sample)


def import_onetrainer_list(
    path: str | os.PathLike[str],
) -> tuple[list[ConceptConfig] | list[SampleConfig], list[Note]]:
    """A concept list or a sample list, whichever the file holds (samples have prompts)."""
    data = read_json(path, "OneTrainer list")
    if isinstance(data, list) and any(isinstance(item, Mapping) and "prompt" in item for item in data):
        return import_onetrainer_samples(data)
    return import_onetrainer_concepts(data if isinstance(data, list) else path)


# -- parts of a config -------------------------------------------------------------------------------------


def _carried(value: Any) -> Any:
    return _DTYPES.get(value, value) if isinstance(value, str) else value


def _output_format(full: Data, notes: Notes) -> str:
    """Our name of the format; SAFETENSORS means whatever fits what is trained."""
    name = str(full["output_model_format"])
    if name == "SAFETENSORS":
        return "AUTO"
    if name not in _FORMATS:
        notes.add("output_model_format", f" = {show(name)}: not offered; left to follow the training method")
    return _FORMATS.get(name, "AUTO")


def _rank(full: Data) -> Any:
    """The rank of an adapter, which is the size of the blocks of OFT and has a name of its own with LoKr."""
    return full[{"OFT_2": "oft_block_size", "LOKR": "lokr_dim"}.get(str(full["peft_type"]), "lora_rank")]


def _acceleration(full: Data, family: ModelType, notes: Notes) -> Data:
    """Compiling and another attention kernel, which are accelerators here."""
    shared: list[Data] = []
    attention = str(full["attention_mechanism"])
    if attention in _BACKENDS and family.value in _WITH_BACKENDS:
        shared.append({"name": "attention_backend", "params": {"backend": _BACKENDS[attention]}})
    elif attention not in _USUAL_ATTENTION:
        notes.add("attention_mechanism", f" = {show(attention)}: not offered for {family.label}")
    if full["compile"] is True:
        shared.append({"name": "torch_compile", "params": {}})
    return {"acceleration": {"shared": shared}} if shared else {}


def _import_part(part: str, full: Data, notes: Notes) -> Data:
    given, defaults = full[part], _defaults()["train"][part]
    if not isinstance(given, Mapping):
        notes.add(part, f" = {show(given)}: not an object")
        return {}
    owner, _ = unwrap(TrainConfig.model_fields[part].annotation)
    ours = owner.model_fields
    made = {name: _carried(value) for name, value in given.items() if name in ours}
    made["weight_dtype"] = _weights(f"{part}.weight_dtype", made["weight_dtype"], notes)
    without_meaning = {"train_embedding", "guidance_scale", VERSION_KEY}
    if part != "transformer":
        without_meaning.add("attention_mask")
    if part == "vae":
        without_meaning |= {"train", "learning_rate", "gradient_checkpointing", "dropout_probability"}
        without_meaning |= {"stop_training_after", "stop_training_after_unit"}
    elif given.get("train") and given.get("stop_training_after_unit") != "NEVER":
        span = f"{given.get('stop_training_after')} {given.get('stop_training_after_unit')}"
        notes.add(f"{part}.stop_training_after", f" = {span}: it is trained to the end")
    differing = {name: value for name, value in given.items() if not name.startswith("stop_training_after")}
    notes.differences(differing, defaults, {*ours, *without_meaning}, part)
    return made


def _weights(place: str, value: Any, notes: Notes) -> Any:
    """The number format of weights; compressed ones are kept as they are without."""
    name = value.removesuffix("_COMPRESSED") if isinstance(value, str) else ""
    if name not in _WEIGHTS:
        return name or value
    ours, difference = _WEIGHTS[name]
    notes.add(place, f" = {value}: {ours} instead; {difference}")
    return ours


def _note_rest(given: Data, notes: Notes) -> None:
    """List what is set, differs from OneTrainer's default and is not ours."""
    defaults = _defaults()["train"]
    carried = {*TrainConfig.model_fields, *_SPECIAL, *_WITHOUT_MEANING, "cloud"}
    idle = tuple(prefix for kind, prefix in _OF_KINDS.items() if given.get("peft_type") != kind)
    notes.differences({k: v for k, v in given.items() if not k.startswith(idle)}, defaults, carried, "")
    secrets = given.get("secrets")
    if isinstance(secrets, Mapping) and any(v for k, v in secrets.items() if k not in (VERSION_KEY, "cloud")):
        notes.add("secrets", ": never copied; enter the token in the settings")
    cloud = given.get("cloud")
    if isinstance(cloud, Mapping) and cloud.get("enabled"):
        notes.add("cloud", ": training on rented machines is not offered")


def _note_rounding(config: TrainConfig, full: Data, notes: Notes) -> None:
    """Stochastic rounding, which OneTrainer has switched on, acts on weights of 16 bits that are trained."""
    given = full["optimizer"]
    if not isinstance(given, Mapping) or given.get("stochastic_rounding") is not True:
        return
    trained = [part for part in config.model_type.parts if getattr(getattr(config, part), "train", False)]
    if config.training_method is TrainingMethod.LORA:
        places = {"lora_weight_dtype": config.lora_weight_dtype}
    else:
        places = {f"{part}.weight_dtype": getattr(config, part).weight_dtype for part in trained}
    for place, dtype in places.items():
        if dtype.value == "BFLOAT_16":
            notes.add(
                place, " = BFLOAT_16: stochastic rounding is not offered; small steps get lost, use FLOAT_32"
            )


def _leave_out_what_contradicts(config: TrainConfig, notes: Notes) -> None:
    """The step in the backward pass goes with fewer settings here; other contradictions are listed to be solved."""
    errors = find_problems(config).errors
    if config.optimizer.fused_back_pass and any("fused_back_pass" in error.message for error in errors):
        config.optimizer.fused_back_pass = False
        notes.add(
            "optimizer.fused_back_pass", " = true: omitted, it cannot be combined with other settings here"
        )
        errors = find_problems(config).errors
    for error in errors:
        notes.add(error.field or "", f": {error.message}; change it before you start")


# -- lists -------------------------------------------------------------------------------------------------


def _import_lists(config: TrainConfig, full: Data, folder: Path, notes: Notes) -> None:
    concepts = _inline_or_file(full, "concepts", "concept_file_name", folder, notes)
    if concepts is not None:
        config.concepts, found = import_onetrainer_concepts(concepts)
        notes.extend(found)
    samples = _inline_or_file(full, "samples", "sample_definition_file_name", folder, notes)
    if samples is not None:
        config.samples, found = import_onetrainer_samples(samples, config.model_type)
        notes.extend(found)


def _inline_or_file(full: Data, inline: str, file: str, folder: Path, notes: Notes) -> Any:
    if full[inline] is not None:
        if isinstance(full[inline], list):
            return full[inline]
        notes.add(inline, f" = {show(full[inline])}: not a list")
    name = full[file]
    if not isinstance(name, str) or not name:
        return None
    for path in (Path(name), folder / name):
        if path.is_file():
            return path
    notes.add(file, f" = {show(name)}: there is no such file; import it later")
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
    return _build(ConceptConfig, made, where, notes)


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
            notes.add(where, f" = {show(item)}: not an object")
    return made, notes.listed()


# -- building with whatever is usable ----------------------------------------------------------------------


def _build(kind: type[Config], data: Data, where: str, notes: Notes) -> Config:
    """Make a config of the usable values: numbers written as text are read, other faults noted and left out.

    Raises:
        UserError: leaving out a faulty value did not remove the fault (a defect of this importer).
    """
    for _ in range(len(data) + 100):
        try:
            made = kind.model_validate(data)
        except ValidationError as error:
            details = error.errors(include_url=False)
            for detail, fault in zip(details, translate(error, kind, where), strict=True):
                _mend_or_drop(kind, data, detail["loc"], fault, notes)
            continue
        if isinstance(made, TrainConfig):
            made.rlhf_dpo_ref_mode = made.effective_dpo_ref_mode()
        return made
    raise UserError(f"the {kind.WHAT} cannot be imported", where or None)


def _mend_or_drop(
    kind: type[BaseConfig], data: Data, place: tuple[int | str, ...], fault: ConfigError, notes: Notes
) -> None:
    container: Any = data
    known = [part for part in place if isinstance(part, str)]
    for part in known[:-1]:
        if not isinstance(container.get(part), dict):
            known = known[: known.index(part) + 1]
            break
        container = container[part]
    name = known[-1]
    if name not in container:
        return
    converted = _converted(type_at(kind, place), container[name])
    if converted is None:
        notes.add(fault.field or name, f" = {show(container.pop(name))} left at the default: {fault.message}")
    else:
        container[name] = converted


def _converted(annotation: Any, value: Any) -> int | float | None:
    """A number written as text or as a float, as the type it should have; None if it is neither."""
    plain, _ = unwrap(annotation)
    if plain not in (int, float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if plain is float:
        return number if isinstance(value, str) else None
    return int(number) if number.is_integer() and not isinstance(value, int) else None
