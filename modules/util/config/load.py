"""Reading a config from files and texts, and checking that its settings fit each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from modules.util.config.BaseConfig import VERSION_KEY
from modules.util.config.faults import raise_all
from modules.util.config.overrides import merge, override
from modules.util.config.rules import (  # noqa: F401 - registers their rules
    embedding_rules,
    family_rules,
    mask_rules,
    memory_rules,
    online_rules,
    optimizer_rules,
)
from modules.util.config.rules.rules import Problems, run_rules
from modules.util.config.section.OlderNames import OlderNames
from modules.util.config.TrainConfig import TrainConfig, refuse_other_programs
from modules.util.errors import ConfigError, UserError
from modules.util.jsonio import read_json

Config = TypeVar("Config", bound=TrainConfig)


def find_problems(config: TrainConfig) -> Problems:
    """Values that contradict each other, and those that are probably not meant."""
    return run_rules(config)


def check_config(config: TrainConfig) -> list[str]:
    """Raise what ``find_problems`` finds wrong (one fault as itself, several together); return warnings."""
    problems = find_problems(config)
    raise_all(problems.errors, f"the config has {len(problems.errors)} faults")
    return [str(warning) for warning in problems.warnings]


def read_config(data: Mapping[str, Any], model: type[Config] = TrainConfig) -> Config:  # type: ignore[assignment]
    """As ``from_dict`` of the class, and the values have to fit each other.

    Raises:
        UserErrors: several faults; a single one is raised as itself: ConfigError for a bad value, UnsupportedError
        for a combination that is not supported.
    """
    return _read(data, model, [], True)


def load_config(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    model: type[Config] = TrainConfig,  # type: ignore[assignment]
) -> Config:
    """Read a config file, change it by ``name=value`` texts, and check everything.

    Raises:
        UserError: the file cannot be read; otherwise as ``read_config``.
    """
    return load_layered(None, path, overrides, model=model)


def load_layered(
    preset_path: str | os.PathLike[str] | None,
    config_path: str | os.PathLike[str] | None,
    overrides: Sequence[str] = (),
    check: bool = True,
    model: type[Config] = TrainConfig,  # type: ignore[assignment]
    notes: list[str] | None = None,
) -> Config:
    """Defaults, then a preset, then a config, then ``name=value`` texts: later ones win, key by key.

    Preset and config may each hold any part of the settings and may be of different versions; a preset has to name
    its own, since those of other programs look the same but mean other defaults.

    Args:
        check: whether the values have to fit each other too.
        model: the config class.
        notes: gets a line for each name that is still read and changes nothing.

    Raises:
        UserErrors: everything that is wrong with the texts and the values; a single fault is raised as itself.
    """
    merged: dict[str, Any] = {}
    for path in (preset_path, config_path):
        if path is not None:
            data = read_json(path, model.WHAT)
            if not isinstance(data, Mapping):
                raise ConfigError(f"{path} is not a config: it must be an object {{...}}")
            refuse_other_programs(data)
            built_in = Path(path).name.startswith("#")
            if VERSION_KEY not in data and (path == preset_path or built_in):
                raise ConfigError(
                    f"the preset {path} does not say its format, as presets of OneTrainer do not",
                    VERSION_KEY,
                    (
                        "convert those with scripts/import_config.py; in a preset of your own, add "
                        f'"{VERSION_KEY}": {model.VERSION}'
                    ),
                )
            merged = merge(merged, model.upgrade(data))
    merged, faults = override(model, merged, overrides)
    made = _read({VERSION_KEY: model.VERSION, **merged}, model, faults, check)
    if notes is not None:
        older = {name: value for name, value in merged.items() if name in OlderNames.model_fields}
        notes += OlderNames.from_dict(older).idle()
    return made


def _read(data: Mapping[str, Any], model: type[Config], known: Sequence[UserError], check: bool) -> Config:
    """The config, unless there are faults: ``known`` ones, bad values, or values that do not fit each other."""
    config, faults, wrong = model.read(data)
    faults = [*known, *faults, *(run_rules(config, ignoring=wrong).errors if check else ())]
    raise_all(faults, f"the config has {len(faults)} faults")
    return config
