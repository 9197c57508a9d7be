"""Reads configs from files and texts, and checks that their settings are consistent."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from modules.util.config.BaseConfig import VERSION_KEY
from modules.util.config.faults import raise_all
from modules.util.config.overrides import merge, override
from modules.util.config.rules import (  # noqa: F401 - registers their rules
    adapter_rules,
    embedding_rules,
    family_rules,
    mask_rules,
    memory_rules,
    online_rules,
    optimizer_rules,
    preference_rules,
    sample_rules,
)
from modules.util.config.rules.idle import idle_settings
from modules.util.config.rules.rules import Problems, run_rules
from modules.util.config.section.OlderNames import OlderNames
from modules.util.config.TrainConfig import IMPORT_IT, TrainConfig, refuse_other_programs
from modules.util.errors import ConfigError, UserError
from modules.util.jsonio import read_json
from modules.util.owned_files import shown

Config = TypeVar("Config", bound=TrainConfig)
_YAML = "a YAML file, like configs of ai-toolkit"
_OTHER_FORMATS = {".toml": "a TOML file, like configs of kohya", ".yaml": _YAML, ".yml": _YAML}


def find_problems(config: TrainConfig) -> Problems:
    """Find values that contradict each other, and those that are probably not intended."""
    return run_rules(config)


def check_config(config: TrainConfig) -> list[str]:
    """Raise the faults of ``find_problems`` (a single one as it is, several together); return the warnings, and the
    settings that were set but have no effect.
    """
    problems = find_problems(config)
    raise_all(problems.errors, f"the config has {len(problems.errors)} faults")
    idle = idle_settings(config, [warning.field for warning in problems.warnings])
    return [str(warning) for warning in (*problems.warnings, *idle)]


def read_config(data: Mapping[str, Any]) -> TrainConfig:
    """As ``TrainConfig.from_dict``, but the values must also be consistent.

    Raises:
        UserErrors: several faults. A single one is raised as it is: ConfigError for a bad value,
            UnsupportedError for an unsupported combination.
    """
    return _read(data, TrainConfig, [], True)


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a config file, change it by ``name=value`` texts, and check everything.

    Raises:
        UserError: the file cannot be read; otherwise as ``read_config``.
    """
    return load_layered(None, path, overrides)


def load_layered(
    preset_path: str | os.PathLike[str] | None,
    config_path: str | os.PathLike[str] | None,
    overrides: Sequence[str] = (),
    check: bool = True,
    model: type[Config] = TrainConfig,  # type: ignore[assignment]
    notes: list[str] | None = None,
) -> Config:
    """Combine defaults, a preset, a config and ``name=value`` texts. Later ones take precedence, key by key.

    Preset and config may each hold any part of the settings and may have different versions. A preset must
    state its version, because those of other programs look the same but assume other defaults.

    Args:
        check: whether the values must also be consistent.
        notes: receives a line for each name that is still read but has no effect.

    Raises:
        UserErrors: all faults of the texts and values. A single fault is raised as it is.
    """
    merged: dict[str, Any] = {}
    for path in (preset_path, config_path):
        if path is not None:
            _refuse_other_formats(Path(path))
            data = read_json(path, model.WHAT)
            if not isinstance(data, Mapping):
                raise ConfigError(f"{path} is not a config: it must be an object {{...}}")
            refuse_other_programs(data)
            built_in = Path(path).name.startswith("#")
            if VERSION_KEY not in data and (path == preset_path or built_in):
                raise ConfigError(
                    f"the preset {path} does not say its format; it may be a preset of OneTrainer",
                    VERSION_KEY,
                    (
                        "convert a preset of OneTrainer with scripts/import_config.py; in a preset of your own, add "
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


def _refuse_other_formats(path: Path) -> None:
    """Raise ``ConfigError`` for a file whose name is that of a config of another program."""
    name = path.suffix.lower()
    if name in _OTHER_FORMATS and path.is_file():
        raise ConfigError(f"{shown(path)} is {_OTHER_FORMATS[name]}; this program reads JSON", None, IMPORT_IT)


def _read(data: Mapping[str, Any], model: type[Config], known: Sequence[UserError], check: bool) -> Config:
    """Build the config unless there are faults: ``known`` ones, bad values, or values that are inconsistent."""
    config, faults, wrong = model.read(data)
    faults = [*known, *faults, *(run_rules(config, ignoring=wrong).errors if check else ())]
    raise_all(faults, f"the config has {len(faults)} faults")
    return config
