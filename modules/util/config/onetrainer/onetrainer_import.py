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
from modules.util.config.faults import join_place, show, translate, type_at, unwrap
from modules.util.config.onetrainer.onetrainer_migrations import (
    TRAIN_FORMAT,
    upgrade_concept,
    upgrade_train,
)
from modules.util.config.overrides import merge
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.ModelType import ModelType
from modules.util.enum.Optimizer import Optimizer
from modules.util.errors import ConfigError, UserError
from modules.util.jsonio import read_json

_DEFAULTS = Path(__file__).parents[3] / "resources" / "onetrainer" / "defaults.json"

_OPTIMIZERS = {
    "ADAMW_8BIT": "ADAMW",
    "ADAM_8BIT": "ADAM",
    "ADAGRAD_8BIT": "ADAGRAD",
    "RMSPROP_8BIT": "RMSPROP",
    "SGD_8BIT": "SGD",
    "LAMB_8BIT": "LAMB",
    "LION_8BIT": "LION",
    "CAME_8BIT": "CAME",
    "AdEMAMix": "ADEMAMIX",
    "AdEMAMix_8BIT": "ADEMAMIX",
}
_USUAL_NUMBERS = ("beta1", "beta2", "eps", "weight_decay")
_OPTIMIZER_NUMBERS = {
    "ADAFACTOR": ("weight_decay",),
    "ADAGRAD": ("eps", "weight_decay"),
    "CAME": ("beta1", "beta2", "weight_decay"),
    "LION": ("beta1", "beta2", "weight_decay"),
    "RMSPROP": ("eps", "weight_decay", "momentum"),
    "SCHEDULE_FREE_SGD": ("eps", "weight_decay", "momentum"),
    "SGD": ("weight_decay", "momentum"),
    "TIGER": ("beta1", "weight_decay"),
}
"""Which of our optimizer fields an update rule has, where they are not the usual ones."""
_OPTIMIZER_PARAMS = {
    "ADAGRAD": ("lr_decay", "initial_accumulator_value"),
    "ADAM": ("amsgrad",),
    "ADAMW": ("amsgrad",),
    "PRODIGY": ("d0", "d_coef", "growth_rate", "safeguard_warmup"),
    "RMSPROP": ("alpha", "centered"),
    "SCHEDULE_FREE_ADAMW": ("r", "weight_lr_power"),
    "SCHEDULE_FREE_SGD": ("r", "weight_lr_power"),
    "SGD": ("nesterov", "dampening"),
}
"""Further arguments of update rules that mean the same here and there."""
_FORMATS = {
    "LEGACY_LORA": "LEGACY_LORA",
    "COMFY_LORA": "COMFY_LORA",
    "LEGACY_SAFETENSORS": "SAFETENSORS",
    "KOHYA_LORA": "KOHYA_LORA",
    "DIFFUSERS_LORA": "DIFFUSERS_LORA",
    "DIFFUSERS": "DIFFUSERS",
}
_DTYPES = {"TFLOAT_32": "FLOAT_32"}
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
_SPECIAL = {"optimizer", "output_model_format", "concepts", "samples", "secrets", "train_device", *_PARTS}
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


def import_onetrainer(path: str | os.PathLike[str]) -> tuple[TrainConfig, list[str]]:
    """Read a OneTrainer config with its concepts and samples.

    Concepts and samples are taken from the config or else from the files it names, looked for from the
    current folder and from the config's own; they end up in the config itself, in our format.

    Returns:
        The config, and what could not be carried over, one line each (values that differ from OneTrainer's
        defaults only).

    Raises:
        UserError: the file cannot be read or is not a OneTrainer config.
    """
    source = Path(path)
    data = read_json(source, "OneTrainer config")
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source} is not a OneTrainer config: it must be an object {{...}}")
    notes: list[str] = []
    version = data.get(VERSION_KEY, 0)
    if isinstance(version, int) and version > TRAIN_FORMAT:
        notes.append(f"{VERSION_KEY} = {version}: newer than the format known here, {TRAIN_FORMAT}")
    given = upgrade_train(data)
    full = merge(_defaults()["train"], given)
    made: Data = {}
    for name, value in full.items():
        if name in TrainConfig.model_fields and name not in _SPECIAL:
            made[name] = _carried(value)
    if "train_device" in given:
        made["train_device"] = given["train_device"]
    made["output_model_format"] = _output_format(full, notes)
    named = full.get("model_type")
    family = next((one for one in ModelType if one.value == named), TrainConfig().model_type)
    for part in family.parts:
        made[part] = _import_part(part, full, notes)
    made["optimizer"] = _import_optimizer(full["optimizer"], notes)
    _note_rest(given, notes)
    config = _build(TrainConfig, made, "", notes)
    _import_lists(config, full, source.parent, notes)
    return config, notes


def import_onetrainer_concepts(
    source: str | os.PathLike[str] | Sequence[Any],
) -> tuple[list[ConceptConfig], list[str]]:
    """A OneTrainer concept list, from a file or as plain data, and what could not be carried over."""
    return _import_list(source, "concepts", "OneTrainer concept list", _import_concept)


def import_onetrainer_samples(
    source: str | os.PathLike[str] | Sequence[Any], model_type: ModelType = ModelType.STABLE_DIFFUSION_15
) -> tuple[list[SampleConfig], list[str]]:
    """A OneTrainer sample list, from a file or as plain data, and what could not be carried over.

    Args:
        source: path of the JSON file, or the list.
        model_type: decides the size, steps and guidance of samples that do not give them.
    """

    def import_sample(data: Data, where: str, notes: list[str]) -> SampleConfig:
        defaults = _defaults()["sample"] | _defaults()["sample_by_model_type"].get(model_type.value, {})
        data.pop(VERSION_KEY, None)
        full = defaults | data
        made = {name: value for name, value in full.items() if name in SampleConfig.model_fields}
        _note_differences(data, defaults, SampleConfig.model_fields, where, notes)
        return _build(SampleConfig, made, where, notes)

    return _import_list(source, "samples", "OneTrainer sample list", import_sample)


def import_onetrainer_list(
    path: str | os.PathLike[str],
) -> tuple[list[ConceptConfig] | list[SampleConfig], list[str]]:
    """A concept list or a sample list, whichever the file holds (samples have prompts)."""
    data = read_json(path, "OneTrainer list")
    if isinstance(data, list) and any(isinstance(item, Mapping) and "prompt" in item for item in data):
        return import_onetrainer_samples(data)
    return import_onetrainer_concepts(data if isinstance(data, list) else path)


# -- parts of a config -------------------------------------------------------------------------------------


def _carried(value: Any) -> Any:
    return _DTYPES.get(value, value) if isinstance(value, str) else value


def _output_format(full: Data, notes: list[str]) -> str:
    """Our name of the format; SAFETENSORS means whatever fits what is trained."""
    name = str(full["output_model_format"])
    if name == "SAFETENSORS":
        return "AUTO"
    if name not in _FORMATS:
        notes.append(f"output_model_format = {show(name)}: not offered; left to follow the training method")
    return _FORMATS.get(name, "AUTO")


def _import_part(part: str, full: Data, notes: list[str]) -> Data:
    given, defaults = full[part], _defaults()["train"][part]
    if not isinstance(given, Mapping):
        notes.append(f"{part} = {show(given)}: not an object")
        return {}
    owner, _ = unwrap(TrainConfig.model_fields[part].annotation)
    ours = owner.model_fields
    made = {name: _carried(value) for name, value in given.items() if name in ours}
    without_meaning = {"train_embedding", "guidance_scale", VERSION_KEY}
    if part != "transformer":
        without_meaning.add("attention_mask")
    if part == "vae":
        without_meaning |= {"train", "learning_rate", "gradient_checkpointing", "dropout_probability"}
        without_meaning |= {"stop_training_after", "stop_training_after_unit"}
    elif given.get("train") and given.get("stop_training_after_unit") != "NEVER":
        span = f"{given.get('stop_training_after')} {given.get('stop_training_after_unit')}"
        notes.append(f"{part}.stop_training_after = {span}: it is trained to the end")
    differing = {name: value for name, value in given.items() if not name.startswith("stop_training_after")}
    _note_differences(differing, defaults, {*ours, *without_meaning}, part, notes)
    return made


def _import_optimizer(given: Any, notes: list[str]) -> Data:
    if not isinstance(given, Mapping):
        notes.append(f"optimizer = {show(given)}: not an object")
        return {}
    theirs = str(given.get("optimizer"))
    name = _OPTIMIZERS.get(theirs, theirs)
    if name not in Optimizer.__members__:
        notes.append(
            f"optimizer.optimizer = {show(theirs)}: not offered; {Optimizer.ADAMW} with its own numbers"
        )
        return {}
    if theirs.endswith("_8BIT"):
        notes.append(f"optimizer.optimizer = {theirs}: its 8-bit states are not offered; {name} instead")
    defaults = _defaults()["train"]["optimizer"]
    numbers = _OPTIMIZER_NUMBERS.get(name, _USUAL_NUMBERS)
    params = {
        key: given[key]
        for key in _OPTIMIZER_PARAMS.get(name, ())
        if given.get(key) is not None and given[key] != defaults.get(key)
    }
    rest = {key: value for key, value in given.items() if value is not None}
    _note_differences(rest, defaults, {"optimizer", *numbers, *params, VERSION_KEY}, "optimizer", notes)
    return {"optimizer": name, "params": params, **{key: given.get(key) for key in numbers}}


def _note_rest(given: Data, notes: list[str]) -> None:
    """List what is set, differs from OneTrainer's default and is not ours."""
    defaults = _defaults()["train"]
    carried = {*TrainConfig.model_fields, *_SPECIAL, *_WITHOUT_MEANING, "cloud"}
    _note_differences(given, defaults, carried, "", notes)
    secrets = given.get("secrets")
    if isinstance(secrets, Mapping) and any(v for k, v in secrets.items() if k not in (VERSION_KEY, "cloud")):
        notes.append("secrets: never copied; enter the token in the settings")
    cloud = given.get("cloud")
    if isinstance(cloud, Mapping) and cloud.get("enabled"):
        notes.append("cloud: training on rented machines is not offered")


def _note_differences(
    given: Mapping[str, Any], defaults: Mapping[str, Any], carried: Any, where: str, notes: list[str]
) -> None:
    for name, value in given.items():
        if name in carried:
            continue
        place = join_place((name,), where)
        default = defaults.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            _note_differences(value, default, {VERSION_KEY, "uuid"}, place, notes)
        elif name not in defaults:
            notes.append(f"{place} = {show(value)}: unknown")
        elif value != default:
            notes.append(f"{place} = {show(value)}: not offered")


# -- lists -------------------------------------------------------------------------------------------------


def _import_lists(config: TrainConfig, full: Data, folder: Path, notes: list[str]) -> None:
    concepts = _inline_or_file(full, "concepts", "concept_file_name", folder, notes)
    if concepts is not None:
        config.concepts, found = import_onetrainer_concepts(concepts)
        notes.extend(found)
    samples = _inline_or_file(full, "samples", "sample_definition_file_name", folder, notes)
    if samples is not None:
        config.samples, found = import_onetrainer_samples(samples, config.model_type)
        notes.extend(found)


def _inline_or_file(full: Data, inline: str, file: str, folder: Path, notes: list[str]) -> Any:
    if full[inline] is not None:
        if isinstance(full[inline], list):
            return full[inline]
        notes.append(f"{inline} = {show(full[inline])}: not a list")
    name = full[file]
    if not isinstance(name, str) or not name:
        return None
    for path in (Path(name), folder / name):
        if path.is_file():
            return path
    notes.append(f"{file} = {show(name)}: there is no such file; import it later")
    return None


def _import_concept(data: Data, where: str, notes: list[str]) -> ConceptConfig:
    defaults = _defaults()["concept"]
    given = upgrade_concept(data)
    full = merge(defaults, given)
    made = {name: value for name, value in full.items() if name in ConceptConfig.model_fields}
    for part in ("image", "text"):
        owner, _ = unwrap(ConceptConfig.model_fields[part].annotation)
        inner = full[part] if isinstance(full[part], Mapping) else {}
        made[part] = {name: value for name, value in inner.items() if name in owner.model_fields}
        _note_differences(inner, defaults[part], {*owner.model_fields, VERSION_KEY}, f"{where}.{part}", notes)
    mode = made["text"].get("tag_dropout_mode")
    if isinstance(mode, str):
        made["text"]["tag_dropout_mode"] = mode.replace(" ", "_")
    _note_differences(given, defaults, {*ConceptConfig.model_fields, "concept_stats"}, where, notes)
    return _build(ConceptConfig, made, where, notes)


def _import_list(
    source: str | os.PathLike[str] | Sequence[Any],
    field: str,
    what: str,
    import_item: Callable[[Data, str, list[str]], Config],
) -> tuple[list[Config], list[str]]:
    data = read_json(source, what) if isinstance(source, (str, os.PathLike)) else list(source)
    if not isinstance(data, list):
        raise ConfigError(f"{source} is not a {what}: it must be a list [...]", field)
    made: list[Config] = []
    notes: list[str] = []
    for index, item in enumerate(data):
        where = f"{field}[{index}]"
        if isinstance(item, Mapping):
            made.append(import_item(dict(item), where, notes))
        else:
            notes.append(f"{where} = {show(item)}: not an object")
    return made, notes


# -- building with whatever is usable ----------------------------------------------------------------------


def _build(kind: type[Config], data: Data, where: str, notes: list[str]) -> Config:
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
    kind: type[BaseConfig], data: Data, place: tuple[int | str, ...], fault: ConfigError, notes: list[str]
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
    mended = _mended(type_at(kind, place), container[name])
    if mended is None:
        notes.append(f"{fault.field} = {show(container.pop(name))} left at the default: {fault.message}")
    else:
        container[name] = mended


def _mended(annotation: Any, value: Any) -> int | float | None:
    """A number written as text or as a float, as the type it should have; None if it is no such thing."""
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
